"""`lakehouse table validate`: check the format's invariants, and report how to repair violations."""

from __future__ import annotations

import os

from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.table import open_table
from lakehouse.errors import CorruptTableError
from lakehouse.model.validation import KeyScope
from lakehouse.spark.session import job_session
from lakehouse.spec.contracts.tables import TableValidation


def validate(given: Given) -> int:
    """Validate a table and return the exit code. Under spark-submit, executors read the files."""
    submitted = (given.deep or given.keys == KeyScope.GLOBAL) and "PYSPARK_GATEWAY_PORT" in os.environ
    spark = job_session(f"lakehouse table validate {given.table[:100]}") if submitted else None
    table = open_table(given.table, given.option)
    report = table.validate(deep=given.deep, keys=given.keys, spark=spark)
    show_document(TableValidation.of(report), given.output)
    return CorruptTableError.exit_code if report.corrupt else 0
