"""Commands that pages in Airflow's UI run: `lakehouse timeline bars | instant` and `lakehouse table files`."""

from __future__ import annotations

from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.cli.table import open_table
from lakehouse.spec.contracts.document import encode


def bars(given: Given) -> None:
    """Print the instants of a table as columns."""
    document = open_table(given.table).inspection.bars(archived=given.archived)
    columns = zip(document.instants, document.actions, document.states, strict=True)
    rows = [{"instant": instant, "action": action, "state": state} for instant, action, state in columns]
    show_document(document, given.output, rows=rows)


def instant(given: Given) -> None:
    """Print one instant with its decoded plan or commit."""
    show_document(open_table(given.table).inspection.instant(given.instant), given.output)


def files(given: Given) -> None:
    """Print one page of the file groups of a table."""
    inspection = open_table(given.table).inspection
    document = inspection.files(given.partition, offset=given.offset, limit=given.limit)
    show_document(document, given.output, rows=[encode(group) for group in document.groups])
