"""`lakehouse demo`."""

from __future__ import annotations

import click

from lakehouse.cli import parameters
from lakehouse.cli.group import Command, Group

_HOME = (
    click.Option(["--airflow-venv"], required=True, metavar="DIR", help="Virtual environment with Airflow."),
    click.Option(["--home"], required=True, metavar="DIR", help="Folder of the demo: all its files are below."),
    click.Option(
        ["--database"],
        type=click.Choice(["auto", "postgresql", "sqlite"]),
        default="auto",
        help="Database of Airflow. auto is PostgreSQL if it can run here, otherwise SQLite, which refuses backfills.",
    ),
)

COMMANDS: dict[str, click.Command] = {
    "demo": Group(
        "demo",
        "Generate data, or run the demo through Airflow.",
        [
            Command(
                "generate",
                "demo:generate_files",
                "Write files of ride-hailing events, one per hour and stream.",
                [
                    click.Option(["--out"], required=True, metavar="DIR", help="Folder of the files."),
                    click.Option(["--hours"], type=int, default=48, help="Number of hours."),
                    click.Option(["--orders-per-hour"], type=int, default=2_000, help="Number of new orders per hour."),
                    click.Option(["--seed"], type=int, default=7, help="Seed of the random values."),
                    parameters.output(),
                ],
                examples=("lakehouse demo generate --out /tmp/rides --hours 3",),
            ),
            Command(
                "run",
                "demo:run",
                "Ingest files through Airflow and Spark, cluster a table, and show the result.",
                [
                    *_HOME,
                    click.Option(
                        ["--data"], metavar="DIR", help="Your files instead of generated ones; needs --table."
                    ),
                    click.Option(["--table"], metavar="SPEC", help="Your table spec; needs a section `ingest`."),
                ],
                examples=("lakehouse demo run --airflow-venv .venv-airflow --home .demo",),
            ),
            Command(
                "ui",
                "demo:ui",
                "Start Airflow's web pages with the demo's DAGs and runs, until Ctrl-C.",
                _HOME,
                examples=("lakehouse demo ui --airflow-venv .venv-airflow --home .demo",),
            ),
        ],
    )
}
