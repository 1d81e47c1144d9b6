"""Namenodes that demand Kerberos, played by a server with the bytes of Hadoop's RPC."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehouse.core.storage.hdfs_options import HdfsLocation, client_settings, namenodes
from lakehouse.core.storage.locate import open_storage
from lakehouse.errors import UserError

#: A reply has a header (call -33, success), and a message of SASL. A server without Kerberos answers with a success.
_HEADER = bytes.fromhex("08dfffffff0f1000")
_SUCCESS = bytes.fromhex("1000")
_SIMPLE = b"\x0a\x06SIMPLE\x12\x00"
_KERBEROS = b"\x0a\x08KERBEROS\x12\x06GSSAPI\x1a\x02nn\x22\x09localhost"


def methods(*auths: bytes) -> bytes:
    return b"\x10\x01" + b"".join(b"\x22" + bytes([len(auth)]) + auth for auth in auths)


class Namenode:
    """Answers each first message of a connection with a message, and closes the connection."""

    def __init__(self, message: bytes) -> None:
        body = bytes([len(_HEADER)]) + _HEADER + bytes([len(message)]) + message
        self._reply = len(body).to_bytes(4, "big") + body
        self._socket = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._socket.getsockname()[1]
        self.protocols: list[int] = []
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                return
            with connection:
                received = b""
                while len(received) < 8:
                    received += connection.recv(4096) or b"\0" * 8
                self.protocols.append(received[6])
                connection.sendall(self._reply)
                connection.recv(4096)

    def close(self) -> None:
        self._socket.close()


@pytest.fixture
def kerberized(monkeypatch: pytest.MonkeyPatch) -> Iterator[Namenode]:
    pytest.importorskip("hdfs_native")
    monkeypatch.setenv("KRB5CCNAME", "FILE:/nonexistent/ticket")
    node = Namenode(methods(_KERBEROS))
    yield node
    node.close()


def test_namenode_that_demands_kerberos_is_an_error_at_once(
    kerberized: Namenode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    storage = open_storage(f"hdfs://127.0.0.1:{kerberized.port}/t")
    with pytest.raises(UserError, match=r"demands Kerberos, .*authentication is not set.*core-site\.xml.*kinit"):
        storage.get("f")
    # One connection, which offered SASL: the request itself was not sent.
    assert kerberized.protocols == [0xDF]


def test_setting_of_core_site_is_used_and_a_missing_ticket_named(
    kerberized: Namenode, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    entry = "<property><name>hadoop.security.authentication</name><value>kerberos</value></property>"
    (tmp_path / "core-site.xml").write_text(f"<configuration>{entry}</configuration>")
    monkeypatch.setenv("HADOOP_CONF_DIR", str(tmp_path))
    storage = open_storage(f"hdfs://127.0.0.1:{kerberized.port}/t")
    with pytest.raises(UserError, match=r"refused to sign in: .*kinit"):
        storage.get("f")
    assert kerberized.protocols == [0xDF]


@pytest.mark.parametrize("message", [_SUCCESS, methods(_SIMPLE), methods(_SIMPLE, _KERBEROS)])
def test_namenode_without_kerberos_is_used(message: bytes) -> None:
    pytest.importorskip("hdfs_native")
    node = Namenode(message)
    try:
        storage = open_storage(f"hdfs://127.0.0.1:{node.port}/t")
        assert storage._client.native() is not None
        assert node.protocols == [0xDF]
    finally:
        node.close()


def test_namenodes_of_a_location() -> None:
    def location(authority: str, scheme: str = "hdfs") -> HdfsLocation:
        return HdfsLocation(scheme=scheme, authority=authority, path="/t")

    service = {
        "dfs.ha.namenodes.lake": "a, b,c",
        "dfs.namenode.rpc-address.lake.a": "one:9000",
        "dfs.namenode.rpc-address.lake.b": "[::1]:9001",
    }
    assert namenodes(location("node"), {}) == (("node", 8020),)
    assert namenodes(location("node:9000"), {}) == (("node", 9000),)
    assert namenodes(location("lake"), client_settings(service)) == (("one", 9000), ("::1", 9001))
    assert namenodes(location("all", "viewfs"), {}) == ()
