"""Schema drift: how the columns of a batch differ from those of the table, and what the write did about it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from typing import Any

from lakehouse.errors import CorruptTableError
from lakehouse.model.document import parse_json

#: Key of the list of drifts in a commit's extra metadata.
DRIFT_KEY = "lakehouse.schema.drift"


class Drift(StrEnum):
    """What happened to a column."""

    ADDED = "added"
    IGNORED = "ignored"
    KEPT = "kept"
    NULLED = "nulled"
    PROMOTED = "promoted"
    ROUNDED = "rounded"
    WIDENED = "widened_to_text"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnDrift:
    """One column that differed, and the number of rows of the batch that it concerned.

    added     the column is new in the table; `rows` of the batch bring it
    ignored   the column is not in the table and its values in `rows` were dropped
    kept      `rows` lack the column and the stored rows keep their values
    nulled    `rows` lack the column and were written with null
    promoted, rounded, widened_to_text
              the type of the table's column changed `before` -> `after`; `rows` of the batch brought the new type.
              No value changes by a promotion; large numbers may lose digits where it says rounded
    """

    column: str
    change: Drift
    rows: int = 0
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        types = f" from {self.before} to {self.after}" if self.before else ""
        return f"{self.column}: {self.change}{types} ({self.rows} rows)"

    def to_mapping(self) -> dict[str, Any]:
        """Return the drift as JSON would hold it."""
        return {**asdict(self), "change": str(self.change)}

    @classmethod
    def of(cls, mapping: Mapping[str, Any]) -> ColumnDrift:
        """Return what `to_mapping` gave; names of later versions are left out."""
        known = {name: mapping[name] for name in ("column", "rows", "before", "after") if name in mapping}
        return cls(change=Drift(mapping["change"]), **known)


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchColumns:
    """What a source whose files have different columns says of a batch.

    `lacks` are groups of columns that some rows lack, as the control column of the batch says (see rows.lacks);
    `lacking_rows` is the number of rows that lack a column, `rows` that of all. `nulled_rows` is the number of rows
    that lack a column and have null there: the batch does not tell them from rows that bring null. `drift` happened
    before the batch was made, such as columns that were not read.
    """

    rows: int
    lacks: tuple[frozenset[str], ...] = ()
    lacking_rows: Mapping[str, int] = field(default_factory=dict)
    nulled_rows: Mapping[str, int] = field(default_factory=dict)
    drift: tuple[ColumnDrift, ...] = ()


def encode_drift(drift: Iterable[ColumnDrift]) -> dict[str, str]:
    """Return the extra metadata of a commit that tells these drifts; nothing where there is none."""
    told = [one.to_mapping() for one in drift]
    return {DRIFT_KEY: json.dumps(told, ensure_ascii=False)} if told else {}


def decode_drift(extra: Mapping[str, str]) -> tuple[ColumnDrift, ...]:
    """Return the drifts that a commit's extra metadata tells; raise CorruptTableError if it tells something else."""
    text = extra.get(DRIFT_KEY) or "[]"
    try:
        return tuple(ColumnDrift.of(one) for one in parse_json(text))
    except (ValueError, TypeError, KeyError) as error:
        raise CorruptTableError(f"{DRIFT_KEY} of a commit is unreadable ({error!r}): {text[:120]!r}") from error
