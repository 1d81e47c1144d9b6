"""Upgrade and downgrade on an object store without rename: crashes and lost replies at the critical steps."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count

import pytest

from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import LakehouseError, RetryableError
from tests.property.test_version_change_crashes import CHANGES, SURVIVOR, Change, history, run, settled
from tests.support.killed import Rows, rows_of
from tests.support.s3 import S3Server

pytestmark = pytest.mark.s3
Copy = Callable[[], tuple[Storage, Rows]]
_numbers = count()
_traces: dict[Change, tuple[str, ...]] = {}
#: The critical steps by a part of their names; the step of the first match is taken.
STEPS = {
    "pending mark": ".hoodie/timeline/lakehouse.to_version|.hoodie/lakehouse.to_version",
    "archive": "timeline/history/|archived/.commits_",
    "copy of an instant": "commit",
    "switch": "replace_if .hoodie/hoodie.prop",
}


@pytest.fixture(params=CHANGES[:2], ids=str)
def change(request: pytest.FixtureRequest) -> Change:
    """A change between version 6 and the others."""
    chosen: Change = request.param
    return chosen


@pytest.fixture
def copy(change: Change, s3_server: S3Server) -> Copy:
    """Return a function that copies the table of the history to a new prefix of the bucket."""

    def copied() -> tuple[Storage, Rows]:
        storage, rows = history(change)
        target = open_storage(f"s3://{s3_server.bucket}/version-{next(_numbers)}", s3_server.options)
        for file in storage.list(""):
            if file.path == ".hoodie/lock":
                # The lock of the crashed write, which object stores do not use.
                continue
            target.put(file.path, storage.get(file.path))
        return target, rows

    return copied


def step_of(change: Change, copy: Copy, name: str) -> int:
    """Return the number of a critical step in the trace of a change on S3, where the lock is stored, too."""
    if change not in _traces:
        storage = FaultyStorage(copy()[0])
        run(storage, change)
        _traces[change] = tuple(storage.trace)
    parts = STEPS[name].split("|")
    steps = list(enumerate(_traces[change], start=1))
    begun = next(n for n, step in steps if "to_version" in step and "create" in step)
    steps = steps[begun - 1 :]
    writes = [pair for pair in steps if pair[1].split()[0] in ("create", "put", "replace_if")]
    return next(n for n, step in writes if any(part in step for part in parts))


@pytest.mark.parametrize("name", STEPS)
def test_next_run_completes_the_change_after_a_crash_on_s3(change: Change, copy: Copy, name: str) -> None:
    storage, rows = copy()
    with pytest.raises(SimulatedCrash):
        run(FaultyStorage(storage, step_of(change, copy, name), FaultMode.CRASH_AFTER), change)
    assert rows_of(storage) == rows
    run(storage, change, SURVIVOR)
    settled(storage, change, rows)


@pytest.mark.parametrize("name", ["pending mark", "switch"])
def test_lost_reply_on_s3_is_read_back_or_the_change_is_repeated(change: Change, copy: Copy, name: str) -> None:
    storage, rows = copy()
    try:
        run(FaultyStorage(storage, step_of(change, copy, name), FaultMode.LOSE_REPLY), change, SURVIVOR)
    except LakehouseError as error:
        assert isinstance(error, RetryableError)
        assert rows_of(storage) == rows
        run(storage, change, SURVIVOR)
    settled(storage, change, rows)
