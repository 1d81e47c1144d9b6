"""Compaction: Hudi and lakehouse execute plans of each other and read the compacted tables."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.table.table import Table
from lakehouse.model.instant import Action, Instant
from tests.interop.agreement import assert_hudi_reads_the_same, assert_same
from tests.interop.mor_tables import (
    BUCKETS_BEGIN_IN_LOGS,
    HUDI_OPTIONS,
    ORDERED,
    PARQUET_LOGS,
    Kind,
    assert_same_read_optimized,
    blocks,
    create,
    inserted,
    values,
)
from tests.support.hudi import Hudi
from tests.support.tables import DELETED, batch, row

pytestmark = pytest.mark.jvm

KINDS = {"simple": Kind(), "bucket": Kind(options=BUCKETS_BEGIN_IN_LOGS)}
NO_METADATA_TABLE = {"hoodie__metadata__enable": "false"}
SHORT_LOGS = {"hoodie.log.compaction.blocks.threshold": "2"}
LOG_COMPACTION = SHORT_LOGS | {"hoodie.log.compaction.inline": "true", "hoodie.log.compaction.enable": "true"}


def call(hudi: Hudi, table: Table, arguments: str) -> list[str]:
    """Run Hudi's compaction procedure and return the states of its plans."""
    text = f"CALL run_compaction(path => '{table.location}', {arguments})"
    states: list[str] = hudi.query(text, **NO_METADATA_TABLE).column("state").to_pylist()
    return states


def compactions(table: Table) -> list[Instant]:
    """Return the pending compactions."""
    return list(table.timeline.where(action=Action.COMPACTION, pending=True))


@pytest.mark.parametrize("name", KINDS)
def test_hudi_and_lakehouse_execute_compaction_plans_of_each_other(name: str, hudi: Hudi, tmp_path: Path) -> None:
    table, first = create(KINDS[name], tmp_path), inserted()
    table.upsert(batch(first))
    table.upsert(batch([first[0] | {"ts": 6, "v": "later"}, first[1] | {"ts": 9, DELETED: True}]))
    table.delete(batch([first[2]]).select(["id", "p"]))
    plan = table.services.compaction.schedule(force=True)
    assert isinstance(plan, Instant)
    table.upsert(batch([first[0] | {"ts": 7, "v": "meanwhile"}, first[4] | {"ts": 7, "v": "meanwhile"}]))
    before = table.scan().to_arrow()
    assert call(hudi, table, f"op => 'run', timestamp => {plan.requested}") == ["COMPLETED"]
    assert compactions(table) == []
    assert_same(before, table.scan().to_arrow())
    assert_hudi_reads_the_same(hudi, table)
    assert_same_read_optimized(hudi, table)

    table.upsert(batch([first[5] | {"ts": 7, "v": "after"}]))
    options = "options => 'hoodie.compact.inline.max.delta.commits=1'"
    assert call(hudi, table, f"op => 'schedule', {options}") == ["REQUESTED"]
    (theirs,) = compactions(table)
    table.upsert(batch([first[5] | {"ts": 8, "v": "while it waits"}, first[8] | {"ts": 8, "v": "while it waits"}]))
    before = table.scan().to_arrow()
    done = table.services.compaction.run()
    assert isinstance(done, Committed) and done.instant.requested == theirs.requested
    assert_same(before, table.scan().to_arrow())
    assert_hudi_reads_the_same(hudi, table)
    assert_same_read_optimized(hudi, table)
    assert values(table) == {r["id"]: r["v"] for r in first if r["id"] not in ("k1", "k2")} | {
        **{"k0": "meanwhile", "k4": "meanwhile"},
        **{"k5": "while it waits", "k8": "while it waits"},
    }


@pytest.fixture(params=["avro", "parquet"])
def logs_of_hudi(request: pytest.FixtureRequest, hudi: Hudi, tmp_path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Return a table of Hudi with log files from Hudi's log compaction, and the options of its writer."""
    location = str(tmp_path / "table")
    options = HUDI_OPTIONS | ORDERED | (PARQUET_LOGS if request.param == "parquet" else {})
    first = inserted()
    hudi.write(location, batch(first), options, mode="overwrite")
    for turn in range(4):
        rows = [first[0] | {"ts": 6 + turn, "v": f"turn {turn}"}, first[1] | {"ts": 4 - turn, "v": "late"}]
        gone = first[2 + turn] | {"ts": 7, DELETED: turn < 2, "v": "flag"}
        hudi.write(location, batch([*rows, gone]), options | (LOG_COMPACTION if turn == 2 else {}))
    yield location, options


def test_hudi_and_lakehouse_compact_log_files_of_each_other(
    logs_of_hudi: tuple[str, dict[str, str]], hudi: Hudi
) -> None:
    location, options = logs_of_hudi
    table, first = Table.open(location, options=SHORT_LOGS), inserted()
    expected = {r["id"]: r["v"] for r in first if r["id"] not in ("k2", "k3")} | {
        **{"k0": "turn 3", "k4": "flag", "k5": "flag"}
    }
    assert sum(bool(block.compacted) for block in blocks(table)) == 2
    assert values(table) == expected
    assert_hudi_reads_the_same(hudi, table, past=True)

    table.upsert(batch([first[0] | {"ts": 20, "v": "ours"}, first[3] | {"ts": 20, "v": "back"}]))
    assert isinstance(table.services.log_compaction.run(), Committed)
    expected |= {"k0": "ours", "k3": "back"}
    assert values(table) == expected
    assert_hudi_reads_the_same(hudi, table)

    again = LOG_COMPACTION | {"hoodie.log.compaction.blocks.threshold": "1"}
    hudi.write(location, batch([first[1] | {"ts": 9, "v": "theirs"}, row("n1", v="theirs")]), options | again)
    expected |= {"k1": "theirs", "n1": "theirs"}
    assert values(table) == expected
    assert_hudi_reads_the_same(hudi, table)
    table.services.compaction.run(force=True)
    assert values(table) == expected
    assert_hudi_reads_the_same(hudi, table)
    assert_same_read_optimized(hudi, table)
