"""The section `deduplicate` of `ingest`: rows of events that were delivered more than once are dropped."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from lakehouse.spec.quantities import duration_text
from lakehouse.spec.spec_key import SpecKey, key_names
from lakehouse.spec.yaml_section import Section

DEDUPLICATE_KEYS = (
    SpecKey(
        name="within",
        type="duration",
        text="Longest distance of the times of two rows with equal keys of which the later one is dropped.",
        example="1d",
        required=True,
    ),
    SpecKey(
        name="keys",
        type="list",
        text="Columns whose values identify an event; the default is the record key.",
        example="[order_id, event]",
    ),
    SpecKey(
        name="time",
        type="column",
        text="Column with the time of an event, a timestamp or a date; the default is `event_time` of `ingest`.",
        example="created_at",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeduplicateSpec:
    """Rows with equal `keys` whose times are at most `within_s` seconds apart are one event.

    Attributes:
        within_s: The window.
        keys: The columns that identify an event; empty for the record key.
        time: The column with the time of an event; empty for the column `event_time` of the ingestion.
    """

    within_s: int
    keys: tuple[str, ...] = ()
    time: str = ""

    @classmethod
    def parse(cls, section: Section) -> Self:
        """Read the section; raise UserError with file and line."""
        section.only(key_names(DEDUPLICATE_KEYS))
        section.required("within")
        return cls(within_s=section.seconds("within", 0), keys=section.names("keys"), time=section.text("time").strip())

    def to_mapping(self) -> dict[str, Any]:
        """Return the section as YAML holds it."""
        mapping: dict[str, Any] = {"within": duration_text(self.within_s)}
        if self.keys:
            mapping["keys"] = list(self.keys)
        return mapping | ({"time": self.time} if self.time else {})
