"""Write the progress of a run to the catalog for the page Queue: the stage and its finished units."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any

from lakehouse.core.engine.progress import Stage
from lakehouse.core.system.clock import Clock
from lakehouse.errors import LakehouseError

logger = logging.getLogger(__name__)
#: Maximum age of the progress on a page; a run does not write more often.
EVERY_MS = 10_000


class RecordedProgress:
    """Observer that writes the newest stage when it begins, and then at most every ten seconds.

    After an error of the catalog, which is logged, it writes no more: progress is only informative.
    """

    def __init__(self, write: Callable[[Mapping[str, Any]], None], clock: Clock) -> None:
        self._write, self._clock = write, clock
        self._lock = threading.Lock()
        self._done: dict[int, int] = {}
        self._written_ms = 0
        self._is_off = False

    def started(self, stage: Stage) -> None:
        """Write that a stage begins."""
        with self._lock:
            self._done[id(stage)] = 0
            self._record(stage)

    def advanced(self, stage: Stage, units: int, size: int) -> None:
        """Count units, and write the number if the last write is old."""
        del size
        with self._lock:
            self._done[id(stage)] = self._done.get(id(stage), 0) + units
            if self._clock.now_ms() - self._written_ms >= EVERY_MS:
                self._record(stage)

    def ended(self, stage: Stage, *, failed: bool) -> None:
        """Remove a stage."""
        del failed
        with self._lock:
            self._done.pop(id(stage), None)

    def _record(self, stage: Stage) -> None:
        if self._is_off:
            return
        self._written_ms = self._clock.now_ms()
        done = {"stage": stage.name, "unit": stage.unit, "done": self._done[id(stage)], "total": stage.total}
        try:
            self._write(done)
        except LakehouseError as error:
            self._is_off = True
            logger.warning("%s: the progress of the run is not written any more: %s", stage.table, error)
