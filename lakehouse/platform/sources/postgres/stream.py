"""The messages of a replication slot, over a replication connection.

Nothing is confirmed here: this client's status messages contain no position, so the slot does not advance.
"""

from __future__ import annotations

import select
import struct
from collections.abc import Iterator, Sequence
from typing import Any

from psycopg.conninfo import make_conninfo
from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, PGconn

from lakehouse.core.system.clock import SystemClock
from lakehouse.errors import CorruptLogError, RetryableError
from lakehouse.platform.sources.pgoutput.decoder import lsn_text
from lakehouse.platform.sources.postgres.connection import IN_USE, failure_of
from lakehouse.platform.sources.postgres.keys import quoted, quoted_text
from lakehouse.spec.sources.postgres_connection import PostgresAccess

_CLOCK = SystemClock()
_DATA, _ALIVE = ord("w"), ord("k")
#: Kind, position of the message, end of the log, time.
_HEADER = struct.Struct(">cqqq")
#: Kind, position, time, whether the client has to answer immediately.
_KEEPALIVE = struct.Struct(">cqqB")
#: Kind, positions (written, flushed, applied), time, whether the server has to answer immediately.
_STATUS, _QUESTION = (struct.pack(">cqqqqB", b"r", 0, 0, 0, 0, asks) for asks in (0, 1))
#: Maximum time that the server waits for a busy client.
_SENDER_TIMEOUT_MS = 600_000
_POLL_S = 0.5
#: Maximum time that a read waits for another read of the slot, and for data from the server.
_IN_USE_S, _SILENT_S = 120.0, 600.0


class SlotStream:
    """A connection that reads a slot's log.

    Args:
        access: Host, database and credentials.
        slot: The name of the slot.
        publications: The names of the publications.
    """

    def __init__(self, access: PostgresAccess, slot: str, publications: Sequence[str]) -> None:
        self._access, self._slot, self._publications = access, slot, publications
        given = access.parameters
        given["options"] += f" -c wal_sender_timeout={_SENDER_TIMEOUT_MS}"
        self._connection: Any = PGconn.connect(make_conninfo(**given, replication="database").encode())
        if self._connection.status != ConnStatus.OK:
            message = self._error()
            self.close()
            raise failure_of(access, "", message)

    def start(self, place: int) -> None:
        """Start to read at a position; wait for another read of the slot."""
        names = ",".join(quoted(name) for name in self._publications)
        command = (
            f"START_REPLICATION SLOT {quoted(self._slot)} LOGICAL {lsn_text(place)} "
            f"(proto_version '1', publication_names {quoted_text(names)})"
        )
        deadline = _CLOCK.monotonic_s() + _IN_USE_S
        while True:
            result = self._connection.exec_(command.encode())
            if result.status == ExecStatus.COPY_BOTH:
                return
            state, text = self._answer(result)
            if state != IN_USE:
                raise failure_of(self._access, state, text)
            if _CLOCK.monotonic_s() > deadline:
                raise RetryableError(
                    f"another run reads the replication slot {self._slot!r} for longer than {_IN_USE_S:.0f} seconds: "
                    f"{text.strip()}"
                )
            _CLOCK.sleep(_POLL_S)

    def messages(self, end: int) -> Iterator[tuple[bytes, int]]:
        """Yield each message and its position until the server has read its log up to an end."""
        heard, reached = _CLOCK.monotonic_s(), -1
        receive, header = self._connection.get_copy_data, _HEADER.unpack_from
        while True:
            size, data = receive(1)
            if size > 0:
                if data[0] == _DATA:
                    _, place, _, _ = header(data)
                    heard = _CLOCK.monotonic_s()
                    yield bytes(data[_HEADER.size :]), place
                    continue
                if data[0] != _ALIVE:
                    raise CorruptLogError(f"the server sends {bytes(data[:1])!r}, which is not a replication message")
                _, sent, _, asks = _KEEPALIVE.unpack_from(data)
                if sent >= end:
                    return
                if asks:
                    self._send(_STATUS)
                if sent > reached:
                    heard, reached = _CLOCK.monotonic_s(), sent
            elif size < 0:
                raise failure_of(self._access, *self._answer(self._connection.get_result()))
            else:
                self._wait(_CLOCK.monotonic_s() - heard, reached)

    def close(self) -> None:
        """Close the connection."""
        self._connection.finish()

    def _wait(self, silent_s: float, reached: int) -> None:
        """Wait for data; if there are none, request the server's position."""
        if silent_s > _SILENT_S:
            raise RetryableError(f"the server {self._access.address} sends nothing behind {lsn_text(max(reached, 0))}")
        readable, _, _ = select.select([self._connection.socket], [], [], _POLL_S)
        if not readable:
            self._send(_QUESTION)
        self._connection.consume_input()

    def _send(self, data: bytes) -> None:
        self._connection.put_copy_data(data)
        self._connection.flush()

    def _answer(self, result: Any) -> tuple[str, str]:
        """Return the SQLSTATE and the message of an error response."""
        if result is None:
            return "", self._error() or "the server ended the log"
        state = (result.error_field(DiagnosticField.SQLSTATE) or b"").decode()
        return state, (result.error_message or b"").decode(errors="replace") or self._error()

    def _error(self) -> str:
        message: str = self._connection.error_message.decode(errors="replace")
        return message
