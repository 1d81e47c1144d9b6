"""An observer of progress that counts, for tests."""

from __future__ import annotations

import threading
from collections import Counter

from lakehouse.core.engine.progress import Stage


class CountingObserver:
    """Counts the calls of an observer; `ended` maps the name of a stage to whether it failed."""

    def __init__(self) -> None:
        self.stages: list[Stage] = []
        self.units: Counter[str] = Counter()
        self.sizes: Counter[str] = Counter()
        self.calls: Counter[str] = Counter()
        self.ended_stages: dict[str, bool] = {}
        self._lock = threading.Lock()

    def started(self, stage: Stage) -> None:
        """Note a stage."""
        with self._lock:
            self.stages.append(stage)

    def advanced(self, stage: Stage, units: int, size: int) -> None:
        """Count units and bytes."""
        with self._lock:
            assert stage.name not in self.ended_stages, "a stage advanced after its end"
            self.units[stage.name] += units
            self.sizes[stage.name] += size
            self.calls[stage.name] += 1

    def ended(self, stage: Stage, *, failed: bool) -> None:
        """Note the end."""
        with self._lock:
            assert stage.name not in self.ended_stages, "a stage ended twice"
            self.ended_stages[stage.name] = failed

    def assert_complete(self, *names: str) -> None:
        """Assert that exactly these stages ran, and that each reported all its units and bytes once."""
        assert [stage.name for stage in self.stages] == list(names)
        assert self.ended_stages == dict.fromkeys(names, False)
        for stage in self.stages:
            assert self.units[stage.name] == stage.total > 0
            assert self.sizes[stage.name] == stage.total_bytes
