"""The values of the spread column in commits, so that later writes can plan for large values in advance.

Each commit of a table with `lakehouse.write.spread.column` has the extra metadata `lakehouse.spread`, as JSON:

    column   the column
    rows     by value, the rows of a commit: the mean of commits, in which a commit weighs half of all before it
    groups   by file id, the value of groups that only contain rows with one large value, while they are small

Only the most frequent values and the newest groups are kept, so the metadata does not grow with the table.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lakehouse.errors import CorruptTableError
from lakehouse.model.commit import WriteStat
from lakehouse.model.document import parse_json

SPREAD_KEY = "lakehouse.spread"
_MOST_VALUES, _MOST_GROUPS = 256, 1024
_SHARE_OF_NEW = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class SpreadHistory:
    """The average number of rows per value in a commit, and the small file groups that contain a single value."""

    column: str
    rows: Mapping[str, float] = field(default_factory=dict)
    groups: Mapping[str, str] = field(default_factory=dict)

    def large(self, declared: frozenset[str], least_rows: float) -> tuple[str, ...]:
        """Return the large values in order: the declared values, then values with at least `least_rows` rows."""
        return tuple(sorted(declared | {value for value, rows in self.rows.items() if rows >= least_rows}))

    def after(
        self, rows: Mapping[str, int], owners: Mapping[str, str], stats: Iterable[WriteStat], small_bytes: int
    ) -> SpreadHistory:
        """Return the history after a commit.

        Args:
            rows: The rows of the commit by value.
            owners: The values of the file groups that the commit wrote for one value only.
            stats: The files of the commit.
            small_bytes: The size up to which a base file takes inserts.
        """
        # For the first commit, the mean is the commit itself.
        share = _SHARE_OF_NEW if self.rows else 1.0
        merged = {value: (1 - share) * count for value, count in self.rows.items()}
        for value, count in rows.items():
            merged[value] = merged.get(value, 0.0) + share * count
        frequent = sorted(merged.items(), key=lambda pair: (-pair[1], pair[0]))[:_MOST_VALUES]
        groups = dict(self.groups)
        for stat in stats:
            owner = owners.get(stat.file_id, self.groups.get(stat.file_id))
            groups.pop(stat.file_id, None)
            if owner is not None and stat.size_bytes < small_bytes:
                groups[stat.file_id] = owner
        newest = list(groups.items())[-_MOST_GROUPS:]
        return SpreadHistory(
            column=self.column,
            rows={value: round(count, 1) for value, count in frequent if count >= 1},
            groups=dict(newest),
        )

    def to_json(self) -> str:
        """Return the value of the extra metadata."""
        return json.dumps({"column": self.column, "rows": self.rows, "groups": self.groups})


def spread_history(text: str | None, column: str) -> SpreadHistory:
    """Decode the history from a commit's metadata.

    It is empty if there is no metadata or if it describes a different column.
    """
    if text is None:
        return SpreadHistory(column=column)
    try:
        document = parse_json(text)
        if document["column"] != column:
            return SpreadHistory(column=column)
        rows = {str(value): float(count) for value, count in document["rows"].items()}
        groups = {str(file_id): str(value) for file_id, value in document["groups"].items()}
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CorruptTableError(f"{SPREAD_KEY} of a commit is unreadable ({error!r}): {text[:120]!r}") from error
    return SpreadHistory(column=column, rows=rows, groups=groups)
