"""Decode pgoutput messages to changes of whole transactions, without I/O.

The server sends whole transactions in commit order. A change's ordering value is the log position (LSN) of its record.
If two transactions change the same row, the later one waits for the end of the earlier one. So these values follow the
log order for each key, and are the same whenever the log is read. Rows that share a record, as COPY writes them, get
the next values, which no other record has.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lakehouse.errors import CorruptLogError, UnsupportedError, UserError
from lakehouse.platform.sources.databases.server import Changes, SchemaEvent, Seen
from lakehouse.platform.sources.pgoutput import batches, messages
from lakehouse.platform.sources.pgoutput.batches import STEP, TableVersion
from lakehouse.platform.sources.pgoutput.columns import PgColumn

_ROWS = (messages.INSERT, messages.UPDATE, messages.DELETE)
_SILENT = (messages.ORIGIN, messages.TYPE)
#: Changes are taken from the decoder when its messages reach this size in bytes.
TAKE_BYTES = 32 << 20


class Decoder:
    """Decodes messages up to an end.

    Args:
        end: The log position at which the decoder stops: before the first transaction that commits there or later.
        keys: The key columns of the wanted tables, by table name as `schema.table`.
        domains: The base type and modifier per domain, by OID of the domain.
        seen: The changes to skip, by table name: changes of transactions that commit before a position, or that a
            snapshot includes.
    """

    def __init__(
        self,
        *,
        end: int,
        keys: Mapping[str, Sequence[str]],
        domains: Mapping[int, tuple[int, int]] | None = None,
        seen: Mapping[str, Seen] | None = None,
    ) -> None:
        self._end, self._keys, self._domains = end, keys, domains or {}
        self._seen = {name: (one.order, TransactionSet.parse(one.transactions)) for name, one in (seen or {}).items()}
        self._skipped: frozenset[str] = frozenset()
        self._versions: dict[bytes, TableVersion | None] = {}
        self._altered: set[str] = set()
        self._done: list[Changes | SchemaEvent] = []
        self._commit: int | None = None
        self._committed_us = self._last = 0
        #: The position behind the last whole transaction, its commit time in microseconds, and the number of
        #: transactions.
        self.position, self.time_us, self.transactions = 0, 0, 0
        #: The bytes of row messages since `take`.
        self.bytes = 0

    def feed(self, data: bytes, place: int) -> bool:
        """Decode a message at a log position; return False if it begins a transaction behind the end."""
        try:
            kind = data[0]
            if kind not in _ROWS:
                return self._control(kind, data, place)
            version = self._versions[data[1:5]]
            if version is None or version.relation.name in self._skipped:
                return True
            position = self._last = place + 1 if place > self._last else self._last + STEP
            if self._altered:
                self._announce(version.relation.name, position)
            tag = data[messages.ROW_TAG]
            sink = version.sinks.get(kind << 8 | tag) or version.sink(kind, tag)
            sink.data.append(data)
            sink.positions.append(position)
            sink.times.append(self._committed_us)
            self.bytes += len(data)
            if len(sink.data) >= batches.MOST_ROWS:
                version.finish()
            return True
        except KeyError as error:
            raise CorruptLogError(f"a row at {lsn_text(place)} has a table that was not described") from error
        except (IndexError, ValueError, struct.error) as error:
            what = data[:1].decode("latin-1")
            raise CorruptLogError(f"the message {what!r} at {lsn_text(place)} is cut off: {error}") from error

    def take(self) -> Iterator[Changes | SchemaEvent]:
        """Yield the changes and events since the last call, in log order per table."""
        for version in self._versions.values():
            self._finish(version)
        done, self._done = self._done, []
        self.bytes = 0
        yield from done

    @property
    def is_inside(self) -> bool:
        """Whether the end of the last transaction is missing."""
        return self._commit is not None

    def _control(self, kind: int, data: bytes, place: int) -> bool:
        if kind == messages.BEGIN:
            return self._begin(data)
        if kind == messages.COMMIT:
            self._finish_transaction(data)
        elif kind == messages.RELATION:
            self._describe(data)
        elif kind == messages.TRUNCATE:
            self._truncate(data, place)
        elif kind not in _SILENT:
            raise UnsupportedError(
                f"the log has a message of the unknown type {chr(kind)!r} at {lsn_text(place)}: this package cannot "
                "tell what it changes. Update the package",
                place=lsn_text(place),
            )
        return True

    def _begin(self, data: bytes) -> bool:
        if self._commit is not None:
            raise CorruptLogError(f"the transaction that commits at {lsn_text(self._commit)} has no end")
        commit, self._committed_us = messages.begin(data)
        if commit >= self._end:
            return False
        if self._seen:
            number = messages.transaction(data)
            self._skipped = frozenset(
                name for name, (place, shown) in self._seen.items() if commit < place or shown.has(number)
            )
        self._commit, self._last = commit, 0
        return True

    def _finish_transaction(self, data: bytes) -> None:
        commit, end = messages.commit(data)
        if commit != self._commit:
            raise CorruptLogError(f"a transaction that was not begun commits at {lsn_text(commit)}")
        self._commit, self.position, self.time_us = None, end, self._committed_us
        self.transactions += 1

    def _describe(self, data: bytes) -> None:
        relation, number = messages.relation(data), data[1:5]
        if relation.name not in self._keys:
            self._finish(self._versions.get(number))
            self._versions[number] = None
            return
        columns = tuple(self._resolved(column) for column in relation.columns)
        version = self._versions.get(number)
        if version is not None and version.columns == columns and version.relation == relation:
            return
        # Another table with the same name may have replaced this table.
        others = [one for one in self._versions.values() if one is not None and one.relation.name == relation.name]
        for one in others:
            self._finish(one)
            if one.columns != columns:
                self._altered.add(relation.name)
        self._versions[number] = TableVersion(relation, columns, self._keys[relation.name])

    def _truncate(self, data: bytes, place: int) -> None:
        for oid in messages.truncated(data):
            number = oid.to_bytes(4, "big")
            if number not in self._versions:
                raise CorruptLogError(f"TRUNCATE at {lsn_text(place)} has a table that was not described")
            version = self._versions[number]
            if version is not None and version.relation.name not in self._skipped:
                name = version.relation.name
                position = self._last = max(place + 1, self._last + STEP)
                self._announce(name, position)
                self._done.append(
                    SchemaEvent(kind="truncate", table=name, position=position, statement=f"TRUNCATE {name}")
                )

    def _announce(self, name: str, position: int) -> None:
        """Add an event before the first change of a table whose columns changed."""
        if name in self._altered:
            self._altered.discard(name)
            statement = f"ALTER TABLE {name}"
            self._done.append(SchemaEvent(kind="alter", table=name, position=position - STEP, statement=statement))

    def _resolved(self, column: PgColumn) -> PgColumn:
        oid, modifier = column.oid, column.modifier
        while oid in self._domains:
            oid, modifier = self._domains[oid]
        return replace(column, oid=oid, modifier=modifier)

    def _finish(self, version: TableVersion | None) -> None:
        changes = None if version is None else version.take()
        if changes is not None:
            self._done.append(changes)


def lsn_text(place: int) -> str:
    """Return a log position as the server prints it."""
    return f"{place >> 32:X}/{place & 0xFFFFFFFF:X}"


def lsn_number(text: str) -> int:
    """Parse a log position that the server printed; raise ValueError for any other string."""
    high, slash, low = text.partition("/")
    if not slash:
        raise ValueError(f"{text!r} is not a log position")
    return int(high, 16) << 32 | int(low, 16)


_EPOCH, _HALF = 1 << 32, 1 << 31


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionSet:
    """Transactions that had ended when a snapshot was taken.

    Attributes:
        oldest: All transactions before this id had ended.
        next: The transactions from this id on had not begun.
        running: The transactions between both that had not ended.
    """

    oldest: int
    next: int
    running: frozenset[int]

    @classmethod
    def parse(cls, text: str) -> TransactionSet:
        """Parse a `pg_snapshot` such as `10:20:11,15`; an empty string is a set without transactions."""
        if not text:
            return cls(oldest=0, next=0, running=frozenset())
        try:
            oldest, following, running = text.split(":")
            return cls(
                oldest=int(oldest),
                next=int(following),
                running=frozenset(int(number) for number in running.split(",") if number),
            )
        except ValueError as error:
            raise UserError(f"{text!r} is not a snapshot of PostgreSQL, such as 10:20:11,15") from error

    def has(self, number: int) -> bool:
        """Return whether the snapshot includes a transaction, given the lower 32 bits of its number.

        The log does not contain the upper bits: the full number is the one closest to the snapshot.
        """
        if not self.next:
            return False
        whole = self.next - self.next % _EPOCH + number
        if whole - self.next >= _HALF:
            whole -= _EPOCH
        elif self.next - whole > _HALF:
            whole += _EPOCH
        return whole < self.oldest or (whole < self.next and whole not in self.running)
