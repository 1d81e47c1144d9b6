"""Services of another process while a failed write is rolled back."""

from __future__ import annotations

from contextlib import suppress

import pytest

from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import RetryableError
from tests.property.test_version_change_crashes import LOST, NO_WAIT, SURVIVOR, THIRD, history
from tests.support.archived import eager
from tests.support.killed import RECOVERY, Interrupted, batch, copy_of, open_as, rows_of

#: A merge-on-read table, with log files of a write that crashed, and its version.
TABLES = (("MERGE_ON_READ", 6, 9), ("MERGE_ON_READ", 9, 6))


@pytest.mark.parametrize("table", TABLES, ids=lambda table: f"version-{table[1]}")
def test_archive_keeps_the_logs_that_a_running_rollback_records(
    table: tuple[str, int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    original, rows = history(table)
    steps = FaultyStorage(copy_of(original))
    open_as(steps, SURVIVOR, [LOST]).rollback_failed()
    # The write is not on the timeline any more, and the rollback is not complete.
    first = next(n for n, name in enumerate(steps.trace, start=1) if "delete" in name and ".inflight" in name)
    last = next(n for n, name in enumerate(steps.trace, start=1) if "create" in name and name.endswith(".rollback"))
    assert first < last
    for number in range(first, last + 2, 4):
        storage = copy_of(original)

        def rival(_: Storage, copied: Storage = storage) -> None:
            # It begins with a cleanup after ended writes, before it needs the lock.
            with suppress(RetryableError):
                eager(open_as(copied, THIRD, [LOST]), **NO_WAIT).services.archive.run(force=True)

        open_as(Interrupted(storage, number, rival, monkeypatch), SURVIVOR, [LOST]).rollback_failed()
        assert rows_of(storage) == rows, steps.trace[number - 1]
        open_as(storage, THIRD, [LOST, SURVIVOR]).upsert(batch(RECOVERY))
        assert rows_of(storage) == {**rows, **RECOVERY}
        assert open_as(storage, THIRD, [LOST, SURVIVOR]).validate(deep=True).findings == ()
