"""`lakehouse index filters`: bloom filters in file footers. Under spark-submit, executors read and write them."""

from __future__ import annotations

import os
from typing import Any

from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.table import open_table
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.spark.session import job_session
from lakehouse.spec.contracts.services import BuiltFilters, FilesWithoutFilter


def check(given: Given) -> None:
    """Print the base files without a bloom filter."""
    spark = _session("check", given.table)
    files = open_table(given.table, given.option).services.bloom_filters.due(spark=spark).files
    show_document(FilesWithoutFilter(count=len(files), files=tuple(files)), given.output)


def build(given: Given) -> None:
    """Add missing bloom filters to base files."""
    spark = _session("build", given.table)
    outcome = open_table(given.table, given.option).services.bloom_filters.run(spark=spark)
    if isinstance(outcome, NothingToDo):
        result = BuiltFilters(built_files=0, reason=outcome.reason)
    else:
        result = BuiltFilters(built_files=len(outcome.metadata.stats), instant=outcome.instant.requested)
    show_document(result, given.output)


def _session(verb: str, table: str) -> Any:
    return (
        job_session(f"lakehouse index filters {verb} {table[:100]}") if "PYSPARK_GATEWAY_PORT" in os.environ else None
    )
