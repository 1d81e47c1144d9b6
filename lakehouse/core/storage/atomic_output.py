"""Output files that become visible only when they are complete; shared by all stores."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from lakehouse.core.storage.protocol import OutputFile


class Sink(Protocol):
    """A target for the bytes of a file that is not yet visible."""

    def write(self, data: Any, /) -> Any: ...


class AtomicOutput:
    """Write bytes to a sink; `close` publishes the file under its name, `abort` discards it.

    The class is not an `io.IOBase`: the finalizer of that class would close, and so publish, a partly written file.
    """

    def __init__(self, sink: Sink, publish: Callable[[], None], discard: Callable[[], None]) -> None:
        self._sink = sink
        self._publish = publish
        self._discard = discard
        self._position = 0
        self._closed = False

    @property
    def closed(self) -> bool:
        """Whether the file was published or discarded."""
        return self._closed

    def readable(self) -> bool:
        """Return False: the file can be read after `close` only."""
        return False

    def writable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return False: bytes are written once, in order."""
        return False

    def write(self, data: Any, /) -> int:
        """Append any bytes-like object and return its length in bytes."""
        if self._closed:
            raise ValueError("write to a closed output file")
        # Arrow's buffers have signed bytes, which obstore refuses.
        view = memoryview(data).cast("B")
        self._sink.write(view)
        self._position += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._position

    def flush(self) -> None:
        """Do nothing, because readers get no bytes before the file is published."""

    def close(self) -> None:
        """Publish the file under its name, or discard it if that fails. A second call has no effect."""
        if self._closed:
            return
        self._closed = True
        try:
            self._publish()
        except BaseException:
            self._discard()
            raise

    def abort(self) -> None:
        """Discard the bytes; no effect after `close`."""
        if not self._closed:
            self._closed = True
            self._discard()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()


class PassingOutput:
    """Delegate to another output. Wrapper stores override `close`."""

    def __init__(self, inner: OutputFile) -> None:
        self.inner = inner

    @property
    def closed(self) -> bool:
        """Whether the inner file was published or discarded."""
        return self.inner.closed

    def write(self, data: Any, /) -> int:
        """Append any bytes-like object and return its length in bytes."""
        return self.inner.write(data)

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self.inner.tell()

    def flush(self) -> None:
        """Flush the inner output."""
        self.inner.flush()

    def close(self) -> None:
        """Publish the file under its name."""
        self.inner.close()

    def abort(self) -> None:
        """Discard the bytes."""
        self.inner.abort()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None, /
    ) -> None:
        if kind is None:
            self.close()
        else:
            self.abort()
