r"""The dialect of CSV files, by the options of Spark's reader; the defaults follow RFC 4180.

A value that begins with the quote ends with the next quote, may contain line breaks, and contains a quote as two quotes
(or, with `escape: "\\"`, as `\"`). After the closing quote only a separator or the end of the record may follow. Quotes
inside of a value that does not begin with one are ordinary characters.

This module runs in Spark workers and does not import pyspark.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Self


@dataclass(frozen=True, kw_only=True)
class CsvDialect:
    r"""How a CSV file is divided into records and values.

    Attributes:
        separator: The separator between two values.
        quote: The quote; empty if values are not quoted.
        escape: The character before a quote inside of a quoted value; the quote itself for doubled quotes.
        comment: The first character of records that are comments; empty for none.
        line_break: The separator between two records; empty for any of the usual line breaks.
        spans_lines: Whether a quoted value may contain line breaks; otherwise each line is one record.
        is_strict: Whether a value with characters after its closing quote, or without a closing quote, is bad.
        trims: Whether space before and after quoted values is ignored.
    """

    separator: str = ","
    quote: str = '"'
    escape: str = '"'
    comment: str = ""
    line_break: str = ""
    spans_lines: bool = True
    is_strict: bool = True
    trims: tuple[bool, bool] = (False, False)

    @classmethod
    def of(cls, options: Mapping[str, str]) -> Self:
        """Return the dialect for options of Spark's reader."""
        quote = option(options, '"', "quote")
        return cls(
            separator=option(options, ",", "sep", "delimiter").replace("\\t", "\t"),
            quote=quote,
            escape=option(options, quote, "escape"),
            comment=option(options, "", "comment"),
            line_break=option(options, "", "lineSep"),
            spans_lines=flag(options, "multiLine", default=True),
            is_strict=not option(options, "", "unescapedQuoteHandling"),
            trims=(
                flag(options, "ignoreLeadingWhiteSpace", default=False),
                flag(options, "ignoreTrailingWhiteSpace", default=False),
            ),
        )

    @property
    def row(self) -> str:
        """The pattern, for Java, of a string that is one record whose quotes are all closed."""
        separator = re.escape(self.separator)
        field = rf"(?:{self._quoted}(?={separator}|\z)|{self._unquoted})"
        return rf"(?s)\A{field}(?:{separator}{field})*+\z"

    @cached_property
    def record(self) -> re.Pattern[bytes]:
        """The pattern of a record with the line break after it; a record whose quote is not closed does not match.

        Characters after a closing quote belong to the record, which ends with its line.
        """
        return re.compile(self._record.encode(), re.DOTALL)

    @cached_property
    def records(self) -> re.Pattern[bytes]:
        """The pattern of a record, or of the whole rest if it does not begin with one."""
        return re.compile(f"{self._record}|.++".encode(), re.DOTALL)

    @property
    def _record(self) -> str:
        separator, line_break = re.escape(self.separator), re.escape(self.line_break) or r"\r\n|\n|\r(?=.)"
        field = rf"(?:{self._quoted}{self._rest}|{self._unquoted})"
        comment = f"{re.escape(self.comment)}{_none_of(*self._line_breaks)}|" if self.comment else ""
        return rf"(?:{comment}{field}(?:{separator}{field})*+)(?:{line_break})"

    @property
    def _quoted(self) -> str:
        quote, escape = re.escape(self.quote), re.escape(self.escape)
        lead, trail = (r"[ \t]*+" if trims else "" for trims in self.trims)
        inner = _none_of(self.quote, self.escape)
        if self.escape:
            escaped = quote + quote if self.escape == self.quote else f"{escape}."
            inner = f"{inner}(?:{escaped}{inner})*+"
        return f"{lead}{quote}{inner}{quote}{trail}"

    @property
    def _unquoted(self) -> str:
        lead = r"[ \t]*+" if self.trims[0] else ""
        return f"(?!{lead}{re.escape(self.quote)}){self._rest}"

    @property
    def _rest(self) -> str:
        """The pattern of characters up to a separator or line break."""
        return _none_of(self.separator, *self._line_breaks)

    @property
    def _line_breaks(self) -> tuple[str, ...]:
        return (self.line_break,) if self.line_break else ("\r", "\n")


def option(options: Mapping[str, str], default: str, *names: str) -> str:
    """Return the value of an option, whose name may be in any case."""
    lower = {name.lower() for name in names}
    return next((text for name, text in options.items() if name.lower() in lower), default)


def flag(options: Mapping[str, str], name: str, *, default: bool) -> bool:
    """Return whether an option is set."""
    return option(options, str(default), name).strip().lower() == "true"


def encoding_of(options: Mapping[str, str]) -> str:
    """Return the encoding of CSV files."""
    return option(options, "UTF-8", "encoding", "charset")


def is_utf8(encoding: str) -> bool:
    """Return whether an encoding is UTF-8."""
    return encoding.strip().upper() in ("UTF-8", "UTF8")


def _none_of(*texts: str) -> str:
    """Return a possessive pattern for characters up to any of these strings.

    A character class cannot contain strings.
    """
    if all(len(text) <= 1 and text.isascii() for text in texts):
        return f"[^{''.join(map(re.escape, texts))}]*+"
    return f"(?:(?!{'|'.join(re.escape(text) for text in texts if text)}).)*+"
