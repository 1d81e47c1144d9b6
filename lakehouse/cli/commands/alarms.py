"""`lakehouse alarms`."""

from __future__ import annotations

import click

from lakehouse.cli.group import Command, Group
from lakehouse.cli.parameters import NAME_TEXT, Count, OneOf, catalog, flag, output, table, tables, value

_NOTIFIER = "Name of the notifier. Each notifier gets every alarm once."
_OWNER = "Id of the sender, such as a DAG run id. A retry must use the same id."


def _sender() -> list[click.Parameter]:
    return [
        value("--notifier", _NOTIFIER, metavar="NAME", required=True),
        value("--owner", _OWNER, metavar="ID", required=True),
    ]


_LIST = Command(
    "list",
    "alarms:list_alarms",
    "Show the open alarms of tables with advice on each; the most severe ones come first.",
    [
        tables("Only this table, namespace.table; repeatable. Default: all tables of the catalog."),
        flag("--all", "Also show resolved alarms."),
        value("--limit", "Maximum number of alarms.", type=Count(1), default=200),
        catalog(),
        output(),
    ],
    examples=("lakehouse alarms list --table sales.orders",),
)
_RULES = Command(
    "rules",
    "alarms:rules",
    "Show the alarm rules: the built-in rules with the changes from your file. With --table, show the rules that "
    "apply to that table.",
    [table(NAME_TEXT, required=False), catalog(), output()],
    examples=("lakehouse alarms rules --table sales.orders",),
)
_SILENCE = Command(
    "silence",
    "alarms:silence",
    "Send no alarms for a rule, table or namespace until a time. The alarms are still shown.",
    [
        value("--rule", "Only this rule. Default: all rules.", default="", metavar="NAME"),
        table("Only this table: namespace.table.", required=False),
        value("--namespace", "Only tables of this namespace.", metavar="NAME"),
        click.Option(
            ["--for", "duration"], metavar="DURATION", required=True, help="Duration of the silence, such as 2h or 3d."
        ),
        value("--reason", "Reason, which other users see.", metavar="TEXT", required=True),
        catalog(),
        output(),
    ],
    examples=('lakehouse alarms silence --table sales.orders --for 2h --reason "full reload"',),
)
_UNSILENCE = Command(
    "unsilence",
    "alarms:unsilence",
    "End a silence.",
    [value("--id", "Number of the silence.", type=Count(1), required=True), catalog(), output()],
    examples=("lakehouse alarms unsilence --id 7",),
)
_SILENCES = Command(
    "silences",
    "alarms:silences",
    "Show the silences that have not ended.",
    [catalog(), output()],
    examples=("lakehouse alarms silences",),
)
_CHECK = Command(
    "check",
    "alarms:check",
    "Evaluate, for all tables, the rules whose result changes without a commit, such as freshness. No storage is read.",
    [catalog(), output()],
    examples=("lakehouse alarms check",),
)
_CLAIM = Command(
    "claim",
    "alarms:claim",
    "Claim the next message of a notifier: new and resolved alarms, or a message whose sender ended before it "
    "was sent.",
    [
        *_sender(),
        value("--severity", "Least severity.", type=OneOf(("info", "warning", "critical")), default="info"),
        value("--scope", "Only this namespace or table; repeatable.", metavar="NAME", multiple=True),
        value(
            "--lease", "Time after which another sender may claim the same alarms.", default="10m", metavar="DURATION"
        ),
        catalog(),
        output(),
    ],
    examples=("lakehouse alarms claim --notifier slack --owner run-1 --output json",),
)
_SETTLE = Command(
    "settle",
    "alarms:settle",
    "Record that a notifier sent the alarms that it claimed. With --failed, release them for the next sender.",
    [*_sender(), flag("--failed", "The alarms were not sent; the next sender sends them."), catalog(), output()],
    examples=("lakehouse alarms settle --notifier slack --owner run-1",),
)
COMMANDS: dict[str, click.Command] = {
    "alarms": Group(
        "alarms",
        "Show and silence alarms of tables, and show their rules.",
        [_LIST, _RULES, _SILENCE, _SILENCES, _UNSILENCE, _CHECK, _CLAIM, _SETTLE],
    )
}
