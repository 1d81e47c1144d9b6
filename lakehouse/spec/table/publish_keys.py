"""The keys of `services.publish`, and the keys that every table service accepts."""

from __future__ import annotations

from lakehouse.spec.spec_key import SpecKey

SOURCES = ("table", "date")
GRANULARITIES = {"day": "%Y-%m-%d", "hour": "%Y-%m-%d-%H"}
SIGNALS = ("event_time", "signal", "interval")

SERVICE_KEYS = (
    SpecKey(
        name="enabled",
        type="boolean",
        text="Whether the scheduler runs the service.",
        example="false",
        default="true",
    ),
    SpecKey(
        name="priority",
        type="number",
        text="Factor of the service's benefit: services with a higher product run first.",
        example="2.5",
        default="1.0",
    ),
    SpecKey(
        name="deadline",
        type="duration",
        text="Time for which the service may be due without a run; after it the service runs first.",
        example="2h",
    ),
    SpecKey(
        name="quiet_hours",
        type="hours",
        text="Hours in which the scheduler starts no run that no user requested: weekdays, hours, time zone.",
        example='"mon-fri 08:00-18:00 Europe/Berlin"',
    ),
    SpecKey(
        name="max_runs",
        type="number",
        text="Maximum number of concurrent runs; a policy of a namespace limits the runs of all its tables.",
        example="2",
    ),
    SpecKey(
        name="bytes_per_hour",
        type="size",
        text="Bytes that runs may move per hour; a policy of a namespace limits the runs of all its tables.",
        example="500GB",
    ),
    SpecKey(
        name="max_executors",
        type="number",
        text="Maximum number of executors that the scheduler gives to a job.",
        example="4",
        default="8",
    ),
    SpecKey(
        name="max_memory",
        type="size",
        text="Maximum memory that the scheduler gives to the driver and to each executor of a job.",
        example="8GiB",
        default="4GiB",
    ),
)
PUBLISH_KEYS = (
    SpecKey(
        name="database",
        type="name",
        text="Database of the metastore; it is created if it does not exist.",
        example="sales",
        required=True,
    ),
    SpecKey(
        name="table",
        type="name",
        text="Table of the metastore; the default is the last part of the table's name.",
        example="orders_daily",
    ),
    SpecKey(
        name="metastore",
        type="URL",
        text="Address of the metastore; the default is the option of the sync, or `LAKEHOUSE_METASTORE`.",
        example="thrift://hms:9083",
    ),
    SpecKey(
        name="partitions",
        type="choice",
        text="What is published: each partition of the table, or the whole table once per period.",
        example="date",
        default="table",
        choices=SOURCES,
    ),
    SpecKey(name="column", type="name", text="Partition column of `partitions: date`.", example="day", default="dt"),
    SpecKey(
        name="granularity",
        type="choice",
        text="Period of `partitions: date`.",
        example="hour",
        default="day",
        choices=tuple(GRANULARITIES),
    ),
    SpecKey(
        name="timezone",
        type="time zone",
        text="Time zone of periods and of `schedule`.",
        example="Europe/Berlin",
        default="UTC",
    ),
    SpecKey(
        name="since",
        type="period",
        text="First period of `partitions: date`; the default is the period of the first event.",
        example='"2025-03-01"',
    ),
    SpecKey(
        name="ready",
        type="choices",
        text="What makes a partition ready: one of the list is enough.",
        example="[event_time, signal]",
        default="event_time",
        choices=SIGNALS,
    ),
    SpecKey(
        name="archive_after",
        type="duration",
        text="Age after which pointers become copies; the default is never.",
        example="7d",
    ),
    SpecKey(
        name="max_age",
        type="duration",
        text="Age after the end of a period after which it is not due any more; the default is no limit.",
        example="90d",
    ),
    SpecKey(
        name="location",
        type="path or URL",
        text="Folder of copies; the default is a folder next to the table.",
        example="s3://lake/published/orders",
    ),
    SpecKey(
        name="sort_by", type="columns", text="Sort columns of copies; the default is the record key.", example="[fare]"
    ),
    SpecKey(name="file_size", type="size", text="Maximum size of the copied files.", example="1GiB", default="512MiB"),
    SpecKey(
        name="retain",
        type="duration",
        text="Time for which retired files are kept for active readers.",
        example="2h",
        default="1h",
    ),
    SpecKey(
        name="success_file",
        type="boolean",
        text="Whether `_SUCCESS` files are written.",
        example="true",
        default="false",
    ),
    SpecKey(
        name="schedule",
        type="cron expression",
        text='Schedule of the DAG; `""` means only by events of the table.',
        example='"@hourly"',
        default='"@daily"',
    ),
    SpecKey(
        name="enabled",
        type="boolean",
        text="Whether the table is published.",
        example="false",
        default="true",
    ),
)
