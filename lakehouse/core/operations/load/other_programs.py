"""Detect whether programs other than this package write a table."""

from __future__ import annotations

from lakehouse.core.format.avro.object_file import is_own_record
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.state.table_config import INITIAL_VERSION
from lakehouse.model.instant import State


def other_program(table: LoadedTable) -> str | None:
    """Return the evidence in the timeline or the properties that another program writes the table, or None.

    Reads the completed instants of the active timeline until it reaches one that another program wrote.
    """
    if table.config.is_upgraded:
        return "Apache Hudi created and upgraded the table"
    if INITIAL_VERSION not in table.config.raw:
        return f"the table has no property {INITIAL_VERSION}, so another program created it"
    for instant in table.timeline.where(state=State.COMPLETED):
        data = table.store.read(instant, State.COMPLETED)
        if data and not is_own_record(data):
            return f"another program wrote the {instant.action} {instant.requested}"
    return None
