"""Functions of strings in expressions. Positions and lengths count characters, from 1."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.expressions.casts import cast_value
from lakehouse.core.expressions.number_functions import whole_literal
from lakehouse.core.expressions.values import Datum, filled, plain
from lakehouse.core.rows.java_patterns import java_pattern
from lakehouse.core.rows.result_values import extracted, substring
from lakehouse.errors import UserError

_LONGEST = 2**31 - 1


def text(value: Datum) -> Datum:
    """Return an argument that must be a string."""
    kind = plain(value.type)
    if pa.types.is_null(kind):
        return value.cast(pa.string())
    if not pa.types.is_string(kind):
        raise UserError(f"a string is needed, and the argument has the type {value.type}; convert it with CAST")
    return value if kind == value.type else value.cast(kind)


def text_literal(name: str, value: Datum) -> str:
    """Return an argument that must be a string, the same for all rows."""
    if isinstance(value, pa.Scalar) and value.is_valid and pa.types.is_string(value.type):
        return str(value.as_py())
    raise UserError(f"this argument of {name} must be a string in the text of the expression")


def length(arguments: Sequence[Datum]) -> Datum:
    """Return the number of characters."""
    return pc.utf8_length(text(arguments[0])).cast(pa.int32())


def joined(left: Datum, right: Datum) -> Datum:
    """Return two values as one string; null if one of them is null."""
    sides = [_as_text(left), _as_text(right)]
    return pc.binary_join_element_wise(*sides, "")


def joined_with(arguments: Sequence[Datum]) -> Datum:
    """Return values as one string with a separator; nulls are left out."""
    separator, *values = [_as_text(value) for value in arguments]
    rows = max((len(value) for value in (separator, *values) if isinstance(value, pa.Array)), default=1)
    # Arrow returns no row at all if all values are null, so one row without nulls is added.
    columns = [pa.concat_arrays([filled(value, rows), pa.array([""])]) for value in (*values, separator)]
    return pc.binary_join_element_wise(*columns, null_handling="skip").slice(0, rows)


def _as_text(value: Datum) -> Datum:
    return cast_value(value, pa.string())


def part(arguments: Sequence[Datum]) -> Datum:
    """Return characters from a position on."""
    count = _LONGEST if len(arguments) == 2 else whole_literal("substring", arguments[2])
    return _array(lambda values: substring(values, whole_literal("substring", arguments[1]), count), text(arguments[0]))


def left(arguments: Sequence[Datum]) -> Datum:
    """Return the first characters."""
    count = whole_literal("left", arguments[1])
    return pc.utf8_slice_codeunits(text(arguments[0]), start=0, stop=max(count, 0))


def right(arguments: Sequence[Datum]) -> Datum:
    """Return the last characters."""
    count = whole_literal("right", arguments[1])
    values = text(arguments[0])
    return pc.utf8_slice_codeunits(values, start=-count) if count > 0 else pc.utf8_slice_codeunits(values, 0, 0)


def replaced_text(arguments: Sequence[Datum]) -> Datum:
    """Return strings in which each occurrence of a text is replaced."""
    pattern, replacement = (text_literal("replace", value) for value in arguments[1:])
    return pc.replace_substring(text(arguments[0]), pattern, replacement) if pattern else text(arguments[0])


def repeated(arguments: Sequence[Datum]) -> Datum:
    """Return a string several times."""
    return pc.binary_repeat(text(arguments[0]), max(whole_literal("repeat", arguments[1]), 0))


def padded(arguments: Sequence[Datum], pad: Callable[..., Datum]) -> Datum:
    """Return strings of a fixed number of characters."""
    width = max(whole_literal("lpad", arguments[1]), 0)
    padding = " " if len(arguments) == 2 else text_literal("lpad", arguments[2])
    if len(padding) != 1:
        raise UserError(f"the padding {padding!r} must be one character")
    return pc.utf8_slice_codeunits(pad(text(arguments[0]), width=width, padding=padding), start=0, stop=width)


def place(value: Datum, pattern: Datum) -> Datum:
    """Return the position of the first occurrence of a text; 0 if there is none."""
    wanted = text_literal("instr", pattern)
    values = text(value)
    # Arrow counts bytes, so the text before the match is measured.
    before = pc.find_substring(values, wanted)
    if isinstance(values, pa.Scalar):
        found_at = values.as_py().find(wanted) + 1 if values.is_valid else None
        return pa.scalar(found_at, pa.int32())
    head = pc.struct_field(pc.extract_regex(values, f"(?s)^(?P<head>.*?){_quoted(wanted)}"), "head")
    characters = pc.add(pc.utf8_length(head), 1).cast(pa.int32())
    return pc.if_else(pc.less(before, 0), pa.scalar(0, pa.int32()), characters)


def tested(kernel: Callable[..., Datum], name: str, arguments: Sequence[Datum]) -> Datum:
    """Return whether strings begin with, end with or contain a text."""
    return kernel(text(arguments[0]), text_literal(name, arguments[1]))


def extracted_group(arguments: Sequence[Datum]) -> Datum:
    """Return a group of the first match of a regular expression; group 1 by default, as in Spark."""
    group = 1 if len(arguments) == 2 else whole_literal("regexp_extract", arguments[2])
    pattern = text_literal("regexp_extract", arguments[1])
    return _array(lambda values: extracted(values, pattern, group), text(arguments[0]))


def matches_like(value: Datum, pattern: Datum, *, escape: str, ignores_case: bool) -> Datum:
    """Return whether strings match a pattern of LIKE."""
    values = text(value)
    if isinstance(pattern, pa.Scalar) and not pattern.is_valid:
        return pa.scalar(None, pa.bool_())
    expression = _like_expression(text_literal("LIKE", pattern), escape)
    return pc.match_substring_regex(values, expression, ignore_case=ignores_case)


def matches_pattern(value: Datum, pattern: Datum) -> Datum:
    """Return whether strings contain a match of a regular expression of Java."""
    if isinstance(pattern, pa.Scalar) and not pattern.is_valid:
        return pa.scalar(None, pa.bool_())
    return pc.match_substring_regex(text(value), java_pattern(text_literal("RLIKE", pattern)).re2)


@lru_cache(256)
def _like_expression(pattern: str, escape: str) -> str:
    parts: list[str] = []
    position = 0
    while position < len(pattern):
        character = pattern[position]
        if character == escape:
            position += 1
            follows = pattern[position : position + 1]
            if follows not in ("%", "_", escape) or not follows:
                raise UserError(
                    f"LIKE {pattern!r}: after the escape character {escape!r} only %, _ or {escape!r} may follow"
                )
            parts.append(_quoted(follows))
        else:
            parts.append({"%": ".*", "_": "."}.get(character) or _quoted(character))
        position += 1
    return f"(?s)\\A{''.join(parts)}\\z"


def _quoted(literal: str) -> str:
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", literal)


def _array(compute: Callable[[Any], Any], value: Datum) -> Datum:
    """Compute on an array; a single value becomes an array of one."""
    if isinstance(value, pa.Scalar):
        return compute(pa.array([value.as_py()], value.type))[0]
    return compute(value)
