"""Events of the binlog to changes of whole transactions. The decoder knows no socket and no clock."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from lakehouse.errors import CorruptLogError, LakehouseError, SnapshotNeededError, UnsupportedError
from lakehouse.platform.sources.binlog import charsets, events, statements
from lakehouse.platform.sources.binlog.batches import STEP, TableVersion
from lakehouse.platform.sources.binlog.changes import ChangeBatch, DecodedLog, SchemaEvent, TableName
from lakehouse.platform.sources.binlog.columns import SourceColumn
from lakehouse.platform.sources.binlog.positions import (
    BinlogPosition,
    MysqlGtids,
    gtids,
    ordering_value,
)
from lakehouse.platform.sources.binlog.table_map import name_of, parse_table_map

_SECOND_US = 1_000_000
_OFFSET_WRAP = 1 << 32
#: A row event with this table id has no rows; it only ends a statement.
_NO_TABLE = 0x00FFFFFF
_STANDALONE = 1
_MARIADB_GTID = struct.Struct("<QIB")
_MYSQL_GTID = struct.Struct("<B16sq")
_QUERY = struct.Struct("<IIBHH")
# Places in the body of a GTID event of MySQL: the logical clock, then two numbers, then the commit time.
_LOGICAL_CLOCK, _LOGICAL_CLOCK_TYPE, _COMMIT_TIME_END = 25, 2, 49
_ARTIFICIAL = 0x20
#: Events about the log itself.
_SERVER_EVENTS = (
    events.FORMAT_DESCRIPTION,
    events.PREVIOUS_GTIDS,
    events.MARIADB_GTID_LIST,
    events.HEARTBEAT,
    events.HEARTBEAT_2,
)
_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSettings:
    """What a decoder reads.

    Attributes:
        flavor: `mysql` or `mariadb`.
        wants: Whether the changes of a table are wanted.
        collations: The character set of each id of a collation, as `information_schema.collations` lists them.
        keys: Key columns of tables whose primary key is not the key, or that have none.
        catalog: Columns of tables as the catalog knows them; only types that the log has no name for are looked at.
        zero_dates: `null`, or `text` for dates and times as text.
    """

    flavor: str
    wants: Callable[[TableName], bool]
    collations: Mapping[int, str]
    keys: Mapping[TableName, Sequence[str]] = field(default_factory=dict)
    catalog: Mapping[TableName, Sequence[SourceColumn]] = field(default_factory=dict)
    zero_dates: str = "null"


class Decoder:
    """Takes the events of a log one after another, and gives the changes of whole transactions.

        decoder = Decoder(settings, start)
        for event in events:
            decoder.feed(event)
            if decoder.at_border and ...:
                decoded = decoder.take()

    After an error the decoder cannot be used any more.

    Attributes:
        at_border: Whether no transaction is open, so that `take` gives all changes that were fed.
        rows: The number of rows since the last `take`, also of the open transaction.
        transactions: The number of whole transactions since the last `take`.
    """

    def __init__(self, settings: DecoderSettings, start: BinlogPosition) -> None:
        self.settings = settings
        self.at_border, self.rows = True, 0
        self._has_checksums = False
        self._gtids = gtids(settings.flavor, start.gtid)
        self._file, self._offset = start.file, start.offset
        self._border = (start.file, start.offset, start.committed_us)
        self.transactions = self._border_order = 0
        self._gtid: tuple[str, int] | tuple[int, int, int] | None = None
        self._committed_us = 0
        self._is_begun = False
        # The ordering value of the open transaction, that of its last row, and whether it has wanted rows.
        self._base = self._last = 0
        self._has_rows = False
        self._tables: dict[int, TableVersion | None] = {}
        self._maps: dict[bytes, TableVersion | None] = {}
        # The versions with rows that are not yet in `changes`.
        self._pending: dict[TableName, TableVersion] = {}
        self._changes: list[ChangeBatch | SchemaEvent] = []

    @property
    def position(self) -> BinlogPosition:
        """The position after the last whole transaction."""
        file, offset, committed_us = self._border
        return BinlogPosition(
            flavor=self.settings.flavor,
            gtid=str(self._gtids),
            file=file,
            offset=offset,
            committed_us=committed_us,
        )

    def take(self) -> DecodedLog:
        """Return the changes since the last call.

        Those of an open transaction are left out, and no event may follow then.
        """
        upto = None if self.at_border else self._border_order
        for name in list(self._pending):
            self._finish(name, upto)
        changes = tuple(one for one in self._changes if upto is None or not _is_behind(one, upto))
        rows = sum(one.rows.num_rows for one in changes if isinstance(one, ChangeBatch))
        decoded = DecodedLog(changes=changes, position=self.position, transactions=self.transactions, rows=rows)
        self._changes, self.rows, self.transactions = [], 0, 0
        return decoded

    def _finish(self, name: TableName, upto: int | None = None) -> None:
        """Move the rows of a table to `changes`."""
        version = self._pending.pop(name, None)
        batch = None if version is None else version.take(upto)
        if batch is not None:
            self._changes.append(batch)

    def feed(self, event: bytes) -> None:
        """Decode one event, from its header to its checksum.

        Raises:
            CorruptLogError: The event contradicts itself, or its checksum is wrong.
            UnsupportedError: The event, a type or a character set is not supported.
            SnapshotNeededError: The log does not say which rows of a wanted table changed.
            UserError: The log lacks metadata of columns.
        """
        header = events.header_of(event)
        end, kind = len(event), header.kind
        if kind == events.FORMAT_DESCRIPTION:
            self._has_checksums = events.has_checksums(event, header)
        elif kind == events.ROTATE and header.flags & _ARTIFICIAL:
            # It belongs to no file, so the description of a file does not tell whether it has a checksum.
            end -= events.CHECKSUM_BYTES * events.ends_with_checksum(event)
        elif self._has_checksums:
            events.check(event, header)
            end -= events.CHECKSUM_BYTES
        self._follow(header)
        try:
            if kind in events.WRITE_ROWS:
                self._rows(event, end, "insert", *events.WRITE_ROWS[kind])
            elif kind in events.UPDATE_ROWS:
                self._rows(event, end, "update", *events.UPDATE_ROWS[kind])
            elif kind in events.DELETE_ROWS:
                self._rows(event, end, "delete", *events.DELETE_ROWS[kind])
            elif kind == events.TABLE_MAP:
                self._table(event[events.HEADER_BYTES : end])
            elif kind == events.XID:
                self._commit(header)
            else:
                self._control(kind, event, end, header)
        except (struct.error, IndexError, UnicodeDecodeError) as error:
            raise CorruptLogError(
                f"an event of type {kind} that ends at {self._offset:,} is damaged: {error}"
            ) from error
        except LakehouseError as error:
            error.add_note(f"in {self._file or 'the binlog'}, event of type {kind} that ends at {self._offset:,}")
            raise

    def _follow(self, header: events.Header) -> None:
        """Follow the offset in the file. The header has its low 32 bits, 0 for events that are not in the file."""
        if not header.end or header.flags & _ARTIFICIAL:
            return
        offset = self._offset & ~(_OFFSET_WRAP - 1) | header.end
        if offset + _OFFSET_WRAP // 2 < self._offset:
            offset += _OFFSET_WRAP
        self._offset = max(self._offset, offset)

    def _control(self, kind: int, event: bytes, end: int, header: events.Header) -> None:
        """Decode an event that has no rows."""
        body = event[events.HEADER_BYTES : end]
        if kind in (events.QUERY, events.MARIADB_QUERY_COMPRESSED):
            self._query(body, header, is_compressed=kind == events.MARIADB_QUERY_COMPRESSED)
        elif kind in (events.GTID, events.ANONYMOUS_GTID):
            self._begin(header)
            self._mysql_gtid(body, is_anonymous=kind == events.ANONYMOUS_GTID)
        elif kind == events.MARIADB_GTID:
            sequence, domain, flags = _MARIADB_GTID.unpack_from(body)
            self._begin(header)
            self._gtid = (domain, header.server, sequence)
            self._is_begun = not flags & _STANDALONE
        elif kind == events.ROTATE:
            self._rotate(body, header)
        elif kind == events.XA_PREPARE:
            self._xa_prepare(body, header)
        elif kind == events.EXECUTE_LOAD_QUERY:
            self._load(body)
        elif kind == events.PARTIAL_UPDATE_ROWS:
            if self._table_of(event) is not None:
                raise UnsupportedError(
                    "the log has PARTIAL_UPDATE_ROWS events (parts of JSON documents), which are not supported; set "
                    "binlog_row_value_options='' on the server, then read the tables again"
                )
        elif kind in events.REFUSED:
            name, remedy = events.REFUSED[kind]
            raise UnsupportedError(f"the log has an event {name}, which is not supported; {remedy}")
        elif kind not in events.IGNORED and kind not in _SERVER_EVENTS:
            raise UnsupportedError(
                f"the log has an event of the unknown type {kind}, so changes could be missed; this version of the "
                "server is not supported"
            )

    def _begin(self, header: events.Header) -> None:
        """Open a transaction that begins with this event."""
        if not self.at_border:
            raise CorruptLogError("a transaction begins within another one; the log or the connection is damaged")
        self.at_border, self._is_begun, self._has_rows = False, False, False
        self._gtid = None
        self._committed_us = header.time_s * _SECOND_US
        self._base = self._last = ordering_value(self._file, max(self._offset - header.size, 0))

    def _mysql_gtid(self, body: bytes, *, is_anonymous: bool) -> None:
        _, raw, number = _MYSQL_GTID.unpack_from(body)
        if not is_anonymous:
            self._gtid = (str(UUID(bytes=raw)), number)
        if len(body) >= _COMMIT_TIME_END and body[_LOGICAL_CLOCK] == _LOGICAL_CLOCK_TYPE:
            # The highest bit says that the time of the original server follows.
            time = int.from_bytes(body[_COMMIT_TIME_END - 7 : _COMMIT_TIME_END], "little")
            self._committed_us = time & ((1 << 55) - 1)

    def _commit(self, header: events.Header) -> None:
        """Close the transaction."""
        if self._last and self._last >= ordering_value(self._file, self._offset):
            raise UnsupportedError(
                f"a transaction that ends at {self._offset:,} of {self._file} has more rows than ordering values"
            )
        if isinstance(self._gtids, MysqlGtids):
            if self._gtid is not None:
                uuid, number = self._gtid[0], int(self._gtid[1])
                self._gtids.add(str(uuid), number, number + 1)
        elif self._gtid is not None:
            domain, server, sequence = (int(part) for part in self._gtid)
            self._gtids.set(domain, server, sequence)
        committed_us = self._committed_us or header.time_s * _SECOND_US
        self._border = (self._file, self._offset, committed_us)
        self._border_order = self._last
        self.at_border, self._is_begun, self._gtid = True, False, None
        self._committed_us = self._last = 0
        self.transactions += 1
        self._tables.clear()

    def _rotate(self, body: bytes, header: events.Header) -> None:
        """Go on with another file. The first event of a dump is a rotation that is not in the log."""
        (offset,) = struct.unpack_from("<Q", body)
        self._file, self._offset = body[8:].decode("utf-8"), offset
        file, place, committed_us = self._border
        if self.at_border and (not file or ordering_value(self._file, offset) > ordering_value(file, place)):
            self._border = (self._file, offset, committed_us)

    def _table(self, body: bytes) -> None:
        number, rest = int.from_bytes(body[:6], "little"), body[6:]
        if rest not in self._maps:
            self._maps[rest] = self._described(rest)
        self._tables[number] = self._maps[rest]

    def _described(self, body: bytes) -> TableVersion | None:
        name, _ = name_of(body)
        settings = self.settings
        if not settings.wants(name):
            return None
        found = parse_table_map(settings.flavor, body, settings.collations, settings.catalog.get(name, ()))
        return TableVersion.of(found, settings.keys.get(name), settings.zero_dates)

    def _table_of(self, event: bytes) -> TableVersion | None:
        """Return the version of the table of a row event; None if the table is not wanted, or the event has no rows."""
        number = int.from_bytes(event[events.HEADER_BYTES : events.HEADER_BYTES + 6], "little")
        if number == _NO_TABLE:
            return None
        try:
            return self._tables[number]
        except KeyError:
            raise CorruptLogError(f"rows of table {number} come without a description of the table") from None

    # parameters: two of them are facts about the event's type
    def _rows(self, event: bytes, end: int, kind: str, has_extra: bool, is_compressed: bool) -> None:
        version = self._table_of(event)
        if version is None:
            return
        if self.at_border:
            raise CorruptLogError("rows come outside of a transaction")
        place = events.HEADER_BYTES + 8
        if has_extra:
            place += event[place] | event[place + 1] << 8
        count, place = events.length_encoded(event, place)
        if count != len(version.map.columns):
            raise CorruptLogError(f"rows of {version.map.name} have {count} columns; its description has others")
        size = (count + 7) // 8 * (2 if kind == "update" else 1)
        bitmaps = event[place : place + size]
        place += size
        if place > end:
            raise CorruptLogError("an event ends within its bitmap of columns")
        if is_compressed:
            event, place = events.decompressed(event, place, end), 0
            end = len(event)
        name = version.map.name
        pending = self._pending.get(name)
        if pending is not version:
            if pending is not None:
                self._finish(name)
            self._pending[name] = version
        rows = version.sink(kind, bitmaps).add(event, place, end, self._last, self._committed_us)
        self._last += rows * STEP
        self._has_rows = True
        self.rows += rows

    def _query(self, body: bytes, header: events.Header, *, is_compressed: bool) -> None:
        text, database = self._statement(body, is_compressed)
        statement = statements.classify(text, database)
        if self.at_border:
            # A server without GTIDs.
            self._begin(header)
        match statement.kind:
            case statements.BEGIN:
                self._is_begun = True
                return
            case statements.COMMIT:
                self._commit(header)
                return
            case statements.ROLLBACK | statements.ROLLBACK_TO if self._has_rows:
                raise SnapshotNeededError(
                    "the log has a transaction that was rolled back in parts, because it changed tables without "
                    "transactions; read the tables again"
                )
            case statements.ROLLBACK:
                self._commit(header)
                return
            case statements.XA:
                words = text.split()
                if len(words) > 1 and words[1].lower() in ("start", "begin"):
                    self._is_begun = True
                    return
            case statements.DML:
                self._changed_by_statement(statement, text)
            case statements.DDL:
                self._schema_events(statement, text)
        if not self._is_begun:
            self._commit(header)

    def _statement(self, body: bytes, is_compressed: bool) -> tuple[str, str]:
        """Return the text of a statement and its default database."""
        _, _, size, _, status = _QUERY.unpack_from(body)
        start = _QUERY.size + status
        database = body[start : start + size].decode("utf-8")
        raw = body[start + size + 1 :]
        if len(body) < start + size + 1:
            raise CorruptLogError("a query event ends before its statement")
        if is_compressed:
            raw = events.decompressed(raw, 0, len(raw))
        charset = statements.charset_of(body[_QUERY.size : start], self.settings.collations)
        return charsets.decode(raw, charset, errors="replace"), database

    def _changed_by_statement(self, statement: statements.Statement, text: str) -> None:
        wanted = next((name for name in sorted(statement.names) if self.settings.wants(name)), None)
        if wanted is None and not statement.is_opaque:
            return
        subject = f"table {wanted}" if wanted is not None else "tables that cannot be known"
        raise SnapshotNeededError(
            f"the log changes {subject} by a statement instead of rows: {text[:_SHOWN]!r}. A session has "
            "binlog_format=STATEMENT or MIXED. Set binlog_format=ROW, then read the table again",
            table="" if wanted is None else str(wanted),
        )

    def _schema_events(self, statement: statements.Statement, text: str) -> None:
        wants = self.settings.wants
        for one in statement.tables:
            is_wanted = one.table.table == "*" or wants(one.table)
            if not is_wanted and (one.renamed_to is None or not wants(one.renamed_to)):
                continue
            for name in list(self._pending):
                if name in (one.table, one.renamed_to) or (one.table.table == "*" and name[0] == one.table[0]):
                    self._finish(name)
            self._last += STEP
            self._changes.append(
                SchemaEvent(
                    kind=one.kind,
                    table=one.table,
                    position=self._last,
                    statement=text,
                    committed_us=self._committed_us,
                    renamed_to=one.renamed_to,
                    changes_rows=one.changes_rows,
                )
            )

    def _load(self, body: bytes) -> None:
        """Refuse LOAD DATA by statement of a wanted table. 13 bytes about its file are before the status variables."""
        _, _, size, _, status = _QUERY.unpack_from(body)
        start = _QUERY.size + 13 + status
        database = body[start : start + size].decode("utf-8")
        text = body[start + size + 1 :].decode("utf-8", "replace")
        self._changed_by_statement(statements.classify(text, database), text)

    def _xa_prepare(self, body: bytes, header: events.Header) -> None:
        is_one_phase = bool(body[0])
        if self._has_rows and not is_one_phase:
            raise UnsupportedError(
                "the log has rows of a prepared XA transaction, which may be rolled back later; XA transactions on "
                "these tables are not supported. Read the tables again"
            )
        self._commit(header)


def _is_behind(one: ChangeBatch | SchemaEvent, upto: int) -> bool:
    """Return whether a change is of a transaction that is not whole."""
    if isinstance(one, SchemaEvent):
        return one.position > upto
    return not one.rows.num_rows
