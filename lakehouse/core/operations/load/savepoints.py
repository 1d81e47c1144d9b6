"""Read the savepoints of a table (TL-4.8)."""

from __future__ import annotations

from lakehouse.core.format.timeline.restore import decode_savepoint
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.model.instant import Action, State
from lakehouse.model.restore import Savepoint


def savepoints(table: LoadedTable) -> tuple[Savepoint, ...]:
    """Return the completed savepoints, oldest commit first."""
    names = []
    for instant in table.timeline.where(action=Action.SAVEPOINT, state=State.COMPLETED):
        data = table.store.read(instant, State.COMPLETED)
        if data is not None:
            names.append(Savepoint(instant=instant, metadata=decode_savepoint(data)))
    return tuple(names)


def savepointed_paths(table: LoadedTable) -> frozenset[str]:
    """Return the paths of all files that savepoints keep."""
    return frozenset(
        f"{partition}/{name}" if partition else name
        for savepoint in savepoints(table)
        for partition, names in savepoint.metadata.files.items()
        for name in names
    )
