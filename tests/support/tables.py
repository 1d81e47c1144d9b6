"""Create tables for tests with the real write path, a simulated clock and reproducible ids.

A `Shape` is a combination of table type, version, key generator, index, merge mode and sizes. `make_table` creates a
table of a shape, in memory by default. `check_storage` asserts the invariants of a table without active writes.
"""

from __future__ import annotations

import io
import itertools
import os
import random
import threading
import uuid
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from hypothesis import Phase, settings

from lakehouse.core.env import Env
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.format.file_names import parse_base_file, parse_instant, parse_log_file
from lakehouse.core.format.hashing_config import INITIAL_INSTANT, hashing_config_path
from lakehouse.core.format.log.blocks import BlockType, scan_blocks
from lakehouse.core.format.log.delete_block import decode_deletes
from lakehouse.core.format.parquet.bloom_filter import BloomFilter
from lakehouse.core.metadata.place import DEFINITIONS_PATH
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.planning.key_ranges import RANGES_KEY, decode_ranges
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.files import BaseFile, LogFile
from lakehouse.model.index_type import SIMPLE_MOVES, index_type
from lakehouse.model.instant import State
from lakehouse.model.keys import TimestampFormat
from lakehouse.model.merge import MergeMode
from tests.support.metadata_files import check_listing, strays_of_metadata

COMMIT_TIME, _, KEY, PATH, FILE_NAME = META_COLUMNS
DELETED = "_hoodie_is_deleted"
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("region", pa.string()),
        ("p", pa.string()),
        ("at", pa.int64()),
        ("ts", pa.int64()),
        ("v", pa.string()),
        ("amount", pa.float64()),
        (DELETED, pa.bool_()),
    ]
)
#: Record key columns and entries of `partition_by` for each value of `Shape.keys`.
KEYS: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "simple": (("id",), ("p",)),
    "complex": (("id", "region"), ("p", "region")),
    "complex_single": (("id",), ("p", "region")),
    "timestamp": (("id",), ("at:TIMESTAMP",)),
    "custom": (("id", "region"), ("p:SIMPLE", "at:TIMESTAMP")),
    "non_partition": (("id",), ()),
    "non_partition_pair": (("id", "region"), ()),
}
_START_MS = 1_750_000_000_000
_numbers = itertools.count(1)


class SteadyClock:
    """A simulated clock: each reading advances it by a few milliseconds, and a sleep by its duration.

    An unpickled copy starts at the time of the original and has its own lock.
    """

    def __init__(self, step_ms: int = 3) -> None:
        self.now, self._step = _START_MS, step_ms
        self._lock = threading.Lock()

    def __getstate__(self) -> dict[str, object]:
        """Return the attributes without the lock, which cannot be pickled."""
        return {name: value for name, value in vars(self).items() if name != "_lock"}

    def __setstate__(self, state: dict[str, object]) -> None:
        """Restore the attributes and create a lock."""
        vars(self).update(state, _lock=threading.Lock())

    def now_ms(self) -> int:
        """Advance the clock by one step and return its time in milliseconds."""
        with self._lock:
            self.now += self._step
            return self.now

    def monotonic_s(self) -> float:
        """Return the time in seconds without advancing the clock."""
        return self.now / 1000

    def sleep(self, seconds: float) -> None:
        """Advance the clock without waiting."""
        with self._lock:
            self.now += int(seconds * 1000)


class Alone(TableLock):
    """A table lock for a table with a single writer; it locks nothing."""

    def __init__(self) -> None:
        """Create the lock without storage."""

    def create(self, path: str, data: bytes) -> None:
        """Do nothing: the lock is not stored."""

    def confirm(self) -> None:
        """Do nothing: no other writer exists."""


class SeededIds:
    """Generates version 4 UUIDs that are the same in each test run."""

    def __init__(self, seed: int = 0) -> None:
        self._random = random.Random(seed)

    def uuid(self) -> str:
        """Return the next UUID."""
        return str(uuid.UUID(int=self._random.getrandbits(128), version=4))


