"""Short soak test: eight writers, services and readers on one table, one of them killed every few seconds.

LAKEHOUSE_SOAK_S=600 pytest tests/reliability     longer; `make reliability` runs it with a report
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.reliability.actors import KINDS
from tests.reliability.soak import soak

SECONDS = float(os.environ.get("LAKEHOUSE_SOAK_S", "8"))


@pytest.mark.parametrize("kind", KINDS)
def test_killed_and_restarted_processes_leave_a_consistent_history(kind: str, tmp_path: Path) -> None:
    # `make reliability` reports and judges the time of a recovery: here other tests share the machine.
    result = soak(kind, SECONDS, tmp_path, seed=7)
    assert result.violations == []
    assert result.commits > 5 and result.reads > 5 and result.kills
    assert result.settled >= result.conflicts // 2
