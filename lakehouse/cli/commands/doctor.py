"""`lakehouse doctor`."""

from __future__ import annotations

import click

from lakehouse.cli import parameters
from lakehouse.cli.group import Command
from lakehouse.spec.contracts.doctor import CHECKS, CheckedEnvironment

COMMANDS: dict[str, click.Command] = {
    "doctor": Command(
        "doctor",
        "doctor:run_doctor",
        "Check the requirements of a deployment, and suggest corrections. The exit code is 0 if no check "
        "failed.\n\nIn Airflow's "
        "environment it checks pools, connection, plugin and versions, and starts the checks of Spark's environment in "
        "a process there. Nothing is changed, except for one temporary file in each storage, which is deleted.",
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
}
