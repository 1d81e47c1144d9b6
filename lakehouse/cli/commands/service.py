"""The table services: `due`, `plan` and `run` of each, `clean orphans` and `ttl policy`."""

from __future__ import annotations

import click

from lakehouse.cli.group import Command, Group
from lakehouse.cli.nouns import NOUNS
from lakehouse.cli.parameters import Count, flag, job_flags, options, output, table, value
from lakehouse.spec.job_command import ServiceCommand
from lakehouse.spec.table.services import SERVICE_SPECS, ServiceSpec

_DRY_RUN = "Print the plan and write nothing."
_CLUSTERING = (
    value("--sort-columns", "Comma-separated columns by which the rows are sorted.", metavar="COLUMNS"),
    value("--layout", "Order of the rows: linear, z-order or hilbert.", metavar="LAYOUT"),
    click.Option(["--partitions", "short_partitions"], help="Comma-separated partitions to cluster.", metavar="PATHS"),
)


def _service(spec: ServiceSpec) -> Group:
    shared = [table(), *(_CLUSTERING if spec.name == "clustering" else ()), *_pins(spec), options(), output()]
    return Group(
        spec.name,
        f"{NOUNS[spec.name].text}.",
        [_due(spec, shared), _plan(spec, shared), _run(spec), *_MORE.get(spec.name, ())],
    )


def _due(spec: ServiceSpec, shared: list[click.Parameter]) -> Command:
    return Command(
        "due",
        "table_service:due",
        "Print whether the service is due, with the inputs of the decision; nothing is written.",
        shared,
        examples=(f"lakehouse {spec.name} due --table sales.orders",),
        noun=spec.name,
    )


def _plan(spec: ServiceSpec, shared: list[click.Parameter]) -> Command:
    text = "Print the plan of a run; nothing is written."
    if spec.action is not None:
        text = "Schedule a plan on the timeline, which `run` executes; --dry-run prints it."
    force = "Plan even if the service is not due."
    if spec.name in ("ttl", "sync"):
        force = "List the whole table in storage to rebuild its partition statistics."
    return Command(
        "plan",
        "table_service:plan",
        text,
        [*shared, flag("--force", force), flag("--dry-run", _DRY_RUN)],
        examples=(f"lakehouse {spec.name} plan --table sales.orders --dry-run",),
        noun=spec.name,
    )


def _run(spec: ServiceSpec) -> Command:
    without = () if spec.by_partition else ("--partition", "--interval-start", "--interval-end")
    return Command(
        "run",
        "table_service:run",
        f"{NOUNS[spec.name].text}: execute the pending plan, or plan and execute if the service is due.",
        [
            *job_flags(ServiceCommand, without=without),
            *(_CLUSTERING if spec.name == "clustering" else ()),
            *_pins(spec, " Only with --dry-run."),
            flag("--dry-run", _DRY_RUN),
        ],
        examples=(
            f"lakehouse {spec.name} run --table sales.orders",
            f"lakehouse {spec.name} run --table sales.orders --force",
        ),
        noun=spec.name,
        verb="run",
    )


def _pins(spec: ServiceSpec, more: str = "") -> list[click.Parameter]:
    pinned = "PARTITION" if spec.operation is not None else "INSTANT"
    text = f"Keep this {pinned.lower()}; repeatable.{more}"
    return [value("--pin", text, metavar=pinned, multiple=True, hidden=not spec.takes_pins)]


