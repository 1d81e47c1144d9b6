"""The global simple index (GLOBAL_SIMPLE): looks keys up in the base files of all partitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakehouse.core.index.file_lookups import plan_groups, plan_tags, without_groups
from lakehouse.core.index.protocol import Groups, IndexSetup, NewUuid
from lakehouse.core.index.write_tasks import GroupTask, StagedEntry, TagResult, TagTask
from lakehouse.model.files import FileSlice


@dataclass(frozen=True, slots=True)
class GlobalSimpleIndex:
    """Finds stored keys by reading the key columns of all files of the table."""

    setup: IndexSetup

    def lookups(
        self, entries: Sequence[StagedEntry], slices: Sequence[FileSlice], *, parallelism: int, read_logs_of: Groups
    ) -> tuple[TagTask, ...]:
        """Return look-ups of all keys in all files; none if rows are only added."""
        if not self.setup.looks_up:
            return ()
        return plan_tags(entries, slices, global_keys=True, parallelism=parallelism, read_logs_of=read_logs_of)

    def groups(
        self,
        entries: Sequence[StagedEntry],
        slices: Sequence[FileSlice],
        tags: Sequence[TagResult],
        *,
        in_clustering: Groups,
        new_uuid: NewUuid,
    ) -> tuple[GroupTask, ...]:
        """Return tasks that update the matched file groups and insert the other rows into small or new files."""
        available = without_groups(slices, in_clustering)
        return plan_groups(entries, available, tags, self.setup, lambda: f"{new_uuid()}-0")
