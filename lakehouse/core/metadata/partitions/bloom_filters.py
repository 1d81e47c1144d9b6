"""The index partition `bloom_filters`: the bloom filter of each base file, as stored in its footer (MDT-4).

A filter has several bytes per row of its file. Tasks read the footers and stage the records before the table lock is
taken. A file without filter has no record, so readers cannot exclude any key.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.base.base_reader import BLOOM_FOOTER, BaseFileReader
from lakehouse.core.format.file_names import parse_base_file
from lakehouse.core.format.metadata.groups import metadata_file_id
from lakehouse.core.format.metadata.groups import shards as key_shards
from lakehouse.core.format.metadata.keys import bloom_keys
from lakehouse.core.format.metadata.records import BLOOM_ROWS, encode_blooms
from lakehouse.core.format.parquet.bloom_filter import SIMPLE
from lakehouse.core.metadata.partitions.protocol import ENTRIES, Definition, MetadataCommit, TableFiles, Update
from lakehouse.core.metadata.staged import LogStage, StagedLog, StagedRecordsError, StagedUpdate, Staging
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.storage.protocol import Storage
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import WriteStat
from lakehouse.model.files import BaseFile
from lakehouse.model.partition_kind import PartitionKind
from lakehouse.spec.options.policies import Policies

BLOOM_FILTERS = "bloom_filters"
_READERS = 8
_PARQUET = ".parquet"


class BloomFiltersPartition:
    """One record per base file that has a bloom filter."""

    kind = PartitionKind.BLOOM_FILTERS

    def refusal(self, name: str, config: TableConfig, definition: Definition | None) -> str | None:
        return None

    def wanted(self, policies: Policies, config: TableConfig) -> Sequence[str]:
        return (BLOOM_FILTERS,) if policies.indexing.bloom_filters else ()

    def definition(self, name: str, table: TableFiles) -> Definition | None:
        return None

    def group_ids(self, name: str, table: TableFiles) -> Sequence[str]:
        return tuple(metadata_file_id(BLOOM_FILTERS, number) for number in range(table.policies.indexing.bloom_groups))

    def build(self, name: str, table: TableFiles) -> pa.Table:
        groups = self.group_ids(name, table)
        tables = [entries.cast(ENTRIES) for _, entries in self.build_groups(name, table, groups)]
        return pa.concat_tables([ENTRIES.empty_table(), *tables])

    def build_groups(self, name: str, table: TableFiles, groups: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
        """Yield file groups with their records; the filters of one group are in memory."""
        described = table.newest if table.described is None else table.described
        rows = zip(*(described.column(name).to_pylist() for name in ("name", "partition")), strict=True)
        bases = [base for name, partition in rows if (base := parse_base_file(name, partition, 0)) is not None]
        for number, of_group in _by_group(bases, len(groups)):
            entries = _records(table.env.storage, of_group)
            if entries.num_rows:
                yield groups[number], entries

    def update(self, name: str, commit: MetadataCommit) -> Update:
        """Return the records that tasks staged, and the deletes for removed files.

        Raises StagedRecordsError if the records are missing, or if they were staged for different file groups of the
        index.
        """
        removed = commit.change.removed
        gone = removed.filter(pc.ends_with(removed.column("name"), _PARQUET))
        deletes = bloom_keys(gone.column("partition"), gone.column("name")).cast(pa.binary())
        staged = commit.change.staged.get(name)
        if staged is None and not _written(commit.change.stats):
            return Update(deletes=deletes)
        if staged is None or staged.groups != commit.groups[name]:
            raise StagedRecordsError(
                f"{commit.env.storage.root}: the bloom filters of the metadata table were created or changed while "
                f"{commit.instant} was written; run the operation again",
                instant=commit.instant,
            )
        return Update(deletes=deletes, staged=staged.logs)

    def shards(self, name: str, keys: pa.Array, groups: Sequence[str], definition: Definition | None) -> pa.Array:
        return pa.array(key_shards(keys, len(groups)))


def stage_filters(staging: Staging) -> StagedUpdate:
    """Encode the filters of the files that the commit wrote, one log file per file group of the index."""
    bases = _written(staging.commit.stats)
    tasks = list(_by_group(bases, len(staging.groups)))
    logs = staging.run(partial(_encode_group, staging.logs(BLOOM_FILTERS)), tasks) if tasks else []
    return StagedUpdate(groups=staging.groups, logs=tuple(log for log in logs if log is not None))


def _encode_group(logs: LogStage, attempt: Attempt, task: tuple[int, tuple[BaseFile, ...]]) -> StagedLog | None:
    number, bases = task
    return logs.write(attempt, number, _records(logs.storage, bases))


def _records(storage: Storage, bases: Sequence[BaseFile]) -> pa.Table:
    """Return the records of the files that have a filter."""
    with ThreadPoolExecutor(_READERS) as pool:
        filters = list(pool.map(lambda base: _footer_filter(storage, base), bases))
    stored_filters = [(base, *stored) for base, stored in zip(bases, filters, strict=True) if stored is not None]
    keys = bloom_keys(
        pa.array([base.partition for base, _, _ in stored_filters], pa.string()),
        pa.array([base.name for base, _, _ in stored_filters], pa.string()),
    )
    columns = [
        keys,
        pa.array([kind for _, kind, _ in stored_filters], pa.string()),
        pa.array([base.instant for base, _, _ in stored_filters], pa.string()),
        pa.array([text.encode() for _, _, text in stored_filters], pa.binary()),
    ]
    return encode_blooms(pa.table(columns, schema=BLOOM_ROWS))


def _footer_filter(storage: Storage, base: BaseFile) -> tuple[str, str] | None:
    """Return the type of the filter in a footer and the serialized filter; None if there is none."""
    reader = BaseFileReader(storage, base.path)
    try:
        text, kind = (reader.footer(key) for key in BLOOM_FOOTER)
    finally:
        reader.close()
    return None if text is None else (kind or SIMPLE, text)


def _by_group(bases: Sequence[BaseFile], groups: int) -> Iterator[tuple[int, tuple[BaseFile, ...]]]:
    """Yield the number of each index file group with the files whose records it contains."""
    keys = bloom_keys(
        pa.array([base.partition for base in bases], pa.string()), pa.array([base.name for base in bases], pa.string())
    )
    numbers = key_shards(keys, groups)
    for number in np.unique(numbers).tolist():
        yield number, tuple(bases[position] for position in np.flatnonzero(numbers == number).tolist())


def _written(stats: Sequence[WriteStat]) -> list[BaseFile]:
    """Return the base files in write statistics."""
    bases = []
    for stat in stats:
        base = parse_base_file(stat.path.rpartition("/")[2], stat.partition, stat.size_bytes)
        if base is not None:
            bases.append(base)
    return bases
