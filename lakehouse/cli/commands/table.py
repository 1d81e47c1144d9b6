"""`lakehouse table` and `lakehouse timeline`."""

from __future__ import annotations

import click

from lakehouse.cli.group import Command, Group
from lakehouse.cli.parameters import (
    NAME_TEXT,
    Count,
    OneOf,
    catalog,
    flag,
    options,
    output,
    table,
    tables,
    value,
)
from lakehouse.model.instant import Action, State
from lakehouse.model.timeline_service import TimelineService
from lakehouse.model.validation import INVARIANTS, KeyScope
from lakehouse.spec.table.table_keys import TABLE_TYPES

_WHERE = "Condition on the rows, such as \"day >= '2026-01-01' AND fare > 10\"."
_TYPE = OneOf(TABLE_TYPES, {"COW": "COPY_ON_WRITE", "MOR": "MERGE_ON_READ"})
_SPECS = "Directory of table specs; repeatable. Default: the variable LAKEHOUSE_SPECS."
_NEW_ID = "Assign a new id, because the table is a copy of a registered table."
#: Names of services, then the actions that have a different name.
_SERVICES = tuple(dict.fromkeys([*map(str, TimelineService), *map(str, Action)]))
_SERVICE_WORDS = {service.word.upper(): str(service) for service in TimelineService}
_INVARIANTS = "\n".join(f"  {name:22}{invariant.holds}" for name, invariant in INVARIANTS.items())

