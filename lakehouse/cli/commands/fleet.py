"""`lakehouse fleet`."""

from __future__ import annotations

import click

from lakehouse.cli.group import Command, Group
from lakehouse.cli.parameters import Count, DescribedArgument, catalog, flag, options, output, value

_SCAN = """Find the tables below a place, and report what each one supports; nothing is changed.

PLACE is a folder or URL of a storage, or a Hive Metastore: hms://host:9083, or hms://host:9083/database. Hudi tables of
any version, Parquet folders, Delta and Iceberg tables are found by their metadata folders, and the root of a table ends
the descent. For each Hudi table the command reads properties and timeline, and runs the checks of reads, writes and
services.

The result contains the commands to run next, and policies that keep the behaviour of today: a service that another
program runs stays disabled, and nothing is deleted earlier. With --register the readable tables are registered with
these policies. A repeated call skips registered tables and does the rest. The result is stored in the catalog.
"""
COMMANDS: dict[str, click.Command] = {
    "fleet": Group(
        "fleet",
        "Find the tables below a place, report the support for each, and register them.",
        [
            Command(
                "scan",
                "fleet:scan",
                _SCAN,
                [
                    DescribedArgument(
                        "place", "A folder or URL, such as s3://bucket/lake, or hms://host:9083.", metavar="PLACE"
                    ),
                    value("--depth", "Maximum number of levels below the place.", type=Count(0), default=12),
                    flag("--sizes", "Also list all files of each table, to report their number and size."),
                    value(
                        "--namespace",
                        "Namespace of the registered tables. Default: the folder above each table.",
                        metavar="NAME",
                        default="",
                    ),
                    flag("--register", "Register the readable tables with the proposed policies."),
                    options(
                        "A hoodie.* option of every table that is registered, such as the lock of all writers; "
                        "repeatable."
                    ),
                    catalog(),
                    output(),
                ],
                examples=(
                    "lakehouse fleet scan s3://lake/warehouse",
                    "lakehouse fleet scan /data/warehouse --register --namespace sales",
                    "lakehouse fleet scan /data/warehouse --register --option "
                    "hoodie.write.concurrency.mode=optimistic_concurrency_control",
                    "lakehouse fleet scan hms://metastore:9083/sales",
                ),
            )
        ],
    )
}
