"""`lakehouse metadata show | validate | rebuild`. Under spark-submit, executors read the files."""

from __future__ import annotations

import os
from typing import Any

from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.table import open_table
from lakehouse.errors import CorruptTableError
from lakehouse.spark.session import job_session
from lakehouse.spec.contracts.document import mirror
from lakehouse.spec.contracts.metadata import MetadataDescription, MetadataRebuild, MetadataValidation


def show(given: Given) -> None:
    """Print the partitions of the metadata table, and which of them readers use."""
    document = MetadataDescription.of(open_table(given.table, given.option).metadata.show())
    show_document(document, given.output)


def validate(given: Given) -> int:
    """Compare the metadata table with the files of the table and return the exit code."""
    spark = _session("validate", given.table)
    report = open_table(given.table, given.option).metadata.validate(spark=spark)
    show_document(MetadataValidation.of(report), given.output)
    return 0 if report.ok else CorruptTableError.exit_code


def rebuild(given: Given) -> None:
    """Drop the metadata table and build it again."""
    spark = _session("rebuild", given.table)
    rebuilt = open_table(given.table, given.option).metadata.rebuild(spark=spark)
    document = mirror(MetadataRebuild, rebuilt, undecided=len(rebuilt.undecided))
    show_document(document, given.output)


def _session(verb: str, table: str) -> Any:
    if "PYSPARK_GATEWAY_PORT" not in os.environ:
        return None
    return job_session(f"lakehouse metadata {verb} {table[:100]}")
