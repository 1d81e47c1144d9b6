"""A reference model of a table: a dict {(partition, key): {column: value}}, in which null values are absent."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

Key = tuple[str, str]
Row = dict[str, int]
Rows = dict[Key, Row]
ORDERING = "ts"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One write: its verb, its rows, and for `delete_partitions` the partitions. Only the keys of a delete count."""

    name: str
    verb: str
    rows: Mapping[Key, Row] = field(default_factory=dict)
    partitions: tuple[str, ...] = ()


def after(rows: Rows, change: Change, *, ordered: bool) -> Rows:
    """Return the rows after a write. With an ordering column, rows older than the stored ones are ignored."""
    new = dict(rows)
    if change.verb == "delete_partitions":
        return {key: row for key, row in rows.items() if key[0] not in change.partitions}
    if change.verb == "insert_overwrite":
        written = {partition for partition, _ in change.rows}
        return {**{key: row for key, row in rows.items() if key[0] not in written}, **change.rows}
    for key, row in change.rows.items():
        if change.verb == "delete":
            new.pop(key, None)
        elif change.verb == "partial":
            new[key] = {**rows.get(key, {}), **row}
        elif not (ordered and key in rows and rows[key][ORDERING] > row[ORDERING]):
            new[key] = dict(row)
    return new
