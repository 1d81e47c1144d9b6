"""Guess the CSV dialect from the beginning of a file: separator, quotes, comments and header."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lakehouse.platform.suggest.sample import NULL_TEXTS
from lakehouse.platform.suggest.text_types import STRING, TextRules, text_kinds
from lakehouse.spark.csv_dialect import CsvDialect

_SEPARATORS = (",", ";", "\t", "|")
#: Quote and escape: RFC 4180, backslashes before quotes, single quotes, no quotes.
_QUOTES = (('"', '"'), ('"', "\\"), ("'", "'"), ("", ""))
_MOST_RECORDS = 1000
# The module refuses values of more than 128 KiB by default, but ingestions accept them.
csv.field_size_limit(1 << 30)


@dataclass(frozen=True, slots=True, kw_only=True)
class CsvGuess:
    """A CSV dialect.

    Attributes:
        separator: The separator.
        quote: The quote; empty for none.
        escape: The character before a quote in a quoted value.
        comment: The first character of comments; empty for none.
        has_header: Whether the first record contains the column names.
        values: The number of values in a record.
        fitting: The share of records that match `values`.
        is_header_proven: Whether the later records have types that the first record's values lack.
        open_quote: A value that begins with a double quote, if the dialect has another quote; else empty.
    """

    separator: str = ","
    quote: str = '"'
    escape: str = '"'
    comment: str = ""
    has_header: bool = True
    values: int = 1
    fitting: float = 1.0
    is_header_proven: bool = True
    open_quote: str = ""

    @property
    def options(self) -> dict[str, str]:
        """The Spark reader options that differ from the defaults."""
        options = {}
        if self.separator != ",":
            options["sep"] = "\\t" if self.separator == "\t" else self.separator
        if self.quote != '"':
            options["quote"] = self.quote
        if self.escape != self.quote:
            options["escape"] = self.escape
        if self.comment:
            options["comment"] = self.comment
        if not self.has_header:
            options["header"] = "false"
        return options

    @property
    def dialect(self) -> CsvDialect:
        """The dialect with which ingestions split the files."""
        return CsvDialect.of(self.options)


def guess_csv(text: str) -> CsvGuess:
    """Return the dialect in which the maximum number of records have equally many values; needs one record."""
    lines = [line for line in text.splitlines() if line.strip()]
    comment = "#" if lines and lines[0].startswith("#") and not all(line.startswith("#") for line in lines) else ""
    scored = [
        (_score(records), -number, separator, quotes, records)
        for separator in _SEPARATORS
        for number, quotes in enumerate(_QUOTES)
        if (records := _records(text, separator, quotes, comment))
    ]
    if not scored:
        return CsvGuess()
    _, _, separator, (quote, escape), records = max(scored, key=lambda entry: entry[:2])
    width = _width(records)
    return CsvGuess(
        separator=separator,
        quote=quote,
        escape=escape,
        comment=comment,
        has_header=has_header(records),
        values=width,
        fitting=sum(len(record) == width for record in records) / len(records),
        is_header_proven=_names_above_types(records) > 0,
        open_quote=next((value for record in records for value in record if quote != '"' and value[:1] == '"'), ""),
    )


def has_header(records: Sequence[Sequence[str]]) -> bool:
    """Return whether the first record is a header: distinct names that differ in type from the values below."""
    first, rows = records[0], records[1:]
    names = [name.strip() for name in first]
    same = [row for row in rows if len(row) == len(first)]
    if not all(names) or any(map(_is_typed, names)):
        # Some names are empty or look like values: the columns below decide.
        return not _has_types_of_rows(names, same) and _names_above_types(records) > 0
    if not rows:
        return True
    has_types = any(any(_is_typed(row[number]) for row in same) for number in range(len(names)))
    # If all values are strings, names are distinct words that their columns do not contain.
    is_distinct = len({name.lower() for name in names}) == len(names)
    return has_types or (
        is_distinct
        and all(
            name.replace("_", "").replace(" ", "").isalnum() and all(row[number] != name for row in same)
            for number, name in enumerate(names)
        )
    )


def _has_types_of_rows(names: Sequence[str], rows: Sequence[Sequence[str]]) -> bool:
    """Return whether a value in the first record is typed, like all values below it."""
    columns = [[row[number] for row in rows if row[number]] for number in range(len(names))]
    return any(
        _is_typed(name) and bool(values) and all(map(_is_typed, values))
        for name, values in zip(names, columns, strict=True)
    )


def _names_above_types(records: Sequence[Sequence[str]]) -> int:
    """Return the number of columns whose first value is a string, followed only by numbers or times."""
    first, rows = records[0], [row for row in records[1:] if len(row) == len(records[0])]
    count = 0
    for number, name in enumerate(first):
        values = [row[number] for row in rows if row[number] and row[number] not in NULL_TEXTS]
        is_name = bool(name.strip()) and name not in NULL_TEXTS and not _is_typed(name)
        count += is_name and bool(values) and all(map(_is_typed, values))
    return count


def _is_typed(text: str) -> bool:
    """Return whether a string is a number, a time or a boolean."""
    return bool(text) and text_kinds(text, TextRules()) != STRING


def values_of(record: str, guess: CsvGuess) -> list[str] | None:
    """Return the values of one record; None if it is not CSV in this dialect."""
    rows = parsed_values((record,), guess)
    return rows[0] if rows is not None and len(rows) == 1 else None


def parsed_values(records: Iterable[str], guess: CsvGuess) -> list[list[str]] | None:
    """Return the values of records; None if one of them is not CSV in this dialect."""
    try:
        return list(_reader(records, guess.separator, (guess.quote, guess.escape)))
    except csv.Error:
        return None


def _reader(lines: Iterable[str], separator: str, quotes: tuple[str, str]) -> Iterable[list[str]]:
    quote, escape = quotes
    if not quote:
        return csv.reader(lines, delimiter=separator, quoting=csv.QUOTE_NONE, strict=True)
    doubled = escape in ("", quote)
    return csv.reader(
        lines,
        delimiter=separator,
        quotechar=quote,
        doublequote=doubled,
        escapechar=None if doubled else escape,
        strict=True,
    )


def _records(text: str, separator: str, quotes: tuple[str, str], comment: str) -> list[list[str]]:
    """Return the first records, up to a syntax error."""
    records: list[list[str]] = []
    lines = (line for line in text.splitlines(keepends=True) if not (comment and line.startswith(comment)))
    try:
        for record in _reader(lines, separator, quotes):
            if any(value.strip() for value in record):
                records.append(record)
            if len(records) >= _MOST_RECORDS:
                break
    except csv.Error:
        # The record counts as a record that does not fit.
        records.append([])
    return records


def _width(records: Sequence[Sequence[str]]) -> int:
    ((width, _),) = Counter(map(len, records)).most_common(1)
    return width


def _score(records: Sequence[Sequence[str]]) -> tuple[float, ...]:
    """Return how well records fit a dialect: several values, equally many values, correctly split values."""
    width = _width(records)
    fitting = [record for record in records if len(record) == width]
    header = len(records[0]) == width
    values = [value for record in fitting for value in record]
    # A value that contains another separator, or begins with a quote, was probably split wrongly.
    rests = sum(any(other in value for other in ";\t|") or value[:1] in ("'", '"') for value in values)
    return (
        width > 1 and header,
        round(len(fitting) / len(records), 2),
        round(1 - rests / max(1, len(values)), 2),
        width,
    )
