"""The keys of a table spec outside its sections `ingest` and `services`, with their descriptions for the reference."""

from __future__ import annotations

from lakehouse.model.index_type import INDEX_TYPES
from lakehouse.model.keys import KeyGeneratorType
from lakehouse.spec.spec_key import SpecKey

TABLE_TYPES = ("COPY_ON_WRITE", "MERGE_ON_READ")
MERGE_MODES = ("COMMIT_TIME_ORDERING", "EVENT_TIME_ORDERING", "CUSTOM")
PARTIAL_UPDATES = ("IGNORE_DEFAULTS", "FILL_UNAVAILABLE")

TABLE_KEYS = (
    SpecKey(name="table", type="name", text="Name of the table.", example="sales.orders", required=True),
    SpecKey(
        name="location",
        type="path or URL",
        text="Location of the table. `${NAME}` is replaced by an environment variable; a relative path is below "
        "`LAKEHOUSE_HOME`.",
        example="s3://lake/orders",
        required=True,
    ),
    SpecKey(
        name="type",
        type="choice",
        text="Copy-on-write replaces files; merge-on-read writes log files that a compaction merges.",
        example="MERGE_ON_READ",
        default="COPY_ON_WRITE",
        choices=TABLE_TYPES,
    ),
    SpecKey(
        name="record_key",
        type="columns",
        text="Columns that identify a record in its partition, or in the table with a global index. Without it each "
        "row gets a generated key, and an ingestion needs `operation: insert`. With `ingest.into`, each table has the "
        "key of its source table.",
        example="[order_id, line]",
    ),
    SpecKey(
        name="ordering",
        type="columns",
        text="Columns that decide which version of a record is newer.",
        example="updated_at",
    ),
    SpecKey(
        name="partition_by",
        type="columns",
        text="Columns of the partition path: names, `column:TIMESTAMP`, or a mapping of a column to its format.",
        example="[region]",
    ),
    SpecKey(
        name="key_generator",
        type="choice",
        text="Key generator of Hudi; the default follows from the columns.",
        example="COMPLEX",
        choices=tuple(kind.value for kind in KeyGeneratorType),
    ),
    SpecKey(
        name="merge_mode",
        type="choice",
        text="Rule that decides between versions of a record; the default is event time with `ordering`, else "
        "commit time.",
        example="EVENT_TIME_ORDERING",
        choices=MERGE_MODES,
        needs="ordering: updated_at",
    ),
    SpecKey(
        name="merger",
        type="package.module:function",
        text="Function of `merge_mode: CUSTOM` that merges two versions.",
        example="mergers.trips:longest",
        needs="merge_mode: CUSTOM",
    ),
    SpecKey(
        name="column_groups",
        type="mapping of ordering columns to columns",
        text="Columns that several writers fill; the values of a group are those with its greatest ordering value.",
        example="{paid_at: [amount, currency]}",
    ),
    SpecKey(
        name="partial_update",
        type="choice",
        text="Which values of a newer version keep the stored ones: null, or `unavailable_value`.",
        example="IGNORE_DEFAULTS",
        choices=PARTIAL_UPDATES,
    ),
    SpecKey(
        name="unavailable_value",
        type="text",
        text="Placeholder for the stored value; the default is Debezium's placeholder.",
        example="__unavailable__",
        needs="partial_update: FILL_UNAVAILABLE",
    ),
    SpecKey(
        name="delete_field",
        type="column",
        text="Column that marks deletes.",
        example="op",
        needs="delete_marker: D",
    ),
    SpecKey(
        name="delete_marker",
        type="text",
        text="Value of `delete_field` in a delete.",
        example="D",
        needs="delete_field: op",
    ),
    SpecKey(
        name="delete_retention",
        type="duration",
        text="Time during which deletes reject older rows of their keys; by default they do not, as in Hudi.",
        example="7d",
        needs="ordering: updated_at",
    ),
    SpecKey(
        name="index",
        type="choice, or the section `index`",
        text="Index that finds the file group of a key; the default is that of the option `hoodie.index.type`.",
        example="global_simple",
    ),
    SpecKey(
        name="schema",
        type="mapping of columns to types",
        text="Columns of the input with their Spark SQL types; without it they are inferred.",
        example="{order_id: string, fare: double}",
    ),
    SpecKey(name="ingest", type="section", text="Source and schedule of the ingestion.", example="{path: landing}"),
    SpecKey(
        name="services",
        type="section",
        text="Settings of table services and of publication.",
        example="{clean: {commits_retained: 3}}",
    ),
    SpecKey(
        name="options",
        type="mapping of keys to values",
        text="Options of the table by their full keys.",
        example="{hoodie.parquet.small.file.limit: 0}",
    ),
)
PARTITION_KEYS = (
    SpecKey(
        name="type",
        type="choice",
        text="Whether the column is used as it is, or formatted as a time.",
        example="TIMESTAMP",
        default="SIMPLE",
        choices=("SIMPLE", "TIMESTAMP"),
    ),
    SpecKey(
        name="timestamp_type",
        type="choice",
        text="How the column is read: as numbers of a unit, or as strings in a format. By default the type of the "
        "column decides: dates and timestamps as such, strings by `input_formats`, numbers as epoch milliseconds.",
        example="DATE_STRING",
        needs="type: TIMESTAMP",
    ),
    SpecKey(
        name="scalar_unit",
        type="unit",
        text="Unit of numbers, with the timestamp type SCALAR.",
        example="hours",
        needs="type: TIMESTAMP",
    ),
    SpecKey(
        name="input_formats",
        type="formats",
        text="Formats of texts, in the letters of Joda; the first that matches applies.",
        example="[yyyy-MM-dd]",
        needs="type: TIMESTAMP",
    ),
    SpecKey(
        name="input_timezone",
        type="time zone",
        text="Time zone of texts without one.",
        example="Europe/Berlin",
        needs="type: TIMESTAMP",
    ),
    SpecKey(
        name="output_format",
        type="format",
        text="Format of the partition path.",
        example="yyyy/MM",
        needs="type: TIMESTAMP",
    ),
    SpecKey(
        name="output_timezone",
        type="time zone",
        text="Time zone of the partition path.",
        example="Europe/Berlin",
        needs="type: TIMESTAMP",
    ),
)
INDEX_KEYS = (
    SpecKey(
        name="type",
        type="choice",
        text="Type of the index, in lower or upper case.",
        example="GLOBAL_SIMPLE",
        default="SIMPLE",
        choices=tuple(INDEX_TYPES),
    ),
    SpecKey(
        name="buckets",
        type="integer",
        text="Bucket index: number of file groups per partition.",
        example="16",
        needs="type: BUCKET",
    ),
    SpecKey(
        name="hash_field",
        type="columns",
        text="Bucket index: key columns that are hashed; the default is all.",
        example="order_id",
        needs="{type: BUCKET, buckets: 8}",
    ),
    SpecKey(
        name="partitions",
        type="mapping of patterns to numbers",
        text="Bucket index: partitions with another number of buckets; the first pattern that matches applies.",
        example='{"^2026-": 32}',
        needs="{type: BUCKET, buckets: 8}",
    ),
)
