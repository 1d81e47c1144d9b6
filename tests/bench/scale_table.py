"""Make a table with many partitions and files fast: 200,000 files in less than a minute.

Every file is a complete Parquet file with its own rows, statistics and record keys. One file is encoded; the others are
copies in which the values are replaced by values of the same length. The commits are made by the same code as those of
a write, so a metadata table is maintained if the table has one.

    part-00000/<file id>_0-0-0_<instant>.parquet      part-00000/.hoodie_partition_metadata
"""

from __future__ import annotations

import io
import os
import struct
import threading
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lakehouse.core.format.avro.schema import arrow_to_avro, with_meta_fields
from lakehouse.core.format.partition_metadata import render_partition_metadata
from lakehouse.core.layout.registry import table_layout
from lakehouse.core.operations.commit.complete import PreparedCommit, complete_commit
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.key_ranges import ranges_extra
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.model.commit import ColumnBounds, CommitMetadata, Operation, WriteStat
from lakehouse.model.files import BaseFile
from lakehouse.model.instant import Action
from lakehouse.spec.options.transaction import TransactionPolicy

ROWS = 2
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("v", pa.int64()), ("ts", pa.int64())])
#: The difference between the smallest values of `v` of two files; a file has `first` and `first + 1`.
STEP = 10
_TOKEN = "0-0-0"
_PARTITION = "part-#####"
_INSTANT = "@instant-time-17@"
_FILE_ID = f"{'#' * 36}-0"
_NAME = f"{_FILE_ID}_{_TOKEN}_{_INSTANT}.parquet"
_KEYS = ("low-k####", "top-k####")
_VALUES = (0x5A17_3C91_0B7E_44D1, 0x5A17_3C91_0B7E_44D2)
_TIME = 0x6B28_4DA2_1C8F_55E2
_WRITERS = 4
_COLUMN_BYTES = 64
_ODD = 0x9E37_79B9_7F4A_7C15_F39C_C060_5CED_C835


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The number of partitions, and of files in each of them; each commit writes one file to every partition."""

    partitions: int = 10_000
    files: int = 20

    @property
    def rows(self) -> int:
        """The rows of the table."""
        return self.partitions * self.files * ROWS


def partition_name(partition: int) -> str:
    """Return the path of a partition, which is also the value of its column `p`."""
    return f"part-{partition:05d}"


def record_keys(number: int) -> tuple[str, ...]:
    """Return the keys of the rows of the file `number`, counted over all commits."""
    return tuple(f"k{ROWS * number + row:08d}" for row in range(ROWS))


def values(number: int) -> tuple[int, ...]:
    """Return the values of `v` of the rows of the file `number`."""
    return tuple(STEP * number + row for row in range(ROWS))


def make_table(location: str | Path, size: Size, options: Mapping[str, str] | None = None) -> Table:
    """Create a table of this size; `options` are those of its creation.

    The file of commit `c` in partition `p` has the number `c * partitions + p`, which decides its keys and values.
    """
    table = Table.create(
        location, name="scale", record_key="id", partition_by="p", ordering="ts", schema=SCHEMA, options=options
    )
    for partition in range(size.partitions):
        directory = Path(table.location, partition_name(partition))
        directory.mkdir()
        (directory / ".hoodie_partition_metadata").write_bytes(render_partition_metadata(_first_instant(table), 1))
    for commit in range(size.files):
        add_commit(table, size.partitions * commit, range(size.partitions))
    return table


def add_commit(table: Table, first: int, partitions: range) -> Committed:
    """Commit one new file in each of these partitions; the files have the numbers from `first` on."""
    loaded = table.refresh()
    with table_lock(loaded.env, TransactionPolicy()):
        instant = loaded.store.request(loaded.timeline, Action.COMMIT, b"")
    profile = table_layout(loaded.config.version).encode_inflight(CommitMetadata(operation=Operation.BULK_INSERT))
    loaded.store.start(instant, profile)
    stats = _write_files(table.location, instant.requested, first, partitions)
    indexed = SCHEMA.names if "column_stats" in loaded.config.metadata_partitions else None
    extra = {"schema": arrow_to_avro(SCHEMA, table=table.name)} | ranges_extra(stats, indexed)
    metadata = CommitMetadata(operation=Operation.BULK_INSERT, stats=stats, extra=extra)
    outcome = complete_commit(_candidate(loaded, metadata, instant), TransactionPolicy())
    assert isinstance(outcome, Committed)
    return outcome


def _candidate(loaded: LoadedTable, metadata: CommitMetadata, instant: object) -> PreparedCommit:
    return PreparedCommit(
        table=loaded,
        instant=instant,  # type: ignore[arg-type]
        metadata=metadata,
    )


def _first_instant(table: Table) -> str:
    return table.refresh().store.time_text(table.clock.now_ms())


def _write_files(root: str, instant: str, first: int, partitions: range) -> tuple[WriteStat, ...]:
    template = _template()
    stats = [_stat(instant, first + place, partition) for place, partition in enumerate(partitions)]

    def write(worker: int) -> None:
        for place in range(worker, len(stats), _WRITERS):
            data = _patched(template, instant, first + place, partitions[place])
            assert len(data) == stats[place].size_bytes
            handle = os.open(f"{root}/{stats[place].path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
            os.write(handle, data)
            os.close(handle)

    threads = [threading.Thread(target=write, args=(worker,)) for worker in range(_WRITERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return tuple(stats)


def _stat(instant: str, number: int, partition: int) -> WriteStat:
    file = BaseFile(partition=partition_name(partition), file_id=_file_id(number), write_token=_TOKEN, instant=instant)
    keys, (low, high) = record_keys(number), values(number)
    bounds = (keys[0], keys[-1], 0)
    return WriteStat(
        partition=file.partition,
        file_id=file.file_id,
        path=file.path,
        num_writes=ROWS,
        num_inserts=ROWS,
        size_bytes=len(_template()),
        ranges={
            "_hoodie_commit_time": (instant, instant, 0),
            "_hoodie_record_key": bounds,
            "id": bounds,
            "p": (file.partition, file.partition, 0),
            "v": (low, high, 0),
            "ts": (number, number, 0),
        },
        bounds={
            "_hoodie_commit_time": _bounds(instant, instant),
            "_hoodie_partition_path": _bounds(file.partition, file.partition),
            "_hoodie_record_key": _bounds(keys[0], keys[-1]),
            "id": _bounds(keys[0], keys[-1]),
            "p": _bounds(file.partition, file.partition),
            "v": _bounds(low, high),
            "ts": _bounds(number, number),
        },
    )


def _bounds(low: str | int, high: str | int) -> ColumnBounds:
    low, high = (value.encode() if isinstance(value, str) else value for value in (low, high))
    return ColumnBounds(low=low, high=high, nulls=0, values=ROWS, size_bytes=_COLUMN_BYTES, raw_bytes=_COLUMN_BYTES)


def _file_id(number: int) -> str:
    # Random ids are spread over all values; so are these. An id of zeros would be that of a bucket.
    return f"{uuid.UUID(int=(number + 1) * _ODD % (1 << 128), version=4)}-0"


def _patched(template: bytes, instant: str, number: int, partition: int) -> bytes:
    pairs = [
        (_INSTANT.encode(), instant.encode()),
        (_FILE_ID.encode(), _file_id(number).encode()),
        (_PARTITION.encode(), partition_name(partition).encode()),
        *((old.encode(), new.encode()) for old, new in zip(_KEYS, record_keys(number), strict=True)),
        *((_long(old), _long(new)) for old, new in zip(_VALUES, values(number), strict=True)),
        (_long(_TIME), _long(number)),
    ]
    for old, new in pairs:
        template = template.replace(old, new)
    return template


def _long(value: int) -> bytes:
    return struct.pack("<q", value)


@cache
def _template() -> bytes:
    """Return a file whose values are the placeholders; its pages are neither compressed nor dictionary-encoded."""
    columns = {
        "_hoodie_commit_time": [_INSTANT] * ROWS,
        "_hoodie_commit_seqno": [f"{_INSTANT}_0_{row}" for row in range(ROWS)],
        "_hoodie_record_key": _KEYS,
        "_hoodie_partition_path": [_PARTITION] * ROWS,
        "_hoodie_file_name": [_NAME] * ROWS,
        "id": _KEYS,
        "p": [_PARTITION] * ROWS,
        "v": _VALUES,
        "ts": [_TIME] * ROWS,
    }
    schema = with_meta_fields(SCHEMA)
    rows = pa.table({name: pa.array(columns[name], schema.field(name).type) for name in schema.names}, schema=schema)
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, schema, compression="none", use_dictionary=False, store_schema=False) as writer:
        writer.write_table(rows)
        writer.add_key_value_metadata(
            {
                "parquet.avro.schema": arrow_to_avro(SCHEMA, table="scale"),
                "hoodie_min_record_key": _KEYS[0],
                "hoodie_max_record_key": _KEYS[-1],
            }
        )
    return sink.getvalue()
