"""`lakehouse policy` and `lakehouse catalog`."""

from __future__ import annotations

import click

from lakehouse.cli.group import Command, Group
from lakehouse.cli.parameters import NAME_TEXT, OneOf, catalog, flag, output, table, value
from lakehouse.spec.table.scheduling import ALL_SERVICES
from lakehouse.spec.table.services import SERVICES

_TABLE = "The table of the policy: namespace.table. Either --table or --namespace is required."
_PATTERN = "Only for partitions whose path matches this regular expression."


def _scope() -> list[click.Parameter]:
    return [
        table(_TABLE, required=False),
        value("--namespace", "The namespace of the policy, which applies to all its tables.", metavar="NAME"),
        value(
            "--service",
            "The table service; `all` sets limits that all services of a namespace share.",
            type=OneOf((*SERVICES, ALL_SERVICES)),
            required=True,
        ),
        value("--pattern", _PATTERN, default="", metavar="REGEX"),
    ]


_SET = Command(
    "set",
    "policies:set_policy",
    "Change settings of a service for a namespace, a table, or some partitions of it.",
    [
        *_scope(),
        value(
            "--set",
            "A setting of the service, such as commits_retained=5, enabled=false or a hoodie.* key; repeatable.",
            metavar="NAME=VALUE",
            multiple=True,
            required=True,
        ),
        catalog(),
        output(),
    ],
    examples=(
        "lakehouse policy set --namespace sales --service clean --set commits_retained=5",
        "lakehouse policy set --table sales.orders --service compaction --set enabled=false",
        "lakehouse policy set --namespace sales --service all --set max_runs=8 --set bytes_per_hour=2TB",
    ),
)
_REMOVE = Command(
    "remove",
    "policies:remove_policy",
    "Remove the settings of a service from a namespace, a table, or some partitions of it.",
    [*_scope(), catalog(), output()],
    examples=("lakehouse policy remove --namespace sales --service clean",),
)
_SHOW = Command(
    "show",
    "policies:show_policies",
    "Show every service's settings for a table, the place that declares each, and the policies without effect.",
    [
        table(NAME_TEXT),
        value("--partition", "Show the settings of this partition.", metavar="PATH"),
        flag("--defaults", "Also show settings that nothing declares; JSON output always contains them."),
        catalog(),
        output(),
    ],
    examples=(
        "lakehouse policy show --table sales.orders",
        "lakehouse policy show --table sales.orders --partition day=2026-01-31",
    ),
)
_UPGRADE = Command(
    "upgrade",
    "catalog:upgrade_schema",
    "Upgrade the database schema of a shared catalog to this version of lakehouse.",
    [catalog(), output()],
    examples=("lakehouse catalog upgrade",),
)
COMMANDS: dict[str, click.Command] = {
    "policy": Group(
        "policy", "Change settings of services for a namespace, a table or some partitions.", [_SET, _REMOVE, _SHOW]
    ),
    "catalog": Group("catalog", "Upgrade the database schema of a shared catalog.", [_UPGRADE]),
}
