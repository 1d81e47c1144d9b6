"""A wide table: several processes each write some of its columns while compactions are scheduled and executed."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError
from lakehouse.model.instant import Action
from tests.support.processes import forked

WRITERS, COLUMNS_EACH, ROUNDS, KEYS = 8, 25, 4, 60
PARTITIONS = ("p0", "p1")
OPTIONS = {
    "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
    "lakehouse.write.partial.update": "true",
}


def columns_of(writer: int) -> list[str]:
    """Return the columns of a writer."""
    return [f"c{writer * COLUMNS_EACH + number:03d}" for number in range(COLUMNS_EACH)]


def keys_of(round_: int) -> list[int]:
    """Return the keys of a round; each round updates half of the keys of the previous round and adds new ones."""
    return list(range(round_ * KEYS // 2, round_ * KEYS // 2 + KEYS))


def value_of(writer: int, round_: int, key: int) -> int:
    """Return the value that a writer writes for a key in a round."""
    return (writer * 100 + round_) * 1_000 + key


def write(location: str, writer: int) -> int:
    """Write all rounds of one writer; the function of a separate process. Return the number of commits."""
    table = Table.open(location, options=OPTIONS)
    for round_ in range(ROUNDS):
        keys = keys_of(round_)
        values = pa.array([value_of(writer, round_, key) for key in keys], pa.int64())
        columns = dict.fromkeys(columns_of(writer), values)
        partitions = [PARTITIONS[key % 2] for key in keys]
        table.upsert(pa.table({"id": [f"k{key:04d}" for key in keys], "p": partitions, **columns}))
    return ROUNDS


def compact(location: str, rounds: int) -> int:
    """Schedule and execute compactions concurrently with the writers; return the number of completed ones."""
    table, done = Table.open(location), 0
    for _ in range(rounds):
        try:
            table.services.compaction.schedule(force=True)
            table.services.compaction.run()
            done += 1
        except RetryableError as error:
            assert "lock" in str(error), error
    return done


@pytest.mark.parametrize("new_columns", [False, True], ids=["declared columns", "columns that writers add"])
def test_eight_processes_that_write_different_columns_lose_no_value(tmp_path: Path, new_columns: bool) -> None:
    location = str(tmp_path / "wide")
    table = Table.create(
        location,
        name="wide",
        record_key=["id"],
        partition_by=["p"],
        table_type="MERGE_ON_READ",
        options={"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"},
    )
    names = [name for writer in range(WRITERS) for name in columns_of(writer)]
    declared = {} if new_columns else {name: pa.array([0], pa.int64()) for name in names}
    table.upsert(pa.table({"id": ["first"], "p": ["p0"], **declared}))
    # The fork server has imported this module. A fork of this process would inherit locks that its threads hold.
    context = forked()
    with ProcessPoolExecutor(WRITERS + 1, mp_context=context) as pool:
        writers = [pool.submit(write, location, writer) for writer in range(WRITERS)]
        compactor = pool.submit(compact, location, ROUNDS)
        assert [running.result(timeout=300) for running in writers] == [ROUNDS] * WRITERS
        assert compactor.result(timeout=300) >= 1
    table = Table.open(location)
    for compacted in (False, True):
        if compacted:
            table.services.compaction.run(force=True)
        check(table, names)
    actions = [instant.action for instant, _ in table.commits()]
    assert actions.count(Action.DELTACOMMIT) == 1 + WRITERS * ROUNDS
    assert not list(table.refresh().timeline.where(pending=True))
    assert not list(table.refresh().timeline.where(action=Action.ROLLBACK))


def check(table: Table, names: list[str]) -> None:
    """Check that each value is the last one that its writer wrote for the key."""
    rows = table.scan(where="id != 'first'", columns=["id", *names]).to_arrow().sort_by("id")
    last = {key: round_ for round_ in range(ROUNDS) for key in keys_of(round_)}
    assert rows.column("id").to_pylist() == [f"k{key:04d}" for key in sorted(last)]
    for writer in range(WRITERS):
        expected = pa.array([value_of(writer, last[key], key) for key in sorted(last)], pa.int64())
        for name in columns_of(writer):
            assert pc.all(pc.equal(rows.column(name), expected)).as_py(), (name, rows.column(name).null_count)
