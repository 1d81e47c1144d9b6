"""The `ingest` section of a table spec: the source of a table's rows, and when and how they are written.

`source:` selects the kind of source, `files` by default. Each source defines a dataclass of settings (see
`lakehouse.spec.sources.source`); all other names of the section are common to all sources.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from datetime import UTC, datetime
from typing import Any, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from lakehouse.spec.cron import problem_of_fields
from lakehouse.spec.options.event_time import EVENT_TIME_FIELD, LATENESS, SOURCE
from lakehouse.spec.options.schema import (
    MISSING_COLUMN,
    MISSING_COLUMNS,
    NEW_COLUMN,
    NEW_COLUMNS,
    TYPE_CHANGE,
    TYPE_CHANGES,
)
from lakehouse.spec.quantities import duration_text
from lakehouse.spec.sources.custom_source import CustomSourceSpec
from lakehouse.spec.sources.database_source import DatabaseSettings
from lakehouse.spec.sources.file_source import FileSourceSpec
from lakehouse.spec.sources.ingest_keys import INGEST_KEYS, ON_DELETE, OPERATIONS
from lakehouse.spec.sources.kafka_source import KafkaSourceSpec
from lakehouse.spec.sources.mysql_source import MysqlSourceSpec
from lakehouse.spec.sources.postgres_source import PostgresSourceSpec
from lakehouse.spec.sources.source import SourceSpec
from lakehouse.spec.sources.stream import StreamSpec
from lakehouse.spec.sources.table_source import APPLY, TableSourceSpec
from lakehouse.spec.sources.transform import TransformSpec
from lakehouse.spec.spec_key import SpecKey, key_names
from lakehouse.spec.yaml_section import Section

#: The settings for each kind of source; to add a source, add its dataclass here and its reader in
#: `lakehouse.platform.sources.registry`.
SOURCE_SPECS: dict[str, type[SourceSpec]] = {
    FileSourceSpec.KIND: FileSourceSpec,
    TableSourceSpec.KIND: TableSourceSpec,
    KafkaSourceSpec.KIND: KafkaSourceSpec,
    MysqlSourceSpec.KIND: MysqlSourceSpec,
    PostgresSourceSpec.KIND: PostgresSourceSpec,
    CustomSourceSpec.KIND: CustomSourceSpec,
}
#: The order of names in documents and messages. It must not change, because stored documents are compared with new
#: ones, and a different order counts as a change of the spec.
_ORDER = (
    "path",
    "source",
    "format",
    "options",
    "select",
    "operation",
    "max_bad_records",
    "replace",
    "schedule",
    "timezone",
    "start_date",
    "catchup",
    "retries",
    "retry_delay",
    "timeout",
    "pool",
    "spark",
    "event_time",
    "lateness",
    "source_name",
    "missing",
    "wait_for",
    "new_column",
    "missing_column",
    "type_change",
)
DEDUPLICATE_KEYS = (
    SpecKey(
        name="within",
        type="duration",
        text="Maximum time between two rows with equal keys for the later one to be dropped.",
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
    """Deduplication: rows with equal `keys` and times at most `within_s` seconds apart are the same event.

    Attributes:
        within_s: The length of the window in seconds.
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
        """Return the section as in the YAML file."""
        mapping: dict[str, Any] = {"within": duration_text(self.within_s)}
        if self.keys:
            mapping["keys"] = list(self.keys)
        return mapping | ({"time": self.time} if self.time else {})


