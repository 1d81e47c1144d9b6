"""Model of a table as a plain dict, and random histories of all write operations.

The model implements the rules of merging (DATA-5.2, DATA-7.2) without files:

    {(partition path, record key): [version, ...]}       more than one version only if a key was inserted twice

`Run` applies each operation of a history to a real table and to the model, and compares all kinds of reads.
"""

from __future__ import annotations

import datetime as dt
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
from hypothesis import strategies as st

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.table.table import Table
from lakehouse.model.instant import Instant
from tests.support.tables import DELETED, KEYS, SCHEMA, Shape, batch, check_storage

COMMIT_TIME, _, KEY, PATH, _ = META_COLUMNS
Row = dict[str, Any]
#: A row of a read: partition path, key, requested time of its commit, values of SCHEMA.
Read = tuple[Any, ...]
_ESCAPED = "\"#%'*/:=?\\{[]^"


def key_of(shape: Shape, row: Mapping[str, Any]) -> str:
    """Return the record key of a row (DATA-2.1)."""
    fields, partition_by = KEYS[shape.keys]
    generator_is_complex = len(partition_by) > 1 and shape.keys.startswith("complex")
    if len(fields) > 1 or (generator_is_complex and shape.version >= 9):
        return ",".join(f"{name}:{row[name]}" for name in fields)
    return str(row[fields[0]])


def path_of(shape: Shape, row: Mapping[str, Any]) -> str:
    """Return the partition path of a row (DATA-2.3, DATA-2.4)."""
    segments = []
    for entry in KEYS[shape.keys][1]:
        name, _, kind = entry.partition(":")
        value = row[name]
        if kind == "TIMESTAMP":
            value = f"{dt.datetime.fromtimestamp((value or 1) / 1000, dt.UTC):%Y/%m/%d}"
        text = str(value or "__HIVE_DEFAULT_PARTITION__")
        if shape.url_encode:
            text = "".join(f"%{ord(c):02X}" if c in _ESCAPED else c for c in text)
        segments.append(f"{name}={text}" if shape.hive_style else text)
    return "/".join(segments)


@dataclass(slots=True)
class Version:
    """One stored row; `written` is the requested time of its commit, "" until it is committed."""

    path: str
    row: Row
    written: str = ""


