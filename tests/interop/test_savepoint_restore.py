"""Savepoints, restores and rollbacks: Hudi and lakehouse read, use and finish those of each other."""

from __future__ import annotations

import io
import shutil
from pathlib import Path
from typing import Any

import fastavro
import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.timeline.restore import decode_restore_metadata, decode_restore_plan
from lakehouse.core.format.timeline.schemas import RESTORE_METADATA, RESTORE_PLAN, SAVEPOINT_METADATA
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.undo.restore import Restored
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.model.instant import Action, Instant, State
from lakehouse.model.restore import Savepoint
from tests.interop.agreement import assert_hudi_reads_the_same
from tests.interop.mor_tables import HUDI_OPTIONS, ORDERED, PARTITIONED
from tests.interop.test_writes_to_hudi_tables import values
from tests.support.hudi import Hudi
from tests.support.tables import Shape, base_files, batch, log_files, make_table, row

pytestmark = pytest.mark.jvm

TYPES = ("COPY_ON_WRITE", "MERGE_ON_READ")
ALONE = {"hoodie__metadata__enable": "false"}
HUDI_UPSERT = {
    "hoodie.table.name": "events",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.metadata.enable": "false",
    "hoodie.compact.inline": "false",
    "hoodie.clean.automatic": "false",
}


def call(hudi: Hudi, table: Table, procedure: str, **arguments: str) -> list[dict[str, Any]]:
    """Run a procedure of Hudi on a table and return its result rows."""
    named = "".join(f", {name} => '{value}'" for name, value in arguments.items())
    rows: list[dict[str, Any]] = hudi.query(f"CALL {procedure}(path => '{table.location}'{named})", **ALONE).to_pylist()
    return rows


def ours(kind: str, directory: Path) -> Table:
    return make_table(Shape(type=kind), env=Env(storage=open_storage(str(directory / "table"))))


def theirs(kind: str, hudi: Hudi, directory: Path) -> Table:
    options = HUDI_OPTIONS | ORDERED | PARTITIONED | {"hoodie.datasource.write.table.type": kind}
    location = str(directory / "table")
    hudi.write(location, batch([row(f"k{i}", p="ab"[i % 2], v="0") for i in range(6)]), options, mode="overwrite")
    return Table.open(location)


def write_history(table: Table, hudi: Hudi, *, begin: int = 1) -> list[tuple[str, dict[str, str | None]]]:
    """Write with Hudi and lakehouse in turn, with a compaction; return each instant with the values after it."""
    logged = table.config.is_merge_on_read
    states = [(instant.requested, values(table)) for instant, _ in table.commits()]
    for number in range(begin, begin + 4):
        rows = batch([row("k0", p="a", ts=number, v=str(number)), row(f"n{number}", p="bc"[number % 2], v=str(number))])
        if number % 2:
            table.upsert(rows)
        else:
            hudi.write(table.location, rows, HUDI_UPSERT | {"hoodie.table.name": table.name})
        states.append((table.commits()[-1][0].requested, values(table)))
        if logged and number == begin + 1:
            compacted = table.services.compaction.run(force=True)
            assert isinstance(compacted, Committed)
            states.append((compacted.instant.requested, values(table)))
    table.insert_overwrite(batch([row("o1", p="a", v="overwritten")]))
    states.append((table.commits()[-1][0].requested, values(table)))
    return states


def assert_no_leftovers(table: Table) -> None:
    """Assert that all data files belong to completed instants, and that no instant is pending."""
    storage, known = table.refresh().env.storage, {instant.requested for instant, _ in table.commits()}
    assert {file.instant for file in (*base_files(storage), *log_files(storage))} <= known
    assert not table.timeline.where(pending=True)


def assert_usable(table: Table, hudi: Hudi, expected: dict[str, str | None]) -> None:
    """Assert that the table has the expected rows, and that Hudi and lakehouse read and write it."""
    assert values(table) == expected
    assert_no_leftovers(table)
    assert_hudi_reads_the_same(hudi, table)
    table.upsert(batch([row("k1", p="b", ts=70, v="ours after")]))
    hudi.write(
        table.location,
        batch([row("k2", p="a", ts=71, v="theirs after")]),
        HUDI_UPSERT | {"hoodie.table.name": table.name},
    )
    assert values(table) == expected | {"k1": "ours after", "k2": "theirs after"}
    if table.config.is_merge_on_read:
        assert isinstance(table.services.compaction.run(force=True), Committed)
    assert_hudi_reads_the_same(hudi, table)


def schema_in(table: Table, instant: Instant, state: State) -> dict[str, Any]:
    """Return the Avro schema in a timeline file, without the defaults that Java repeats within arrays."""
    data = table.refresh().store.read(instant, state)
    assert data
    written: Any = fastavro.reader(io.BytesIO(data)).writer_schema
    return plain(written)


