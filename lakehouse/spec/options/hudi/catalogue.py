"""The configuration names of Hudi 1.2 and 0.15, each classified by what a write or read here does with it.

`options.csv` has one row per name:

    option      the name, as in Hudi's configuration classes
    releases    the releases that have it
    support     a `Support`
    values      values that agree with what is done here anyway, separated by `|`; `*` accepts all
    text        the reason or the equivalent, as a sentence part
"""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.resources import files


class Support(StrEnum):
    """What happens to an option of a Hudi job.

    HONOURED: It has its effect.
    NOT_NEEDED: It has no counterpart, and rows do not depend on it; it is accepted, and one log line lists it.
    EQUIVALENT: Another setting has its effect; it is accepted, and the log line names that setting.
    REFUSED: Rows or files would differ from what the job expects, so it raises an error, except for some values.
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
        """Return whether the value agrees with what is done here anyway."""
        return "*" in self.values or value.strip().lower() in self.values


@cache
def catalogue() -> Mapping[str, HudiOption]:
    """Return all options by name."""
    text = files("lakehouse.spec.options.hudi").joinpath("options.csv").read_text(encoding="utf-8")
    rows = csv.DictReader(text.splitlines())
    return {
        row["option"]: HudiOption(
            name=row["option"],
            releases=tuple(row["releases"].split()),
            support=Support(row["support"]),
            values=tuple(value.lower() for value in row["values"].split("|") if value),
            text=row["text"],
        )
        for row in rows
    }
