"""Texts: arguments that are lists of them, where a text alone is a list of one; and texts that a terminal may get."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from lakehouse.errors import UserError


def text_list(value: Any, argument: str, *, ordered: bool = False, allow_empty: bool = False) -> tuple[str, ...]:
    """Return the texts of an argument: a text alone is one of them, None is none.

    Args:
        value: A text, or a list, tuple, set or other iterable of texts.
        argument: The name of the argument, for the error.
        ordered: Whether the order of the texts matters: a set of several is refused then.
        allow_empty: Whether a text may be empty.

    Raises:
        UserError: For bytes, numbers, mappings, items that are no texts, and empty texts.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        texts: tuple[Any, ...] = (value,)
    elif isinstance(value, bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        raise UserError(
            f"{argument}={value!r} is {_kind(value)}; give a text, such as 'id', or a list of texts", argument=argument
        )
    else:
        texts = tuple(value)
    if ordered and isinstance(value, Set) and len(texts) > 1:
        raise UserError(
            f"{argument}={value!r} is a set, whose order changes from run to run, and the order counts; give a list",
            argument=argument,
        )
    for text in texts:
        if not isinstance(text, str):
            raise UserError(
                f"{argument} holds {text!r}, which is {_kind(text)}; give a text, such as 'id', or a list of texts",
                argument=argument,
            )
        if not text.strip() and not allow_empty:
            raise UserError(f"{argument} holds the empty text {text!r}; leave it out, or name one", argument=argument)
    return texts


def _kind(value: object) -> str:
    return "nothing" if value is None else f"of type {type(value).__name__}"


def printable(text: str, *, keep: str = "") -> str:
    """Return a text without control characters, which are written as escapes, but for those to `keep`.

    Names of tables, partitions and columns come from the writer of the table; terminals obey control characters.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)