@dataclass(frozen=True, slots=True, kw_only=True)
class IngestSpec:
    """The ingestion of one table.

    Attributes:
        source: The settings of the source.
        select: SQL expressions that are applied after parsing; `"*"` keeps all columns.
        transform: The query or function that computes rows from the source's views; None if there is none.
        deduplicate: The window in which rows with equal keys are one event; None to keep all rows.
        stream: The times of a continuous ingestion; None for scheduled or manual runs.
        operation: One of `OPERATIONS`.
        on_delete: `delete` deletes the record of a deleted source record; `clear` sets its columns from this source to
            null.
        max_bad_records: The maximum number of records per run that have no key or do not parse, and are set aside.
        replace: Whether a data interval is ingested again if a commit already contains it.
        schedule: A cron expression; None for manual runs only.
        timezone: The time zone of `schedule`, of a `start_date` without an offset, and of folders per data interval.
        start_date: The start of the first data interval.
        catchup: Whether Airflow runs the intervals between `start_date` and now.
        retries: The number of retries of the Airflow task.
        retry_delay_s: The delay before the first retry, in seconds.
        timeout_s: The maximum duration of one try, in seconds.
        pool: The Airflow pool of the task.
        spark: Spark configuration of this table's runs.
        event_time: The column with the event time. Each commit advances the watermark of `source_name`.
        lateness_s: The maximum delay of an event, in seconds.
        source_name: The name of the watermark; empty for the table's name.
        new_column: The rule for columns that the table lacks; empty for the table's `lakehouse.schema.*`
            option.
        missing_column: The rule for columns that the input lacks; empty as above.
        type_change: The rule for columns with another type; empty as above.
    """

    source: SourceSpec
    select: tuple[str, ...] = ()
    transform: TransformSpec | None = None
    deduplicate: DeduplicateSpec | None = None
    stream: StreamSpec | None = None
    operation: str = "upsert"
    on_delete: str = "delete"
    max_bad_records: int = 0
    replace: bool = False
    schedule: str | None = None
    timezone: str = "UTC"
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
    new_column: str = ""
    missing_column: str = ""
    type_change: str = ""

    def write_options(self, table: str, options: Mapping[str, str]) -> dict[str, str]:
        """Return the write options that this section implies, given the `options` in the spec of `table`."""
        implied = {}
        if self.event_time:
            implied = {EVENT_TIME_FIELD: self.event_time, LATENESS: f"{self.lateness_s}s"}
        if self.event_time or options.get(EVENT_TIME_FIELD):
            implied[SOURCE] = self.source_name or table
        drift = {NEW_COLUMN: self.new_column, MISSING_COLUMN: self.missing_column, TYPE_CHANGE: self.type_change}
        return implied | {key: text for key, text in drift.items() if text}

    @property
    def is_by_interval(self) -> bool:
        """Whether a run reads its data interval; otherwise it continues from the checkpoint of the last commit."""
        return self.source.is_by_interval

    @property
    def database(self) -> DatabaseSettings | None:
        """The settings of a source that is a database; None for other sources."""
        return self.source.database if isinstance(self.source, MysqlSourceSpec | PostgresSourceSpec) else None


#: Fields that all sources share, by key. The keys of durations have no suffix `_s`.
_COMMON = {declared.name.removesuffix("_s"): declared for declared in fields(IngestSpec)}
assert set(_COMMON) == set(key_names(INGEST_KEYS)), "each key of the section is a field, and the reverse"


def parse_ingest(section: Section) -> IngestSpec:
    """Parse the `ingest` section; raise UserError with file and line."""
    source = SOURCE_SPECS[section.choice("source", tuple(SOURCE_SPECS), FileSourceSpec.KIND)]
    section.only(_ordered((*key_names(INGEST_KEYS), *key_names(source.KEYS))))
    spec = IngestSpec(
        source=source.parse(section),
        select=section.texts("select"),
        transform=_transform(section),
        deduplicate=_deduplicate(section),
        stream=_stream(section),
        operation=section.choice("operation", OPERATIONS, OPERATIONS[0]),
        on_delete=section.choice("on_delete", ON_DELETE, ON_DELETE[0]),
        max_bad_records=section.integer("max_bad_records", 0),
        replace=section.boolean("replace", False),
        schedule=_schedule(section),
        timezone=_timezone(section).key,
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
    )
    if spec.select and spec.transform is not None:
        raise section.error("select: 'transform' computes the columns; remove one of the two.", "select")
    _check_tables(spec, section)
    _check_stream(spec, section)
    _check_deduplicate(spec, section)
    _check_database(spec, section)
    if spec.catchup and (spec.schedule is None or spec.start_date is None):
        raise section.error("catchup needs 'schedule' and 'start_date', which determine its intervals.", "catchup")
    if spec.lateness_s and not spec.event_time:
        raise section.error("lateness: needs 'event_time', the column whose delay it limits.", "lateness")
    if spec.timeout_s == 0:
        raise section.error("timeout: must be longer than 0 seconds.", "timeout")
    return spec


def ingest_mapping(spec: IngestSpec) -> dict[str, Any]:
    """Return the section as in the YAML file, without default values."""
    mapping = spec.source.to_mapping()
    if spec.source.KIND != FileSourceSpec.KIND:
        mapping["source"] = spec.source.KIND
    for name, declared in _COMMON.items():
        value = getattr(spec, declared.name)
        if name != "source" and value not in (declared.default, {}, ()):
            mapping[name] = _plain(value)
    return {name: mapping[name] for name in _ordered(mapping)}


def _ordered(names: Iterable[str]) -> tuple[str, ...]:
    """Sort names in the order of documents. Names that belong only to a different source come last."""
    places = {name: place for place, name in enumerate(_ORDER)}
    return tuple(sorted(names, key=lambda name: places.get(name, len(places))))


def _schedule(section: Section) -> str | None:
    schedule = section.text("schedule").strip()
    problem = problem_of_fields(schedule)
    if problem:
        raise section.error(f"schedule: {problem}.", "schedule")
    return schedule or None


def _transform(section: Section) -> TransformSpec | None:
    detail = section.section("transform", "transform")
    return None if detail is None else TransformSpec.parse(detail)