_ORPHANS = Command(
    "orphans",
    "clean:orphans",
    "List data files that belong to no write, or delete them with --delete.",
    [
        table(),
        flag("--delete", "Delete the files. Run the command without this flag first to list them."),
        flag("--dry-run", "List the files and delete nothing (the default)."),
        options(),
        output(),
    ],
    examples=(
        "lakehouse clean orphans --table sales.orders",
        "lakehouse clean orphans --table sales.orders --delete --option lakehouse.clean.orphans.shared=true",
    ),
)
_AGES = {
    "partition": "Maximum age of the time in a partition's path, such as 400d.",
    "creation": "Maximum time since a partition's first write.",
    "modification": "Maximum time since a partition's last write.",
}
_SET = Command(
    "set",
    "ttl:set_rule",
    "Set the TTL rule for partitions that match a pattern. It needs a limit or --keep.",
    [
        table(),
        value("--pattern", "Partitions: a glob such as region=eu, or `re:` and a regular expression.", required=True),
        value("--id", "Name of the rule. Default: the pattern.", metavar="NAME"),
        *(value(f"--{name}-age", text, default="", metavar="DURATION") for name, text in _AGES.items()),
        value(
            "--max-partitions",
            "Number of newest partitions to keep in each parent; 0 keeps all.",
            type=Count(0),
            default=0,
        ),
        value(
            "--max-bytes", "Keep the newest partitions up to this total size, such as 5TB.", default="", metavar="SIZE"
        ),
        value("--format", "Pattern of the time in the partition paths, such as yyyy/MM/dd.", default=""),
        value("--timezone", "Time zone of these times. Default: UTC.", default=""),
        flag("--keep", "The partitions never expire."),
        options(),
        output(),
    ],
    examples=('lakehouse ttl policy set --table sales.orders --pattern "*" --partition-age 400d',),
)
_REMOVE = Command(
    "remove",
    "ttl:remove_rule",
    "Remove a rule.",
    [table(), value("--id", "Name of the rule. Default: its pattern.", required=True), options(), output()],
    examples=('lakehouse ttl policy remove --table sales.orders --id "*"',),
)
_LIST = Command(
    "list",
    "ttl:list_rules",
    "List the rules of a table.",
    [table(), options(), output()],
    examples=("lakehouse ttl policy list --table sales.orders",),
)
#: Verbs that only `lakehouse index` has.
_INDEX_LIST = Command(
    "list",
    "index:list_indexes",
    "List the indexes of a table: the index that locates record keys for writers, and the metadata table's "
    "indexes, with "
    "state, columns and size.",
    [table(), options(), output()],
    examples=("lakehouse index list --table sales.orders",),
)
_INDEX_CREATE = Command(
    "create",
    "index:create",
    "Declare a secondary index of a column, or an index on an expression, and build it.",
    [
        table(),
        value("--column", "Column of a secondary index.", default="", metavar="COLUMN"),
        value("--name", "Name of the secondary index. Default: the column.", default="", metavar="NAME"),
        value(
            "--expression",
            "Index on an expression, such as `by_hour=hour(at)`, `by_day=from_unixtime(ts, yyyy-MM-dd)` or "
            "`by_name=bloom_filters:upper(name)`.",
            default="",
            metavar="NAME=FUNCTION(COLUMN)",
        ),
        flag("--defer", "Do not build the index now; the next run of the service builds it."),
        options(),
        output(),
    ],
    examples=(
        "lakehouse index create --table sales.orders --column city",
        "lakehouse index create --table sales.orders --column city --name by_city --defer",
        "lakehouse index create --table sales.orders --expression 'by_hour=hour(at)'",
    ),
)
_INDEX_DROP = Command(
    "drop",
    "index:drop",
    "Drop an index, built or being built: its entry in the table properties is removed first, then its files.",
    [
        table(),
        value(
            "--index", "Name of the index, or of its partition in the metadata table.", required=True, metavar="NAME"
        ),
        options(),
        output(),
    ],
    examples=("lakehouse index drop --table sales.orders --index city",),
)

_INDEX_FILTERS = Group(
    "filters",
    "Check and build the bloom filters in the footers of base files.",
    [
        Command(
            "check",
            "filters:check",
            "List the base files without a bloom filter; nothing is written.",
            [table(), options(), output()],
            examples=("lakehouse index filters check --table sales.orders",),
        ),
        Command(
            "build",
            "filters:build",
            "Add missing bloom filters to base files, in one commit.",
            [table(), options(), output()],
            examples=("lakehouse index filters build --table sales.orders",),
        ),
    ],
)


def _export(name: str, title: str) -> Command:
    return Command(
        name,
        f"export:export_{name}",
        f"Bring the {title} view of a table to its newest write; the table need not declare the format.",
        job_flags(ServiceCommand, without=("--partition", "--interval-start", "--interval-end", "--instant")),
        examples=(
            f"lakehouse export {name} --table sales.orders",
            f"lakehouse export {name} --table sales.orders --force",
        ),
        noun="export",
        verb="run",
    )


_TARGET = "Empty folder for the result: a path or a URL."
_EXPORT_PARQUET = Command(
    "parquet",
    "export:export_parquet_files",
    "Write the newest version to plain Parquet files in folders column=value; repeat a command that was killed.",
    [table(), value("--target", _TARGET), output()],
    examples=("lakehouse export parquet --table sales.orders --target /exports/orders",),
)
_EXPORT_HUDI = Command(
    "hudi",
    "export:export_table_copy",
    "Copy the newest version into another table of Hudi; repeat a command that was killed.",
    [table(), value("--target", _TARGET), output()],
    examples=("lakehouse export hudi --table sales.orders --target /copies/orders",),
)


_MORE: dict[str, tuple[click.Command, ...]] = {
    "index": (_INDEX_LIST, _INDEX_CREATE, _INDEX_DROP, _INDEX_FILTERS),
    "clean": (_ORPHANS,),
    "export": (_export("iceberg", "Iceberg"), _export("delta", "Delta"), _EXPORT_PARQUET, _EXPORT_HUDI),
    "ttl": (Group("policy", "Edit the TTL rules of partitions.", [_SET, _REMOVE, _LIST]),),
}
COMMANDS: dict[str, click.Command] = {spec.name: _service(spec) for spec in SERVICE_SPECS}
