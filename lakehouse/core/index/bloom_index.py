"""The bloom index (BLOOM): looks keys up in those files of their partition whose filters may contain them (MDT-13)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakehouse.core.index.file_lookups import plan_filtered_tags, plan_groups, without_groups
from lakehouse.core.index.protocol import Groups, IndexSetup, NewUuid
from lakehouse.core.index.write_tasks import GroupTask, StagedEntry, TagResult, TagTask
from lakehouse.model.files import FileSlice


@dataclass(frozen=True, slots=True)
class BloomIndex:
    """Finds stored keys in the files of the batch's partitions by key ranges, then bloom filters, then key columns.

    A file without ranges or filter is searched for every key. Groups in `read_logs_of` are searched with their logs,
    which have no filter.
    """

    setup: IndexSetup

    def lookups(
        self, entries: Sequence[StagedEntry], slices: Sequence[FileSlice], *, parallelism: int, read_logs_of: Groups
    ) -> tuple[TagTask, ...]:
        """Return look-ups in the files of the batch's partitions; none if rows are only added."""
        if not self.setup.looks_up:
            return ()
        return plan_filtered_tags(
            self.setup,
            entries,
            slices,
            global_keys=False,
            parallelism=parallelism,
            read_logs_of=read_logs_of,
        )

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
