"""Result of `lakehouse spec check --sample`: the first rows as they would be stored, and the bad records."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lakehouse.spec.contracts.document import Document


@dataclass(frozen=True, slots=True, kw_only=True)
class BadSample:
    """A record of a sample that cannot become a row.

    Attributes:
        place: The file and the line, or the partition and the offset of a message.
        reason: The column, its value and its type, and the setting to change; or why the record does not parse.
        record: The record as a string.
    """

    place: str
    reason: str
    record: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecSample(Document):
    """The records of a sample, as an ingestion with the spec would store them.

    Attributes:
        table: The name of the ingestion.
        scope: Description of the input.
        records: The number of sampled records.
        rows: The number of rows that they become.
        bad_records: The number of bad records.
        types: The types of the columns, by name.
        first_rows: The first rows, as mappings of columns to values.
        bad: The first bad records.
    """

    table: str
    scope: str
    records: int
    rows: int
    bad_records: int
    types: Mapping[str, str]
    first_rows: tuple[Mapping[str, Any], ...] = ()
    bad: tuple[BadSample, ...] = ()
