"""`lakehouse services`."""

from __future__ import annotations

import click

from lakehouse.cli.group import Command, Group
from lakehouse.cli.parameters import NAME_TEXT, Count, catalog, flag, output, service, services, table, tables, value

_TABLES = "Only this table, namespace.table; repeatable. Default: all tables of the catalog."
_DUE = Command(
    "due",
    "services:due",
    "Decide which services run now on which tables, and print each decision with its reason; nothing is run.",
    [
        services(),
        tables(_TABLES),
        flag("--force", "Also choose services that are not due."),
        value("--max-runs", "Maximum number of concurrent runs per service.", type=Count(1)),
        value(
            "--bytes-per-hour",
            "Maximum number of bytes that a service's runs move per hour, such as 500GB.",
            metavar="SIZE",
        ),
        value("--batch-tables", "Maximum number of tables per process.", type=Count(1), default=20),
        value("--batch-time", "Maximum predicted duration of one process.", default="5m", metavar="DURATION"),
        catalog(),
        output(),
    ],
    examples=("lakehouse services due --service compaction",),
)
_PASS = Command(
    "pass",
    "fleet_pass:run",
    "Run one pass of the fleet scheduler: inspect the changed tables, decide for all services, and print the jobs to "
    "start; no service is run.",
    [
        services(),
        tables("Inspect only this table, namespace.table; repeatable. Default: the tables that changed."),
        flag("--skip-unknown", "Ignore tables that are not in the catalog."),
        value("--slots", "Number of slots in the pool that executes the runs. Default: unlimited.", type=Count(1)),
        value(
            "--horizon",
            "Time until the next pass. Runs that would start later are left to it.",
            default="5m",
            metavar="DURATION",
        ),
        value("--looks", "Maximum number of changed tables to inspect.", type=Count(1), default=1000),
        value("--rotation", "Maximum number of unchanged tables to inspect.", type=Count(0), default=20),
        value("--max-runs", "Maximum number of concurrent runs per service.", type=Count(1)),
        value(
            "--bytes-per-hour",
            "Maximum number of bytes that a service's runs move per hour, such as 500GB.",
            metavar="SIZE",
        ),
        value("--batch-tables", "Maximum number of tables per job.", type=Count(1), default=20),
        value(
            "--batch-time", "Maximum predicted duration of a job for several tables.", default="5m", metavar="DURATION"
        ),
        value(
            "--claim",
            "Name of the pass. A retry with the same name chooses the same runs again.",
            default="",
            metavar="NAME",
        ),
        catalog(),
        output(),
    ],
    examples=("lakehouse services pass --slots 4", "lakehouse services pass --table sales.orders"),
)
_RELEASE = Command(
    "release",
    "fleet_pass:release",
    "Release runs that a pass chose, if the pass has ended and their jobs did not start. The next pass decides again.",
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
    "Explain why a table's services run or wait: settings, last decision, active run, requests and last runs.",
    [table(NAME_TEXT), services(), catalog(), output()],
    examples=("lakehouse services explain --table sales.orders --service compaction",),
)
_REQUEST = Command(
    "request",
    "services:request",
    "Request a service for a table. The scheduler's next decision chooses it even if it is not due.",
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
    "Show the lag, the log-file backlog, the small files and the pending plans of tables.",
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
