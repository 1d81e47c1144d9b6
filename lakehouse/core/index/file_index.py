"""Indexes that find keys in files or by stored locations: SIMPLE, BLOOM, RECORD_INDEX and their global variants.

simple   the key columns of the files
bloom    key ranges and bloom filters exclude files first (MDT-13); groups whose logs are read have no filter
record   the metadata table stores the file group of each key (MDT-4); only the groups of these locations are searched
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakehouse.core.index.file_lookups import (
    plan_filtered_tags,
    plan_groups,
    plan_located_tags,
    plan_tags,
    without_groups,
)
from lakehouse.core.index.protocol import Groups, IndexSetup, NewUuid
from lakehouse.core.index.write_tasks import GroupTask, StagedEntry, TagResult, TagTask
from lakehouse.model.files import FileSlice


@dataclass(frozen=True, slots=True)
class FileIndex:
    """Searches stored keys in files.

    Attributes:
        setup: The facts about the table and the operation.
        global_keys: A key is searched in the files of all partitions, otherwise in those of its own partition.
        filters: Key ranges and bloom filters exclude files. A file without them is searched for every key.
        located: The setup has the locations of the batch's keys (`located`), which were read for these partitions.
    """

    setup: IndexSetup
    global_keys: bool = False
    filters: bool = False
    located: bool = False

    def lookups(
        self, entries: Sequence[StagedEntry], slices: Sequence[FileSlice], *, parallelism: int, read_logs_of: Groups
    ) -> tuple[TagTask, ...]:
        """Return look-ups in the files that may have keys of the batch; none if rows are only added."""
        if not self.setup.looks_up:
            return ()
        if self.located:
            return plan_located_tags(self.setup, entries, slices, parallelism=parallelism, read_logs_of=read_logs_of)
        if self.filters:
            return plan_filtered_tags(
                self.setup,
                entries,
                slices,
                global_keys=self.global_keys,
                parallelism=parallelism,
                read_logs_of=read_logs_of,
            )
        return plan_tags(
            entries, slices, global_keys=self.global_keys, parallelism=parallelism, read_logs_of=read_logs_of
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
