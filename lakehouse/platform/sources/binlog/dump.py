"""Reads the binlog of a server through PyMySQL's connection. It needs the extra `mysql`.

A server has one dump per server id: another reader with the same id ends the first one. Each reader therefore needs a
unique id. Reading ends at the log's end, and does not wait for more.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID

import pymysql
from pymysql.constants import COMMAND

from lakehouse.core.system.clock import SystemClock
from lakehouse.errors import CorruptLogError, RetryableError, SnapshotNeededError, UserError
from lakehouse.platform.sources.binlog.changes import DecodedLog, TableName
from lakehouse.platform.sources.binlog.columns import SourceColumn
from lakehouse.platform.sources.binlog.decoder import Decoder, DecoderSettings
from lakehouse.platform.sources.binlog.events import FORMAT_DESCRIPTION, Header, header_of
from lakehouse.platform.sources.binlog.positions import MYSQL, BinlogPosition, MysqlGtids, covers

#: Returns a new PyMySQL connection.
Connect = Callable[[], Any]
_DUMP_GTID = 0x1E
_NON_BLOCKING = 1
_FIRST_OFFSET = 4
_OK, _ERROR, _END = 0x00, 0xFF, 0xFE
_LARGEST_PACKET = 0xFFFFFF
_READ_BYTES = 1 << 20
_HEARTBEAT_NS = 10_000_000_000
_LOG_GONE, _ACCESS_DENIED = 1236, (1044, 1045, 1142, 1227)
_CLOCK = SystemClock()


@dataclass(frozen=True, slots=True, kw_only=True)
class LogRead:
    """The range of a log to read.

    Attributes:
        start: The start position: its GTIDs, or its file and offset if it has none.
        server_id: The id of this reader, unique among all readers and servers of the group.
        wants: Returns whether the changes of a table are wanted.
        until: The first position at which reading can end; None for the end of the log.
        limit_bytes: Reading ends with the transaction that exceeds this number of bytes; None for no limit.
        limit_s: Reading ends with the transaction that exceeds this time; None for no limit.
        batch_bytes: The number of log bytes after which changes are returned.
        timeout_s: The maximum time without a packet.
        keys: See `DecoderSettings`.
        catalog: See `DecoderSettings`.
        zero_dates: See `DecoderSettings`.
        starts: See `DecoderSettings`.
    """

    start: BinlogPosition
    server_id: int
    wants: Callable[[TableName], bool]
    until: BinlogPosition | None = None
    limit_bytes: int | None = None
    limit_s: float | None = None
    batch_bytes: int = 64 << 20
    timeout_s: float = 60.0
    keys: Mapping[TableName, Sequence[str]] = field(default_factory=dict)
    catalog: Mapping[TableName, Sequence[SourceColumn]] = field(default_factory=dict)
    zero_dates: str = "null"
    starts: Mapping[TableName, BinlogPosition] = field(default_factory=dict)


def read_changes(connect: Connect, read: LogRead) -> Iterator[DecodedLog]:
    """Yield the log's changes from a position, in batches of whole transactions; the last batch can be empty.

    Raises:
        SnapshotNeededError: The server no longer has the log from this position, or the log does not contain the
            changed rows.
        RetryableError: The connection was lost, the server does not answer, or the log ends before `until`.
        UserError: The account lacks a right, or the log lacks metadata.
        UnsupportedError, CorruptLogError: See `Decoder.feed`.
    """
    connection = _connected(connect)
    try:
        collations, folds_names = _prepared(connection, read)
        settings = DecoderSettings(
            flavor=read.start.flavor,
            wants=read.wants,
            collations=collations,
            keys=read.keys,
            catalog=read.catalog,
            zero_dates=read.zero_dates,
            starts=read.starts,
            folds_names=folds_names,
        )
        decoder = Decoder(settings, read.start)
        # A transaction is in the file before the server's GTID set contains it. If the start position has no file, such
        # a transaction may precede `until`, so the log is read.
        is_comparable = read.until is not None and bool(read.start.file or not read.until.file)
        if read.until is not None and is_comparable and covers(read.start, read.until):
            yield decoder.take()
            return
        yield from _decoded(open_dump(connection, read), decoder, read)
    finally:
        # The dump continues, so the connection cannot be used for anything else, not even to quit.
        connection._force_close()


def file_created_s(connect: Connect, read: LogRead) -> int:
    """Return when the server created the file of a read, in seconds; 0 if the file has no format description.

    Args:
        connect: Returns a new connection.
        read: A read from the first event of the file, by its name.

    Raises the errors of `read_changes`, and SnapshotNeededError if the server does not have the file.
    """
    connection = _connected(connect)
    try:
        _prepared(connection, read)
        for event in open_dump(connection, read):
            header = Header(*header_of(event))
            if header.kind == FORMAT_DESCRIPTION:
                return header.time_s
        return 0
    finally:
        connection._force_close()


def _decoded(events: Iterator[bytes], decoder: Decoder, read: LogRead) -> Iterator[DecodedLog]:
    started, size, given = _CLOCK.monotonic_s(), 0, 0
    until, limit, latest = read.until, read.limit_bytes, read.limit_s
    # Numbers are compared faster than GTIDs. They decide alone only if there are no GTIDs.
    until_order = 0 if until is None else until.order
    feed, batch = decoder.feed, read.batch_bytes
    for event in events:
        feed(event)
        size += len(event)
        if not decoder.at_border:
            continue
        if until is not None and decoder.order >= until_order and covers(decoder.position, until):
            yield decoder.take()
            return
        if (limit is not None and size >= limit) or (latest is not None and _CLOCK.monotonic_s() - started >= latest):
            yield decoder.take()
            return
        if size - given >= batch and decoder.transactions:
            given = size
            yield decoder.take()
    if until is not None and not covers(decoder.position, until):
        raise RetryableError(
            f"the binlog ends at {_shown(decoder.position)}, before {_shown(until)}; the server may have been replaced"
        )
    yield decoder.take()


def _shown(position: BinlogPosition) -> str:
    return position.gtid or f"{position.file}:{position.offset}"


def _connected(connect: Connect) -> Any:
    try:
        return connect()
    except pymysql.err.OperationalError as error:
        raise _translated(error) from error


def _prepared(connection: Any, read: LogRead) -> tuple[dict[int, str], bool]:
    """Set the session variables that a dump needs.

    Return the character set per collation, and whether the server stores table names in lower case.
    """
    try:
        with connection.cursor() as cursor:
            # Announce support for checksums: the server then sends events as they are in the file, with or without one.
            cursor.execute("set @master_binlog_checksum = 'CRC32'")
            cursor.execute(f"set @master_heartbeat_period = {_HEARTBEAT_NS}")
            if read.start.flavor == MYSQL:
                # A server ends dumps with the same UUID or, without a UUID, with the same server id.
                cursor.execute("set @slave_uuid = %s", (str(UUID(int=read.server_id)),))
            else:
                # Without this capability, the server replaces GTID events by placeholders.
                cursor.execute("set @mariadb_slave_capability = 4")
                if read.start.gtid or not read.start.file:
                    cursor.execute("set @slave_connect_state = %s", (read.start.gtid,))
            cursor.execute("select @@lower_case_table_names")
            ((fold,),) = cursor.fetchall()
            return _collations(cursor, read.start.flavor), int(fold) == 1
    except pymysql.err.MySQLError as error:
        raise _translated(error) from error


def _collations(cursor: Any, flavor: str) -> dict[int, str]:
    collations: dict[int, str] = {}
    cursor.execute("select id, character_set_name from information_schema.collations where id is not null")
    collations.update((int(number), str(name)) for number, name in cursor.fetchall() if name is not None)
    if flavor != MYSQL:
        # MariaDB from 10.10: collations without a fixed character set have an id per character set.
        cursor.execute(
            "select 1 from information_schema.columns where table_schema = 'information_schema' and "
            "table_name = 'COLLATION_CHARACTER_SET_APPLICABILITY' and column_name = 'ID'"
        )
        if cursor.fetchone() is not None:
            cursor.execute(
                "select id, character_set_name from information_schema.collation_character_set_applicability "
                "where id is not null"
            )
            collations.update((int(number), str(name)) for number, name in cursor.fetchall())
    return collations


def open_dump(connection: Any, read: LogRead) -> Iterator[bytes]:
    """Send the dump command and yield its events, from header to checksum."""
    start = read.start
    if start.flavor == MYSQL and (start.gtid or not start.file):
        command, body = _DUMP_GTID, _gtid_command(start, read.server_id)
    else:
        offset = start.offset if not start.gtid and start.file else _FIRST_OFFSET
        name = b"" if start.gtid else start.file.encode()
        command = COMMAND.COM_BINLOG_DUMP
        body = struct.pack("<IHI", offset, _NON_BLOCKING, read.server_id) + name
    try:
        connection._next_seq_id = 0
        connection._write_bytes(struct.pack("<IB", len(body) + 1, command) + body)
        connection._sock.settimeout(read.timeout_s)
        yield from _packets(connection._rfile.read1)
    except pymysql.err.MySQLError as error:
        raise _translated(error) from error
    except OSError as error:
        raise RetryableError(f"the connection to the server was lost while its binlog was read: {error}") from error


def _gtid_command(start: BinlogPosition, server_id: int) -> bytes:
    gtids = MysqlGtids.parse(start.gtid)
    parts = [struct.pack("<Q", len(gtids.intervals))]
    for uuid, ranges in gtids.intervals.items():
        parts += [UUID(uuid).bytes, struct.pack("<Q", len(ranges))]
        parts += [struct.pack("<qq", first, end) for first, end in ranges]
    data = b"".join(parts)
    return struct.pack("<HIIQI", _NON_BLOCKING, server_id, 0, _FIRST_OFFSET, len(data)) + data


def _packets(read: Callable[[int], bytes]) -> Iterator[bytes]:
    """Yield the contents of packets until the one that ends the log."""
    buffer, place = b"", 0
    large: list[bytes] = []
    while True:
        available = len(buffer) - place
        size = -1
        if available >= 4:
            size = buffer[place] | buffer[place + 1] << 8 | buffer[place + 2] << 16
        if size < 0 or available < size + 4:
            parts, missing = [buffer[place:]], (size + 4 if size >= 0 else 4) - available
            while missing > 0:
                more = read(_READ_BYTES)
                if not more:
                    raise RetryableError("the server closed the connection while its binlog was read")
                parts.append(more)
                missing -= len(more)
            buffer, place = b"".join(parts), 0
            continue
        first, stop = place + 4, place + 4 + size
        place = stop
        if size == _LARGEST_PACKET or large:
            # A packet of the maximum size continues in the next one.
            large.append(buffer[first:stop])
            if size == _LARGEST_PACKET:
                continue
            whole, large = b"".join(large), []
            yield _checked(whole, 0, len(whole))
            continue
        if size and buffer[first] == _OK:
            yield buffer[first + 1 : stop]
            continue
        if size and buffer[first] == _END and size < 9:
            return
        yield _checked(buffer, first, stop)


def _checked(packet: bytes, first: int, stop: int) -> bytes:
    if first < stop and packet[first] == _OK:
        return packet[first + 1 : stop]
    if first < stop and packet[first] == _ERROR:
        (code,) = struct.unpack_from("<H", packet, first + 1)
        text = packet[first + 3 : stop].decode("utf-8", "replace")
        # A marker and the five characters of the SQLSTATE precede the message.
        raise pymysql.err.OperationalError(code, text[6:] if text.startswith("#") else text)
    raise CorruptLogError(f"a packet of {stop - first} bytes is not a binlog event")


def _translated(error: Exception) -> Exception:
    """Convert a PyMySQL error to an error of this package."""
    code = error.args[0] if error.args else 0
    text = str(error.args[1]) if len(error.args) > 1 else str(error)
    if code in _ACCESS_DENIED:
        return UserError(
            f"the server denies the account to read its binlog: {text}. Grant REPLICATION SLAVE and REPLICATION CLIENT"
        )
    if code == _LOG_GONE and "same server" not in text:
        return SnapshotNeededError(
            f"the server cannot continue its binlog where the last run ended: {text.rstrip('.')}. Read the tables "
            "again with --full-refresh"
        )
    return RetryableError(f"the server does not answer as it should ({code}): {text}")
