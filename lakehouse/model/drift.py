"""Column drift: differences between the columns of a batch and the table, and how the write treated them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from lakehouse.errors import CorruptTableError
from lakehouse.model.document import parse_json

#: The key of the column drift in a commit's extra metadata.
DRIFT_KEY = "lakehouse.schema.drift"


class Drift(StrEnum):
    """The treatment of a column that differs between a batch and the table."""

    #: The column is new in the table.
    ADDED = "added"
    #: The column is not in the table; its values were dropped.
    IGNORED = "ignored"
    #: The batch lacks the column; stored rows keep their values.
    KEPT = "kept"
    #: The batch lacks the column; its rows get null.
    NULLED = "nulled"
    #: The type of the column in the table became wider; no value changed.
    PROMOTED = "promoted"
    #: The type of the column in the table changed, and large numbers may have lost digits. Or the batch contains times
    #: in nanoseconds, which a table cannot store: `rows` counts the truncated times.
    ROUNDED = "rounded"
    #: The table column became a string.
    WIDENED = "widened_to_text"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDrift:
    """A column that differed, and the number of affected rows in the batch.

    Attributes:
        column: Name of the column.
        change: Treatment of the column.
        rows: Number of affected rows: those that have the column (`added`, `ignored`), lack it (`kept`, `nulled`), or
            had the new type (`promoted`, `rounded`, `widened_to_text`). For times in nanoseconds, only rows that lose
            digits are counted.
        before: Type of the table's column before the batch, empty if the type did not change.
        after: Its type after the batch.
        example: The start of a value that was dropped, as JSON; empty if it is unknown.
    """

    column: str
    change: Drift
    rows: int = 0
    before: str = ""
    after: str = ""
    example: str = ""

    def __str__(self) -> str:
        types = f" from {self.before} to {self.after}" if self.before else ""
        example = f", such as {self.example}" if self.example else ""
        return f"{self.column}: {self.change}{types} ({self.rows} rows{example})"

    def to_mapping(self) -> dict[str, Any]:
        """Return the drift as values of JSON; an example only if there is one."""
        values = {**asdict(self), "change": str(self.change)}
        return values if self.example else {name: value for name, value in values.items() if name != "example"}

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> ColumnDrift:
        """Return the drift of a mapping made by `to_mapping`; names of later versions are ignored."""
        values = {name: mapping[name] for name in ("column", "rows", "before", "after", "example") if name in mapping}
        return cls(change=Drift(mapping["change"]), **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchColumns:
    """The columns that rows of a batch lack, for sources whose files have different columns.

    Attributes:
        rows: The number of all rows.
        lacks: Groups of columns that some rows lack; the control column of the batch selects them (see
            `core.rows.absent_columns`).
        lacking_rows: The number of rows that lack a column, by column.
        nulled_rows: The number of rows that lack a column and cannot be distinguished from rows with null, by column.
        drift: Column drift from before the batch, such as columns that were not read.
    """

    rows: int
    lacks: tuple[frozenset[str], ...] = ()
    lacking_rows: Mapping[str, int] = field(default_factory=dict)
    nulled_rows: Mapping[str, int] = field(default_factory=dict)
    drift: tuple[ColumnDrift, ...] = ()


def encode_drift(drift: Iterable[ColumnDrift]) -> dict[str, str]:
    """Return the extra metadata of a commit for these drifts; empty if there are none."""
    mappings = [one.to_mapping() for one in drift]
    return {DRIFT_KEY: json.dumps(mappings, ensure_ascii=False)} if mappings else {}


def decode_drift(extra: Mapping[str, str]) -> tuple[ColumnDrift, ...]:
    """Return the drifts in a commit's extra metadata; raise CorruptTableError if they cannot be parsed."""
    text = extra.get(DRIFT_KEY) or "[]"
    try:
        return tuple(ColumnDrift.of(one) for one in parse_json(text))
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptTableError(f"{DRIFT_KEY} of a commit is unreadable ({error!r}): {text[:120]!r}") from error
