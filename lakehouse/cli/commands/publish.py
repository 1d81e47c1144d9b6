"""`lakehouse publish`."""

from __future__ import annotations

import click

from lakehouse.cli.group import Command, Group
from lakehouse.cli.parameters import flag, job_flags, options, output, table, value
from lakehouse.spec.job_command import PublishCommand

_TABLE = "A table spec (YAML) with a section services.publish, or [catalog:]namespace.table."
_NEWEST = "Publish the newest version of the table instead of the version by event time."


def _partition(text: str, *, required: bool = False) -> click.Option:
    return value("--partition", text, metavar="NAME", multiple=True, required=required)


def _interval() -> list[click.Parameter]:
    return [
        value("--interval-start", "Start of the partitions' time interval, in ISO 8601.", metavar="TIME"),
        value("--interval-end", "Exclusive end of the time interval.", metavar="TIME"),
        flag("--force", "Also choose partitions that are already published."),
        flag("--newest", _NEWEST),
    ]


_ONLY = "Only this partition, such as dt=2026-01-31; repeatable."
_DUE = Command(
    "due",
    "publish:show_due",
    "Print which partitions a run would publish; nothing is written.",
    [table(_TABLE), _partition(_ONLY), *_interval(), options(), output()],
    examples=("lakehouse publish due --table sales.orders",),
)
_PLAN = Command(
    "plan",
    "publish:show_plan",
    "Print the action of a run for every partition with its reason; nothing is written.",
    [table(_TABLE), _partition(_ONLY), *_interval(), options(), output()],
    examples=("lakehouse publish plan --table sales.orders",),
)
_RUN = Command(
    "run",
    "publish:publish",
    "Publish the partitions that are ready in the Hive Metastore, and copy old ones to the archive.",
    [
        *job_flags(PublishCommand),
    ],
    examples=(
        "lakehouse publish run --table sales.orders",
        "lakehouse publish run --table sales.orders --partition dt=2026-01-31 --newest",
    ),
    noun="publish",
    verb="run",
)
_STATUS = Command(
    "status",
    "publish:show_status",
    "Show the state of every partition: published version, lag, and the location in the metastore.",
    [table(_TABLE), _partition(_ONLY), options(), output()],
    examples=("lakehouse publish status --table sales.orders",),
)
_SIGNAL = Command(
    "signal",
    "publish:signal_ready",
    "Signal that partitions are ready; the next run publishes them.",
    [
        table(_TABLE),
        _partition("A ready partition, such as dt=2026-01-31; repeatable.", required=True),
        flag("--run", "Publish the partitions now."),
        options(),
        output(),
    ],
    examples=("lakehouse publish signal --table sales.orders --partition dt=2026-01-31 --run",),
)
_WITHDRAW = Command(
    "withdraw",
    "publish:withdraw_partitions",
    "Remove partitions from the metastore; they are not published again without a signal or --force.",
    [
        table(_TABLE),
        _partition("A partition to remove, such as dt=2026-01-31; repeatable.", required=True),
        options(),
        output(),
    ],
    examples=("lakehouse publish withdraw --table sales.orders --partition dt=2026-01-31",),
)
COMMANDS: dict[str, click.Command] = {
    "publish": Group(
        "publish",
        "Publish ready partitions in a Hive Metastore.",
        [_DUE, _PLAN, _RUN, _STATUS, _SIGNAL, _WITHDRAW],
    )
}
