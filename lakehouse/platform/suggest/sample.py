"""The values between reading and inference: a bounded sample of a source, in columns."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field

#: Notations of "no value" that files use instead of an empty value.
NULL_TEXTS = ("NA", "N/A", "n/a", "NULL", "null", "Null", "None", "none", "nil", "\\N", "-", "--", "#N/A", "?", "nan")


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The largest sample.

    Attributes:
        rows: The number of rows, or of messages.
        files: The number of files.
        bytes: The number of bytes of records, unpacked.
    """

    rows: int = 10_000
    files: int = 10
    bytes: int = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledColumn:
    """A column of a sample.

    Attributes:
        name: The name in the table.
        type: The Spark SQL type.
        values: One value for each row: a text, number, or other hashable value; None for null.
        notes: Sentences about the type, for comments of the spec.
        key_type: The type as column of the record key: a string where `007` and `7` have to be different keys.
        source_name: The name in the source, if it is another one; else empty.
        time_format: The pattern by which texts of the column are times, in the letters of Joda; empty for none.
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
        columns: The columns, in the order of the source.
        rows: The number of sampled rows.
        ingest: The keys of the `ingest` section that the sample decides.
        scope: Sentences about what was read: files, rows and bytes, and whether that is all.
        notes: Sentences about the source that the spec has as comments.
        is_database: Whether the source is a table of a database: its log orders the changes, and the spec may not
            declare a schema.
        key: The columns of the key that the source declares; empty for none.
        ordering: The ordering columns that the source has; empty to choose one of the columns.
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
    """Several tables of a database, which one spec ingests.

    Attributes:
        name: A name for the ingestion.
        ingest: The keys of the `ingest` section.
        scope: Sentences about the records of the sample.
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
    """Return a text in single quotes, with escapes instead of line breaks and control characters."""
    return "'" + "".join(c if c.isprintable() else repr(c)[1:-1] for c in text) + "'"
