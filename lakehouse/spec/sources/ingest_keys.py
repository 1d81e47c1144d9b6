"""The keys that every `ingest` section of a table spec accepts. Each source declares additional keys."""

from __future__ import annotations

from lakehouse.spec.options.schema import MISSING_COLUMNS, NEW_COLUMNS, TYPE_CHANGES
from lakehouse.spec.spec_key import SpecKey

OPERATIONS = ("upsert", "insert", "bulk_insert")
ON_DELETE = ("delete", "clear")
_OPTION = "the default is that of the table's options"

INGEST_KEYS = (
    SpecKey(name="source", type="kind", text="Kind of the source.", example="files", default="files"),
    SpecKey(
        name="select",
        type="SQL expressions",
        text="Columns of the rows, computed after parsing; `*` keeps all columns.",
        example='["*", "fare * 100 AS cents"]',
    ),
    SpecKey(
        name="transform",
        type="section",
        text="Query or function that computes the rows from the views of the source, instead of `select`.",
        example='{sql: "SELECT order_id, fare FROM batch"}',
    ),
    SpecKey(
        name="deduplicate",
        type="section",
        text="Window of time in which rows with equal keys are one event, of which the first row is stored; for tables "
        "to which rows are only added.",
        example="{within: 1d, time: created_at}",
        needs="operation: insert",
    ),
    SpecKey(
        name="stream",
        type="section, or true",
        text="Continuous ingestion: a long-lived job commits at this pace, and the DAG starts the next job at its end.",
        example="{every: 30s}",
    ),
    SpecKey(
        name="operation",
        type="choice",
        text="How rows are written.",
        example="insert",
        default="upsert",
        choices=OPERATIONS,
    ),
    SpecKey(
        name="on_delete",
        type="choice",
        text="What a deleted record of the source does: delete the record, or set the columns of this source to null.",
        example="clear",
        default="delete",
        choices=ON_DELETE,
    ),
    SpecKey(
        name="max_bad_records",
        type="integer",
        text="Number of bad records (unparsable or without a key) that a run copies to dead letter files "
        "before it fails.",
        example="100",
        default="0",
    ),
    SpecKey(
        name="replace",
        type="boolean",
        text="Whether a data interval that a commit contains already is ingested again.",
        example="true",
        default="false",
    ),
    SpecKey(
        name="schedule",
        type="cron expression",
        text="Schedule of the DAG; without it runs are started by hand.",
        example='"15 * * * *"',
    ),
    SpecKey(
        name="timezone",
        type="time zone",
        text="Time zone of `schedule`, of a `start_date` without an offset, and of folders of the data interval.",
        example="Europe/Berlin",
        default="UTC",
    ),
    SpecKey(
        name="start_date",
        type="date",
        text="Start of the first data interval.",
        example="2026-01-01",
    ),
    SpecKey(
        name="catchup",
        type="boolean",
        text="Whether Airflow runs the intervals between `start_date` and now.",
        example="true",
        default="false",
        needs='{schedule: "@daily", start_date: 2026-01-01}',
    ),
    SpecKey(name="retries", type="integer", text="Retries of the task.", example="5", default="2"),
    SpecKey(name="retry_delay", type="duration", text="Delay before the first retry.", example="30s", default="60s"),
    SpecKey(name="timeout", type="duration", text="Maximum duration of one try.", example="45m", default="6h"),
    SpecKey(
        name="pool",
        type="name",
        text="Airflow pool of the task.",
        example="big_tables",
        default="lakehouse_ingest",
    ),
    SpecKey(
        name="spark",
        type="mapping of properties",
        text="Spark properties of the runs of this table.",
        example="{spark.executor.memory: 4g}",
    ),
    SpecKey(
        name="event_time",
        type="column",
        text="Column with the event time, from which commits move the watermark.",
        example="updated_at",
    ),
    SpecKey(
        name="lateness",
        type="duration",
        text="Maximum delay of an event.",
        example="10m",
        default="0s",
        needs="event_time: updated_at",
    ),
    SpecKey(
        name="source_name",
        type="text",
        text="Name of the watermark; the default is the table's name.",
        example="app_events",
        needs="event_time: updated_at",
    ),
    SpecKey(
        name="new_column",
        type="choice",
        text=f"Rule for columns that the table does not have; {_OPTION}.",
        example=NEW_COLUMNS[-1],
        choices=NEW_COLUMNS,
    ),
    SpecKey(
        name="missing_column",
        type="choice",
        text=f"Rule for columns that the input does not have; {_OPTION}.",
        example=MISSING_COLUMNS[-1],
        choices=MISSING_COLUMNS,
    ),
    SpecKey(
        name="type_change",
        type="choice",
        text=f"Rule for columns with another type; {_OPTION}.",
        example=TYPE_CHANGES[-1],
        choices=TYPE_CHANGES,
    ),
)