_CREATE = Command(
    "create",
    "table:create",
    "Create a table from a spec file, or from --name, --location and --record-key.",
    [
        table("A table spec (YAML), which declares all other settings.", required=False),
        catalog("Also register the table of the spec in this catalog: a name or a URL.", default=None),
        value("--name", "Name of the table, if no spec is given."),
        value("--location", "Location of the table: a path or a URL."),
        value(
            "--record-key",
            "Columns, comma separated; unique in each partition, in the whole table only without partitions or with "
            "--option hoodie.index.type=GLOBAL_SIMPLE (see `table validate --keys global`).",
        ),
        value("--partition-by", "Comma-separated columns; a column of type TIMESTAMP needs a spec.", default=""),
        value("--type", "Type of the table; COW and MOR are short forms.", type=_TYPE, default=TABLE_TYPES[0]),
        value("--ordering", "Columns that decide which version of a record is newer.", default=""),
        options(),
        output(),
    ],
    examples=(
        "lakehouse table create --table orders.yaml",
        "lakehouse table create --name orders --location /data/orders --record-key order_id --partition-by day",
    ),
)
_BOOTSTRAP = Command(
    "bootstrap",
    "table:bootstrap",
    "Make a table from a folder of Parquet files, which stay as they are; repeat a command that was killed.",
    [
        value("--source", "Folder of the files: a path or a URL. Partitions are its sub-folders."),
        value("--name", "Name of the table."),
        value("--location", "Location of the table, outside of the source: a path or a URL."),
        value("--record-key", "Comma-separated columns of the record key.", default=""),
        value(
            "--partition-by",
            "Comma-separated columns, one for each level of folders. Default: the names in folders column=value.",
            default="",
        ),
        value(
            "--mode",
            "metadata writes keys only, and reads find the other columns in the source; full copies all rows.",
            type=OneOf(("metadata", "full")),
            default="metadata",
        ),
        value(
            "--partition-pattern",
            "Regular expression for partition paths: only these partitions have the mode, all others the other one.",
            default="",
        ),
        value("--type", "Type of the table; COW and MOR are short forms.", type=_TYPE, default=TABLE_TYPES[0]),
        value("--ordering", "Columns that decide which version of a record is newer.", default=""),
        options(),
        output(),
    ],
    examples=(
        "lakehouse table bootstrap --source /raw/orders --name orders --location /data/orders --record-key order_id",
        "lakehouse table bootstrap --source /raw/orders --name orders --location /data/orders --record-key order_id "
        "--mode full --partition-pattern 'day=2026-.*'",
    ),
)
_DESCRIBE = Command(
    "describe",
    "table:describe",
    "Show config, schema, partitions, files and last commits of a table.",
    [table(), output()],
    examples=("lakehouse table describe --table sales.orders",),
)
_READ = Command(
    "read",
    "table:read",
    "Print the rows of the newest version, the rows of an earlier version, or the changes between two instants.",
    [
        table(),
        value("--columns", "Comma-separated columns. Default: all data columns."),
        value("--where", _WHERE),
        value("--as-of", "Instant or time of the version to read.", metavar="TIME"),
        value(
            "--as-of-event-time",
            "Event time, in UTC if it has no zone: read the version that contains all events before it.",
            metavar="TIME",
        ),
        flag("--read-optimized", "Read base files only, which is the state of the last compaction."),
        value("--begin", "Print changes that completed after this instant, or after 'earliest'.", metavar="INSTANT"),
        value("--end", "Print changes that completed up to this instant.", metavar="INSTANT"),
        value("--limit", "Maximum number of rows to print, or `all`.", type=Count(1, allow_all=True), default=20),
        flag(
            "--explain",
            "Print no rows, but the number of partitions, files and bytes that remain after each step of the plan.",
        ),
        output(),
    ],
    examples=(
        'lakehouse table read --table sales.orders --columns order_id,fare --where "fare > 10" --limit 5',
        "lakehouse table read --table /data/orders --as-of 2026-01-31T12:00:00",
        "lakehouse table read --table /data/orders --where \"day = '2026-01-31'\" --explain",
    ),
)
_DELETE = Command(
    "delete",
    "table:delete",
    "Delete the rows that match a condition, in one commit.",
    [table(), value("--where", _WHERE, required=True), flag("--dry-run", "Count the rows and delete none."), output()],
    examples=("lakehouse table delete --table sales.orders --where \"rider_id = 'r7'\" --dry-run",),
)
_GRACE = "Seconds for which the old timeline stays readable for reads that began before the change."
_FROM = "The version for which the plan was made; a table of another version is not changed. Default: any."
_UPGRADE = Command(
    "upgrade",
    "version:upgrade",
    "Change a table to a newer table version, or continue an upgrade that failed. Stop the writers first.",
    [
        table(),
        value("--to", "The new table version.", type=OneOf(("8", "9")), default="9"),
        value("--from", _FROM),
        flag("--dry-run", "Show the steps, the readers that are lost and the blockers; change nothing."),
        value("--grace-s", _GRACE, type=Count(0), default=10),
        output(),
    ],
    examples=("lakehouse table upgrade --table sales.orders --to 9 --dry-run",),
)
_DOWNGRADE = Command(
    "downgrade",
    "version:downgrade",
    "Change a table to an older table version, or continue a downgrade that failed. Stop the writers first.",
    [
        table(),
        value("--to", "The older table version.", type=OneOf(("6", "8")), required=True),
        value("--from", _FROM),
        flag("--dry-run", "Show the steps, the readers that are lost and the blockers; change nothing."),
        value("--grace-s", _GRACE, type=Count(0), default=10),
        output(),
    ],
    examples=("lakehouse table downgrade --table sales.orders --to 6 --dry-run",),
)
_VALIDATE = Command(
    "validate",
    "validate:validate",
    "Check every invariant of a table; nothing is written. The exit code is 65 if the table is corrupt, "
    "otherwise 0.\n\n"
    f"\b\nInvariants:\n{_INVARIANTS}",
    [
        table(),
        flag("--deep", "Also read every file of the newest file slices."),
        value(
            "--keys",
            "Scope of unique keys: the partition (checked with --deep), or the whole table, which reads the key "
            "column of every newest slice.",
            type=OneOf([str(scope) for scope in KeyScope]),
            default=str(KeyScope.PARTITION),
        ),
        options(),
        output(),
    ],
    examples=("lakehouse table validate --table sales.orders --deep",),
)
_LIST = Command(
    "list",
    "catalog:list_tables",
    "List the tables of a catalog.",
    [value("--namespace", "Only the tables of this namespace."), catalog(), output()],
    examples=("lakehouse table list --namespace sales",),
)
_SPEC_OPTIONS = (
    "A hoodie.* option with which the table is opened from now on, such as its lock or its index; repeatable. It "
    "becomes an option of the table's spec."
)
_REGISTER = Command(
    "register",
    "catalog:register",
    "Register an existing Hudi table in a catalog. A table without id gets one in its properties; nothing else of it "
    "is changed.",
    [
        table(NAME_TEXT),
        value("--location", "Location of the Hudi table: a path or a URL.", required=True),
        flag("--new-id", _NEW_ID),
        options(_SPEC_OPTIONS),
        catalog(),
        output(),
    ],
    examples=(
        "lakehouse table register --table sales.orders --location s3://lake/sales/orders",
        "lakehouse table register --table sales.carts --location s3://lake/sales/carts --option "
        "hoodie.write.concurrency.mode=optimistic_concurrency_control",
        "lakehouse table register --table test.orders --location s3://lake/copy/orders --new-id",
    ),
)
_ACCEPT = Command(
    "accept",
    "catalog:accept",
    "Register the table that is now at a registered location, after the table was replaced or renamed. Spec, "
    "policies and history stay; open requests are deleted.",
    [table(NAME_TEXT), flag("--new-id", _NEW_ID), catalog(), output()],
    examples=("lakehouse table accept --table sales.orders",),
)
_UPDATE = Command(
    "update",
    "catalog:update",
    "Apply a table spec: it becomes the newest version of the table's spec in the catalog.",
    [table("A table spec (YAML)."), catalog(), output()],
    examples=("lakehouse table update --table orders.yaml",),
)
_DROP = Command(
    "drop",
    "catalog:drop",
    "Remove a table from a catalog. Its files are deleted only with --purge.",
    [
        table(NAME_TEXT),
        flag("--purge", "Also delete the files that belong to the table, and no others."),
        catalog(),
        output(),
    ],
    examples=("lakehouse table drop --table sales.orders",),
)
_SYNC = Command(
    "sync",
    "specs:sync",
    "Apply edited spec files: each becomes the newest spec version of its table in the catalog. New tables are "
    "registered.",
    [
        value("--specs", _SPECS, metavar="DIRECTORY", multiple=True),
        tables("Only this table, namespace.table; repeatable. Default: all tables."),
        flag("--dry-run", "Show the differences and change nothing."),
        value("--author", "Author of the change. Default: the user of the operating system.", default=""),
        catalog(),
        output(),
    ],
    examples=("lakehouse table sync --specs dags/tables --dry-run",),
)
_DRIFT = Command(
    "drift",
    "specs:drift",
    "Compare spec files with their versions in a catalog; nothing is changed.",
    [
        value("--specs", _SPECS, metavar="DIRECTORY", multiple=True),
        tables("Only this table, namespace.table; repeatable. Default: all tables."),
        catalog(),
        output(),
    ],
    examples=("lakehouse table drift --specs dags/tables",),
)
_HISTORY = Command(
    "history",
    "specs:history",
    "List the versions of a table's spec in a catalog, each with author, time and changes.",
    [table(NAME_TEXT), catalog(), output()],
    examples=("lakehouse table history --table sales.orders",),
)
_SHOW = Command(
    "show",
    "timeline:show",
    "List the newest instants of a table's timeline, oldest first, with the service or write that made each, and "
    "its time, "
    "rows, files, bytes, and the run, user or program that made it.",
    [
        table(),
        value(
            "--service",
            "Only instants of this table service, or `write`; repeatable. `--action` is the same flag, and also takes "
            "the names of actions in the timeline's files, such as `replacecommit`.",
            type=OneOf(_SERVICES, _SERVICE_WORDS),
            multiple=True,
            also=("--action",),
        ),
        value(
            "--state",
            "Only instants in this state; repeatable.",
            type=OneOf([state.name.lower() for state in State]),
            multiple=True,
        ),
        value(
            "--since",
            "Only instants since this time: UTC, or a duration before now such as 2h.",
            metavar="TIME",
        ),
        value("--until", "Only instants up to this time.", metavar="TIME"),
        value("--partition", "Only completed writes that wrote to this partition.", metavar="PATH"),
        value("--limit", "Maximum number of instants, or `all`.", type=Count(1, allow_all=True), default=100),
        flag("--archived", "List the writes in the archive instead."),
        output(),
    ],
    examples=(
        "lakehouse timeline show --table sales.orders --limit 20",
        "lakehouse timeline show --table sales.orders --service compaction --service clustering --since 2d",
        "lakehouse timeline show --table sales.orders --partition day=2026-01-31 --state completed",
    ),
)
_BARS = Command(
    "bars",
    "inspect:bars",
    "Print the instants of a table as columns, with times in UTC milliseconds. The page Timeline draws them.",
    [table(), flag("--archived", "Print the writes in the archive instead."), output()],
    examples=("lakehouse timeline bars --table sales.orders --output json",),
)
_INSTANT = Command(
    "instant",
    "inspect:instant",
    "Show one instant of the active timeline with its decoded plan or commit.",
    [table(), value("--instant", "Requested time of the instant.", required=True, metavar="INSTANT"), output()],
    examples=("lakehouse timeline instant --table sales.orders --instant 20260131120000000",),
)
_FILES = Command(
    "files",
    "inspect:files",
    "Show the file groups of a table, the largest first, and a histogram of base-file sizes.",
    [
        table(),
        value("--partition", "Only this partition.", metavar="PATH"),
        value("--offset", "Number of file groups to skip.", type=Count(0), default=0),
        value("--limit", "Maximum number of file groups.", type=Count(1), default=100),
        output(),
    ],
    examples=("lakehouse table files --table sales.orders --partition dt=2026-01-31",),
)
COMMANDS: dict[str, click.Command] = {
    "table": Group(
        "table",
        "Create, describe, read, delete from and validate tables; register them in a catalog; compare spec files.",
        [
            _CREATE,
            _BOOTSTRAP,
            _DESCRIBE,
            _READ,
            _DELETE,
            _UPGRADE,
            _DOWNGRADE,
            _VALIDATE,
            _LIST,
            _REGISTER,
            _ACCEPT,
            _UPDATE,
            _DROP,
            _SYNC,
            _DRIFT,
            _HISTORY,
            _FILES,
        ],
    ),
    "timeline": Group("timeline", "Show the instants of a table.", [_SHOW, _BARS, _INSTANT]),
}
