"""A connection to a Hive Metastore over Thrift: opened by the first question, by the first of its servers that answers.

What goes wrong on the way is a RetryableError that names the servers; what the metastore says itself is for the caller.
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
    """Asks one question after the other; not for several threads.

    Example: `MetastoreClient("thrift://one:9083,thrift://two:9083", option="...", timeout_s=60)`.
    """

    def __init__(self, uris: str, *, option: str, timeout_s: float, name: str = "") -> None:
        """`option` is the key under which the addresses were given, for messages; raises UserError for no address."""
        self._servers = [_server(uri.strip(), option) for uri in uris.split(",")]
        self._timeout_ms = round(timeout_s * 1000)
        self._name = name or uris
        self._transport: Any = None
        self._client: Any = None

    def call(self, ask: Callable[[Any], T], *answers: type[Exception]) -> T:
        """Ask, where `answers` are exceptions that the metastore may answer with; they are raised as they are.

        After anything else the connection is closed, the next call opens another, and RetryableError is raised.
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
                f"{self._name}: the metastore cannot be reached from here: {error!r}. Check the address and the "
                "firewall."
            ) from error
        except (TException, OSError) as error:
            self.close()
            raise RetryableError(f"{self._name}: the metastore did not answer as it should: {error!r}") from error
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
