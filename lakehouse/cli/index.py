"""`lakehouse index list | create | drop`. Under spark-submit, executors read the rows."""

from __future__ import annotations

import os

from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.table import open_table
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.errors import UserError
from lakehouse.spark.session import job_session
from lakehouse.spec.contracts.services import CreatedIndex, DroppedIndexDocument


def list_indexes(given: Given) -> None:
    """Print the indexes of a table."""
    document = open_table(given.table, given.option).inspection.indexes()
    rows = [
        {
            "name": index.name,
            "kind": index.kind,
            "state": index.state.replace("_", " "),
            "column": index.expression or index.columns,
            "bytes": index.bytes,
            "reason": index.reason,
        }
        for index in document.indexes
    ]
    show_document(document, given.output, rows=rows)


def create(given: Given) -> None:
    """Declare an index and build it. With `--defer`, the next run of the index service builds it."""
    if bool(given.column) == bool(given.expression):
        raise UserError("lakehouse index create needs either --column or --expression")
    if given.name and given.expression:
        raise UserError("--name is only for a secondary index; --expression contains the name of its index")
    services = open_table(given.table, given.option).services
    if given.column:
        index = services.create_index(given.column, name=given.name)
    else:
        index = services.create_expression_index(given.expression)
    made = {"partition": index.partition, "kind": index.kind, "column": index.column, "function": index.function}
    if given.defer:
        show_document(CreatedIndex(**made, reason="the next run of the service builds it"), given.output)
        return
    under_submit = "PYSPARK_GATEWAY_PORT" in os.environ
    spark = job_session(f"lakehouse index create {given.table[:100]}") if under_submit else None
    outcome = open_table(given.table, given.option).services.index.run(spark=spark)
    if isinstance(outcome, NothingToDo):
        document = CreatedIndex(**made, reason=outcome.reason)
    else:
        document = CreatedIndex(**made, instant=outcome.instant.requested)
    show_document(document, given.output)


def drop(given: Given) -> None:
    """Drop an index."""
    dropped = open_table(given.table, given.option).services.drop_index(given.index)
    show_document(DroppedIndexDocument(partitions=dropped.partitions, plans=dropped.plans), given.output)
