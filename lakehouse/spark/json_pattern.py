"""The pattern of a JSON object, for regular expressions in Java and Python.

It matches balanced braces outside of strings, down to `_DEPTH` levels. It does not check the syntax of an object: a
string that parses and matches the pattern is exactly one object. All quantifiers are possessive, so a match takes
linear time and no stack. This module runs in Spark workers and does not import pyspark.
"""

from __future__ import annotations

from collections.abc import Mapping

from lakehouse.spark.csv_dialect import flag

#: Maximum nesting of objects that the pattern matches; deeper objects need the slow check.
_DEPTH = 16


def object_pattern(options: Mapping[str, str]) -> str:
    """Return the pattern of an object by the options of Spark's parser."""
    strings, outside = [r'"[^"\\]*+(?:\\.[^"\\]*+)*+"'], '{}"'
    if flag(options, "allowSingleQuotes", default=True):
        strings.append(r"'[^'\\]*+(?:\\.[^'\\]*+)*+'")
        outside += "'"
    if has_comments(options):
        outside += "/#"
    pattern = ""
    for _ in range(_DEPTH):
        pattern = rf"\{{(?:[^{outside}]++|{'|'.join([*strings, *([pattern] if pattern else [])])})*+\}}"
    return f"(?s:{pattern})"


def token_pattern(options: Mapping[str, str]) -> str:
    """Return the pattern of a string, a comment, or anything between them, in JSON that parses."""
    quotes = '"' + ("'" if flag(options, "allowSingleQuotes", default=True) else "")
    tokens = [rf"{quote}[^{quote}\\]*+(?:\\.[^{quote}\\]*+)*+{quote}" for quote in quotes]
    outside = quotes
    if has_comments(options):
        tokens += [r"/\*.*?\*/", r"//[^\n]*+", r"#[^\n]*+"]
        outside += "/#"
    return f"(?s:{'|'.join([*tokens, f'[^{outside}]++', '.'])})"


def has_comments(options: Mapping[str, str]) -> bool:
    """Return whether JSON strings may have comments."""
    return flag(options, "allowComments", default=False)
