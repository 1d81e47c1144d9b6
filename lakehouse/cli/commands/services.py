"""`lakehouse services`."""

from __future__ import annotations

import click

from lakehouse.cli.group import Command, Group
from lakehouse.cli.parameters import NAME_TEXT, Count, catalog, flag, output, service, services, table, tables, value

_TABLES = "Only this table, namespace.table; repeatable. Default: all tables of the catalog."
_DUE = Command(
    "due",
    "services:due",
    "Decide which services run now on which tables, with the reason of each decision; nothing is run.",
    [
        services(),
        tables(_TABLES),
        flag("--force", "Also choose services that are not due."),
        value("--max-runs", "Largest number of runs of a service at the same time.", type=Count(1)),
        value("--bytes-per-hour", "Bytes that runs of a service may move in an hour, such as 500GB.", metavar="SIZE"),
        value("--batch-tables", "Largest number of tables in one process.", type=Count(1), default=20),
        value("--batch-time", "Largest predicted duration of one process.", default="5m", metavar="DURATION"),
        catalog(),
        output(),
    ],
    examples=("lakehouse services due --service compaction",),
)
_PASS = Command(
    "pass",
    "fleet_pass:run",
    "Run one pass of the fleet scheduler: look at tables that changed, decide for all services, and print the jobs to "
    "start; no service is run.",
    [
        services(),
        tables("Look only at this table, namespace.table; repeatable. Default: the tables that changed."),
        flag("--skip-unknown", "Ignore tables that the catalog does not have."),
        value("--slots", "Slots of the pool that executes the runs. Default: unlimited.", type=Count(1)),
        value("--horizon", "Time until the next pass; later runs wait for it.", default="5m", metavar="DURATION"),
        value("--looks", "Largest number of changed tables to look at.", type=Count(1), default=1000),
        value("--rotation", "Largest number of further tables to look at.", type=Count(0), default=20),
        value("--max-runs", "Largest number of runs of a service at the same time.", type=Count(1)),
        value("--bytes-per-hour", "Bytes that runs of a service may move in an hour, such as 500GB.", metavar="SIZE"),
        value("--batch-tables", "Largest number of tables in one job.", type=Count(1), default=20),
        value("--batch-time", "Largest predicted duration of a shared job.", default="5m", metavar="DURATION"),
        value("--claim", "Name of the pass; a second try of it chooses its runs again.", default="", metavar="NAME"),
        catalog(),
        output(),
    ],
    examples=("lakehouse services pass --slots 4", "lakehouse services pass --table sales.orders"),
)
_RELEASE = Command(
    "release",
    "fleet_pass:release",
    "Release runs that a pass chose, if the pass has ended and their jobs did not begin; the next pass decides again.",
    [
        value("--claim", "Name of a pass that has ended; repeatable.", metavar="NAME", multiple=True, required=True),
        services(),
        tables("Only the runs of this table, namespace.table, whose job failed; repeatable. Default: all tables."),
        catalog(),
        output(),
    ],
    examples=(
        "lakehouse services release --claim nightly-1",
        "lakehouse services release --claim nightly-1 --service clean --table sales.orders",
    ),
)
_EXPLAIN = Command(
    "explain",
    "services:explain",
    "Explain why services of a table run or wait: settings, last decision, active run, requests and last runs.",
    [table(NAME_TEXT), services(), catalog(), output()],
    examples=("lakehouse services explain --table sales.orders --service compaction",),
)
_REQUEST = Command(
    "request",
    "services:request",
    "Request a service for a table; the scheduler's next decision chooses it, due or not.",
    [
        table(NAME_TEXT),
        service(),
        value("--partition", "Only this partition; repeatable.", metavar="PATH", multiple=True),
        value("--by", "Author of the request.", default="", metavar="NAME"),
        catalog(),
        output(),
    ],
    examples=("lakehouse services request --table sales.orders --service compaction --by ada",),
)
_STATUS = Command(
    "status",
    "services:status",
    "Show the last decision and the last run of every service and table.",
    [catalog(), output()],
    examples=("lakehouse services status",),
)
_HEALTH = Command(
    "health",
    "services:health",
    "Show lag, backlog of log files, small files and pending plans of tables.",
    [tables(_TABLES), catalog(), output()],
    examples=("lakehouse services health --table sales.orders",),
)
COMMANDS: dict[str, click.Command] = {
    "services": Group(
        "services",
        "Decide which services run now, and explain why.",
        [_DUE, _PASS, _RELEASE, _EXPLAIN, _REQUEST, _STATUS, _HEALTH],
    )
}
