"""A TCP proxy on a free port of 127.0.0.1 that cuts the connections which pass through it."""

from __future__ import annotations

import random
import selectors
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field

from tests.support.postgresql import HOST

_BLOCK = 1 << 16
_WAIT_S = 0.2

#: Returns the number of bytes from the server after which a connection is cut, from the number of the connection;
#: None to leave it open.
CutAfter = Callable[[int], int | None]


@dataclass
class Proxy:
    """A running proxy.

    Attributes:
        port: The port to connect to.
        server: Host and port of the server behind the proxy.
        cut_after: Decides where a connection is cut; None to cut none.
        accepted: The number of connections that were accepted.
        cuts: The number of connections that `cut_after` has cut.
        refuses: Whether new connections are closed at once, as if the server were unreachable.
    """

    port: int
    server: tuple[str, int]
    cut_after: CutAfter | None = None
    accepted: int = 0
    cuts: int = 0
    refuses: bool = False
    _open: set[socket.socket] = field(default_factory=set)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def address(self) -> str:
        """Host and port of the proxy."""
        return f"{HOST}:{self.port}"

    def cut_all(self) -> int:
        """Cut all open connections and return their number."""
        with self._lock:
            clients = list(self._open)
        for client in clients:
            _cut(client)
        return len(clients)

    def serve(self, client: socket.socket, number: int) -> None:
        """Copy bytes in both directions until one side closes or the connection is cut."""
        limit = None if self.cut_after is None else self.cut_after(number)
        try:
            upstream = socket.create_connection(self.server, timeout=30)
        except OSError:
            _cut(client)
            return
        with self._lock:
            self._open.add(client)
        try:
            if self._copy(client, upstream, limit):
                self.cuts += 1
        except (OSError, ValueError):
            # One side was closed or cut while the other was read.
            pass
        finally:
            with self._lock:
                self._open.discard(client)
            _cut(client)
            _cut(upstream)

    def _copy(self, client: socket.socket, upstream: socket.socket, limit: int | None) -> bool:
        """Return whether the limit has ended the connection."""
        received = 0
        with selectors.DefaultSelector() as ready:
            ready.register(client, selectors.EVENT_READ, upstream)
            ready.register(upstream, selectors.EVENT_READ, client)
            while True:
                for key, _ in ready.select(_WAIT_S):
                    data = key.fileobj.recv(_BLOCK)  # type: ignore[union-attr]
                    if not data:
                        return False
                    if key.fileobj is upstream:
                        if limit is not None and received + len(data) >= limit:
                            # The client gets a part of a reply, and then no more.
                            client.sendall(data[: limit - received])
                            return True
                        received += len(data)
                    key.data.sendall(data)
                if client.fileno() < 0:
                    return False


@contextmanager
def proxy_to(address: str, cut_after: CutAfter | None = None, port: int = 0) -> Iterator[Proxy]:
    """Run a proxy in front of `host:port` for the time of a `with` block."""
    host, _, server_port = address.rpartition(":")
    listener = socket.create_server((HOST, port))
    proxy = Proxy(port=listener.getsockname()[1], server=(host, int(server_port)), cut_after=cut_after)

    def accept() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            proxy.accepted += 1
            if proxy.refuses:
                _cut(client)
            else:
                threading.Thread(target=proxy.serve, args=(client, proxy.accepted), daemon=True).start()

    acceptor = threading.Thread(target=accept, daemon=True)
    acceptor.start()
    try:
        yield proxy
    finally:
        with suppress(OSError):
            listener.shutdown(socket.SHUT_RDWR)
        listener.close()
        acceptor.join(10)
        proxy.cut_all()


def random_cuts(seed: int, most: int) -> CutAfter:
    """Return a rule that cuts each connection after a random number of bytes, at most `most`."""
    choice = random.Random(seed)
    return lambda _: choice.randrange(1, most)


def _cut(connection: socket.socket) -> None:
    """Close a connection at once; its other side gets a reset."""
    with suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
    with suppress(OSError):
        connection.shutdown(socket.SHUT_RDWR)
    with suppress(OSError):
        connection.close()