def make_env(location: str | None = None, *, storage: Storage | None = None) -> Env:
    """Return an environment with a new clock and new ids; its storage is a new memory store by default."""
    found = storage or open_storage(location or f"memory://tables-{next(_numbers)}/t")
    return Env(storage=found, clock=SteadyClock(), ids=SeededIds())


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A combination of table properties.

    `merge` is `commit` (no ordering column), `commit_ordered` or `event`. `rows_per_file` sets the estimated record
    size of the first commit; later commits use the sizes of written files. `budget` is in bytes.

    For merge-on-read tables, `new_buckets` selects whether a new bucket starts with a base file or a log, and logs roll
    over at `log_bytes`.
    """

    type: str = "COPY_ON_WRITE"
    version: int = 9
    keys: str = "simple"
    hive_style: bool = False
    url_encode: bool = True
    index: str = "SIMPLE"
    moves: bool = True
    buckets: int = 2
    merge: str = "event"
    rows_per_file: int = 3
    fills_small_files: bool = True
    combines_inserts: bool = False
    budget: int = 64 << 20
    new_buckets: str = "base"
    log_bytes: int = 1 << 30
    options: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_global(self) -> bool:
        """Whether a key is unique in the whole table."""
        return index_type(self.index).is_global

    @property
    def is_merge_on_read(self) -> bool:
        """Whether the table type is MERGE_ON_READ."""
        return self.type == "MERGE_ON_READ"

    @property
    def ordering(self) -> str | None:
        """The ordering column, or None."""
        return None if self.merge == "commit" else "ts"

    def table_options(self) -> dict[str, str]:
        """Return the options of the table and its writes."""
        largest = 30_000
        return {
            "hoodie.write.table.version": str(self.version),
            "hoodie.datasource.write.hive_style_partitioning": str(self.hive_style).lower(),
            "hoodie.datasource.write.partitionpath.urlencode": str(self.url_encode).lower(),
            "hoodie.index.type": self.index,
            index_type(self.index).moves_option or SIMPLE_MOVES: str(self.moves).lower(),
            "hoodie.bucket.index.num.buckets": str(self.buckets),
            "hoodie.parquet.max.file.size": str(largest),
            "hoodie.parquet.small.file.limit": str(largest * 2 // 3 if self.fills_small_files else 0),
            "hoodie.copyonwrite.record.size.estimate": str(largest // self.rows_per_file),
            "hoodie.combine.before.insert": str(self.combines_inserts).lower(),
            "hoodie.index.bloom.fpp": "0.01",
            "lakehouse.write.memory.budget": str(self.budget),
            "lakehouse.bucket.inserts": self.new_buckets,
            "hoodie.logfile.max.size": str(self.log_bytes),
            "hoodie.log.compaction.blocks.threshold": "2",
            **self.options,
        }


def make_table(shape: Shape | None = None, *, env: Env | None = None, schema: pa.Schema | None = SCHEMA) -> Table:
    """Create an empty table of this shape."""
    shape, env = shape or Shape(), env or make_env()
    record_key, partition_by = KEYS[shape.keys]
    timed = any(":TIMESTAMP" in entry for entry in partition_by)
    return Table.create(
        env.storage.root,
        name="events",
        record_key=record_key,
        partition_by=partition_by,
        table_type=shape.type,
        ordering=shape.ordering,
        schema=schema,
        merge_mode=MergeMode.EVENT_TIME_ORDERING if shape.merge == "event" else MergeMode.COMMIT_TIME_ORDERING,
        timestamp=TimestampFormat(output_format="yyyy/MM/dd") if timed else None,
        options=shape.table_options(),
        env=env,
    )


def batch(rows: Iterable[Mapping[str, Any]], schema: pa.Schema = SCHEMA) -> pa.Table:
    """Return rows as an Arrow table; columns that a row does not have are null."""
    listed = list(rows)
    return pa.table({f.name: pa.array([row.get(f.name) for row in listed], f.type) for f in schema}, schema=schema)


def row(id: str, **values: Any) -> dict[str, Any]:
    """Return a row of SCHEMA with default values."""
    return {"id": id, "region": "eu", "p": "a", "at": 0, "ts": 1, "v": None, "amount": 0.0, DELETED: None} | values


def data_rows(table: Table, columns: Sequence[str] | None = None, **scan: Any) -> list[dict[str, Any]]:
    """Return rows without meta columns, sorted by their repr."""
    rows: list[dict[str, Any]] = table.scan(columns, **scan).to_arrow().to_pylist()
    plain = [{name: value for name, value in row.items() if name not in META_COLUMNS} for row in rows]
    return sorted(plain, key=repr)


def examples(number: int) -> settings:
    """Return hypothesis settings for `number` examples.

    By default a test runs half of them, the same in each run. With LAKEHOUSE_SHARE=0.2 it runs a fifth of these, and
    with LAKEHOUSE_EXAMPLES=n it runs n times `number` random examples.
    """
    factor = os.environ.get("LAKEHOUSE_EXAMPLES")
    share = float(os.environ.get("LAKEHOUSE_SHARE", "1"))
    return settings(
        max_examples=max(1, round((number + 1) // 2 * share)) if factor is None else number * int(factor),
        derandomize=factor is None,
        database=None,
        deadline=None,
        print_blob=True,
        phases=[Phase.generate, Phase.shrink],
    )


def base_files(storage: Storage) -> list[BaseFile]:
    """Return all base files on storage, committed or not."""
    found = []
    for file in storage.list(""):
        partition, _, name = file.path.rpartition("/")
        base = parse_base_file(name, partition, file.size_bytes)
        if base is not None and not file.path.startswith(".hoodie/"):
            found.append(base)
    return found


def log_files(storage: Storage) -> list[LogFile]:
    """Return all log files on storage, committed or not."""
    found = []
    for file in storage.list(""):
        partition, _, name = file.path.rpartition("/")
        log = parse_log_file(name, partition, file.size_bytes)
        if log is not None and not file.path.startswith(".hoodie/"):
            found.append(log)
    return found


def strays(storage: Storage) -> list[str]:
    """Return files that exist only during a write: staged rows, markers, heartbeats, locks and incomplete files."""
    known = {
        ".hoodie/hoodie.properties",
        ".hoodie/holder.json",
        hashing_config_path(INITIAL_INSTANT),
        DEFINITIONS_PATH,
    }
    return strays_of_metadata(storage) + [
        file.path
        for file in storage.list("")
        if file.path not in known
        and not file.path.startswith((".hoodie/metadata/", ".hoodie/.index_defs/"))
        and file.name != ".hoodie_partition_metadata"
        and parse_base_file(file.name, "", 0) is None
        and (parse_log_file(file.name, "", 0) is None or file.path.startswith(".hoodie/"))
        # Instants of version 6 lie in `.hoodie` itself.
        and not (file.path.rpartition("/")[0] in (".hoodie", ".hoodie/timeline") and parse_instant(file.name))
    ]


def check_storage(table: Table, *, unique: bool = True, plans: Collection[str] = ()) -> None:
    """Assert the invariants of a table without active writes.

    With `unique` each key must occur once; `plans` are the requested times of the pending plans.
    """
    loaded = table.refresh()
    storage = loaded.env.storage
    pending = loaded.timeline.where(pending=True)
    assert {(i.requested, i.state) for i in pending} == {(p, State.REQUESTED) for p in plans}, "pending instants"
    assert strays(storage) == []
    if loaded.config.metadata_partitions:
        check_listing(storage)
    commits = table.commits()
    named = {stat.path: stat for _, metadata in commits for stat in metadata.stats}
    found: dict[str, BaseFile | LogFile] = {file.path: file for file in (*base_files(storage), *log_files(storage))}
    assert sorted(found) == sorted(named), "files on storage and files in commits differ"
    for path, stat in named.items():
        assert found[path].size_bytes == stat.size_bytes, path
        assert storage.get(f"{stat.partition}/.hoodie_partition_metadata".lstrip("/"))
    if commits:
        check_files(storage, commits[-1][1], loaded.config.keys.record_key_fields)
    if unique and loaded.config.is_merge_on_read:
        # Base files still contain keys that logs delete, so the merged rows are checked.
        seen = Counter(zip(*table.scan([PATH, KEY]).to_arrow().to_pydict().values(), strict=True))
        assert not [where for where, times in seen.items() if times > 1]
    elif unique:
        check_unique(storage, [s.base for s in load_slices(loaded) if s.base])


def check_unique(storage: Storage, bases: Sequence[BaseFile]) -> None:
    """Assert that each key occurs once in a partition, over all its file groups."""
    seen: dict[tuple[str, str], str] = {}
    for base in bases:
        for key in pq.read_table(storage.open_input(base.path), columns=[KEY]).column(0).to_pylist():
            where = (base.partition, key)
            assert where not in seen, f"key {key} of {base.partition!r} is in {seen[where]} and {base.file_id}"
            seen[where] = base.file_id


def check_files(storage: Storage, metadata: CommitMetadata, record_key: Sequence[str]) -> None:
    """Assert that the files of a commit match its statistics, footers and column ranges."""
    for stat in metadata.stats:
        if not stat.path.endswith(".parquet"):
            check_log(storage, stat)
            continue
        with storage.open_input(stat.path) as source:
            file = pq.ParquetFile(source)
            rows, footer = file.read(), file.metadata.metadata or {}
        assert rows.num_rows == stat.num_writes, stat.path
        assert stat.num_inserts + stat.num_updates <= stat.num_writes, stat.path
        assert set(rows.column(FILE_NAME).to_pylist()) <= {stat.path.rpartition("/")[2]}
        assert set(rows.column(PATH).to_pylist()) <= {stat.partition}
        assert b"parquet.avro.schema" in footer
        keys = rows.column(KEY)
        if rows.num_rows:
            low, high = footer[b"hoodie_min_record_key"].decode(), footer[b"hoodie_max_record_key"].decode()
            # The format allows wider bounds; lakehouse writes exact ones.
            bounds = pc.min_max(keys).as_py()
            assert low == bounds["min"] and high == bounds["max"], stat.path
        code = footer.get(b"hoodie_bloom_filter_type_code")
        bloom = BloomFilter.from_text(footer[b"org.apache.hudi.bloomfilter"].decode(), code and code.decode())
        assert bloom.might_contain(keys).all() if rows.num_rows else True, stat.path
        _check_ranges(stat, rows, metadata)


def check_log(storage: Storage, stat: WriteStat) -> None:
    """Assert that a log file matches its statistics, and that its blocks are complete and have the commit's instant."""
    log = parse_log_file(stat.path.rpartition("/")[2], stat.partition, stat.size_bytes)
    assert log is not None and log.file_id == stat.file_id
    data = storage.get(stat.path)
    blocks = scan_blocks(io.BytesIO(data))
    assert {block.instant for block in blocks} == {log.instant}
    assert all(block.schema for block in blocks)
    rows = deletes = 0
    for block in blocks:
        content = data[block.offset : block.offset + block.length]
        if block.kind is BlockType.DELETE:
            deletes += len(decode_deletes(content, []).keys)
            continue
        assert block.kind is BlockType.PARQUET_DATA
        stored = pq.read_table(io.BytesIO(content))
        assert set(stored.column(FILE_NAME).to_pylist()) == {log.file_id}
        assert set(stored.column(PATH).to_pylist()) == {stat.partition}
        rows += stored.num_rows
    assert (rows + deletes, deletes) == (stat.num_writes, stat.num_deletes), stat.path


def _check_ranges(stat: WriteStat, rows: pa.Table, metadata: CommitMetadata) -> None:
    ranges = decode_ranges(metadata.extra.get(RANGES_KEY), rows.schema).get(stat.path, {})
    for name, (low, high, nulls) in ranges.items():
        column = rows.column(name)
        column = column.cast(column.type.value_type) if pa.types.is_dictionary(column.type) else column
        bounds = pc.min_max(column).as_py()
        assert column.null_count == nulls, (stat.path, name)
        assert bounds["min"] is None or (low <= bounds["min"] and bounds["max"] <= high), (stat.path, name)
