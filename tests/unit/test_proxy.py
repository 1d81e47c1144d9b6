"""The proxy of the tests copies bytes, cuts connections and refuses new ones."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.postgresql import HOST
from tests.support.proxy import proxy_to, random_cuts


@pytest.fixture
def echo() -> Iterator[str]:
    """The address of a server that sends back what it gets."""

    def serve() -> None:
        while True:
            try:
                client, _ = listener.accept()
            except OSError:
                return
            threading.Thread(target=answer, args=(client,), daemon=True).start()

    def answer(client: socket.socket) -> None:
        with client:
            try:
                while data := client.recv(1024):
                    client.sendall(data)
            except OSError:
                return

    listener = socket.create_server((HOST, 0))
    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"{HOST}:{listener.getsockname()[1]}"
    listener.shutdown(socket.SHUT_RDWR)
    listener.close()
    thread.join(10)


def received(connection: socket.socket, sent: bytes) -> bytes:
    """Send bytes and return what comes back until the connection ends or all bytes are there."""
    found = b""
    try:
        connection.sendall(sent)
        while len(found) < len(sent):
            data = connection.recv(1024)
            if not data:
                break
            found += data
    except OSError:
        return found
    return found


def answer(port: int, sent: bytes) -> bytes:
    """Return what comes back over a new connection; nothing if it is closed while it is made."""
    try:
        with socket.create_connection((HOST, port), timeout=10) as connection:
            return received(connection, sent)
    except OSError:
        return b""


def test_proxy_copies_bytes_until_it_cuts_all_connections(echo: str) -> None:
    with proxy_to(echo) as proxy, socket.create_connection((HOST, proxy.port), timeout=10) as client:
        assert received(client, b"x" * 5000) == b"x" * 5000
        assert proxy.cut_all() == 1
        assert received(client, b"y" * 5000) == b""
        with socket.create_connection((HOST, proxy.port), timeout=10) as other:
            assert received(other, b"again") == b"again"
        proxy.refuses = True
        assert answer(proxy.port, b"no") == b""


def test_proxy_cuts_a_connection_inside_of_a_reply(echo: str) -> None:
    with proxy_to(echo, random_cuts(1, 1000)) as proxy, socket.create_connection((HOST, proxy.port)) as client:
        client.settimeout(10)
        assert len(received(client, b"x" * 100_000)) <= 1000
    assert (proxy.accepted, proxy.cuts) == (1, 1)
