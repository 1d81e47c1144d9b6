"""`lakehouse spec`."""

from __future__ import annotations

import click

from lakehouse.cli.group import Command, Group
from lakehouse.cli.parameters import Count, OneOf, flag, output, value

_SUGGEST = """Read a sample of a source and print a table spec for it, with the evidence as comments.

SOURCE is a file, a folder or a pattern of files: CSV, JSON, Parquet, ORC or Avro; CSV and JSON also as .gz, .bz2 or
.zst. With --topic or --tables it is the id of an Airflow connection to a Kafka cluster or a database (PostgreSQL,
MySQL, MariaDB), which the variable AIRFLOW_CONN_<ID> contains.

The spec contains the columns with their types, the reader options, and candidates for record key, ordering column and
partitions. Settings that the sample does not decide are comments. Only the sample is read, and no table is created.
"""
_CHECK = """Check a table spec: its settings, its table and the access to its source, as `ingest run --check` does.

With --sample, the command also reads the first records of the files or the topic with Spark, as an ingestion does. It
shows the first rows as they would be stored, and the bad records with file, line, column, value and type. It writes
nothing. The exit code is 64 (wrong input) if the sample has more bad records than max_bad_records.
"""
#: Values of --format, repeated here so that help does not import the readers.
_FORMATS = ("csv", "json", "parquet", "orc", "avro")


class Place(click.Argument):
    """An argument with a help text for the reference; click's own arguments have none."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__([name], metavar=name.upper())
        self.help = text


COMMANDS: dict[str, click.Command] = {
    "spec": Group(
        "spec",
        "Suggest a table spec from a sample of a source, and check a spec.",
        [
            Command(
                "suggest",
                "suggest:suggest",
                _SUGGEST,
                [
                    Place("source", "A file, folder, pattern or URL of files, or a connection."),
                    value("--topic", "Topic of the Kafka connection SOURCE.", metavar="TOPIC"),
                    value(
                        "--tables",
                        "Table of the database connection SOURCE, database.table or schema.table, or a pattern; "
                        "repeatable.",
                        metavar="NAME",
                        multiple=True,
                    ),
                    value("--format", "Format of the files. Default: detected from the files.", type=OneOf(_FORMATS)),
                    value("--name", "Name of the table. Default: derived from the source.", metavar="NAME", default=""),
                    value("--location", "Location of the table. Default: lake/NAME.", metavar="PATH", default=""),
                    value("--to", "File for the spec, instead of standard output.", metavar="FILE"),
                    flag("--replace", "Replace the file of --to if it exists."),
                    value("--rows", "Maximum number of sampled rows.", type=Count(1), default=10_000),
                    value("--files", "Maximum number of sampled files.", type=Count(1), default=10),
                ],
                examples=(
                    "lakehouse spec suggest landing/orders/ --to orders.yaml",
                    "lakehouse spec suggest shop_db --tables public.orders",
                    "lakehouse spec suggest kafka_default --topic orders",
                    "lakehouse spec suggest s3://landing/trips/2026-*/ --name trips --location s3://lake/trips",
                ),
            ),
            Command(
                "check",
                "suggest:check",
                _CHECK,
                [
                    Place("spec", "The table spec (YAML)."),
                    flag("--sample", "Read a sample of the files or the topic, and show its rows."),
                    value("--rows", "Maximum number of records that --sample reads.", type=Count(1), default=1000),
                    value("--files", "Maximum number of files that --sample reads.", type=Count(1), default=10),
                    value("--show", "Maximum number of rows, and of bad records, to show.", type=Count(1), default=10),
                    value("--input", "The name of the input, if the spec has several.", metavar="NAME"),
                    output(),
                ],
                examples=(
                    "lakehouse spec check orders.yaml",
                    "lakehouse spec check orders.yaml --sample --rows 10000",
                ),
            ),
        ],
    )
}
