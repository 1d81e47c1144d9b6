"""The markers of a write as its driver sees them: announced before the tasks run, gone when the write is over.

A plan tells which groups are written, and the first try of each task has a name that all know beforehand, so one object
names the files of all first tries. Only tries that come after a failure, and shards whose files no plan knows, name
their files themselves (`lakehouse.core.files.markers`).
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from lakehouse.core.files.markers import MarkerBatch, create_marker, marker_directory
from lakehouse.core.format.file_names import MARKERS_TYPE
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.errors import LakehouseError
from lakehouse.spec.options.write import WritePolicy

#: The object, beside its markers, by which a write says that it lost and excludes nobody any more.
GIVEN_UP = "GIVEN_UP"
_WRITERS = 8
logger = logging.getLogger(__name__)


class WriteMarkers:
    """The markers of one write. `known` are the objects that the driver made, each with the markers it holds.

    `left` are those that go when the write is over, whoever made them; it is the caller's to fill.
    """

    def __init__(self, table: LoadedTable, requested: str, policy: WritePolicy) -> None:
        self.known: dict[str, tuple[str, ...]] = {}
        self.left: list[str] = []
        self._storage, self._requested, self._policy = table.env.storage, requested, policy

    def begin(self) -> None:
        """Say how the files are marked; call before any of them is."""
        if not self._policy.marks_each_file:
            path = f"{marker_directory(self._requested)}/{MARKERS_TYPE}"
            # All who write this object write the same.
            self._storage.put(path, self._policy.markers_type.encode())
            self.known[path] = ()

    def announce(self, names: Sequence[str], *, each: bool = False) -> None:
        """Name the files of all first tries. Where each file has its own marker, the tasks do that, unless `each`."""
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
        """Take back what was announced, of tasks that never ran or made nothing; other tries may have named more."""
        # The type goes last: without it Hudi would overlook the others.
        delete_leftovers(self._storage, [*reversed(self.known)])
        self.known = {}

    def give_up(self) -> None:
        """Say that the write has lost: its files are there until it is rolled back, but nobody gives way to it."""
        if self.known:
            path = f"{marker_directory(self._requested)}/{GIVEN_UP}"
            try:
                self._storage.put(path, b"")
            except LakehouseError as error:
                logger.warning("%s: %s did not say that it lost: %s", self._storage.root, self._requested, error)
