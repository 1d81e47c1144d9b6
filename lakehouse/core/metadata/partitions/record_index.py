"""The index partition `record_index`: the file group of each record key (MDT-4).

    record key -> partition, file id, time at which the key was inserted there

Its records grow with the rows of a commit. They are staged by tasks before the table lock is taken (`stage_records`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.files.keys.changed_keys import (
    ChangedGroup,
    ChangedKeysContext,
    ChangedKeysFile,
    RecordLocations,
    Sharding,
    changed_keys_of,
    find_changed_keys,
)
from lakehouse.core.format.metadata.groups import (
    data_partitions_of_groups,
    estimated_groups,
    metadata_file_id,
)
from lakehouse.core.format.metadata.groups import shards as key_shards
from lakehouse.core.format.metadata.locations import LOCATION_ROWS, encode_locations
from lakehouse.core.metadata.key_changes import removed_groups, stored_groups, written_groups
from lakehouse.core.metadata.partitions.protocol import ENTRIES, Definition, MetadataCommit, TableFiles, Update
from lakehouse.core.metadata.staged import LogStage, Run, StagedLog, StagedRecordsError, StagedUpdate, Staging
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import COMPACTIONS, Operation
from lakehouse.model.files import BaseFile, FileSlice
from lakehouse.model.partition_kind import PartitionKind
from lakehouse.spec.options.indexing import PARTITIONED_RECORD_INDEX_ENABLE, IndexingPolicy
from lakehouse.spec.options.policies import Policies

RECORD_INDEX = "record_index"
_IS_PARTITIONED = "isPartitioned"
_READERS = 8
#: The minimum number of tasks, so that all cores work.
_TASKS = 64
#: Number of footers that are read to estimate a table's number of rows.
_SAMPLED_FILES = 16
#: Maximum number of entries per file group of the index, because a task keeps the entries of one file group in memory.
_ENTRIES_PER_GROUP = 10_000_000
#: Number of table file groups per task that finds changed keys.
_MAX_GROUPS_PER_TASK = 256


class RecordIndexPartition:
    """Locations of record keys: one index for the table, or one for each partition (`isPartitioned`)."""

    kind = PartitionKind.RECORD_INDEX

    def refusal(self, name: str, config: TableConfig, definition: Definition | None) -> str | None:
        if config.appends_inserts:
            return "the bucket index appends inserts to log files, and a record index has no record of these"
        if not config.populate_meta_fields:
            return "the rows of the table have no stored record keys (hoodie.populate.meta.fields=false)"
        return None

    def wanted(self, policies: Policies, config: TableConfig) -> Sequence[str]:
        if not (policies.indexing.record_index or policies.indexing.partitioned_record_index):
            return ()
        why = self.refusal(RECORD_INDEX, config, None)
        if why is not None:
            raise UserError(f"the table cannot have a record index: {why}; use another index, or leave it out")
        return (RECORD_INDEX,)

    def definition(self, name: str, table: TableFiles) -> Definition | None:
        stored = table.definitions.get(name)
        is_partitioned = table.policies.indexing.partitioned_record_index
        if stored is not None and not (is_partitioned or table.policies.indexing.record_index):
            return stored
        return Definition(index_type=RECORD_INDEX, options={_IS_PARTITIONED: str(is_partitioned).lower()})

    def group_ids(self, name: str, table: TableFiles) -> Sequence[str]:
        policy, slices = table.policies.indexing, table.slices
        if not is_partitioned_by(table.definitions.get(name)):
            count = _group_count(policy, _estimated_rows(table.env.storage, slices))
            return tuple(metadata_file_id(RECORD_INDEX, number) for number in range(count))
        partitions: dict[str, list[FileSlice]] = {}
        for file_slice in slices:
            partitions.setdefault(file_slice.partition, []).append(file_slice)
        return tuple(
            file_id
            for partition, of_partition in sorted(partitions.items())
            for file_id in partition_groups(partition, policy, _estimated_rows(table.env.storage, of_partition))
        )

    def build(self, name: str, table: TableFiles) -> pa.Table:
        groups = self.group_ids(name, table)
        return pa.concat_tables(
            [ENTRIES.empty_table(), *(entries for _, entries in self.build_groups(name, table, groups))]
        )

    def build_groups(self, name: str, table: TableFiles, groups: Sequence[str]) -> Iterator[tuple[str, pa.Table]]:
        """Yield file groups with their records. Keys are first partitioned into files, so one group is in memory."""
        ids: Mapping[str, Sequence[str]] = {"": groups}
        is_partitioned = is_partitioned_by(table.definitions.get(name))
        if is_partitioned:
            ids = data_partitions_of_groups(RECORD_INDEX, list(groups))
        if table.read is None:
            return
        context = ChangedKeysContext(
            read=table.read,
            sharding=Sharding(is_partitioned=is_partitioned, groups={name: tuple(of) for name, of in ids.items()}),
            directory=f".hoodie/.staging/{table.instant}/{name}",
        )
        stored = stored_groups(table.slices, table.config.timezone)
        engine = table.engine or LocalEngine(_READERS)
        files = _found_keys(context, stored, engine.run)
        try:
            for number, file_id in enumerate(context.sharding.file_ids):
                rows = _not_repeated(changed_keys_of(table.env.storage, files, number))
                if rows.num_rows:
                    yield file_id, encode_locations(rows.select(LOCATION_ROWS.names))
        finally:
            delete_leftovers(table.env.storage, [file.path for file in files])

    def update(self, name: str, commit: MetadataCommit) -> Update:
        """Return the records that tasks staged.

        Raises StagedRecordsError if they are missing, or if they were staged for different file groups of the index.
        """
        staged = commit.change.staged.get(name)
        if staged is None and not changes_keys(commit):
            return Update()
        if staged is None or staged.groups != commit.groups[name]:
            raise StagedRecordsError(
                f"{commit.env.storage.root}: the record index was created or changed while {commit.instant} was "
                "written; run the operation again",
                instant=commit.instant,
            )
        return Update(staged=staged.logs, new_groups=staged.new_groups)

    def shards(self, name: str, keys: pa.Array, groups: Sequence[str], definition: Definition | None) -> pa.Array:
        if is_partitioned_by(definition) and len(keys):
            raise UnsupportedError("the shard of a key in a partitioned record index depends on its partition")
        return pa.array(key_shards(keys, len(groups)))


def is_partitioned_by(definition: Definition | None) -> bool:
    """Return whether a definition describes a partitioned record index."""
    return definition is not None and definition.options.get(_IS_PARTITIONED, "").lower() == "true"


def changes_keys(commit: MetadataCommit) -> bool:
    """Return whether an action may change the keys of file groups."""
    change = commit.change
    if change.operation in COMPACTIONS:
        return False
    replaces = change.replaced.num_rows > 0 and change.operation != Operation.CLUSTER
    return replaces or bool(written_groups(change.stats, change.operation, 0))


def stage_records(staging: Staging) -> StagedUpdate:
    """Find the changed keys of an action in tasks, and encode them as log files, one per file group of the index.

    Raises UserError if a write inserts a key twice or again, and for a partition path that Hudi's file names cannot
    contain.
    """
    operation = staging.commit.operation
    changed = written_groups(staging.commit.stats, operation, staging.instant_ms, staging.stored)
    if staging.commit.replaced:
        changed += removed_groups(staging.replaced(), operation)
    if not changed:
        return StagedUpdate(groups=staging.groups, has_new_keys=staging.locations is not None)
    sharding, new = _sharding(staging, {group.partition for group in changed})
    compares = staging.locations is not None
    context = ChangedKeysContext(
        read=staging.read, sharding=sharding, directory=staging.directory, with_repeated=compares
    )
    files = _found_keys(context, changed, staging.run)
    numbers = sorted({number for file in files for number in file.batches})
    encoding = _Encoding(
        context=context,
        files=tuple(files),
        logs=staging.logs(RECORD_INDEX, sharding.file_ids),
        allows_repeated=operation == Operation.CLUSTER,
        locations=staging.locations,
    )
    logs = staging.run(partial(_encode_group, encoding), numbers)
    written = tuple(log for log in logs if log is not None)
    return StagedUpdate(groups=staging.groups, logs=written, new_groups=new, has_new_keys=compares)


def partition_groups(partition: str, policy: IndexingPolicy, rows: int) -> tuple[str, ...]:
    """Return the file group ids for one partition in a partitioned record index.

    Raises UnsupportedError for a partition path with a dot, which Hudi 1.2 cannot parse in these names.
    """
    if "." in partition:
        raise UnsupportedError(
            f"partition {partition!r} cannot be in a partitioned record index: Apache Hudi does not read file names "
            f"with a dot. Use another partition path, or an index without {PARTITIONED_RECORD_INDEX_ENABLE}"
        )
    minimum, maximum = policy.min_groups_per_partition, policy.max_groups_per_partition
    count = estimated_groups(rows, minimum=minimum, maximum=maximum)
    return tuple(metadata_file_id(RECORD_INDEX, number, partition) for number in range(count))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Encoding:
    """The settings of the tasks that encode changed keys.

    `allows_repeated` means that several rows may have the same key, because a clustering rewrites existing rows. Added
    keys must not be in `locations`.
    """

    context: ChangedKeysContext
    files: tuple[ChangedKeysFile, ...]
    logs: LogStage
    allows_repeated: bool
    locations: RecordLocations | None = None


def _encode_group(encoding: _Encoding, attempt: Attempt, number: int) -> StagedLog | None:
    """Write the log file of one index file group: locations of added keys, and deletes of removed ones."""
    changed = changed_keys_of(encoding.context.read.storage, encoding.files, number)
    added = changed.filter(pc.invert(changed.column("removed")))
    if encoding.locations is not None and added.num_rows:
        _refuse_stored(encoding, added, changed.filter(changed.column("removed")))
    added = _one_place(added) if encoding.allows_repeated else _not_repeated(added)
    removed = pc.unique(changed.column("key").filter(changed.column("removed")))
    # A key that moves is removed from one file group and added to another one: its new record replaces the old one.
    removed = removed.filter(pc.invert(pc.is_in(removed, value_set=added.column("key").combine_chunks())))
    return encoding.logs.write(attempt, number, encode_locations(added.select(LOCATION_ROWS.names)), removed)


def _one_place(added: pa.Table) -> pa.Table:
    """Return one row for each key: the index stores one location per key, even if several rows have this key."""
    if pc.count_distinct(added.column("key")).as_py() == added.num_rows:
        return added
    added = added.sort_by([("key", "ascending"), ("partition", "ascending"), ("file_id", "ascending")])
    keys = added.column("key").combine_chunks()
    is_first = np.append(True, np.asarray(pc.not_equal(keys[1:], keys[:-1])))
    return added.filter(pa.array(is_first))


def _not_repeated(added: pa.Table) -> pa.Table:
    """Return the rows; raise UserError if several rows have the same key."""
    if pc.count_distinct(added.column("key")).as_py() == added.num_rows:
        return added
    counts = added.group_by("key").aggregate([("file_id", "count")])
    key = counts.column("key").filter(pc.greater(counts.column("file_id_count"), 1))[0].as_py()
    of_key = added.filter(pc.equal(added.column("key"), key))
    places = dict.fromkeys(f"{row['file_id']} of {row['partition']!r}" for row in of_key.slice(0, 100).to_pylist())
    rows = f"has {of_key.num_rows} rows" if len(places) == 1 else "is"
    groups = " and in file group ".join([*places][:2])
    raise UserError(
        f"record key {key!r} {rows} in file group {groups}; the record index of the table has one place for each key. "
        "Write with a global index such as RECORD_INDEX, combine rows of one key "
        "(hoodie.combine.before.insert=true), or use a record index for each partition",
        key=key,
    )


def _refuse_stored(encoding: _Encoding, added: pa.Table, removed: pa.Table) -> None:
    """Raise UserError if the index has another place for an added key, from which the action does not remove it."""
    assert encoding.locations is not None, "the caller checked this"
    is_partitioned = encoding.context.sharding.is_partitioned
    partitions = pc.unique(added.column("partition")).to_pylist() if is_partitioned else None
    place = ["key", "partition", "file_id"]
    stored = encoding.locations.locations(added.column("key").combine_chunks(), partitions)
    if not stored.num_rows:
        return
    stored = stored.select(place).cast(pa.schema([(name, pa.string()) for name in place]))
    # A second row with a key in the same file group is added twice (`ChangedKeysContext.with_repeated`).
    counts = added.group_by(place).aggregate([([], "count_all")])
    once = counts.filter(pc.equal(counts.column("count_all"), 1)).select(place)
    others = stored.join(pa.concat_tables([removed.select(place), once]), place, join_type="left anti")
    if others.num_rows:
        first = others.sort_by("key").slice(0, 1).to_pylist()[0]
        count = "" if others.num_rows == 1 else f", like {others.num_rows - 1} or more other keys of the batch"
        raise UserError(
            f"record key {first['key']!r} is in file group {first['file_id']} of {first['partition']!r} already"
            f"{count}; the record index of the table has one place for each key, and reads by key would miss the other "
            "row. Nothing was written. Use upsert to update these rows, or insert with "
            "hoodie.datasource.insert.dup.policy=drop to insert only new keys",
            key=first["key"],
        )


def _sharding(staging: Staging, partitions: Iterable[str]) -> tuple[Sharding, tuple[str, ...]]:
    """Return how keys are distributed over the file groups of the index, and the ids of groups to create."""
    if not staging.is_partitioned:
        return Sharding(is_partitioned=False, groups={"": staging.groups}), ()
    groups = {name: tuple(ids) for name, ids in data_partitions_of_groups(RECORD_INDEX, list(staging.groups)).items()}
    created = {name: partition_groups(name, staging.policy, 0) for name in sorted(set(partitions) - groups.keys())}
    new = tuple(file_id for ids in created.values() for file_id in ids)
    return Sharding(is_partitioned=True, groups=groups | created), new


def _found_keys(context: ChangedKeysContext, changed: Sequence[ChangedGroup], run: Run) -> list[ChangedKeysFile]:
    size = max(1, min(_MAX_GROUPS_PER_TASK, len(changed) // _TASKS))
    tasks = [tuple(changed[first : first + size]) for first in range(0, len(changed), size)]
    return [file for file in run(partial(find_changed_keys, context), tasks) if file is not None]


def _group_count(policy: IndexingPolicy, rows: int) -> int:
    by_size = estimated_groups(rows, minimum=policy.min_groups, maximum=policy.max_groups)
    return max(by_size, min(policy.max_groups, -(-rows // _ENTRIES_PER_GROUP)))


def _estimated_rows(storage: Storage, slices: Sequence[FileSlice]) -> int:
    """Return the approximate number of rows, by the footers of some base files."""
    bases = [s.base for s in slices if s.base is not None]
    step = max(1, len(bases) // _SAMPLED_FILES)
    sample = bases[::step]
    if not sample:
        return 0
    with ThreadPoolExecutor(_READERS) as pool:
        rows = sum(pool.map(lambda base: _rows_of(storage, base), sample))
    return int(rows * sum(base.size_bytes for base in bases) / max(sum(base.size_bytes for base in sample), 1))


def _rows_of(storage: Storage, base: BaseFile) -> int:
    with storage.open_input(base.path) as source:
        rows: int = pq.read_metadata(source).num_rows
    return rows