def plain(schema: Any) -> Any:
    """Return a schema in a normalized form: short names, no default next to `items`, no keys added by fastavro."""
    if isinstance(schema, list):
        return [plain(part) for part in schema]
    if not isinstance(schema, dict):
        return schema.rpartition(".")[2] if isinstance(schema, str) else schema
    noted = {"namespace", "__fastavro_parsed__", "__named_schemas"}
    kept = {k: plain(v) for k, v in schema.items() if k not in noted and not (k == "default" and "items" in schema)}
    if "name" in kept and isinstance(kept["name"], str):
        kept["name"] = kept["name"].rpartition(".")[2]
    return kept


@pytest.mark.parametrize("kind", TYPES)
def test_hudi_lists_keeps_and_restores_a_savepoint_of_lakehouse(kind: str, hudi: Hudi, tmp_path: Path) -> None:
    table = ours(kind, tmp_path)
    table.upsert(batch([row(f"k{i}", p="ab"[i % 2], v="0") for i in range(6)]))
    states = write_history(table, hudi)
    kept, rows = states[2]
    made = table.savepoint(kept, user="ann", comment="ours")
    assert isinstance(made, Savepoint)
    assert [found["savepoint_time"] for found in call(hudi, table, "show_savepoints")] == [kept]
    hudi.sql("CALL run_clean(table => '{table}', retain_commits => 1)", table=table.location, **ALONE)
    call(hudi, table, "rollback_to_savepoint", instant_time=kept)
    assert [instant.requested for instant, _ in table.commits()] == [requested for requested, _ in states[:3]]
    assert_usable(table, hudi, rows)
    table.delete_savepoint(kept)
    assert call(hudi, table, "show_savepoints") == []


@pytest.mark.parametrize("kind", TYPES)
def test_hudi_reads_and_writes_after_a_restore_of_lakehouse(kind: str, hudi: Hudi, tmp_path: Path) -> None:
    table = ours(kind, tmp_path)
    table.upsert(batch([row(f"k{i}", p="ab"[i % 2], v="0") for i in range(6)]))
    states = write_history(table, hudi)
    kept, rows = states[1]
    table.savepoint(kept)
    assert isinstance(table.restore(kept), Restored)
    assert_usable(table, hudi, rows)
    call(hudi, table, "rollback_to_savepoint", instant_time=kept)
    assert values(table) == rows
    assert_hudi_reads_the_same(hudi, table)


@pytest.mark.parametrize("kind", TYPES)
def test_lakehouse_reads_and_restores_a_savepoint_of_hudi(kind: str, hudi: Hudi, tmp_path: Path) -> None:
    table = theirs(kind, hudi, tmp_path)
    states = write_history(table, hudi)
    kept, rows = states[3]
    would = table.savepoint(kept, dry_run=True)
    call(hudi, table, "create_savepoint", commit_time=kept, user="bob", comments="theirs")
    (found,) = table.savepoints()
    assert (found.requested, found.metadata.user, found.metadata.comment) == (kept, "bob", "theirs")
    assert isinstance(would, Savepoint)
    theirs_kept = {partition: set(names) for partition, names in found.metadata.files.items() if names}
    for partition, names in would.metadata.files.items():
        assert set(names) <= theirs_kept[partition], (
            "Hudi's savepoint keeps all files that a restore of lakehouse needs"
        )
    assert schema_in(table, found.instant, State.COMPLETED) == plain(SAVEPOINT_METADATA)
    assert isinstance(table.restore(kept), Restored)
    assert_usable(table, hudi, rows)


@pytest.mark.parametrize("kind", TYPES)
def test_restore_plans_and_records_the_same_as_hudi(kind: str, hudi: Hudi, tmp_path: Path) -> None:
    table = ours(kind, tmp_path)
    table.upsert(batch([row(f"k{i}", p="ab"[i % 2], v="0") for i in range(6)]))
    kept = write_history(table, hudi)[1][0]
    if table.config.is_merge_on_read:
        table.services.compaction.schedule(force=True)
    table.savepoint(kept)
    would = table.restore(kept, dry_run=True)
    assert isinstance(would, Restored)
    call(hudi, table, "rollback_to_savepoint", instant_time=kept)
    loaded = table.refresh()
    (restore,) = loaded.timeline.where(action=Action.RESTORE, state=State.COMPLETED)
    assert schema_in(table, restore, State.REQUESTED) == plain(RESTORE_PLAN)
    assert schema_in(table, restore, State.COMPLETED) == plain(RESTORE_METADATA)
    stored, finished = (loaded.store.read(restore, state) for state in (State.REQUESTED, State.COMPLETED))
    assert stored is not None and finished is not None
    plan = decode_restore_plan(stored)
    assert plan.target == kept
    assert [requested for requested, _ in plan.instants] == [rollback.target for rollback in would.rollbacks]
    restore_metadata = decode_restore_metadata(finished, base_path=table.location)
    for rollback in would.rollbacks:
        deleted = {
            p for done in restore_metadata.rollbacks[rollback.target] for ps in done.deleted.values() for p in ps
        }
        assert {p for request in rollback.requests for p in request.files} <= deleted | _deleted_before(
            restore_metadata, rollback.target
        )
    assert_no_leftovers(table)


