"""The section `stream` of `ingest`: consecutive ingestion runs in one long-lived job."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Self

from lakehouse.spec.quantities import duration_text
from lakehouse.spec.spec_key import SpecKey, key_names
from lakehouse.spec.yaml_section import Section

_EVERY_S, _RUN_FOR_S = 60, 600
#: Either the DAG's task waits for the job in a worker slot, or a trigger watches the job's lease.
WATCHES = BLOCKING, DEFERRED = "blocking", "deferred"
STREAM_KEYS = (
    SpecKey(
        name="every",
        type="duration",
        text="Time between the starts of two commits, if the source has no more records to read immediately.",
        example="30s",
        default="1m",
    ),
    SpecKey(
        name="run_for",
        type="duration",
        text="Duration of one run of the DAG; the next one follows immediately.",
        example="1h",
        default="10m",
    ),
    SpecKey(
        name="watch",
        type="choice",
        text="How the DAG watches the job: its task waits in a slot of a worker, or is deferred and a trigger watches.",
        example="deferred",
        default=BLOCKING,
        choices=WATCHES,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamSpec:
    """A continuous ingestion: a commit every `every_s` seconds, in jobs of `run_for_s` seconds; 0 for no end."""

    every_s: int = _EVERY_S
    run_for_s: int = _RUN_FOR_S
    watch: str = BLOCKING

    @classmethod
    def parse(cls, section: Section) -> Self:
        """Read the section; raise UserError with file and line."""
        section.only(key_names(STREAM_KEYS))
        spec = cls(
            every_s=section.seconds("every", _EVERY_S),
            run_for_s=section.seconds("run_for", _RUN_FOR_S),
            watch=section.choice("watch", WATCHES, BLOCKING),
        )
        for name, seconds in (("every", spec.every_s), ("run_for", spec.run_for_s)):
            if seconds == 0:
                raise section.error(f"{name}: must be longer than 0 seconds.", name)
        return spec

    def to_mapping(self) -> dict[str, Any]:
        """Return the section as in the YAML file."""
        return {
            "every": duration_text(self.every_s),
            "run_for": duration_text(self.run_for_s),
            "watch": self.watch,
        }
