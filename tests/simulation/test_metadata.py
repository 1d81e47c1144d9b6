"""Simulation of tables with a metadata table: its invariants hold, and planted bugs of it are found.

LAKEHOUSE_METADATA_SEEDS=5000 pytest tests/simulation/test_metadata.py       more runs than by default
"""

from __future__ import annotations

import logging
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest

from lakehouse.core.metadata.partitions.record_index import RECORD_INDEX
from lakehouse.core.metadata.read.validity import Validity
from lakehouse.core.metadata.write import rollback as metadata_rollback
from lakehouse.core.metadata.write.files import init_log_bytes
from lakehouse.core.operations.commit import completion
from lakehouse.core.operations.undo import rollback
from tests.simulation.run import Run, failure_in, failure_of

Patch = pytest.MonkeyPatch
SEEDS = int(os.environ.get("LAKEHOUSE_METADATA_SEEDS", "60"))
#: The maximum number of runs to find a bug.
MOST_SEEDS = 90


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)


def test_metadata_table_equals_the_files_in_random_runs() -> None:
    found = [(seed, failure_of(seed, metadata=True)) for seed in range(SEEDS)]
    failed = [(seed, failure[1]) for seed, failure in found if failure is not None]
    assert not failed, f"seeds {[seed for seed, _ in failed]}\n{failed[0][1]}"


@pytest.mark.parametrize("record_index", [False, True])
def test_metadata_table_of_version_6_equals_the_files_in_random_runs(record_index: bool) -> None:
    seeds = range(SEEDS // 6)
    found = [(seed, failure_of(seed, version=6, metadata=True, record_index=record_index)) for seed in seeds]
    failed = [(seed, failure[1]) for seed, failure in found if failure is not None]
    assert not failed, f"seeds {[seed for seed, _ in failed]}\n{failed[0][1]}"


def test_index_on_an_expression_equals_the_files_in_random_runs() -> None:
    found = [(seed, failure_of(seed, metadata=True, expression=True)) for seed in range(SEEDS // 6)]
    failed = [(seed, failure[1]) for seed, failure in found if failure is not None]
    assert not failed, f"seeds {[seed for seed, _ in failed]}\n{failed[0][1]}"


def test_record_index_equals_the_keys_in_random_runs() -> None:
    found = [(seed, failure_of(seed, metadata=True, record_index=True)) for seed in range(SEEDS // 6)]
    failed = [(seed, failure[1]) for seed, failure in found if failure is not None]
    assert not failed, f"seeds {[seed for seed, _ in failed]}\n{failed[0][1]}"


def test_write_whose_staged_index_records_were_not_deleted_is_reported_as_committed() -> None:
    run = Run(21, metadata=True, record_index=True)
    run.cast = ("write", "undo", "write")
    failure = failure_in(run)
    assert failure is None, failure[1]


#: 55: a temporary file of a crashed write counted as a file group. 199: statistics of a partition did not count the
#: nulls of new rows in log files whose rows lack columns. 38: a write that completed after a younger one lost its
#: statistics of a partition, because the row of the younger one replaced them.
REGRESSIONS = (55, 199, 38)


@pytest.mark.parametrize("seed", REGRESSIONS)
def test_metadata_table_equals_the_files_in_runs_that_failed_before(seed: int) -> None:
    failure = failure_of(seed, metadata=True)
    assert failure is None, failure[1]


def _metadata_after_data(patch: Patch) -> None:
    """Complete the action first, then record it: readers see data that the metadata table lacks."""

    def late(table: Any, action: Any, lock: Any) -> Any:
        done = table.store.complete(action.instant, action.timeline, action.data, lock)
        if action.change is not None:
            completion.commit_metadata(table.metadata, action.instant, action.change, action.timeline, lock)
        return done

    complete = completion.complete_action
    for module in _users(complete):
        patch.setattr(module, "complete_action", late)


def _users(function: Any) -> list[Any]:
    """Return the modules of the operations that imported a function by name."""

    name = function.__name__
    return [
        module
        for path, module in list(sys.modules.items())
        if path.startswith("lakehouse.core") and getattr(module, name, None) is function
    ]


def _one_commit_behind(patch: Patch) -> None:
    """Hide the newest completed action from readers of the metadata table."""
    is_valid = Validity.is_valid
    patch.setattr(
        Validity, "is_valid", lambda self, instant: is_valid(self, instant) and instant != max(self.written, default="")
    )


def _pending_is_valid(patch: Patch) -> None:
    """Show delta commits whose action is pending on the data timeline."""
    is_valid = Validity.is_valid
    patch.setattr(Validity, "is_valid", lambda self, instant: is_valid(replace(self, pending=frozenset()), instant))


def _rollback_leaves_metadata(patch: Patch) -> None:
    """Leave the records of an action that is rolled back."""
    patch.setattr(rollback, "_roll_back_metadata", lambda *_: None)


def _rollback_leaves_locations(patch: Patch) -> None:
    """Take back the listing and the statistics of an action that is rolled back, but not its record locations."""
    remove = metadata_rollback._remove

    def keep_locations(store: Any, recorded: Any, files: Any, names: Any) -> None:
        if not recorded.is_completed or RECORD_INDEX not in files:
            remove(store, recorded, files, names)
            return
        for path in (path for name, paths in files.items() if name != RECORD_INDEX for path in paths):
            store.inner.storage.put(path, init_log_bytes(recorded.requested))

    patch.setattr(metadata_rollback, "_remove", keep_locations)


_UNDO = ("write", "undo", "write")
#: Few runs roll back a write that recorded locations, or read between the commits of both timelines; the earlier seeds
#: do not.
_FIRST_SEED = {
    "a rollback leaves the record locations of the action": 40,
    "delta commits of pending actions are visible": 70,
}
#: The plant, the processes of a run (random ones if there are none), and whether the tables have a record index.
BUGS: dict[str, tuple[Callable[[Patch], None], tuple[str, ...], bool]] = {
    "the metadata table records an action after it is visible": (_metadata_after_data, (), False),
    "the listing is one commit behind": (_one_commit_behind, (), False),
    "delta commits of pending actions are visible": (_pending_is_valid, (), False),
    "a rollback leaves the records of the action": (_rollback_leaves_metadata, _UNDO, False),
    "a rollback leaves the record locations of the action": (_rollback_leaves_locations, _UNDO, True),
}


@pytest.mark.parametrize("name", BUGS)
def test_simulation_finds_every_planted_bug_of_the_metadata_table(name: str, monkeypatch: Patch) -> None:
    plant, cast, record_index = BUGS[name]

    def run_of(seed: int) -> Run:
        run = Run(seed, metadata=True, record_index=record_index)
        run.cast = cast
        return run

    for seed in range(_FIRST_SEED.get(name, 0), MOST_SEEDS):
        run = run_of(seed)
        with monkeypatch.context() as patch:
            plant(patch)
            found = failure_in(run)
        if found is not None:
            print(f"{name}: {found[0]} in the run of seed {seed}: {found[1][-300:]}")
            assert failure_in(run_of(seed)) is None, f"seed {seed} also fails without the bug"
            return
    pytest.fail(f"{name}: not found in {MOST_SEEDS} runs")
