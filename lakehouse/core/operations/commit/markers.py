"""Create and delete the markers of a write, in the driver.

The plan names the file groups, and the file names of the first try of each task follow from it. So one object holds the
markers of all first tries. Later tries of a task, and shards of bulk_insert, create their own markers
(`lakehouse.core.files.stage.markers`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lakehouse.core.files.stage.markers import MarkerBatch, create_marker, marker_directory
from lakehouse.core.format.file_names import MARKERS_TYPE
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.errors import LakehouseError
from lakehouse.spec.options.write import WritePolicy

#: An object among the markers of a write that lost a conflict: other writes then ignore its markers.
ABANDONED = "GIVEN_UP"
_WRITERS = 8
logger = logging.getLogger(__name__)


class WriteMarkers:
    """The markers of one write.

    Attributes:
        known: The marker objects that the driver created, with the names of the markers in each.
        left: The marker objects to delete when the write ends; the caller sets it.
    """

    def __init__(self, table: LoadedTable, requested: str, policy: WritePolicy) -> None:
        self.known: dict[str, tuple[str, ...]] = {}
        self.left: list[str] = []
        self._storage, self._requested, self._policy = table.env.storage, requested, policy

    def begin(self) -> None:
        """Store the marker type; call it before the first marker is created."""
        if not self._policy.marks_each_file:
            path = f"{marker_directory(self._requested)}/{MARKERS_TYPE}"
            # All processes write the same content.
            self._storage.put(path, self._policy.markers_type.encode())
            self.known[path] = ()

    def announce(self, names: Sequence[str], *, each: bool = False) -> None:
        """Create the markers of all first tries.

        With one marker file for each data file, the tasks create them, unless `each` is set.
        """
        self.begin()
        if not names:
            return
        storage = self._storage
        if not self._policy.marks_each_file:
            batch = MarkerBatch(storage, self._requested, 0)
            batch.write(names)
            assert batch.path is not None
            self.known[batch.path] = tuple(names)
        elif each:
            with ThreadPoolExecutor(_WRITERS) as pool:
                list(pool.map(lambda name: create_marker(storage, self._requested, name), names))
            self.known |= {f"{marker_directory(self._requested)}/{name}": (name,) for name in names}

    def withdraw(self) -> None:
        """Delete the announced markers of tasks that did not run or wrote no file."""
        # Delete the object with the marker type last: without it, Hudi would ignore the other markers.
        delete_leftovers(self._storage, [*reversed(self.known)])
        self.known = {}

    def give_up(self) -> None:
        """Record that the write lost a conflict, so that other writes do not abort because of its markers."""
        if self.known:
            path = f"{marker_directory(self._requested)}/{ABANDONED}"
            try:
                self._storage.put(path, b"")
            except LakehouseError as error:
                logger.warning("%s: the markers of %s stay valid: %s", self._storage.root, self._requested, error)
