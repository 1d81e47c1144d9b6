"""`lakehouse environment`."""

from __future__ import annotations

import click

from lakehouse.cli import parameters
from lakehouse.cli.group import Command, Group

COMMANDS: dict[str, click.Command] = {
    "environment": Group(
        "environment",
        "Pack the Python environment of jobs for the nodes of a cluster.",
        [
            Command(
                "pack",
                "environment:pack",
                "Write an archive of the Python environment with its interpreter, and check that it works.\n\nSpark "
                "unpacks the archive on each node, which needs no Python of its own. The name of the archive contains "
                "a digest of its files. pyspark's jars are left out, because Spark on the nodes has them.",
                [
                    click.Option(
                        ["--to"],
                        metavar="PATH",
                        help="Folder of the archive, or its path if it ends with .tar.gz. Default: the current folder.",
                    ),
                    click.Option(
                        ["--python"],
                        metavar="PATH",
                        help="Python of the environment to pack. Default: the Python that runs this command.",
                    ),
                    click.Option(
                        ["--only"],
                        metavar="PACKAGE",
                        multiple=True,
                        help="An installed package to pack with its requirements, such as lakehouse-tables[spark]; "
                        "repeatable. Default: all installed packages.",
                    ),
                    click.Option(
                        ["--also"],
                        metavar="FOLDER",
                        multiple=True,
                        help="A folder with modules that jobs import, such as custom mergers; repeatable.",
                    ),
                    parameters.output(),
                ],
                examples=(
                    "lakehouse environment pack --to archives",
                    "lakehouse environment pack --python /opt/lakehouse-spark/bin/python --also dags/modules",
                ),
            )
        ],
    )
}
