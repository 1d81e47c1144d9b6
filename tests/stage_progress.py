"""A plugin of pytest for `make test`: writes the number of tests that ended, their sum and the current file.

It is loaded with `-p tests.stage_progress`, and writes one line of JSON to the file that the variable names. With
xdist only the process that distributes the tests writes.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any

import pytest

VARIABLE = "LAKEHOUSE_STAGE_PROGRESS"
#: The file is written at most this often, in seconds.
_PERIOD_S = 0.3


class StageProgress:
    """Counts the tests that ended."""

    def __init__(self, path: Path) -> None:
        self.path, self.total, self.file = path, 0, ""
        self._ended: set[str] = set()
        self._written = 0.0

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        """Take the tests of a run without workers."""
        self.total = max(self.total, len(session.items))

    @pytest.hookimpl(optionalhook=True)
    def pytest_xdist_node_collection_finished(self, node: Any, ids: Collection[str]) -> None:
        """Take the tests of a run with workers, which all collect the same ones."""
        del node
        self.total = max(self.total, len(ids))

    def pytest_runtest_logstart(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """Show the file of a test that starts."""
        del location
        self.file = nodeid.partition("::")[0]
        self._write()

    def pytest_runtest_logfinish(self, nodeid: str, location: tuple[str, int | None, str]) -> None:
        """Count a test that ended."""
        del location
        self._ended.add(nodeid)
        self._write(now=len(self._ended) == self.total)

    def _write(self, *, now: bool = False) -> None:
        if not now and time.monotonic() - self._written < _PERIOD_S:
            return
        self._written = time.monotonic()
        partial = self.path.with_name(f"{self.path.name}.tmp")
        partial.write_text(json.dumps({"done": len(self._ended), "total": self.total, "file": self.file}))
        partial.rename(self.path)


def pytest_configure(config: pytest.Config) -> None:
    """Register the plugin in the process that runs or distributes the tests."""
    path = os.environ.get(VARIABLE)
    if path and not hasattr(config, "workerinput"):
        config.pluginmanager.register(StageProgress(Path(path)), "stage-progress")
