"""Declare the keys of a table spec: the parser's names, its error messages and the reference derive from this."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecKey:
    """One key in a section of the table spec.

    Attributes:
        name: The key.
        type: Description of its type, for people.
        text: Sentence that describes the key.
        example: A value in YAML.
        default: The value that applies if the key is missing, as YAML; empty if there is none.
        choices: All values that the key accepts; empty for any value of the type.
        needs: Other keys of the section that the example needs, as YAML.
        required: Whether the section must have the key.
    """

    name: str
    type: str
    text: str
    example: str
    default: str = ""
    choices: tuple[str, ...] = ()
    needs: str = ""
    required: bool = False


def key_names(keys: Iterable[SpecKey]) -> tuple[str, ...]:
    """Return the names of keys, in their order."""
    return tuple(key.name for key in keys)
