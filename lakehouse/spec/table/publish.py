"""`services.publish` of a table spec: the Hive-style partitions of a table, and when they appear.

    services:
      publish:
        database: sales                  # of the metastore; created if it does not exist
        table: orders_daily              # default: the last part of the table's name
        metastore: thrift://hms:9083     # default: hoodie.datasource.hive_sync.metastore.uris, or $LAKEHOUSE_METASTORE
        partitions: date                 # each day shows the whole table as of its end; `table`: the table's partitions
        ready: event_time                # or signal, or interval; one entry of a list is enough
        schedule: "@daily"               # of its DAG; events of the table start it too; "" means only by events
        archive_after: 7d                # pointers older than this become plain Parquet files
        since: 2025-03-01                # first period that is due; default: the period of the first event
        max_age: 90d                     # periods that ended longer ago are not due any more; default: no limit

A period stays due until it is published, even if its commits were archived, unless it is before `since` or older than
`max_age`. Clean does not wait for publication, because a stopped publication would then keep all versions forever. The
retention (`hoodie.clean.*`) must cover the time from the end of a period to the run that publishes it. If the version
of a period was cleaned, the period is recorded as lost. The run that detects this fails with its name; `publish status`
and all later reports show it until it is published at the newest version or withdrawn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lakehouse.errors import SettingError, nearest
from lakehouse.spec.cron import problem_of_fields
from lakehouse.spec.quantities import parse_duration, parse_size
from lakehouse.spec.spec_key import key_names
from lakehouse.spec.table.publish_keys import GRANULARITIES, PUBLISH_KEYS, SIGNALS, SOURCES

SECTION = "services.publish"
_NAME = re.compile(r"[A-Za-z0-9_]{1,128}")
_FLAGS = {"true": True, "false": False}


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishSpec:
    """The publication of one table.

    Attributes:
        database, table, metastore: The table of the metastore, and the address of the metastore.
        partitions: "table" publishes each partition of the table; "date" publishes the whole table, once per period.
        column: The partition column of "date".
        granularity: The period of "date": "day" or "hour".
        timezone: The time zone of periods and of `schedule`.
        since: The first period of "date"; empty for the period of the first event.
        ready: The signals; any one makes a partition ready.
        archive_after_s: The age in seconds at which pointers are replaced by copies; None means never.
        max_age_s: The time in seconds after the end of a period after which it is no longer due; None for no limit.
        location: The folder of copies; empty for a folder next to the table.
        sort_by: The sort columns of copies; empty for the record key.
        file_bytes: The maximum file size of copies.
        retain_s: The time in seconds for which retired files are kept for active readers.
        success_file: Whether `_SUCCESS` files are written.
        schedule: The cron expression of the Airflow runs; empty if only events of the table's asset start them.
    """

    database: str
    table: str
    metastore: str = ""
    partitions: str = "table"
    column: str = "dt"
    granularity: str = "day"
    timezone: str = "UTC"
    since: str = ""
    ready: tuple[str, ...] = ("event_time",)
    archive_after_s: int | None = None
    max_age_s: int | None = None
    location: str = ""
    sort_by: tuple[str, ...] = ()
    file_bytes: int = 512 * 1024 * 1024
    retain_s: int = 3600
    success_file: bool = False
    schedule: str = "@daily"

    @property
    def target(self) -> str:
        """The table of the metastore as `database.table`."""
        return f"{self.database}.{self.table}"


_TEXTS = {field.name for field in fields(PublishSpec)} - {"archive_after_s", "max_age_s", "retain_s", "file_bytes"}
KNOWN = key_names(PUBLISH_KEYS)


def parse_publish(table: str, settings: Mapping[str, Any]) -> PublishSpec:
    """Parse the publication settings of a table.

    Raises SettingError for a setting that is unknown, missing or not valid.
    """
    for name in settings:
        if name not in KNOWN:
            raise _error(name, f"is unknown.{nearest(name, KNOWN)} Known: {', '.join(KNOWN)}")
    given = {name: value for name, value in settings.items() if value is not None}
    if not given.get("database"):
        raise _error("database", "is missing: the database of the metastore in which the partitions appear")
    texts = {name: _text(name, given[name]) for name in _TEXTS & given.keys() - {"ready", "sort_by", "success_file"}}
    texts.setdefault("table", re.sub(r"[^A-Za-z0-9_]", "_", table.rpartition(".")[2]))
    spec = PublishSpec(
        **texts,
        ready=_list("ready", given.get("ready", "event_time")),
        sort_by=_list("sort_by", given.get("sort_by", [])),
        success_file=_flag(given.get("success_file", False)),
        archive_after_s=_seconds("archive_after", given, None),
        max_age_s=_seconds("max_age", given, None),
        retain_s=_seconds("retain", given, 3600) or 0,
        file_bytes=parse_size(f"{SECTION}.file_size", str(given.get("file_size", "512MiB"))),
    )
    _check(spec)
    return spec


def is_enabled(settings: Mapping[str, Any]) -> bool:
    """Return the setting `enabled`, true by default; raise SettingError if it is neither true nor false."""
    return _flag(settings.get("enabled", True), "enabled")


def _check(spec: PublishSpec) -> None:
    for name in ("database", "table", "column"):
        if not _NAME.fullmatch(getattr(spec, name)):
            raise _error(name, f"{getattr(spec, name)!r} is not a name: letters, digits and _, at most 128")
    problem = problem_of_fields(spec.schedule)
    if problem:
        raise _error("schedule", problem)
    _choice("partitions", spec.partitions, SOURCES)
    _choice("granularity", spec.granularity, tuple(GRANULARITIES))
    for signal in spec.ready:
        _choice("ready", signal, SIGNALS)
    if not spec.ready:
        raise _error("ready", f"is empty; it is one or more of {', '.join(SIGNALS)}")
    try:
        ZoneInfo(spec.timezone)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise _error("timezone", f"{spec.timezone!r} is unknown; zones are like UTC or Europe/Berlin") from None
    if spec.since:
        try:
            datetime.strptime(spec.since, GRANULARITIES[spec.granularity])
        except ValueError:
            raise _error("since", f"{spec.since!r} is no {spec.granularity}, such as 2025-03-01") from None
    if spec.file_bytes < 1 << 20:
        raise _error("file_size", f"{spec.file_bytes} bytes is less than 1 MiB")


def _error(setting: str, problem: str) -> SettingError:
    return SettingError(f"{SECTION}.{setting} {problem}", setting=setting)


def _choice(name: str, value: str, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise _error(name, f"{value!r} is not one of {', '.join(choices)}.{nearest(value, choices)}")


def _text(name: str, value: Any) -> str:
    if isinstance(value, list | dict):
        raise _error(name, f"{value!r} is not a string")
    return str(value).strip()


def _list(name: str, value: Any) -> tuple[str, ...]:
    if isinstance(value, dict):
        raise _error(name, f"{value!r} is not a list")
    parts = value if isinstance(value, list | tuple) else str(value).split(",")
    return tuple(text for part in parts if (text := str(part).strip()))


def _flag(value: Any, name: str = "success_file") -> bool:
    flag = _FLAGS.get(str(value).lower())
    if flag is None:
        raise _error(name, f"{value!r} is neither true nor false")
    return flag


def _seconds(name: str, given: Mapping[str, Any], default: int | None) -> int | None:
    return parse_duration(f"{SECTION}.{name}", str(given[name])) if name in given else default