def _deduplicate(section: Section) -> DeduplicateSpec | None:
    detail = section.section("deduplicate", "deduplicate")
    return None if detail is None else DeduplicateSpec.parse(detail)


def check_generated_keys(ingest: IngestSpec, section: Section) -> None:
    """Raise UserError for an ingestion that looks up keys, or deduplicates by key, if rows get generated keys."""
    if ingest.operation == OPERATIONS[0] or ingest.database is not None:
        raise section.error(
            f"{section.title} needs 'record_key': a column, or a list of columns. Without it each row gets a generated "
            "key, and rows can only be added: 'ingest.operation: insert', which a database cannot use.",
            "record_key",
        )
    if ingest.deduplicate is not None and not ingest.deduplicate.keys:
        raise section.error(
            "deduplicate: needs 'keys', the columns that identify an event, because the table has no 'record_key'.",
            "ingest",
        )


def _check_deduplicate(spec: IngestSpec, section: Section) -> None:
    """Raise UserError if the window has no time column, or if the operation keeps only one row per key anyway."""
    if spec.deduplicate is None:
        return
    if not (spec.deduplicate.time or spec.event_time):
        raise section.error("deduplicate: needs 'time', the column with the time of an event.", "deduplicate")
    if spec.operation == OPERATIONS[0]:
        raise section.error(
            f"deduplicate: {spec.operation} keeps one row for each record key. Write 'operation: insert' to add rows "
            "only, or remove 'deduplicate'.",
            "deduplicate",
        )


def _stream(section: Section) -> StreamSpec | None:
    if "stream" in section.nodes and not section.is_mapping("stream"):
        # `stream: true` means all defaults.
        return StreamSpec() if section.boolean("stream", False) else None
    detail = section.section("stream", "stream")
    return None if detail is None else StreamSpec.parse(detail)


def _check_stream(spec: IngestSpec, section: Section) -> None:
    """Raise UserError for settings that contradict a continuous ingestion."""
    if spec.stream is None:
        return
    if spec.is_by_interval:
        raise section.error("stream: it reads from the checkpoint, and this source is read by data interval.", "stream")
    for name in ("schedule", "catchup", "replace"):
        if getattr(spec, name):
            raise section.error(f"{name}: a run of a stream follows the one before. Remove {name!r}.", name)


def _check_tables(spec: IngestSpec, section: Section) -> None:
    """Check the requirements of the source `table` for other settings; raise UserError with file and line."""
    source = spec.source
    if not isinstance(source, TableSourceSpec):
        return
    if spec.transform is None and (len(source.tables) > 1 or source.join):
        raise section.error("several tables need 'transform', which makes one set of rows of their views.", "tables")
    if source.applies_deletes and spec.operation != OPERATIONS[0]:
        raise section.error(
            f"operation: {spec.operation} cannot delete rows. Write deletes: ignore, or use upsert.", "operation"
        )
    if source.deletes == APPLY and source.by_interval and source.changes != "cdc":
        raise section.error(
            "by_interval: intervals may run in any order, so an older one could delete rows of a newer one. "
            "Write deletes: ignore.",
            "by_interval",
        )


def _check_database(spec: IngestSpec, section: Section) -> None:
    """Check the requirements of a database source for other settings; raise UserError with file and line."""
    if spec.database is None:
        return
    if spec.operation != OPERATIONS[0]:
        raise section.error(f"operation: {spec.operation} cannot apply updates and deletes. Remove it.", "operation")
    if spec.transform is not None:
        raise section.error(
            "transform: the table would lack deletes of the source. Use 'select' for columns, or read this table with "
            "'source: table' into another one.",
            "transform",
        )
    if spec.select and spec.database.into:
        raise section.error("select: several source tables have different columns; it needs one table.", "select")


def _choice(section: Section, name: str, choices: tuple[str, ...]) -> str:
    return section.choice(name, choices, choices[0]) if section.text(name).strip() else ""


def _plain(value: Any) -> Any:
    if isinstance(value, datetime):
        return value.isoformat()
    if isinstance(value, TransformSpec | StreamSpec | DeduplicateSpec):
        return value.to_mapping()
    if isinstance(value, Mapping):
        return dict(value)
    return list(value) if isinstance(value, tuple) else value


def _start_date(section: Section) -> datetime | None:
    text = section.text("start_date").strip()
    if not text:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise section.error(f"start_date: {text!r} is not a date such as 2026-01-31.", "start_date") from None
    return moment.replace(tzinfo=_timezone(section)).astimezone(UTC) if moment.tzinfo is None else moment


def _timezone(section: Section) -> ZoneInfo:
    name = section.text("timezone").strip() or "UTC"
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError):
        raise section.error(
            f"timezone: {name!r} is unknown; zones are like UTC or Europe/Berlin.", "timezone"
        ) from None
