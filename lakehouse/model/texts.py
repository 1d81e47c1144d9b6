"""Convert arguments to tuples of strings, and make strings safe for terminals."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from typing import Any

from lakehouse.errors import UserError


def is_encodable(text: str) -> bool:
    """Return whether UTF-8 can encode a string: it contains no half of a surrogate pair."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def require_encodable(text: str, noun: str) -> None:
    """Raise UserError, with the noun, for a string that UTF-8 cannot encode."""
    if not is_encodable(text):
        raise UserError(
            f"{noun} {text!r} contains one half of a surrogate pair, which is not a character: decode the text again, "
            "for example with errors='replace'"
        )


def text_list(value: Any, argument: str, *, ordered: bool = False, allow_empty: bool = False) -> tuple[str, ...]:
    """Return an argument as strings: a single string is a tuple of one, None is an empty tuple.

    Args:
        value: A string, or a list, tuple, set or other iterable of strings.
        argument: The name of the argument, for the error.
        ordered: Whether the order of the strings matters: a set of several is refused then.
        allow_empty: Whether a string may be empty.

    Raises:
        UserError: The value is bytes, a number or a mapping, or an item is not a string or is empty.
    """
    if value is None:
        return ()
    if isinstance(value, str):
        texts: tuple[Any, ...] = (value,)
    elif isinstance(value, bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        raise UserError(
            f"{argument}={value!r} is {_kind(value)}; give a string, such as 'id', or a list of strings",
            argument=argument,
        )
    else:
        texts = tuple(value)
    if ordered and isinstance(value, Set) and len(texts) > 1:
        raise UserError(
            f"{argument}={value!r} is a set, whose order changes between runs, and the order matters; give a list",
            argument=argument,
        )
    for text in texts:
        if not isinstance(text, str):
            raise UserError(
                f"{argument} contains {text!r}, which is {_kind(text)}; give a string, such as 'id', or a list "
                "of strings",
                argument=argument,
            )
        if not text.strip() and not allow_empty:
            raise UserError(f"{argument} contains the empty string {text!r}; remove it", argument=argument)
    return texts


def _kind(value: object) -> str:
    return "nothing" if value is None else f"of type {type(value).__name__}"


def error_text(error: Exception) -> str:
    """Return an error with its class as a string that every database stores: control characters are escaped."""
    return printable(f"{type(error).__name__}: {error}", keep="\n\t")


def printable(text: str, *, keep: str = "") -> str:
    """Return a string with control characters replaced by escapes, except those in `keep`.

    Names of tables, partitions and columns come from other writers, and terminals interpret control characters.
    """
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in keep else c.encode("unicode_escape").decode() for c in text)
