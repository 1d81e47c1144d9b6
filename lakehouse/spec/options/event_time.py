"""Options of event time: the column with the time of an event, and the watermark that follows from it."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.errors import SettingError
from lakehouse.spec.options.option import option
from lakehouse.spec.quantities import parse_duration

EVENT_TIME_FIELD = "hoodie.payload.event.time.field"
TRACKING = "hoodie.write.track.event.time.watermark"
LATENESS = "lakehouse.event_time.lateness"
SOURCE = "lakehouse.event_time.source"
SOURCES = "lakehouse.event_time.sources"


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTimePolicy:
    """Whether commits record the event-time range of their rows, and how the watermark follows from it.

    Setting the column is enough to enable tracking. Hudi needs a second option for it.
    """

    field: str = option(
        EVENT_TIME_FIELD,
        "",
        "Column of the event time. Commits then record its minimum and maximum, and a watermark. Type: time, "
        "date, ISO 8601 text (UTC if it has no zone), or integer since 1970 (up to 11 digits: seconds, up to 14: "
        "milliseconds, up to 17: microseconds, more: nanoseconds).",
    )
    tracked: bool = option(TRACKING, True, "false: commits do not record event times although the column is set.")
    lateness: str = option(
        LATENESS,
        "0s",
        "How late events may arrive, such as 10m. The watermark is the maximum event time minus this duration.",
    )
    source: str = option(
        SOURCE, "default", "Source whose watermark a write moves. An ingestion uses the name of its table."
    )
    sources: str = option(
        SOURCES,
        "",
        "Sources, comma separated, whose smallest watermark is that of the table, once each of them has one. Default: "
        "the sources that have one.",
    )

    def __post_init__(self) -> None:
        """Raise UserError for a lateness that is not a duration, and for an empty source name."""
        parse_duration(LATENESS, self.lateness)
        if not self.source.strip():
            raise SettingError(
                f"option {SOURCE}={self.source!r}: the name is empty; remove the option to use 'default'",
                setting=SOURCE,
            )

    @property
    def column(self) -> str:
        """The column whose event times are recorded; empty if tracking is off."""
        return self.field.strip() if self.tracked else ""

    @property
    def lateness_ms(self) -> int:
        """How far the watermark is behind the maximum event time, in milliseconds."""
        return parse_duration(LATENESS, self.lateness) * 1000

    @property
    def awaited(self) -> tuple[str, ...]:
        """The sources whose watermarks define the watermark of the table; empty for all known sources."""
        return tuple(name.strip() for name in self.sources.split(",") if name.strip())
