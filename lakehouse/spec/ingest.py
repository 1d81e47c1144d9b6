"""The `ingest` part of a table spec: where rows come from and when.

A path with placeholders is read by data interval: `{start:%Y-%m}` and `{end:%Y-%m}` stand for the bounds of each step
of the interval in strftime's letters, UTC (see `lakehouse.spec.interval_path`). A path without them is read by
checkpoint: every run takes the files that no commit has taken yet.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any

from lakehouse.errors import UserError, nearest
from lakehouse.spec.interval_path import problem_of
from lakehouse.spec.options.event_time import EVENT_TIME_FIELD, LATENESS, SOURCE
from lakehouse.spec.options.schema import (
    MISSING_COLUMN,
    MISSING_COLUMNS,
    NEW_COLUMN,
    NEW_COLUMNS,
    TYPE_CHANGE,
    TYPE_CHANGES,
)
from lakehouse.spec.secrets import refuse_secrets
from lakehouse.spec.yaml_section import Section

SOURCES = ("files",)
FORMATS = ("json", "csv", "parquet")
OPERATIONS = ("upsert", "insert", "bulk_insert")
MISSING = ("skip", "fail", "wait")
_PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_]+)(?::([^{}]*))?\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSpec:
    """How a table is fed.

    `options` are those of Spark's reader. `select` holds SQL expressions applied after parsing (`"*"` keeps all).
    `replace` lets an interval that a commit already holds be ingested again. `max_bad_records` is how many rows that do
    not parse or have no key a run may set aside. `schedule` is a cron expression in UTC, None for manual runs only;
    `spark` is Spark configuration of this table's runs; times are in seconds. `event_time` is the column that says when
    something happened, `lateness_s` how late that may come: every commit then moves the watermark of `source_name`, by
    default the table's name. `missing` says what a run does about folders with nothing to read: skip them, fail, or
    wait for up to `wait_for_s`; None: fail by interval, and by checkpoint where the path does not exist. `new_column`,
    `missing_column` and `type_change` say what happens where columns of files differ from those of the table; empty: as
    the table's options say (`lakehouse.schema.*`).
    """

    path: str
    source: str = "files"
    format: str = "json"
    options: Mapping[str, str] = field(default_factory=dict)
    select: tuple[str, ...] = ()
    operation: str = "upsert"
    max_bad_records: int = 0
    replace: bool = False
    schedule: str | None = None
    start_date: datetime | None = None
    catchup: bool = False
    retries: int = 2
    retry_delay_s: int = 60
    timeout_s: int = 6 * 3600
    pool: str = "lakehouse_ingest"
    spark: Mapping[str, str] = field(default_factory=dict)
    event_time: str = ""
    lateness_s: int = 0
    source_name: str = ""
    missing: str | None = None
    wait_for_s: int = 6 * 3600
    new_column: str = ""
    missing_column: str = ""
    type_change: str = ""

    def write_options(self, table: str, options: Mapping[str, str]) -> dict[str, str]:
        """Return the options that this section stands for beside the `options` of the spec of `table`."""
        chosen = {}
        if self.event_time:
            chosen = {EVENT_TIME_FIELD: self.event_time, LATENESS: f"{self.lateness_s}s"}
        if self.event_time or options.get(EVENT_TIME_FIELD):
            chosen[SOURCE] = self.source_name or table
        drift = {NEW_COLUMN: self.new_column, MISSING_COLUMN: self.missing_column, TYPE_CHANGE: self.type_change}
        return chosen | {key: text for key, text in drift.items() if text}

    @property
    def is_by_interval(self) -> bool:
        """Whether the path asks for a data interval."""
        return _PLACEHOLDER.search(self.path) is not None


#: Names in YAML; a duration loses the unit at the end of its field's name.
NAMES = tuple(declared.name.removesuffix("_s") for declared in fields(IngestSpec))


def _reader_options(section: Section) -> dict[str, str]:
    detail, options = section.section("options", "options"), section.mapping("options")
    for name, value in options.items():
        try:
            refuse_secrets({name: value}, "options")
        except UserError as error:
            raise (detail or section).error(error.message, name) from error
    return options


def parse_ingest(section: Section) -> IngestSpec:
    """Return the `ingest` section as a value; raise UserError with file and line."""
    section.only(NAMES)
    spec = IngestSpec(
        path=_path(section),
        source=section.choice("source", SOURCES, SOURCES[0]),
        format=section.choice("format", FORMATS, FORMATS[0]),
        options=_reader_options(section),
        select=section.texts("select"),
        operation=section.choice("operation", OPERATIONS, OPERATIONS[0]),
        max_bad_records=section.integer("max_bad_records", 0),
        replace=section.boolean("replace", False),
        schedule=section.text("schedule").strip() or None,
        start_date=_start_date(section),
        catchup=section.boolean("catchup", False),
        retries=section.integer("retries", 2),
        retry_delay_s=section.seconds("retry_delay", 60),
        timeout_s=section.seconds("timeout", 6 * 3600),
        pool=section.text("pool", "lakehouse_ingest").strip(),
        spark=section.mapping("spark"),
        event_time=section.text("event_time").strip(),
        lateness_s=section.seconds("lateness", 0),
        source_name=section.text("source_name").strip(),
        new_column=_choice(section, "new_column", NEW_COLUMNS),
        missing_column=_choice(section, "missing_column", MISSING_COLUMNS),
        type_change=_choice(section, "type_change", TYPE_CHANGES),
        missing=section.choice("missing", ("", *MISSING), "") or None,
        wait_for_s=section.seconds("wait_for", 6 * 3600),
    )
    if spec.catchup and (spec.schedule is None or spec.start_date is None):
        raise section.error("catchup needs 'schedule' and 'start_date': from when, and how often.", "catchup")
    if spec.lateness_s and not spec.event_time:
        raise section.error("lateness: says how late an event may come; name its column: event_time.", "lateness")
    if "wait_for" in section.nodes and spec.missing != "wait":
        raise section.error("wait_for: says how long to wait for missing folders; add 'missing: wait'.", "wait_for")
    if spec.timeout_s == 0:
        raise section.error("timeout: must be longer than 0 seconds.", "timeout")
    return spec


def _choice(section: Section, name: str, choices: tuple[str, ...]) -> str:
    return section.choice(name, choices, choices[0]) if section.text(name).strip() else ""


def ingest_mapping(spec: IngestSpec) -> dict[str, Any]:
    """Return the spec as YAML would hold it, without what is default."""
    mapping: dict[str, Any] = {}
    for declared in fields(IngestSpec):
        value = getattr(spec, declared.name)
        if declared.name == "path" or value not in (declared.default, {}, ()):
            mapping[declared.name.removesuffix("_s")] = _plain(value)
    return mapping


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _path(section: Section) -> str:
    path = section.required("path")
    for match in _PLACEHOLDER.finditer(path):
        name, pattern = match[1], match[2]
        if name not in ("start", "end"):
            raise section.error(
                f"path: unknown placeholder {match[0]!r}.{nearest(name, ('start', 'end'))} "
                "Write {start:%Y-%m-%d} or {end:%Y-%m-%d}.",
                "path",
            )
        if not pattern or "%" not in pattern:
            raise section.error(f"path: {match[0]!r} needs a date format, as in {{{name}:%Y-%m-%d}}.", "path")
    problem = problem_of(path)
    if problem is not None:
        raise section.error(f"path: {problem}.", "path")
    return path


def _start_date(section: Section) -> datetime | None:
    text = section.text("start_date").strip()
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise section.error(f"start_date: {text!r} is not a date such as 2026-01-31.", "start_date") from None
    return moment.replace(tzinfo=UTC) if moment.tzinfo is None else moment
