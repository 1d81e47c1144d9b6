"""Files that get their name only when they are complete; shared by all stores."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import Any, Protocol, Self

from lakehouse.core.storage.protocol import OutputFile


class Sink(Protocol):
    """Where bytes are collected before they get a name."""

    def write(self, data: Any, /) -> Any: ...


class AtomicOutput:
    """Collect bytes in a sink, then `publish` them under their name on `close`, or `discard` them on `abort`.

    Not an `io.IOBase`: its finalizer would close, and thereby publish, a half-written file that went out of scope.
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
        """Return False: the bytes can be read under their name after `close`."""
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
        # Arrow's buffers call their bytes signed, which obstore refuses.
        view = memoryview(data).cast("B")
        self._sink.write(view)
        self._position += view.nbytes
        return view.nbytes

    def tell(self) -> int:
        """Return the number of bytes written."""
        return self._position

    def flush(self) -> None:
        """Do nothing: bytes matter to others only once the file has its name."""

    def close(self) -> None:
        """Publish the file under its name; leave nothing behind if that fails. Closing twice is harmless."""
        if self._closed:
            return
        self._closed = True
        try:
            self._publish()
        except BaseException:
            self._discard()
            raise

    def abort(self) -> None:
        """Throw the bytes away; harmless after `close`."""
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
    """Pass everything on to another output; what a wrapping store adds goes into `close`."""

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
        """Pass on."""
        self.inner.flush()

    def close(self) -> None:
        """Publish the file under its name."""
        self.inner.close()

    def abort(self) -> None:
        """Throw the bytes away."""
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
