"""Column groups: sets of columns that different writers fill, each set with its own ordering column.

The string form, which a table stores, is `ordering=column,column;ordering=column`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lakehouse.errors import CorruptTableError, UserError

GROUPS_PROPERTY = "hoodie.record.merge.property.lakehouse.column.groups"
_SEPARATORS = frozenset(",;=")


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnGroup:
    """Columns whose values come from one version of a record: the version with the maximum value in `ordering`."""

    ordering: str
    columns: tuple[str, ...]

    @property
    def names(self) -> tuple[str, ...]:
        """The ordering column and the columns."""
        return (self.ordering, *self.columns)


ColumnGroups: TypeAlias = tuple[ColumnGroup, ...]


def declared_groups(groups: Mapping[str, str | Sequence[str]], reserved: Sequence[str] = ()) -> ColumnGroups:
    """Return the groups that a mapping of ordering columns to their columns declares.

    Raises UserError for a group without columns, a column in two groups, a nested field, a name with `,`, `;` or `=`,
    and a column that is `reserved`, such as a key column.
    """
    declared = tuple(
        ColumnGroup(
            ordering=ordering.strip(),
            columns=tuple(name.strip() for name in ([names] if isinstance(names, str) else names)),
        )
        for ordering, names in groups.items()
    )
    seen: set[str] = set()
    for group in declared:
        if not group.columns:
            raise UserError(f"column_groups: the group of {group.ordering!r} has no columns; name at least one")
        for name in group.names:
            if not name or "." in name or _SEPARATORS & set(name):
                raise UserError(f"column_groups: {name!r} is not the name of a column at the top level")
            if name in seen:
                raise UserError(f"column_groups: column {name!r} is named twice; a column has one group")
            if name in reserved:
                raise UserError(
                    f"column_groups: {name!r} is a key, partition, ordering or delete column, which all writers provide"
                )
            seen.add(name)
    return declared


def groups_text(groups: ColumnGroups) -> str:
    """Return groups as a string."""
    return ";".join(f"{group.ordering}={','.join(group.columns)}" for group in groups)


def parse_groups(text: str) -> ColumnGroups:
    """Return the groups in a string; raise CorruptTableError if it does not describe groups."""
    try:
        pairs = [part.split("=") for part in text.split(";")]
        return declared_groups({ordering: names.split(",") for ordering, names in pairs})
    except (ValueError, UserError) as error:
        raise CorruptTableError(f"{GROUPS_PROPERTY}={text!r} does not declare column groups: {error}") from error
