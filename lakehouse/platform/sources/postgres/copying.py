"""A connection that copies query results as Arrow batches.

The server sends one message per row. asyncpg joins the messages that arrived, in C. libpq clients return each row to
Python, which takes longer than decoding it. The event loop runs only while a caller waits for rows, so the server is
read no faster than rows are used.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from urllib.parse import urlencode

import asyncpg
import pyarrow as pa

from lakehouse.core.system.clock import SystemClock
from lakehouse.core.system.ids import RandomIds
from lakehouse.errors import LakehouseError, RetryableError, UserError
from lakehouse.platform.sources.pgoutput.columns import BPCHAR, BYTEA, OID, TEXT, VARCHAR, PgColumn
from lakehouse.platform.sources.postgres.connection import failure_of
from lakehouse.platform.sources.postgres.copied import FIXED, CopyDecoder, is_number
from lakehouse.platform.sources.postgres.keys import as_text, quoted
from lakehouse.spec.sources.postgres_connection import CONNECT_S, PostgresAccess

#: The size of one batch in bytes; larger batches do not stay in a core's caches.
_BATCH_BYTES = 2 << 20
#: A piece below this size is followed by a pause, in seconds.
_SMALL_BYTES, _PAUSE_S = 64 << 10, 0.001
#: Maximum time without data from the server while rows are read.
_SILENT_S = 600.0
#: SQLSTATEs that users have to correct: sign-in, database, rights. A table may be changed while it is read.
_SIGN_IN, _RIGHTS = ("28", "3D"), "42501"
#: asyncpg errors that are not server errors: wrong use, lost connections and timeouts.
_LOST = (asyncpg.InterfaceError, asyncpg.InternalClientError, OSError, asyncio.TimeoutError, EOFError)

Pieces = list[bytes]
_CLOCK = SystemClock()


class CopySession:
    """A connection; call `close` at the end.

    Raises:
        UserError: The server refuses the sign-in, or the account lacks a right.
        RetryableError: The server cannot be reached, refuses a statement, or the connection is lost.
    """

    def __init__(self, access: PostgresAccess) -> None:
        self._access = access
        self._loop = asyncio.new_event_loop()
        try:
            self._connection: Any = self._wait(_connect(access))
        except BaseException:
            self._loop.close()
            raise

    def __enter__(self) -> CopySession:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def run(self, statement: str) -> None:
        """Run a statement."""
        self._wait(self._connection.execute(statement))

    def value(self, query: str) -> Any:
        """Return the first value in the first row of a query."""
        return self._wait(self._connection.fetchval(query))

    def rows(self, columns: Sequence[PgColumn], source: str) -> Iterator[pa.RecordBatch]:
        """Yield the rows of columns; `source` is the FROM clause of the query."""
        decoder = CopyDecoder(columns, RandomIds().uuid())
        selected = ", ".join([f"({decoder.mark})::int8", *map(projected, decoder.selected)])
        arrived: asyncio.Queue[Pieces | None] = asyncio.Queue()
        left: Pieces = []
        copying = self._loop.create_task(self._copy(f"select {selected} from {source}", arrived, left))
        try:
            while (pieces := self._wait(asyncio.wait_for(arrived.get(), _SILENT_S))) is not None:
                yield from self._decoded(decoder, pieces, is_end=False)
            self._wait(copying)
            yield from self._decoded(decoder, left, is_end=True)
        finally:
            if not copying.done():
                # The connection is in the middle of a copy, and cannot be used again.
                self._connection.terminate()
                copying.cancel()
            self._loop.run_until_complete(asyncio.gather(copying, return_exceptions=True))

    def close(self) -> None:
        """Close the connection."""
        try:
            self._connection.terminate()
            # The transport closes its socket in the next round of the loop.
            self._loop.run_until_complete(asyncio.sleep(0))
        finally:
            self._loop.close()

    async def _copy(self, query: str, arrived: asyncio.Queue[Pieces | None], left: Pieces) -> None:
        """Copy a query; put batches of pieces into a queue, then None. Remaining pieces stay in `left`."""
        size = 0

        async def collect(data: bytes) -> None:
            nonlocal size
            left.append(data)
            if len(data) < _SMALL_BYTES:
                # Pieces of 8 KB cost more than their rows. Meanwhile the kernel buffers the data from the server.
                _CLOCK.sleep(_PAUSE_S)
            size += len(data)
            if size >= _BATCH_BYTES:
                arrived.put_nowait(left[:])
                left.clear()
                size = 0

        try:
            await self._connection.copy_from_query(query, output=collect, format="binary")
        finally:
            arrived.put_nowait(None)

    def _decoded(self, decoder: CopyDecoder, pieces: Pieces, *, is_end: bool) -> Iterator[pa.RecordBatch]:
        try:
            rows = decoder.rows(pieces, is_end=is_end)
        except pa.ArrowException as error:
            raise UserError(f"the client cannot read a value of a chunk: {str(error)[:500]}") from None
        if rows is not None:
            yield rows

    def _wait(self, request: Any) -> Any:
        try:
            return self._loop.run_until_complete(request)
        except (asyncpg.PostgresError, *_LOST) as error:
            raise _failure(self._access, error) from None


class SharedSession:
    """A connection for consecutive reads, opened by the first read."""

    def __init__(self, access: PostgresAccess) -> None:
        self._access = access
        self._open: CopySession | None = None

    @contextmanager
    def session(self) -> Iterator[CopySession]:
        """Return the connection for a read; after a failure the next read gets a new connection."""
        if self._open is None:
            self._open = CopySession(self._access)
        try:
            yield self._open
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection, if it is open."""
        if self._open is not None:
            self._open.close()
            self._open = None


async def _connect(access: PostgresAccess) -> Any:
    return await asyncpg.connect(
        f"postgresql://?{urlencode(access.tls)}",
        host=access.host,
        port=access.port,
        user=access.user,
        password=access.password or None,
        database=access.database,
        server_settings=access.session,
        timeout=CONNECT_S,
        statement_cache_size=0,
    )


def _failure(access: PostgresAccess, error: BaseException) -> LakehouseError:
    """Convert a client error to an error of this package whose message does not contain the password."""
    state = str(getattr(error, "sqlstate", None) or "")
    if state[:2] in _SIGN_IN or state == _RIGHTS:
        return failure_of(access, state, str(error))
    text = str(error) or ("it does not answer" if isinstance(error, asyncio.TimeoutError) else type(error).__name__)
    if access.password:
        text = text.replace(access.password, "...")
    return RetryableError(f"reading a chunk from {access.address}: {text[:500]}")


_BYTES = (BYTEA, TEXT, VARCHAR, BPCHAR)


def projected(column: PgColumn) -> str:
    """Return the SQL expression that reads a column."""
    name = quoted(column.name)
    if column.oid == OID:
        return f"{name}::int8"
    if column.oid in FIXED or column.oid in _BYTES or is_number(column):
        return name
    if column.digits is not None:
        # More digits than fit an integer.
        return f"nullif({name}, 'NaN')::text"
    return as_text(column.name)
