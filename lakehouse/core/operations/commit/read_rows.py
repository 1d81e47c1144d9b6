"""Check at the commit that no other commit changed the rows on which UPDATE, DELETE or MERGE is based."""

from __future__ import annotations

import json
from dataclasses import dataclass, field

from lakehouse.core.planning.conflict import COLUMNS_KEY
from lakehouse.model.commit import REWRITES, CommitMetadata

#: Key in the extra metadata of a statement's commit: the columns that it sets in stored rows as a JSON array; null
#: means all. Its rows also repeat the stored values of other columns, such as the ordering columns.
SET_COLUMNS_KEY = "lakehouse.set_columns"


@dataclass(slots=True, kw_only=True)
class ReadRows:
    """The rows on which a statement such as UPDATE or MERGE is based; filled while the statement reads them.

    Attributes:
        groups: The file groups (partition, file id) that were read; None means all.
        columns: The columns that were read or that the write provides; None means all.
        identity: The columns of a row that no write changes, because they identify the row.
        inserted: The partitions into which the statement inserts rows that were not stored; None means all.
    """

    groups: frozenset[tuple[str, str]] | None = frozenset()
    columns: frozenset[str] | None = None
    identity: frozenset[str] = frozenset()
    inserted: set[str] | None = field(default_factory=set)

    def conflict(self, metadata: CommitMetadata) -> str | None:
        """Return how a later commit changed the rows, or None."""
        if metadata.operation in REWRITES:
            return None
        is_disjoint = self._is_disjoint(metadata)
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

    def _is_disjoint(self, metadata: CommitMetadata) -> bool:
        """Return whether a commit changed other columns only."""
        text = metadata.extra.get(SET_COLUMNS_KEY, metadata.extra.get(COLUMNS_KEY))
        changed = None if text is None else json.loads(text)
        if changed is None or self.columns is None:
            return False
        return self.columns.isdisjoint(frozenset(changed) - self.identity)
