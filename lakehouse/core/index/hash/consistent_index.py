"""The bucket index with consistent hashing: a range of hash values determines the file group (MDT-12.3, MDT-12.5).

Each partition has a ring of nodes, one file group per node. A resize replaces nodes. While it is pending, rows of its
groups are written twice: to the log of the present group, and to a log of the future group. The second log is named
after the resize, so readers see it when the resize completes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lakehouse.core.index.hash.bucket_index import bucket_task, copies_for_resizes
from lakehouse.core.index.protocol import Groups, IndexSetup, NewUuid
from lakehouse.core.index.write_tasks import GroupTask, StagedEntry, TagResult, TagTask
from lakehouse.errors import CorruptTableError
from lakehouse.model.files import FileSlice


@dataclass(frozen=True, slots=True)
class ConsistentBucketIndex:
    """Assigns each record to the file group of its hash range. The setup needs the `rings` of partitions."""

    setup: IndexSetup

    def lookups(
        self, entries: Sequence[StagedEntry], slices: Sequence[FileSlice], *, parallelism: int, read_logs_of: Groups
    ) -> tuple[TagTask, ...]:
        """Return no look-ups, because the task of a range finds the matches in its single base file itself."""
        return ()

    def groups(
        self,
        entries: Sequence[StagedEntry],
        slices: Sequence[FileSlice],
        tags: Sequence[TagResult],
        *,
        in_clustering: Groups,
        new_uuid: NewUuid,
    ) -> tuple[GroupTask, ...]:
        """Return one task per file group that gets rows, and one per group that a pending resize will create.

        The rings determine the ids of new groups, so that concurrent writers choose the same ids.

        Raises:
            CorruptTableError: A file group belongs to no node of its partition.
        """
        stored = self._stored(slices)
        staged: dict[tuple[str, str], list[StagedEntry]] = {}
        for entry in entries:
            node = self.setup.rings[entry.partition].node_of(entry.bucket)
            staged.setdefault((entry.partition, node.file_id), []).append(entry)
        tasks = []
        for (partition, file_id), of_group in sorted(staged.items()):
            group = stored.get((partition, file_id))
            if group is not None or any(entry.upserts for entry in of_group):
                task = bucket_task(self.setup, partition, file_id, group, of_group)
                tasks += [task, *copies_for_resizes(self.setup, task)]
        return tuple(tasks)

    def _stored(self, slices: Sequence[FileSlice]) -> dict[tuple[str, str], FileSlice]:
        stored = {(piece.partition, piece.file_id): piece for piece in slices}
        for partition, file_id in stored:
            ring = self.setup.rings.get(partition)
            if ring is not None and ring.node_of_group(file_id) is None:
                raise CorruptTableError(
                    f"file group {file_id} of partition {partition!r} belongs to no range of hash values of "
                    f"{ring.metadata.instant}.hashing_meta; the table was written with another index, or its hashing "
                    "metadata was lost. Check the index options, or restore the table",
                    partition=partition,
                )
        return stored