@dataclass(slots=True)
class Model:
    """Expected contents of a table of this shape."""

    shape: Shape
    stored: dict[tuple[str, str], list[Version]] = field(default_factory=dict)
    history: list[tuple[Instant, Counter[Read]]] = field(default_factory=list)

    def upsert(self, rows: Iterable[Row]) -> None:
        """Insert and update rows; rows with the delete flag are deletes."""
        for row in self.combined(rows):
            path, key, dead = path_of(self.shape, row), key_of(self.shape, row), bool(row[DELETED])
            settled = False
            for version in self._copies(path, key):
                if self.shape.is_global and self.shape.moves and not dead and version.path != path:
                    if self._wins(row, version, dead=False):
                        self._remove(key, version)
                    else:
                        settled = True
                    continue
                settled = True
                if self._wins(row, version, dead=dead):
                    if dead:
                        self._remove(key, version)
                    else:
                        version.row, version.written = row, ""
            if not settled and not dead:
                self._add(path, key, row)

    def insert(self, rows: Iterable[Row]) -> None:
        """Add rows without looking up their keys."""
        for row in self._inserted(rows):
            self._add(path_of(self.shape, row), key_of(self.shape, row), row)

    def insert_overwrite(self, rows: Iterable[Row]) -> None:
        """Replace the partitions of the rows."""
        kept = self._inserted(rows)
        self.delete_partitions({path_of(self.shape, row) for row in kept})
        for row in kept:
            self._add(path_of(self.shape, row), key_of(self.shape, row), row)

    def insert_overwrite_table(self, rows: Iterable[Row]) -> None:
        """Replace all rows of the table."""
        self.stored.clear()
        self.insert(rows)

    def delete(self, rows: Iterable[Row], *, everywhere: bool) -> None:
        """Remove the keys of the rows, in the rows' partitions or `everywhere`."""
        for row in rows:
            path, key = path_of(self.shape, row), key_of(self.shape, row)
            for version in self._copies(path, key, everywhere=everywhere):
                self._remove(key, version)

    def delete_partitions(self, paths: Iterable[str]) -> None:
        """Remove all rows of these partitions."""
        gone = set(paths)
        self.stored = {where: versions for where, versions in self.stored.items() if where[0] not in gone}

    def committed(self, instant: Instant) -> None:
        """Record the instant that committed the last operation."""
        for versions in self.stored.values():
            for version in versions:
                version.written = version.written or instant.requested
        self.history.append((instant, self.snapshot()))

    def forget(self) -> None:
        """Record that the last operation changed nothing and was not committed."""

    def at(self, *, as_of: str | None = None, upto: str | None = None) -> Counter[Read]:
        """Return the rows as of the commits requested up to `as_of`, or completed up to `upto`."""
        known = [
            seen
            for instant, seen in self.history
            if (as_of is None or instant.requested <= as_of) and (upto is None or instant.completion <= upto)
        ]
        return known[-1] if known else Counter()

    def snapshot(self) -> Counter[Read]:
        """Return the rows of the latest snapshot."""
        return Counter(
            (path, key, version.written, *(version.row[name] for name in SCHEMA.names))
            for (path, key), versions in self.stored.items()
            for version in versions
        )

    def has(self, row: Row) -> bool:
        """Return whether the row's key is stored in its partition, or in any partition with a global index."""
        return bool(self._copies(path_of(self.shape, row), key_of(self.shape, row)))

    def combined(self, rows: Iterable[Row]) -> list[Row]:
        """Return one row per key: the greatest by ordering value, then by path, then by the other columns in order."""
        best: dict[Any, Row] = {}
        for row in rows:
            key = key_of(self.shape, row)
            where = key if self.shape.is_global else (path_of(self.shape, row), key)
            if where not in best or self._rank(row) >= self._rank(best[where]):
                best[where] = row
        return list(best.values())

    def _inserted(self, rows: Iterable[Row]) -> list[Row]:
        chosen = self.combined(rows) if self.shape.combines_inserts else rows
        return [row for row in chosen if not row[DELETED]]

    def _rank(self, row: Row) -> tuple[Any, ...]:
        ordering = row["ts"] if self.shape.ordering else None
        values = [ordering, path_of(self.shape, row), *(row[name] for name in SCHEMA.names)]
        return tuple((value is not None, 0 if value is None else value) for value in values)

    def _wins(self, row: Row, version: Version, *, dead: bool) -> bool:
        new, old = row["ts"], version.row["ts"]
        if self.shape.merge != "event" or old is None or (dead and new is None):
            return True
        return new is not None and new >= old

    def _copies(self, path: str, key: str, *, everywhere: bool = False) -> list[Version]:
        if not (everywhere or self.shape.is_global):
            return list(self.stored.get((path, key), ()))
        return [version for (_, other), versions in self.stored.items() if other == key for version in versions]

    def _add(self, path: str, key: str, row: Row) -> None:
        self.stored.setdefault((path, key), []).append(Version(path, row))

    def _remove(self, key: str, version: Version) -> None:
        rest = [other for other in self.stored[(version.path, key)] if other is not version]
        if rest:
            self.stored[(version.path, key)] = rest
        else:
            del self.stored[(version.path, key)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Verb:
    """One step of a history: a method of Table, its rows, and a number (`way`) that selects the form of the call."""

    name: str
    rows: tuple[Row, ...] = ()
    way: int = 0


def apply_verb(table: Table, model: Model, verb: Verb, *, unique: bool) -> Committed | NothingToDo:
    """Run one operation on the table and on the model; with `unique` stored keys are not inserted again."""
    rows = list(verb.rows)
    if unique and verb.name in ("insert", "bulk_insert"):
        rows = [row for row in model.combined(rows) if not model.has(row)]
    if unique and verb.name.startswith("insert_overwrite"):
        rows = _overwriting(model, rows, verb.name)
    if verb.name == "upsert":
        model.upsert(rows)
        return table.upsert(_in_ways(rows, verb.way))
    if verb.name in ("insert", "bulk_insert"):
        model.insert(rows)
        return getattr(table, verb.name)(_in_ways(rows, verb.way))
    if verb.name == "insert_overwrite":
        model.insert_overwrite(rows)
        return table.insert_overwrite(_in_ways(rows, verb.way))
    if verb.name == "insert_overwrite_table":
        model.insert_overwrite_table(rows)
        return table.insert_overwrite_table(_in_ways(rows, verb.way))
    if verb.name == "delete_partitions":
        chosen = table.partitions()[: 1 + verb.way % 2]
        model.delete_partitions(chosen)
        return table.delete_partitions(chosen)
    return _delete(table, model, rows, verb.way)


@dataclass(slots=True)
class Run:
    """A table, its model and its commits."""

    table: Table
    shape: Shape
    unique: bool = True
    model: Model = field(init=False)
    commits: list[Instant] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.model = Model(self.shape)

    def step(self, verb: Verb) -> None:
        """Apply one operation and compare the reads that end at it."""
        outcome = self.apply(verb)
        check_storage(self.table, unique=self.unique)
        self.compare_snapshots(verb.name)
        if isinstance(outcome, Committed):
            self.compare_incremental(ends=self.commits[-1:])

    def apply(self, verb: Verb) -> Committed | NothingToDo:
        """Apply one operation to the table and to the model."""
        before = self.model.snapshot()
        outcome = apply_verb(self.table, self.model, verb, unique=self.unique)
        if isinstance(outcome, Committed):
            self.model.committed(outcome.instant)
            self.commits.append(outcome.instant)
        else:
            self.model.forget()
            assert self.model.snapshot() == before, f"{verb.name} did nothing: {outcome.reason}"
        return outcome

    def compare_snapshots(self, last: str) -> None:
        """Compare the latest rows and those of each commit; `last` names the last operation in messages."""
        assert read(self.table) == self.model.snapshot(), last
        for instant in self.commits:
            expected = self.model.at(as_of=instant.requested)
            assert read(self.table, as_of=instant.requested) == expected, ("as of", instant.requested, last)

    def compare_incremental(self, ends: Sequence[Instant]) -> None:
        """Compare the changes up to each of `ends` from the beginning and from each earlier commit."""
        for end in ends:
            expected = self.model.at(upto=end.completion)
            done = [instant for instant in self.commits if instant.completion <= end.completion]
            for first in range(len(done)):
                begin = "000" if first == 0 else done[first - 1].completion
                wanted = {instant.requested for instant in done[first:]}
                changed = Counter({version: n for version, n in expected.items() if version[2] in wanted})
                found = read_incremental(self.table, "earliest" if first == 0 else begin, end.completion)
                assert found == changed, ("incremental", begin, end.completion)


def read(table: Table, **scan: Any) -> Counter[Read]:
    """Return the rows of a snapshot in the form of the model."""
    return as_read(table.scan(**scan).to_arrow())


def read_incremental(table: Table, begin: str | None, end: str | None) -> Counter[Read]:
    """Return the rows written by the commits with a completion time in (begin, end]."""
    return as_read(table.incremental(begin, end).to_arrow())


def as_read(rows: pa.Table) -> Counter[Read]:
    """Return rows in the form of the model; columns that the table does not have are null."""
    names = [PATH, KEY, COMMIT_TIME, *SCHEMA.names]
    missing = [pa.nulls(rows.num_rows)] * len(names)
    columns = [rows.column(n).to_pylist() if n in rows.column_names else missing[0].to_pylist() for n in names]
    return Counter(zip(*columns, strict=True))


def shapes(**fixed: Any) -> st.SearchStrategy[Shape]:
    """Return random shapes; `fixed` fields keep their values."""
    choices: dict[str, st.SearchStrategy[Any]] = {
        "version": st.sampled_from([9, 8]),
        "keys": st.sampled_from(sorted(KEYS)),
        "hive_style": st.booleans(),
        "url_encode": st.sampled_from([True, False]),
        "index": st.sampled_from(["SIMPLE", "GLOBAL_SIMPLE", "BUCKET", "BLOOM", "GLOBAL_BLOOM"]),
        "moves": st.booleans(),
        "buckets": st.integers(1, 3),
        "merge": st.sampled_from(["event", "commit", "commit_ordered"]),
        "rows_per_file": st.integers(1, 5),
        "fills_small_files": st.booleans(),
        "combines_inserts": st.booleans(),
        "budget": st.sampled_from([64 << 20, 2_000]),
    }
    if fixed.get("type") == "MERGE_ON_READ":
        choices |= {"new_buckets": st.sampled_from(["base", "log"]), "log_bytes": st.sampled_from([1 << 30, 1])}
    return st.builds(Shape, **{**choices, **{name: st.just(value) for name, value in fixed.items()}})


def rows(
    *, partitions: Sequence[str | None] = ("a", "a", "b/c d=ü", None), deletes: bool = True
) -> st.SearchStrategy[Row]:
    """Return random rows of SCHEMA with few different keys, so that equal keys occur."""
    flags = st.sampled_from([None, None, False, False, True]) if deletes else st.none()
    return st.fixed_dictionaries(
        {
            "id": st.sampled_from([f"k{number}" for number in range(8)]),
            "region": st.sampled_from(["eu", "eu", "us"]),
            "p": st.sampled_from(list(partitions)),
            "at": st.sampled_from([0, 0, 86_400_000, 1_750_000_000_000]),
            "ts": st.one_of(st.none(), st.integers(-1, 4)),
            "v": st.one_of(st.none(), st.text(max_size=4)),
            "amount": st.floats(-1e6, 1e6, width=32).map(lambda x: x + 0.0),
            DELETED: flags,
        }
    )


def verbs(*, names: Sequence[str] | None = None, row: st.SearchStrategy[Row] | None = None) -> st.SearchStrategy[Verb]:
    """Return random operations; upserts occur most often."""
    each = row if row is not None else rows()
    some = st.lists(each, min_size=4, max_size=16).map(tuple)
    few = st.lists(each, max_size=3).map(tuple)
    upserts = st.builds(Verb, name=st.just("upsert"), rows=some, way=st.integers(0, 3))
    others = st.builds(
        Verb, name=st.sampled_from(list(names or VERBS)), rows=st.one_of(some, few), way=st.integers(0, 3)
    )
    return st.one_of(upserts, others) if names is None or "upsert" in names else others


VERBS = (
    "upsert",
    "insert",
    "bulk_insert",
    "delete",
    "insert_overwrite",
    "insert_overwrite_table",
    "delete_partitions",
)


def histories(max_size: int = 6, **choice: Any) -> st.SearchStrategy[list[Verb]]:
    """Return random sequences of operations."""
    return st.lists(verbs(**choice), min_size=1, max_size=max_size)


def _overwriting(model: Model, rows: list[Row], name: str) -> list[Row]:
    """Return rows with distinct keys that keep keys unique in the table.

    With a global index, a key may be stored only in the partitions that the rows replace.
    """
    rows = [row for row in model.combined(rows) if not row[DELETED]]
    if not model.shape.is_global or name == "insert_overwrite_table":
        return rows
    replaced = {path_of(model.shape, row) for row in rows}
    elsewhere = {key for path, key in model.stored if path not in replaced}
    kept = [row for row in rows if key_of(model.shape, row) not in elsewhere]
    return kept if {path_of(model.shape, row) for row in kept} == replaced else []


def _delete(table: Table, model: Model, rows: list[Row], way: int) -> Committed | NothingToDo:
    """Delete by key and partition columns, by key columns only, or by record keys as strings."""
    fields, partition_by = KEYS[model.shape.keys]
    needed = list(dict.fromkeys([*fields, *(entry.partition(":")[0] for entry in partition_by)]))
    frame = batch(rows)
    if way == 0:
        model.delete(rows, everywhere=False)
        return table.delete(frame.select(needed))
    if way == 1:
        model.delete(rows, everywhere=False)
        return table.delete(frame)
    # If key columns are also partition columns, they determine the partition.
    partitioned = any(entry.partition(":")[0] not in fields for entry in partition_by)
    model.delete(rows, everywhere=partitioned or not partition_by or way == 3)
    if way == 2:
        return table.delete(frame.select(list(fields)))
    return table.delete([key_of(model.shape, row) for row in rows])


def _in_ways(rows: list[Row], way: int) -> pa.Table | pa.RecordBatchReader:
    """Return rows as one table, or as a stream of small batches."""
    table = batch(rows)
    if way % 2 == 0:
        return table
    return pa.RecordBatchReader.from_batches(SCHEMA, table.to_batches(max_chunksize=3))
