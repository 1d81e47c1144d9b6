"""The values between reading and inference: a bounded sample of a source, in columns."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

#: Notations of "no value" that files use instead of an empty value.
NULL_TEXTS = ("NA", "N/A", "n/a", "NULL", "null", "Null", "None", "none", "nil", "\\N", "-", "--", "#N/A", "?", "nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Limits of a sample.

    Attributes:
        rows: The number of rows or messages.
        files: The number of files.
        bytes: The uncompressed size of the records in bytes.
    """

    rows: int = 10_000
    files: int = 10
    bytes: int = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledColumn:
    """A sample column.

    Attributes:
        name: The name in the table.
        type: The Spark SQL type.
        values: One value per row: a string, number, or other hashable value; None for null.
        notes: Sentences about the type, for comments in the spec.
        key_type: The type as record key column: a string where `007` and `7` have to be different keys.
        source_name: The name in the source, if it differs; else empty.
        time_format: The Joda pattern to parse the column's strings as times; empty for none.
    """

    name: str
    type: str
    values: Sequence[Hashable] = field(repr=False)
    notes: tuple[str, ...] = ()
    key_type: str = "string"
    source_name: str = ""
    time_format: str = ""

    @property
    def nulls(self) -> int:
        """The number of rows without a value."""
        return sum(value is None for value in self.values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A sample of a source.

    Attributes:
        name: A name for the table, from the source.
        columns: The columns, in source order.
        rows: The number of sampled rows.
        ingest: The keys of the `ingest` section that follow from the sample.
        scope: Sentences about the sample: files, rows and bytes, and whether it is complete.
        notes: Sentences about the source, for comments in the spec.
        is_database: Whether the source is a table of a database: its log orders the changes, and the spec may not
            declare a schema.
        key: The key columns that the source declares; empty for none.
        ordering: The ordering columns of the source; empty to choose one of the columns.
        ordering_note: Why they order the rows.
        facts: Columns in addition to the columns of the rows, with their types.
        settings: Further settings of the table spec.
        changes_rows: Whether the source updates and deletes rows, so that merge-on-read suits it.
    """

    name: str
    columns: tuple[SampledColumn, ...]
    rows: int
    ingest: Mapping[str, object]
    scope: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    is_database: bool = False
    key: tuple[str, ...] = ()
    ordering: tuple[str, ...] = ()
    ordering_note: str = ""
    facts: Mapping[str, str] = field(default_factory=dict)
    settings: Mapping[str, object] = field(default_factory=dict)
    changes_rows: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSet:
    """Several database tables that one spec ingests.

    Attributes:
        name: A name for the ingestion.
        ingest: The keys of the `ingest` section.
        scope: Sentences about the sampled records.
        notes: Sentences about the tables.
    """

    name: str
    ingest: Mapping[str, object]
    scope: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def shown(value: object, most: int = 40) -> str:
    """Return a value in quotes for a comment: at most `most` characters, on one line."""
    text = str(value)
    return ascii_quoted(text if len(text) <= most else f"{text[:most]}...")


def ascii_quoted(text: str) -> str:
    """Return a string in single quotes, with escapes instead of line breaks and control characters."""
    return "'" + "".join(c if c.isprintable() else repr(c)[1:-1] for c in text) + "'"
