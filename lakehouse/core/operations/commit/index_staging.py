"""Prepare records of indexes that grow with the rows or files of a commit, before the lock is taken (MDT-8).

A small commit is prepared by threads of this process, because starting tasks near the data would take longer.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import pyarrow as pa

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.log.log_reader import SliceContext
from lakehouse.core.format.avro.schema import avro_to_arrow
from lakehouse.core.metadata.key_changes import instant_ms
from lakehouse.core.metadata.partitions.bloom_filters import BLOOM_FILTERS, stage_filters
from lakehouse.core.metadata.partitions.expression_index import stage_expression
from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.core.metadata.partitions.record_index import RECORD_INDEX, is_partitioned_by, stage_records
from lakehouse.core.metadata.partitions.registry import partition_refusal
from lakehouse.core.metadata.partitions.secondary_index import stage_secondary
from lakehouse.core.metadata.place import listed_partitions
from lakehouse.core.metadata.read.table import MetadataTable
from lakehouse.core.metadata.staged import StagedUpdate, Staging
from lakehouse.core.metadata.write.commit import open_metadata
from lakehouse.core.operations.load.commits import KeyScope
from lakehouse.core.operations.load.metadata import from_metadata
from lakehouse.core.operations.load.schema import data_columns, table_schema
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.timeline.file_deletions import LOG_INFIX, delete_leftovers
from lakehouse.errors import LakehouseError
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Instant, Timeline
from lakehouse.model.partition_kind import PartitionKind, partition_kind
from lakehouse.spec.options.policies import Policies

logger = logging.getLogger(__name__)

STAGES: Mapping[str, Callable[[Staging], StagedUpdate]] = {BLOOM_FILTERS: stage_filters, RECORD_INDEX: stage_records}
#: Indexes that users declare.
_DECLARED: Mapping[PartitionKind | None, Callable[[str, Definition, Staging], StagedUpdate]] = {
    PartitionKind.EXPRESSION_INDEX: stage_expression,
    PartitionKind.SECONDARY_INDEX: stage_secondary,
}
#: Maximum number of rows whose keys this process reads itself. A Spark task takes about 0.1 s to start.
_ROWS_HERE = 200_000
#: Maximum number of footers that this process reads itself.
_FILES_HERE = 16
_THREADS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexStaging:
    """Prepares the records of one commit.

    Attributes:
        table: The table as it was loaded.
        engine: Runs the tasks of a large commit.
        policies: The options of the table.
        instant: The instant of the action.
        is_shared: Whether other writers append to the same file groups at the same time.
        inserts: Whether the action inserted rows without a look-up of their keys, so that a record index compares them.
        scope: Where keys have to be unique for the index of the writes.
    """

    table: LoadedTable
    engine: Engine
    policies: Policies
    instant: Instant
    is_shared: bool = False
    inserts: bool = False
    scope: KeyScope = KeyScope.NONE

    def stage(self, commit: CommitMetadata, timeline: Timeline | None = None) -> dict[str, StagedUpdate]:
        """Return the prepared records by index partition.

        If the table has no such index, return {} without any request. With a newer `timeline` the records are prepared
        for it, and the properties are reloaded, because an index was created or dropped, or keys were inserted.
        """
        again, now = timeline is not None, self.table
        if timeline is not None:
            now = replace(self.table, timeline=timeline)
        listed = {name for names in listed_partitions(self.table.config.raw) for name in names}
        if not again and not any(name in STAGES or partition_kind(name) in _DECLARED for name in listed):
            return {}
        opened = open_metadata(self.table.metadata, now.timeline)
        staged = {}
        for name in opened.names:
            definition = opened.definitions.get(name)
            stage = STAGES.get(name) or _stage_of_declared(name, definition, self.table.config)
            if stage is not None:
                is_partitioned = is_partitioned_by(definition)
                staging = Staging(**self._staging(commit, name, opened.groups[name]), is_partitioned=is_partitioned)
                compares = name == RECORD_INDEX and self._compares(is_partitioned=is_partitioned)
                staged[name] = self._compared(stage, staging, now) if compares else stage(staging)
        return staged

    def _compares(self, *, is_partitioned: bool) -> bool:
        """Return whether inserted keys must not be in the record index, because keys are unique in its scope."""
        return self.inserts and self.scope.covers(KeyScope.PARTITION if is_partitioned else KeyScope.TABLE)

    def _compared(self, stage: Callable[[Staging], StagedUpdate], staging: Staging, now: LoadedTable) -> StagedUpdate:
        """Return the records of the record index, after a comparison with its records if it can be read."""
        is_small = sum(stat.num_writes for stat in staging.commit.stats) <= _ROWS_HERE and not staging.commit.replaced

        def compared(metadata: MetadataTable) -> StagedUpdate:
            return stage(replace(staging, locations=metadata if is_small else metadata.task_locations()))

        update = from_metadata(now, RECORD_INDEX, compared)
        return stage(staging) if update is None else update

    def clean_up(self, staged: Mapping[str, StagedUpdate]) -> None:
        """Delete the files of staging tasks, after the commit or before the tasks are repeated.

        A failure is only logged.

        The commit may be completed, so an error must not look like a failed write. The clean-up of the instant deletes
        files that are left.
        """
        storage = self.table.env.storage
        if not any(update.logs for update in staged.values()):
            return
        try:
            delete_leftovers(storage, [file.path for file in storage.list(self._directory)])
        except LakehouseError as error:
            logger.warning("%s: files of %s were not deleted: %s", storage.root, self.instant.requested, error)

    @property
    def _directory(self) -> str:
        return f".hoodie/.staging/{self.instant.requested}/indexes"

    def _staging(self, commit: CommitMetadata, name: str, groups: tuple[str, ...]) -> dict[str, Any]:
        table, config = self.table, self.table.config
        declared = commit.extra.get("schema", "")
        schema = data_columns(avro_to_arrow(declared)) if declared else table_schema(table)
        assert schema is not None, "a commit that changes keys has a schema, or the table has one"
        rows = sum(stat.num_writes for stat in commit.stats)
        small = len(commit.stats) <= _FILES_HERE
        if name == RECORD_INDEX:
            small = rows <= _ROWS_HERE and not commit.replaced
        return {
            "storage": table.env.storage,
            "instant": self.instant.requested,
            "instant_ms": instant_ms(self.instant.requested, config.timezone),
            "created_ms": table.env.clock.now_ms(),
            "commit": commit,
            "replaced": partial(_replaced_slices, table, commit.replaced),
            "read": self._context(schema),
            "stored": partial(_appended_slices, table, commit) if config.layout.names_logs_by_slice else None,
            "groups": groups,
            "policy": self.policies.indexing,
            "run": LocalEngine(_THREADS).run if small else partial(_run_near_data, self.engine),
            "directory": f"{self._directory}/{name}",
            "schema": table.metadata.records.files,
            "is_shared": self.is_shared,
        }

    def _context(self, schema: pa.Schema) -> SliceContext:
        """Return the settings for reading slices with the blocks of this commit, which is still pending."""
        read = slice_context(self.table, schema, budget=self.policies.write.memory_budget_bytes)
        if read.visible.instants is None:
            return read
        instants = read.visible.instants | {self.instant.requested}
        return replace(read, visible=replace(read.visible, instants=instants))


def _stage_of_declared(
    name: str, definition: Definition | None, config: TableConfig
) -> Callable[[Staging], StagedUpdate] | None:
    """Return the function that prepares records of a user-declared index, or None for other partitions.

    Also returns None if the index cannot be maintained: the guard then refuses the commit or drops the index.
    """
    stage = _DECLARED.get(partition_kind(name))
    if stage is None or definition is None or partition_refusal(name, config, definition) is not None:
        return None
    return partial(stage, name, definition)


def _run_near_data(engine: Engine, function: Callable[[Attempt, Any], Any], tasks: Sequence[Any]) -> list[Any]:
    return engine.run(function, tasks, light=True)


def _appended_slices(table: LoadedTable, commit: CommitMetadata) -> list[FileSlice]:
    """Return the newest slices, before a commit, of the file groups to which it appends."""
    wanted = {(stat.partition, stat.file_id) for stat in commit.stats if LOG_INFIX in stat.path}
    partitions = sorted({partition for partition, _ in wanted})
    return [s for s in load_slices(table, partitions) if (s.partition, s.file_id) in wanted]


def _replaced_slices(table: LoadedTable, replaced: Mapping[str, Sequence[str]]) -> list[FileSlice]:
    """Return the newest slices of the file groups that a commit replaces."""
    wanted = {(partition, file_id) for partition, ids in replaced.items() for file_id in ids}
    return [s for s in load_slices(table, sorted(replaced)) if (s.partition, s.file_id) in wanted]
