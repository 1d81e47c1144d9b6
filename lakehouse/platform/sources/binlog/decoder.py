"""Decode binlog events to changes of whole transactions. The decoder uses no socket and no clock."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from uuid import UUID

from lakehouse.errors import CorruptLogError, LakehouseError, SnapshotNeededError, UnsupportedError
from lakehouse.platform.sources.binlog import charsets, events, statements
from lakehouse.platform.sources.binlog.batches import STEP, TableVersion
from lakehouse.platform.sources.binlog.changes import (
    DELETE,
    INSERT,
    UPDATE,
    ChangeBatch,
    DecodedLog,
    SchemaEvent,
    TableName,
)
from lakehouse.platform.sources.binlog.columns import SourceColumn
from lakehouse.platform.sources.binlog.positions import (
    OFFSET_BITS,
    ROW_BITS,
    BinlogPosition,
    MysqlGtids,
    gtids,
    ordering_value,
)
from lakehouse.platform.sources.binlog.starts import TableStarts
from lakehouse.platform.sources.binlog.table_map import name_of, parse_table_map

_SECOND_US = 1_000_000
_OFFSET_WRAP = 1 << 32
_HIGH_BITS = ~(_OFFSET_WRAP - 1)
_MOST_OFFSET = 1 << OFFSET_BITS
_TIME_BITS = (1 << 55) - 1
#: A row event with this table id has no rows; it only ends a statement.
_NO_TABLE = b"\xff\xff\xff\0\0\0"
_STANDALONE = 1
_MARIADB_GTID = struct.Struct("<QIB")
_NUMBER = struct.Struct("<q")
_QUERY = struct.Struct("<IIBHH")
# Offsets in events: the type, the table id, the data after a query's fixed fields.
_KIND_AT, _TABLE_END, _STATUS_AT = 4, events.HEADER_BYTES + 6, events.HEADER_BYTES + _QUERY.size
# Offsets in a MySQL GTID event: UUID after the flags, number, logical clock, two numbers, commit time.
_UUID_AT, _LOGICAL_CLOCK, _LOGICAL_CLOCK_TYPE = events.HEADER_BYTES + 1, events.HEADER_BYTES + 25, 2
_COMMIT_TIME_END = events.HEADER_BYTES + 49
_ARTIFICIAL = 0x20
#: Events about the log itself.
_SERVER_EVENTS = (
    events.FORMAT_DESCRIPTION,
    events.PREVIOUS_GTIDS,
    events.MARIADB_GTID_LIST,
    events.HEARTBEAT,
    events.HEARTBEAT_2,
)
#: Events whose data determines whether they have a checksum.
_BEFORE_CHECKSUMS = (events.FORMAT_DESCRIPTION, events.ROTATE)
#: Per row event type: the kind of change, whether it has extra data, and whether its rows are compressed.
_ROWS = {
    **{number: (INSERT, *facts) for number, facts in events.WRITE_ROWS.items()},
    **{number: (UPDATE, *facts) for number, facts in events.UPDATE_ROWS.items()},
    **{number: (DELETE, *facts) for number, facts in events.DELETE_ROWS.items()},
}
_SHOWN = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderSettings:
    """The settings of a decoder.

    Attributes:
        flavor: `mysql` or `mariadb`.
        wants: Returns whether the changes of a table are wanted.
        collations: The character set per collation id, as in `information_schema.collations`.
        keys: Key columns of tables that have no primary key or use other columns as their key.
        catalog: Table columns from the catalog; used only for types that the log cannot express.
        zero_dates: `null`, or `text` for dates and times as strings.
        starts: The position at which each table's log begins; earlier events of the table are skipped.
        folds_names: Whether the server stores table names in lower case; statements contain them as written.
    """

    flavor: str
    wants: Callable[[TableName], bool]
    collations: Mapping[int, str]
    keys: Mapping[TableName, Sequence[str]] = field(default_factory=dict)
    catalog: Mapping[TableName, Sequence[SourceColumn]] = field(default_factory=dict)
    zero_dates: str = "null"
    starts: Mapping[TableName, BinlogPosition] = field(default_factory=dict)
    folds_names: bool = False


class Decoder:
    """Decodes the events of a log in order, and returns the changes of whole transactions.

        decoder = Decoder(settings, start)
        for event in events:
            decoder.feed(event)
            if decoder.at_border and ...:
                decoded = decoder.take()

    After an error the decoder cannot be used any more. The error's facts contain `tables`, the names of the affected
    tables, if known; the log can still be read for other tables.

    Attributes:
        order: The ordering value after the last whole transaction; 0 if its file is not known.
        at_border: Whether no transaction is open, so that `take` returns all changes so far.
        rows: The number of rows since the last `take`, including the open transaction.
        transactions: The number of whole transactions since the last `take`.
    """

    def __init__(self, settings: DecoderSettings, start: BinlogPosition) -> None:
        self.settings = settings
        self.at_border, self.rows = True, 0
        self._has_checksums = False
        self._gtids = gtids(settings.flavor, start.gtid)
        self._file, self._offset = start.file, start.offset
        self._border = (start.file, start.offset, start.committed_us)
        self._created = {start.file: start.created_s}
        self._file_order = ordering_value(start.file, 0) if start.file else 0
        self.order = start.order
        self.transactions = 0
        self._gtid: tuple[str, int] | tuple[int, int, int] | None = None
        # If the start has no GTIDs, reading cannot continue from the GTIDs of later transactions.
        self._knows_gtids = bool(start.gtid) or not start.file
        self._uuids: dict[bytes, str] = {}
        self._committed_us = 0
        # The last row's ordering value in the open transaction, and whether the transaction has wanted rows.
        self._last = 0
        self._is_begun = False
        self._starts = TableStarts(start, settings.starts)
        # The tables whose log begins behind the open transaction, and the tables with rows in it.
        self._skipped: frozenset[TableName] = frozenset()
        self._touched: set[TableName] = set()
        self._tables: dict[bytes, TableVersion | None] = {}
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
            created_s=self._created.get(file, 0),
        )

    def take(self) -> DecodedLog:
        """Return the changes since the last call.

        Changes of an open transaction are left out, and then no event may follow.
        """
        upto = None if self.at_border else self.order
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
        with _concerning((name,)):
            batch = None if version is None else version.take(upto)
        if batch is not None:
            self._changes.append(batch)

    def feed(self, event: bytes) -> None:
        """Decode one event, from its header to its checksum.

        Raises:
            CorruptLogError: The event contradicts itself, or its checksum is wrong.
            UnsupportedError: The event, a type or a character set is not supported.
            SnapshotNeededError: The log does not contain the changed rows of a wanted table.
            UserError: The log lacks metadata of columns.
        """
        end = len(event)
        time_s, kind, server, _, low, flags = events.header_of(event)
        if self._has_checksums and kind not in _BEFORE_CHECKSUMS:
            end -= events.CHECKSUM_BYTES
            events.check(event, end, kind)
        if low and not flags & _ARTIFICIAL:
            self._follow(low)
        try:
            if kind in _ROWS:
                self._rows(event, end, _ROWS[kind])
            elif kind == events.TABLE_MAP:
                self._describe(event[events.HEADER_BYTES : _TABLE_END], event[_TABLE_END:end])
            elif kind == events.XID:
                self._commit(time_s)
            elif kind == events.GTID:
                self._begin(time_s, len(event))
                self._mysql_gtid(event, end)
                self._skip()
            elif kind == events.MARIADB_GTID:
                sequence, domain, marks = _MARIADB_GTID.unpack_from(event, events.HEADER_BYTES)
                self._begin(time_s, len(event))
                self._gtid = (domain, server, sequence)
                self._is_begun = not marks & _STANDALONE
                self._skip()
            elif kind == events.QUERY:
                self._query(event, end, time_s)
            else:
                self._control(kind, event, end, events.Header(*events.header_of(event)))
                if self.at_border:
                    self._move_border()
        except (struct.error, IndexError, ValueError) as error:
            raise CorruptLogError(
                f"an event of type {kind} that ends at {self._offset:,} is damaged: {error}"
            ) from error
        except LakehouseError as error:
            error.add_note(f"in {self._file or 'the binlog'}, event of type {kind} that ends at {self._offset:,}")
            raise

    def _move_border(self) -> None:
        """Move the position after the last transaction behind events outside of transactions."""
        order = self._file_order + (self._offset << ROW_BITS)
        if self._file and order > self.order:
            self._border = (self._file, self._offset, self._border[2])
            self.order = order

    def _follow(self, low: int) -> None:
        """Follow the offset in the file; events have its low 32 bits."""
        offset = self._offset & _HIGH_BITS | low
        if offset + _OFFSET_WRAP // 2 < self._offset:
            offset += _OFFSET_WRAP
        if offset > self._offset:
            self._offset = offset

    def _control(self, kind: int, event: bytes, end: int, header: events.Header) -> None:
        """Decode an event that has no rows."""
        body = event[events.HEADER_BYTES : end]
        if kind == events.FORMAT_DESCRIPTION:
            self._has_checksums = events.has_checksums(event, header)
            self._describe_file(header.time_s)
        elif kind == events.ROTATE:
            self._rotate(event, header)
        elif kind == events.MARIADB_QUERY_COMPRESSED:
            self._query(event, end, header.time_s)
        elif kind == events.ANONYMOUS_GTID:
            self._begin(header.time_s, len(event))
            self._mysql_gtid(event, end)
            self._gtid = None
            self._skip()
        elif kind == events.XA_PREPARE:
            self._xa_prepare(body, header.time_s)
        elif kind == events.EXECUTE_LOAD_QUERY:
            self._load(body)
        elif kind == events.PARTIAL_UPDATE_ROWS:
            version = self._table_of(event)
            if version is not None:
                raise UnsupportedError(
                    f"the log has PARTIAL_UPDATE_ROWS events of {version.map.name} (parts of JSON documents), which "
                    "are not supported. Set binlog_row_value_options='' on the server",
                    tables=(str(version.map.name),),
                )
        elif kind == events.TRANSACTION_PAYLOAD:
            self._refuse(events.REFUSED[kind])
            # The event is the whole transaction.
            self._commit(header.time_s)
        elif kind in events.REFUSED:
            self._refuse(events.REFUSED[kind])
        elif kind not in events.IGNORED and kind not in _SERVER_EVENTS:
            raise UnsupportedError(
                f"the log has an event of the unknown type {kind}, so changes could be missed; this version of the "
                "server is not supported"
            )

    def _describe_file(self, created_s: int) -> None:
        """Record when the current file was created; raise SnapshotNeededError if it replaced the start's file."""
        before = self._created.get(self._file, 0)
        if before and before != created_s:
            raise SnapshotNeededError(
                f"the server has replaced {self._file}, in which the last read ended, by a new file of this name, so "
                "changes are lost. Read all tables of the spec again with --full-refresh"
            )
        self._created[self._file] = created_s

    def _refuse(self, event: tuple[str, str]) -> None:
        """Raise UnsupportedError for an event that can affect every table, unless no table's log has begun."""
        name, remedy = event
        tables = self._starts.begun(frozenset() if self.at_border else self._skipped)
        if tables != ():
            text = f"the log has an event {name}, which is not supported. {remedy}"
            raise UnsupportedError(text, **({} if tables is None else {"tables": tables}))

    def _skip(self) -> None:
        """Record the tables whose log begins behind the new transaction."""
        self._skipped = self._starts.skipped(self._gtid, self._last)

    def _wants(self, name: TableName) -> bool:
        return self.settings.wants(name) and name not in self._skipped

    def _begin(self, time_s: int, size: int) -> None:
        """Open a transaction whose first event has this size."""
        if not self.at_border:
            raise CorruptLogError("a transaction begins within another one; the log or the connection is damaged")
        self.at_border, self._is_begun = False, False
        self._touched.clear()
        self._gtid = None
        self._committed_us = time_s * _SECOND_US
        self._last = self._file_order + (max(self._offset - size, 0) << ROW_BITS)

    def _mysql_gtid(self, event: bytes, end: int) -> None:
        raw = event[_UUID_AT : _UUID_AT + 16]
        uuid = self._uuids.get(raw)
        if uuid is None:
            uuid = self._uuids[raw] = str(UUID(bytes=raw))
        (number,) = _NUMBER.unpack_from(event, _UUID_AT + 16)
        self._gtid = (uuid, number)
        if end >= _COMMIT_TIME_END and event[_LOGICAL_CLOCK] == _LOGICAL_CLOCK_TYPE:
            # If the top bit is set, the original server's timestamp follows.
            time = int.from_bytes(event[_COMMIT_TIME_END - 7 : _COMMIT_TIME_END], "little")
            self._committed_us = time & _TIME_BITS

    def _commit(self, time_s: int) -> None:
        """Close the transaction."""
        order = self._file_order + (self._offset << ROW_BITS)
        if self._last >= order and self._file:
            raise UnsupportedError(
                f"a transaction that ends at {self._offset:,} of {self._file} has more rows than ordering values"
            )
        if self._offset >= _MOST_OFFSET:
            ordering_value(self._file, self._offset)
        if self._gtid is not None and self._knows_gtids:
            if isinstance(self._gtids, MysqlGtids):
                uuid, number = self._gtid[0], int(self._gtid[1])
                self._gtids.add(str(uuid), number, number + 1)
            else:
                domain, server, sequence = (int(part) for part in self._gtid)
                self._gtids.set(domain, server, sequence)
        self._border = (self._file, self._offset, self._committed_us or time_s * _SECOND_US)
        self.order = order
        self.at_border, self._is_begun, self._gtid = True, False, None
        self._committed_us = 0
        self.transactions += 1
        self._tables.clear()

    def _rotate(self, event: bytes, header: events.Header) -> None:
        """Continue with another file. The first event of a dump is a rotation that is not in the log."""
        end = len(event)
        if header.flags & _ARTIFICIAL:
            # It belongs to no file, so no format description determines whether it has a checksum.
            end -= events.CHECKSUM_BYTES * events.ends_with_checksum(event)
        elif self._has_checksums:
            end -= events.CHECKSUM_BYTES
            events.check(event, end, header.kind)
        (offset,) = struct.unpack_from("<Q", event, events.HEADER_BYTES)
        file = event[events.HEADER_BYTES + 8 : end].decode("utf-8")
        ordering_value(file, offset)
        self._file, self._offset, self._file_order = file, offset, ordering_value(file, 0)

    def _describe(self, number: bytes, body: bytes) -> None:
        """Record the table description for a table id in the following rows."""
        if self._skipped and name_of(body)[0] in self._skipped:
            self._tables[number] = None
            return
        if body not in self._maps:
            self._maps[body] = self._described(body)
        self._tables[number] = self._maps[body]

    def _described(self, body: bytes) -> TableVersion | None:
        name, _ = name_of(body)
        settings = self.settings
        if not settings.wants(name):
            return None
        with _concerning((name,)):
            wire_map = parse_table_map(settings.flavor, body, settings.collations, settings.catalog.get(name, ()))
            return TableVersion.of(wire_map, settings.keys.get(name), settings.zero_dates)

    def _table_of(self, event: bytes) -> TableVersion | None:
        """Return a row event's table version; None if the table is not wanted or the event has no rows."""
        number = event[events.HEADER_BYTES : _TABLE_END]
        try:
            return self._tables[number]
        except KeyError:
            if number == _NO_TABLE:
                return None
            name = int.from_bytes(number, "little")
            raise CorruptLogError(f"rows of table {name} come without a description of the table") from None

    def _rows(self, event: bytes, end: int, kind: tuple[str, bool, bool]) -> None:
        version = self._table_of(event)
        if version is None:
            return
        if self.at_border:
            raise CorruptLogError("rows come outside of a transaction")
        change, has_extra, is_compressed = kind
        place = events.HEADER_BYTES + 8
        if has_extra:
            place += event[place] | event[place + 1] << 8
        count, place = events.length_encoded(event, place)
        if count != len(version.map.columns):
            raise CorruptLogError(f"rows of {version.map.name} have {count} columns; its description has others")
        size = (count + 7) // 8 * (2 if change == UPDATE else 1)
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
        try:
            rows = version.sink(change, bitmaps).add(event, place, end, self._last, self._committed_us)
        except LakehouseError as error:
            error.facts.setdefault("tables", (str(name),))
            raise
        self._last += rows * STEP
        self._touched.add(name)
        self.rows += rows

    def _query(self, event: bytes, end: int, time_s: int) -> None:
        if self.at_border:
            # A server without GTIDs.
            self._begin(time_s, len(event))
            self._skip()
        _, _, size, _, status = _QUERY.unpack_from(event, events.HEADER_BYTES)
        if event[_STATUS_AT + status + size + 1 : end] == b"BEGIN":
            self._is_begun = True
            return
        text, database, mode = self._statement(event, end)
        statement = self._classified(text, database, mode)
        match statement.kind:
            case statements.BEGIN:
                self._is_begun = True
                return
            case statements.COMMIT:
                self._commit(time_s)
                return
            case statements.ROLLBACK | statements.ROLLBACK_TO if self._touched:
                raise SnapshotNeededError(
                    "the log has a transaction that was rolled back in parts, because it changed tables without "
                    "transactions (ENGINE=MyISAM or Aria), and does not say which rows stayed",
                    tables=self._touched_tables(),
                )
            case statements.ROLLBACK:
                self._commit(time_s)
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
            case statements.UNKNOWN:
                self._unknown(statement, text)
        if not self._is_begun:
            self._commit(time_s)

    def _classified(self, text: str, database: str, mode: int) -> statements.Statement:
        statement = statements.classify(text, database, mode)
        return statements.folded(statement) if self.settings.folds_names else statement

    def _statement(self, event: bytes, end: int) -> tuple[str, str, int]:
        """Return a statement, its default database, and its mode."""
        _, _, size, _, status = _QUERY.unpack_from(event, events.HEADER_BYTES)
        start = _STATUS_AT + status
        database = event[start : start + size].decode("utf-8")
        raw = event[start + size + 1 : end]
        if end < start + size + 1:
            raise CorruptLogError("a query event ends before its statement")
        if event[_KIND_AT] == events.MARIADB_QUERY_COMPRESSED:
            raw = events.decompressed(raw, 0, len(raw))
        variables = event[_STATUS_AT:start]
        charset = statements.charset_of(variables, self.settings.collations)
        return charsets.decode_statement(raw, charset), database, statements.mode_of(variables)

    def _changed_by_statement(self, statement: statements.Statement, text: str) -> None:
        wanted: tuple[str, ...] | None = tuple(str(name) for name in sorted(statement.names) if self._wants(name))
        subject = f"table {', '.join(wanted or ())}"
        if statement.is_opaque:
            wanted, subject = self._starts.begun(self._skipped), "tables that cannot be known"
        if wanted == ():
            return
        raise SnapshotNeededError(
            f"the log changes {subject} by a statement instead of rows: {text[:_SHOWN]!r}. A session has "
            "binlog_format=STATEMENT or MIXED. Set binlog_format=ROW",
            **({} if wanted is None else {"tables": wanted}),
        )

    def _unknown(self, statement: statements.Statement, text: str) -> None:
        """Raise SnapshotNeededError if an unknown statement contains the name of a wanted table."""
        wanted = tuple(str(name) for name in sorted(statement.names) if self._wants(name))
        if wanted:
            raise SnapshotNeededError(
                f"the log has a statement that is not understood and may concern table {', '.join(wanted)}: "
                f"{text[:_SHOWN]!r}",
                tables=wanted,
            )

    def _touched_tables(self) -> tuple[str, ...]:
        return tuple(str(name) for name in sorted(self._touched))

    def _schema_events(self, statement: statements.Statement, text: str) -> None:
        wants = self._wants
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
                    skipped=self._skipped,
                )
            )

    def _load(self, body: bytes) -> None:
        """Refuse statement-based LOAD DATA into a wanted table. 13 bytes about its file precede the variables."""
        _, _, size, _, status = _QUERY.unpack_from(body)
        start = _QUERY.size + 13 + status
        database = body[start : start + size].decode("utf-8")
        text = body[start + size + 1 :].decode("utf-8", "replace")
        mode = statements.mode_of(body[_QUERY.size + 13 : start])
        self._changed_by_statement(self._classified(text, database, mode), text)

    def _xa_prepare(self, body: bytes, time_s: int) -> None:
        is_one_phase = bool(body[0])
        if self._touched and not is_one_phase:
            tables = self._touched_tables()
            raise UnsupportedError(
                f"the log has rows of {', '.join(tables)} in a prepared XA transaction, which may be rolled back "
                "later; XA transactions on the table are not supported. End the transaction: XA RECOVER lists it",
                tables=tables,
            )
        self._commit(time_s)


@contextmanager
def _concerning(names: Sequence[TableName]) -> Iterator[None]:
    """Add the affected tables to an error's facts."""
    try:
        yield
    except LakehouseError as error:
        error.facts.setdefault("tables", tuple(str(name) for name in names))
        raise


def _is_behind(one: ChangeBatch | SchemaEvent, upto: int) -> bool:
    """Return whether a change belongs to an incomplete transaction."""
    if isinstance(one, SchemaEvent):
        return one.position > upto
    return not one.rows.num_rows
