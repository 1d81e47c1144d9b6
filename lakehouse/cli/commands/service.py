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
    value("--sort-columns", "Columns, comma separated, by which the rows are sorted.", metavar="COLUMNS"),
    value("--layout", "Order of the rows: linear, z-order or hilbert.", metavar="LAYOUT"),
    click.Option(
        ["--partitions", "short_partitions"], help="Partitions, comma separated, to cluster.", metavar="PATHS"
    ),
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
    text = "Print what a run would do; nothing is written."
    if spec.action is not None:
        text = "Schedule a plan on the timeline, which `run` executes; --dry-run prints it."
    force = "Plan although the service is not due."
    if spec.name in ("ttl", "sync"):
        force = "List the table to rebuild its statistics."
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
    "List data files that no write names, or delete them with --delete.",
    [
        table(),
        flag("--delete", "Delete the files; list them without this flag first."),
        flag("--dry-run", "List the files and delete nothing, which is the default."),
        options(),
        output(),
    ],
    examples=(
        "lakehouse clean orphans --table sales.orders",
        "lakehouse clean orphans --table sales.orders --delete --option lakehouse.clean.orphans.shared=true",
    ),
)
_AGES = {
    "partition": "Age of the partition's time at which it expires, such as 400d.",
    "creation": "Age since the first write at which it expires.",
    "modification": "Age since the last write at which it expires.",
}
_SET = Command(
    "set",
    "ttl:set_rule",
    "Set the rule of the partitions that match a pattern. It needs a limit, or --keep.",
    [
        table(),
        value("--pattern", "Partitions: a glob such as region=eu, or `re:` and a regular expression.", required=True),
        value("--id", "Name of the rule. Default: the pattern.", metavar="NAME"),
        *(value(f"--{name}-age", text, default="", metavar="DURATION") for name, text in _AGES.items()),
        value("--max-partitions", "Newest partitions kept beside each parent; 0: all.", type=Count(0), default=0),
        value("--max-bytes", "Newest partitions kept, up to this size, such as 5TB.", default="", metavar="SIZE"),
        value("--format", "Pattern of the time in the paths, such as yyyy/MM/dd.", default=""),
        value("--timezone", "Time zone of these times. Default: UTC.", default=""),
        flag("--keep", "Set no limit: the partitions never expire."),
        options(),
        output(),
    ],
    examples=('lakehouse ttl policy set --table sales.orders --pattern "*" --partition-age 400d',),
)
_REMOVE = Command(
    "remove",
    "ttl:remove_rule",
    "Remove a rule.",
    [table(), value("--id", "Name of the rule; by default its pattern.", required=True), options(), output()],
    examples=('lakehouse ttl policy remove --table sales.orders --id "*"',),
)
_LIST = Command(
    "list",
    "ttl:list_rules",
    "List the rules of a table.",
    [table(), options(), output()],
    examples=("lakehouse ttl policy list --table sales.orders",),
)
#: The verbs of `lakehouse index` that other services do not have.
_INDEX_LIST = Command(
    "list",
    "index:list_indexes",
    "List the indexes of a table: the one by which writers find record keys, and those of the metadata table, with "
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
        flag("--defer", "Leave the build to the next run of the service."),
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
    "Drop an index, built or being built: first the properties name it no more, then its files are deleted.",
    [
        table(),
        value(
            "--index", "Name of the index, or of its partition of the metadata table.", required=True, metavar="NAME"
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
_MORE: dict[str, tuple[click.Command, ...]] = {
    "index": (_INDEX_LIST, _INDEX_CREATE, _INDEX_DROP, _INDEX_FILTERS),
    "clean": (_ORPHANS,),
    "ttl": (Group("policy", "Edit the rules by which partitions expire.", [_SET, _REMOVE, _LIST]),),
}
COMMANDS: dict[str, click.Command] = {spec.name: _service(spec) for spec in SERVICE_SPECS}
