"""The configuration names of Hudi 1.2 and 0.15, each classified by its effect on a write or read here.

`options.csv` has one row per name:

    option      the name, as in Hudi's configuration classes
    releases    the releases that have it
    support     a `Support`
    values      values that change nothing here, separated by `|`; `*` accepts all
    text        the reason or the equivalent, as a sentence part
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from importlib.resources import files

from lakehouse.spec.options.creation import CREATE_OPTIONS
from lakehouse.spec.options.declarations import declared_keys


class Support(StrEnum):
    """The effect of an option in a Hudi job.

    HONOURED: It has its effect.
    NOT_NEEDED: It has no counterpart, and rows do not depend on it; it is accepted, and one log line lists it.
    EQUIVALENT: Another setting has its effect; it is accepted, and the log line names that setting.
    REFUSED: The job would get other rows or files than it expects, so it raises an error, except for some values.
    """

    HONOURED = "honoured"
    NOT_NEEDED = "not needed"
    EQUIVALENT = "equivalent"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class HudiOption:
    """One row of the table."""

    name: str
    releases: tuple[str, ...]
    support: Support
    values: tuple[str, ...]
    text: str

    def accepts(self, value: str) -> bool:
        """Return whether the value changes nothing here."""
        return "*" in self.values or value.strip().lower() in self.values


@cache
def catalogue() -> Mapping[str, HudiOption]:
    """Return all options by name."""
    text = files("lakehouse.spec.options.hudi").joinpath("options.csv").read_text(encoding="utf-8")
    return {row["option"]: _option(row) for row in csv.DictReader(text.splitlines())}


def _option(row: Mapping[str, str]) -> HudiOption:
    option = HudiOption(
        name=row["option"],
        releases=tuple(row["releases"].split()),
        support=Support(row["support"]),
        values=tuple(value.lower() for value in row["values"].split("|") if value),
        text=row["text"],
    )
    # A declaration makes an option honoured, so that the table need not change with it.
    is_declared = option.name in declared_keys() or option.name in CREATE_OPTIONS
    return replace(option, support=Support.HONOURED, values=(), text="") if is_declared else option