@pytest.mark.parametrize("carried_out", [True, False], ids=["carried-out", "pending"])
def test_restore_keeps_a_compaction_planned_before_the_savepoint(carried_out: bool, hudi: Hudi, tmp_path: Path) -> None:
    table = ours("MERGE_ON_READ", tmp_path)
    for number in range(2):
        table.upsert(batch([row(f"k{i}", p="ab"[i % 2], ts=number, v=str(number)) for i in range(4)]))
    plan = table.services.compaction.schedule(force=True)
    assert isinstance(plan, Instant)
    table.upsert(batch([row("k0", ts=5, v="kept")]))
    kept, rows = table.commits()[-1][0].requested, values(table)
    table.upsert(batch([row("k0", ts=6, v="undone")]))
    undone = [table.commits()[-1][0].requested]
    if carried_out:
        assert isinstance(table.services.compaction.run(), Committed)
    table.savepoint(kept)
    would = table.restore(kept, dry_run=True)
    assert isinstance(would, Restored) and [rollback.target for rollback in would.rollbacks] == undone
    copy = Table.open(str(shutil.copytree(tmp_path / "table", tmp_path / "copy")))
    copy.restore(kept)
    call(hudi, table, "rollback_to_savepoint", instant_time=kept)
    for restored in (table, copy):
        assert [i.requested for i, _ in restored.commits()][-1] == (plan.requested if carried_out else kept)
        assert [i.requested for i in restored.timeline.where(pending=True)] == [plan.requested] * (not carried_out)
        assert values(restored) == rows
        if not carried_out:
            assert isinstance(restored.services.compaction.run(), Committed)
        assert_usable(restored, hudi, rows)


def _deleted_before(restore_metadata: Any, target: str) -> set[str]:
    """Return the files that the rollbacks before that of `target` deleted.

    Hudi deletes the logs of a slice together with its base file.
    """
    gone: set[str] = set()
    for requested, _ in restore_metadata.instants:
        if requested == target:
            break
        gone |= {p for done in restore_metadata.rollbacks[requested] for ps in done.deleted.values() for p in ps}
    return gone


@pytest.mark.parametrize("kind", TYPES)
def test_hudi_finishes_a_crashed_restore_of_lakehouse(kind: str, hudi: Hudi, tmp_path: Path) -> None:
    table = ours(kind, tmp_path)
    table.upsert(batch([row(f"k{i}", p="ab"[i % 2], v="0") for i in range(6)]))
    states = write_history(table, hudi)
    kept, rows = states[1]
    table.savepoint(kept)
    storage = table.refresh().env.storage
    tried = FaultyStorage(open_storage(str(shutil.copytree(tmp_path / "table", tmp_path / "copy"))))
    Table.open(tried.root, env=Env(storage=tried)).restore(kept)
    # Crash after the rollback of one write. Hudi 1.2 cannot continue within a rollback: it reads the inflight file of a
    # replacecommit as a completed one, and deletes inflight files of requested rollbacks.
    rolled_back_one = next(
        n for n, name in enumerate(tried.trace, start=1) if name.startswith("delete .hoodie/.heartbeat/")
    )
    dying = FaultyStorage(storage, rolled_back_one, FaultMode.CRASH_AFTER)
    with pytest.raises(SimulatedCrash):
        Table.open(table.location, env=Env(storage=dying)).restore(kept)
    assert table.timeline.pending_restore() is not None
    assert values(table) in [state for _, state in states]
    call(hudi, table, "rollback_to_savepoint", instant_time=kept)
    assert_usable(table, hudi, rows)


@pytest.mark.parametrize("kind", TYPES)
def test_hudi_and_lakehouse_roll_back_the_latest_write_of_each_other(kind: str, hudi: Hudi, tmp_path: Path) -> None:
    table = theirs(kind, hudi, tmp_path)
    rows = values(table)
    options = HUDI_UPSERT | {"hoodie.table.name": table.name}
    hudi.write(table.location, batch([row("k0", p="a", ts=5, v="theirs"), row("t", p="c")]), options)
    table.rollback(table.commits()[-1][0].requested)
    assert values(table) == rows
    assert_no_leftovers(table)
    assert_hudi_reads_the_same(hudi, table)
    table.upsert(batch([row("k0", p="a", ts=5, v="ours"), row("o", p="c")]))
    newest = table.commits()[-1][0].requested
    hudi.query(
        f"CALL rollback_to_instant(table => '{{table}}', instant_time => '{newest}')", table=table.location, **ALONE
    )
    assert values(table) == rows
    assert_usable(table, hudi, rows)
