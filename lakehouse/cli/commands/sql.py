"""`lakehouse sql`."""

from __future__ import annotations

import click

from lakehouse.cli.group import Command
from lakehouse.cli.parameters import Count, DescribedArgument, OneOf, catalog, options, value

FORMATS = ("table", "csv", "json", "parquet")

_SQL = Command(
    "sql",
    "sql:run",
    "Run SQL statements on the tables of a catalog, without Spark: queries by DuckDB, and DDL, DML and CALL. Without a "
    "statement, `lakehouse sql` is an interactive shell on a terminal, and runs the statements of its standard input "
    "otherwise. Semicolons separate statements. The first statement that fails ends the command.",
    [
        DescribedArgument("statement", "SQL statements, separated by semicolons.", metavar="[STATEMENT]"),
        catalog(),
        value("--file", "File with statements, instead of STATEMENT.", metavar="FILE"),
        value(
            "--format",
            "Format of the rows: a text table, CSV with a header, a JSON array, or a Parquet file.",
            type=OneOf(FORMATS),
            default="table",
        ),
        value("--output", "File for the rows of the last statement. Default: standard output.", metavar="FILE"),
        value(
            "--limit", "Maximum number of rows of a text table, or `all`.", type=Count(1, allow_all=True), default=1000
        ),
        value(
            "--warehouse",
            "Location below which CREATE TABLE without LOCATION puts namespace/table. Default: the variable "
            "LAKEHOUSE_HOME, or the current directory.",
            default="",
        ),
        options(),
    ],
    examples=(
        'lakehouse sql "SELECT city, sum(fare) FROM sales.orders GROUP BY city"',
        "lakehouse sql \"CALL lakehouse.clean(table => 'sales.orders', op => 'due')\" --format json",
        'lakehouse sql "SELECT * FROM sales.orders" --format parquet --output orders.parquet',
    ),
)
COMMANDS: dict[str, click.Command] = {"sql": _SQL}
