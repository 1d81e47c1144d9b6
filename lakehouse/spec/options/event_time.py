"""Options of event time: the column that says when something happened, and how far a source has told of it."""

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
    """Whether commits say which event times they bring, and the watermark that follows from them.

    Who names the column wants its times told, so it takes no second option to say so; in Hudi it does.
    """

    field: str = option(
        EVENT_TIME_FIELD,
        "",
        "Column of the event time; commits then say the least and the greatest they bring, and a watermark. A time, a "
        "date, ISO 8601 text (UTC where it names no zone), or an integer since 1970: up to 11 digits are seconds, up "
        "to 14 milliseconds, up to 17 microseconds, more nanoseconds.",
    )
    tracked: bool = option(TRACKING, True, "false: event times are not told although their column is named.")
    lateness: str = option(
        LATENESS, "0s", "How late events may come, such as 10m: the watermark is that far behind the greatest seen."
    )
    source: str = option(
        SOURCE, "default", "Source whose watermark a write moves; an ingestion is called as its table."
    )
    sources: str = option(
        SOURCES,
        "",
        "Sources, comma separated, whose watermarks make that of the table, once all of them have one; default those "
        "that have one.",
    )

    def __post_init__(self) -> None:
        """Raise UserError for a lateness that is no duration, and for a source without a name."""
        parse_duration(LATENESS, self.lateness)
        if not self.source.strip():
            raise SettingError(
                f"option {SOURCE}={self.source!r}: a source has a name; leave it out for 'default'", setting=SOURCE
            )

    @property
    def column(self) -> str:
        """The column whose times are told, empty if none are."""
        return self.field.strip() if self.tracked else ""

    @property
    def lateness_ms(self) -> int:
        """How far the watermark is behind the greatest event time, in milliseconds."""
        return parse_duration(LATENESS, self.lateness) * 1000

    @property
    def awaited(self) -> tuple[str, ...]:
        """The sources that make the table's watermark, empty for those there are."""
        return tuple(name.strip() for name in self.sources.split(",") if name.strip())
