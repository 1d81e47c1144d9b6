"""Eight writers, services and readers on one table for a few seconds, and somebody is killed every second or so.

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
def test_many_processes_that_die_and_come_back_leave_one_history(kind: str, tmp_path: Path) -> None:
    # `make reliability` reports and judges the time of a recovery: here other tests share the machine.
    told = soak(kind, SECONDS, tmp_path, seed=7)
    assert told.violations == []
    assert told.commits > 5 and told.reads > 5 and told.kills
    assert told.settled >= told.conflicts // 2
