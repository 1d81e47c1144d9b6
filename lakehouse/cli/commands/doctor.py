"""`lakehouse doctor`."""

from __future__ import annotations

import click

from lakehouse.cli import parameters
from lakehouse.cli.group import Command, DefaultGroup
from lakehouse.spec.contracts.doctor import CHECKS, CheckedEnvironment

_DEPLOYMENT = Command(
    "doctor",
    "doctor:run_doctor",
    "Check the requirements of a deployment, and suggest corrections. The exit code is 0 if no check "
    "failed.\n\nIn Airflow's "
    "environment it checks pools, connection, plugin and versions, and starts the checks of Spark's environment in "
    "a process there. Nothing is changed, except for one temporary file in each storage, which is deleted.\n\n"
    "`lakehouse doctor table` checks whether several writers of one table are safe.",
    [
        click.Option(
            ["--environment"],
            type=parameters.OneOf(("auto", *(environment.value for environment in CheckedEnvironment))),
            default="auto",
            help="The environment to check; auto is the one in which the command runs.",
        ),
        click.Option(
            ["--check"],
            type=parameters.OneOf(tuple(CHECKS)),
            multiple=True,
            help="A check to run; repeatable. Default: all.",
        ),
        parameters.output(),
    ],
    examples=("lakehouse doctor", "lakehouse doctor --check catalog --check storage --output json"),
)
_TABLE = """Find settings that make several writers of one table unsafe; nothing is changed.

NAME is a catalog name, a spec file or the location of a table. The settings of lakehouse are in the table's spec and
policies. Give the properties of each job of Hudi that writes the table with --writer-properties. The command compares
locks, concurrency modes, inline services, metadata table, versions, merge rules and indexes, and looks for failed
writes on the timeline.

The exit code is 0 without a finding by which rows can be lost, 64 with one.
"""
COMMANDS: dict[str, click.Command] = {
    "doctor": DefaultGroup(
        _DEPLOYMENT,
        [
            Command(
                "table",
                "table_doctor:run_table_doctor",
                _TABLE,
                [
                    parameters.DescribedArgument("name", parameters.TABLE_TEXT, metavar="NAME"),
                    parameters.value(
                        "--writer-properties",
                        "Properties file of a job of Hudi that writes the table; repeatable.",
                        multiple=True,
                        metavar="FILE",
                    ),
                    parameters.options(),
                    parameters.output(),
                ],
                examples=(
                    "lakehouse doctor table sales.orders --writer-properties orders-job.properties",
                    "lakehouse doctor table /data/orders --writer-properties a.properties --writer-properties "
                    "b.properties --output json",
                ),
            )
        ],
    )
}
