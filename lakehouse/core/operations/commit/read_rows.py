"""Check at the commit that no other commit changed the rows on which UPDATE, DELETE or MERGE is based."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from lakehouse.core.planning.conflict import COLUMNS_KEY
from lakehouse.model.commit import REWRITES, CommitMetadata


@dataclass(slots=True, kw_only=True)
class ReadRows:
    """The rows on which a statement such as UPDATE or MERGE is based; filled while the statement reads them.

    Attributes:
        groups: The file groups (partition, file id) that were read; None means all.
        columns: The columns that were read or that the write provides.
        inserted: The partitions into which the statement inserts rows that were not stored; None means all.
    """

    groups: frozenset[tuple[str, str]] | None = frozenset()
    columns: frozenset[str] = frozenset()
    inserted: set[str] | None = field(default_factory=set)

    def conflict(self, metadata: CommitMetadata) -> str | None:
        """Return how a later commit changed the rows, or None."""
        if metadata.operation in REWRITES:
            return None
        provided = metadata.extra.get(COLUMNS_KEY)
        is_disjoint = provided is not None and self.columns.isdisjoint(json.loads(provided))
        for stat in metadata.stats:
            group = (stat.partition, stat.file_id)
            if (self.groups is None or group in self.groups) and not is_disjoint:
                return f"changed file group {stat.file_id} of partition {stat.partition!r}, which this write read"
            if stat.num_inserts and (self.inserted is None or stat.partition in self.inserted):
                return f"inserted rows into partition {stat.partition!r}, into which this write inserts rows"
        replaced = {(partition, file_id) for partition, ids in metadata.replaced.items() for file_id in ids}
        if replaced and (self.groups is None or not replaced.isdisjoint(self.groups)):
            return "replaced file groups that this write read"
        return None
