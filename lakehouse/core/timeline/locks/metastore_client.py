"""A connection to a Hive Metastore over Thrift. The first call opens it, to the first server that can be reached.

Errors of the connection are raised as RetryableError that names the servers. Exceptions that the metastore returns are
passed to the caller.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from typing import Any, TypeVar
from urllib.parse import urlsplit

from pymetastore.hive_metastore import ThriftHiveMetastore
from thrift.protocol.TBinaryProtocol import TBinaryProtocolAccelerated
from thrift.Thrift import TException
from thrift.transport.TSocket import TSocket
from thrift.transport.TTransport import TBufferedTransport

from lakehouse.errors import RetryableError, UserError

T = TypeVar("T")
_PORT = 9083


class MetastoreClient:
    """Sends one request at a time; not safe for use by several threads.

    Example: `MetastoreClient("thrift://one:9083,thrift://two:9083", option="...", timeout_s=60)`.
    """

    def __init__(self, uris: str, *, option: str, timeout_s: float, name: str = "") -> None:
        """Parse the addresses; raise UserError that names the key `option` if one is invalid."""
        self._servers = [_server(uri.strip(), option) for uri in uris.split(",")]
        self._timeout_ms = round(timeout_s * 1000)
        self._name = name or uris
        self._transport: Any = None
        self._client: Any = None

    def call(self, ask: Callable[[Any], T], *answers: type[Exception]) -> T:
        """Call `ask` with the Thrift client and return its result.

        The exceptions `answers` are replies of the metastore and are raised unchanged. After any other error the
        connection is closed, and RetryableError is raised; the next call opens a new connection.
        """
        try:
            if self._client is None:
                self._open()
            return ask(self._client)
        except answers:
            raise
        except PermissionError as error:
            self.close()
            raise UserError(
                f"{self._name}: the metastore cannot be reached: {error!r}. Check the address and the firewall."
            ) from error
        except (TException, OSError) as error:
            self.close()
            raise RetryableError(f"{self._name}: the metastore did not reply correctly: {error!r}") from error
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection, if there is one."""
        if self._transport is not None:
            with suppress(TException, OSError):
                self._transport.close()
        self._transport = self._client = None

    def _open(self) -> None:
        for host, port in self._servers[:-1]:
            with suppress(TException, OSError):
                return self._connect(host, port)
        self._connect(*self._servers[-1])

    def _connect(self, host: str, port: int) -> None:
        socket = TSocket(host, port)
        socket.setTimeout(self._timeout_ms)
        transport = TBufferedTransport(socket)
        transport.open()
        self._transport = transport
        self._client = ThriftHiveMetastore.Client(TBinaryProtocolAccelerated(transport))


def _server(uri: str, option: str) -> tuple[str, int]:
    parts = urlsplit(uri if "://" in uri else f"thrift://{uri}")
    if parts.scheme != "thrift" or not parts.hostname:
        raise UserError(f"option {option}: {uri!r} is not thrift://host:port", option=option)
    return parts.hostname, parts.port or _PORT
