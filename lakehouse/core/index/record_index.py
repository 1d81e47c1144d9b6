"""The record indexes (RECORD_INDEX, RECORD_LEVEL_INDEX): the metadata table stores the file group of each key (MDT-4).

The locations of the batch's keys are read before the index is created. Only the file groups of these locations are
searched. RECORD_INDEX finds a key in any partition, RECORD_LEVEL_INDEX in the partition of its row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakehouse.core.index.file_lookups import plan_groups, without_groups
from lakehouse.core.index.protocol import Groups, IndexSetup, NewUuid
from lakehouse.core.index.write_tasks import GroupTask, StagedEntry, TagResult, TagTask
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.model.files import FileSlice


@dataclass(frozen=True, slots=True)
class RecordIndex:
    """Searches the located keys in their file groups; the setup has `located`."""

    setup: IndexSetup

    def lookups(
        self, entries: Sequence[StagedEntry], slices: Sequence[FileSlice], *, parallelism: int, read_logs_of: Groups
    ) -> tuple[TagTask, ...]:
        """Return look-ups in the file groups that have keys of the batch; none if rows are only added.

        A group in `read_logs_of` is searched with its logs, unless locations are trusted.
        """
        if not self.setup.looks_up:
            return ()
        staged = tuple(sorted(entries, key=lambda e: (e.partition, e.run, e.offset)))
        located = self.setup.located
        found = FileSlices.of(slices).in_groups(located).ordered()
        trusted, others = [s for s in found if self._is_trusted(s)], [s for s in found if not self._is_trusted(s)]
        merged = [s for s in others if s.base is None or (s.partition, s.file_id) in read_logs_of]
        read = [s for s in others if s.base is not None and (s.partition, s.file_id) not in read_logs_of]
        tasks = [
            TagTask(bases=(), entries=staged, slices=(s,), located=(located[s.partition, s.file_id],)) for s in merged
        ]
        for some, trusts in ((trusted, True), (read, False)):
            bases = [s.base for s in some if s.base is not None]
            # Enough tasks remain to keep all cores busy.
            size = max(1, -(-len(bases) // (4 * parallelism)))
            for first in range(0, len(bases), size):
                chosen = tuple(bases[first : first + size])
                rows = tuple(located[base.partition, base.file_id] for base in chosen)
                tasks.append(TagTask(bases=chosen, entries=staged, located=rows, trusts_locations=trusts))
        return tuple(tasks)

    def _is_trusted(self, file_slice: FileSlice) -> bool:
        """Return whether rows are appended to a group unread. A small file may be rewritten with inserts instead."""
        base = file_slice.base
        if not self.setup.trusts_locations or base is None:
            return False
        return bool(file_slice.logs) or not self.setup.sizing.free_rows(base)

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
