"""Metastore sync as a service: when it is due, what the scheduler decides, and runs in the run history."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
from sqlalchemy import event

from lakehouse import Table
from lakehouse.cli.main import main
from lakehouse.core.operations.commit.complete import PreparedCommit, complete_commit
from lakehouse.core.operations.commit.results import Committed, Conflict, NothingToDo
from lakehouse.core.operations.write import write
from lakehouse.core.system.clock import SystemClock
from lakehouse.core.timeline.service_log import DIRECTORY, read_last_run, record_run
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.connect import Database
from lakehouse.platform.catalog.run_history import RunState
from lakehouse.platform.catalog.run_records import lease_key
from lakehouse.platform.metastore.memory import MemoryMetastore
from lakehouse.platform.publish.sync import COMPLETION, compared_ms, compared_state, sync
from lakehouse.platform.services.fleet_pass import PassSettings, run_pass
from lakehouse.platform.services.metastore_sync import SyncDue, Synced
from lakehouse.platform.services.registry import table_service
from lakehouse.platform.services.run import run_tables
from lakehouse.platform.services.schedule import decide
from lakehouse.platform.services.service_run import runner
from lakehouse.spec.contracts.decisions import DecisionReason, TableExplanation
from lakehouse.spec.contracts.job import JobReason, JobStatus, ServiceReport
from lakehouse.spec.job_command import ServiceCommand
from lakehouse.spec.options.sync import SYNC_ENABLE, VERIFY_HOURS
from lakehouse.spec.options.transaction import TransactionPolicy
from lakehouse.spec.table.services import SERVICES
from tests.bench.decisions import counted, register_copies

DECLARED = {"hoodie.datasource.hive_sync.enable": "true", "hoodie.datasource.hive_sync.database": "sales"}
NAME = "sales.trips"


@pytest.fixture
def metastore(monkeypatch: pytest.MonkeyPatch) -> MemoryMetastore:
    made = MemoryMetastore(name="thrift://hms:9083")
    monkeypatch.setattr("lakehouse.platform.services.metastore_sync.open_metastore", lambda policy: made)
    return made


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(
        str(tmp_path / "trips"), name="trips", record_key=["id"], partition_by=["region"], options=DECLARED
    )
    made.insert(rows("eu", "us"))
    return made


@pytest.fixture
def catalog(tmp_path: Path, table: Table) -> Iterator[Catalog]:
    with Catalog(Database(f"sqlite:///{tmp_path}/catalog.db"), SystemClock()) as opened:
        opened.register_table(NAME, table.location)
        opened.set_policy(NAME, "sync", DECLARED)
        yield opened


def rows(*regions: str) -> pa.Table:
    return pa.table({"id": [f"k-{region}" for region in regions], "region": list(regions)})


def partitions(metastore: MemoryMetastore) -> tuple[str, ...]:
    return metastore.partition_names("sales", "trips")


def due(table: Table) -> SyncDue:
    found = table_service(table.services, "sync").due()
    assert isinstance(found, SyncDue)
    return found


def run(catalog: Catalog, run_id: str) -> ServiceReport:
    command = ServiceCommand(service="sync", table=NAME, run_id=run_id)
    (report,) = run_tables(catalog, [NAME], command, runner("sync"))
    return report


def code(catalog: Catalog) -> tuple[DecisionReason, str]:
    """Return the decision of a pass over the table for sync."""
    choices = run_pass(catalog, PassSettings(tables=(NAME,), services=("sync",))).choices
    (choice,) = [choice for choice in choices if choice.assessed.service == "sync"]
    return choice.code, choice.reason


def test_sync_is_due_after_each_write_and_not_after_a_run(table: Table, metastore: MemoryMetastore) -> None:
    assert (due(table).due, due(table).reason) == (True, "it was not synced yet")
    assert isinstance(table_service(table.services, "sync").run(), Synced)
    assert (due(table).due, due(table).reason) == (False, "the newest write is synced")
    table.insert(rows("asia"))
    table.delete_partitions(["us"])
    assert (due(table).due, due(table).writes, due(table).reason) == (True, 2, "2 writes since the last sync")
    table_service(table.services, "sync").run()
    assert partitions(metastore) == ("region=asia", "region=eu") and not due(table).due


def test_second_sync_changes_nothing_and_reports_no_changes(table: Table, metastore: MemoryMetastore) -> None:
    table_service(table.services, "sync").run()
    env, asked = table.refresh().env, len(metastore.requests)
    before = read_last_run(env, "sync")
    second = table_service(table.services, "sync").run()
    assert isinstance(second, NothingToDo) and second.code is NothingToDoReason.NO_CHANGES
    assert set(metastore.requests[asked:]) == {"table", "partition_names", "partitions"}
    last = read_last_run(env, "sync")
    assert before is not None and last is not None and last.at_ms >= before.at_ms
    assert compared_state(last) == compared_state(before) and compared_ms(last) > compared_ms(before)


def synced_ago(table: Table, hours: float) -> None:
    """Change the record of the last sync: it was so many hours ago."""
    env = table.refresh().env
    last = read_last_run(env, "sync")
    assert last is not None
    record_run(env, "sync", state=last.state)
    path = f"{DIRECTORY}/sync.json"
    record = json.loads(env.storage.get(path))
    record["at_ms"] -= round(hours * 3_600_000)
    record["state"]["compared"] = str(record["at_ms"])
    env.storage.put(path, json.dumps(record).encode())


def test_sync_is_due_a_day_after_the_last_comparison_and_repairs_what_was_dropped(
    table: Table, metastore: MemoryMetastore
) -> None:
    table_service(table.services, "sync").run()
    metastore.drop_partitions("sales", "trips", ["region=us"])
    synced_ago(table, 23)
    assert not due(table).due
    synced_ago(table, 25)
    reason = "the metastore was compared 25.0 h ago; it is compared again after 24 h"
    assert (due(table).due, due(table).reason, due(table).writes) == (True, reason, 0)
    assert isinstance(table_service(table.services, "sync").run(), Synced)
    assert partitions(metastore) == ("region=eu", "region=us") and not due(table).due
    synced_ago(table, 25)
    # A comparison without a difference counts as well.
    assert isinstance(table_service(table.services, "sync").run(), NothingToDo) and not due(table).due


def test_sync_without_verification_is_due_after_writes_only(table: Table, metastore: MemoryMetastore) -> None:
    table_service(table.services, "sync").run()
    synced_ago(table, 1000)
    never = Table.open(table.location, options={**DECLARED, VERIFY_HOURS: "0"})
    assert not due(never).due and due(table).due
    with pytest.raises(UserError, match=f"{VERIFY_HOURS}='-1': must not be negative"):
        Table.open(table.location, options={**DECLARED, VERIFY_HOURS: "-1"})


def test_sync_is_not_due_after_a_compaction(tmp_path: Path, metastore: MemoryMetastore) -> None:
    made = Table.create(
        str(tmp_path / "mor"), name="mor", record_key=["id"], table_type="MERGE_ON_READ", options=DECLARED
    )
    for value in (1, 2):
        made.upsert(pa.table({"id": ["a"], "v": [value]}))
    table_service(made.services, "sync").run()
    assert not isinstance(made.services.compaction.run(force=True), NothingToDo)
    assert not due(made).due
    made.upsert(pa.table({"id": ["a"], "v": [3]}))
    assert (due(made).due, due(made).writes) == (True, 1)


@pytest.mark.parametrize("key", ["database", "table"])
def test_sync_is_due_after_a_change_of_its_target(table: Table, metastore: MemoryMetastore, key: str) -> None:
    table_service(table.services, "sync").run()
    moved = Table.open(table.location, options={**DECLARED, f"hoodie.datasource.hive_sync.{key}": "elsewhere"})
    assert (due(moved).due, due(moved).reason) == (True, f"settings of the sync changed: {key}")


def test_sync_is_due_after_a_restore_removed_synced_writes(table: Table, metastore: MemoryMetastore) -> None:
    kept = table.timeline.writes().by_completion()[-1]
    table.savepoint(kept.requested)
    table.insert(rows("asia"))
    table_service(table.services, "sync").run()
    table.restore(kept.requested)
    assert (due(table).due, "no longer on the timeline" in due(table).reason) == (True, True)
    table_service(table.services, "sync").run()
    assert partitions(metastore) == ("region=eu", "region=us")


def test_sync_of_an_ingestion_makes_the_service_not_due(table: Table, metastore: MemoryMetastore) -> None:
    sync(table, metastore)
    assert not due(table).due


def test_table_without_a_declared_metastore_is_not_applicable_and_costs_no_request(tmp_path: Path) -> None:
    Table.create(str(tmp_path / "plain"), name="plain", record_key=["id"]).insert(pa.table({"id": ["a"]}))
    with Catalog(Database(f"sqlite:///{tmp_path}/catalog.db"), SystemClock()) as catalog:
        catalog.register_table("sales.plain", str(tmp_path / "plain"))
        with counted() as stores:
            without = decide(catalog, ["archive"], tables=["sales.plain"])
            (choice,) = decide(catalog, ["sync"], tables=["sales.plain"])
        assert choice.code is DecisionReason.NOT_APPLICABLE
        assert choice.reason.startswith("not applicable: the table declares no metastore to sync to; set")
        assert len(without) == 1 and stores[1].counts()["GET"] <= stores[0].counts()["GET"]


def test_scheduler_decides_by_the_synced_write_without_asking_the_metastore(
    catalog: Catalog, table: Table, metastore: MemoryMetastore
) -> None:
    assert code(catalog)[0] is DecisionReason.DUE
    assert metastore.requests == []
    assert run(catalog, "r1").status is JobStatus.COMMITTED
    assert code(catalog) == (DecisionReason.NOT_DUE, "the newest write is synced")
    table.insert(rows("asia"))
    found, reason = code(catalog)
    assert found is DecisionReason.DUE and reason.startswith("1 write since the last sync")
    (newest, *_) = catalog.history.decisions(catalog.entry(NAME).id, "sync")
    assert newest.inputs["writes"] == 1 and newest.predicted["seconds"] > 0


def test_policy_of_a_namespace_declares_a_metastore_and_one_of_a_table_switches_sync_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    monkeypatch.delenv("LAKEHOUSE_CATALOG", raising=False)
    Table.create(str(tmp_path / "plain"), name="plain", record_key=["id"]).insert(pa.table({"id": ["a"]}))
    assert main(["table", "register", "--table", "sales.plain", "--location", str(tmp_path / "plain")]) == 0
    setting = f"{SYNC_ENABLE}=true"

    def decided() -> str:
        capsys.readouterr()
        assert main(["services", "pass", "--service", "sync", "--table", "sales.plain"]) == 0
        capsys.readouterr()
        words = ["services", "explain", "--table", "sales.plain", "--service", "sync", "--output", "json"]
        assert main(words) == 0
        found = TableExplanation.from_json(capsys.readouterr().out).services["sync"].decision
        assert found is not None
        return found.reason

    assert "not applicable: the table declares no metastore" in decided()
    assert main(["policy", "set", "--namespace", "sales", "--service", "sync", "--set", setting]) == 0
    assert decided().startswith("it was not synced yet")
    assert main(["policy", "set", "--table", "sales.plain", "--service", "sync", "--set", "enabled=false"]) == 0
    assert "switched off" in decided()
    pattern = ["policy", "set", "--table", "sales.plain", "--pattern", "x=*", "--service", "sync"]
    assert main([*pattern, "--set", "enabled=false"]) == 64


def test_pass_over_tables_without_a_metastore_sends_as_many_statements_as_without_sync(tmp_path: Path) -> None:
    with Catalog(Database(f"sqlite:///{tmp_path}/catalog.db"), SystemClock()) as catalog:
        register_copies(catalog, tmp_path, 4)
        names = tuple(entry.identifier for entry in catalog.list_tables())
        others = tuple(service for service in SERVICES if service != "sync")
        run_pass(catalog, PassSettings(tables=names))
        sent: list[str] = []

        def count(connection: object, cursor: object, statement: str, *_: object) -> None:
            del connection, cursor
            sent.append(statement)

        event.listen(catalog.database.engine, "before_cursor_execute", count)
        counts = []
        for services in (others, SERVICES):
            sent.clear()
            run_pass(catalog, PassSettings(tables=names, services=services))
            counts.append(len(sent))
        event.remove(catalog.database.engine, "before_cursor_execute", count)
        assert counts[0] == counts[1] > 0


def test_run_is_recorded_with_its_changes(catalog: Catalog, metastore: MemoryMetastore) -> None:
    report = run(catalog, "r1")
    assert [(one.table, one.created, one.added) for one in report.tables] == [(NAME, True, 2)]
    assert run(catalog, "r2").code is JobReason.NO_CHANGES
    second, first = catalog.history.runs(catalog.entry(NAME).id, "sync")
    assert (first.run_id, first.state, second.state) == ("r1", RunState.COMMITTED, RunState.NOTHING_TO_DO)


def test_metastore_that_is_down_fails_the_run_with_its_address_and_the_next_one_does_the_work(
    catalog: Catalog, metastore: MemoryMetastore
) -> None:
    def down(verb: str, number: int) -> None:
        raise RetryableError(f"{metastore.name} did not answer request {number}, {verb}")

    metastore.before = down
    report = run(catalog, "r1")
    assert report.error is not None and report.error.retryable and "thrift://hms:9083" in report.error.message
    (failed,) = catalog.history.runs(catalog.entry(NAME).id, "sync")
    assert failed.state is RunState.FAILED and "thrift://hms:9083" in str(failed.error)
    # The decision still needs no metastore: the service waits for its next try.
    found, reason = code(catalog)
    assert found is DecisionReason.RETRY_LATER and reason.startswith("the last run failed")
    metastore.before = None
    assert run(catalog, "r1").status is JobStatus.COMMITTED
    assert partitions(metastore) == ("region=eu", "region=us")


def test_second_sync_of_a_table_waits_for_the_active_one(catalog: Catalog, metastore: MemoryMetastore) -> None:
    with catalog.leases.held(lease_key(NAME, "sync"), "r1", 60_000):
        assert run(catalog, "r2").code is JobReason.OTHER_RUN_ACTIVE
        assert code(catalog)[0] is not DecisionReason.RETRY_LATER
    assert metastore.requests == []


@pytest.mark.parametrize("verb", ["partition_names", "add_partitions", "alter_table"])
def test_two_syncs_at_once_leave_the_newest_state(table: Table, metastore: MemoryMetastore, verb: str) -> None:
    """A second writer and its sync run completely before a request of the first sync, which read an older state."""
    sync(table, metastore)
    table.insert(rows("asia"))

    def overtaken(request: str, _: int) -> None:
        if request == verb:
            metastore.before = None
            newer = Table.open(table.location, options=DECLARED)
            newer.insert(rows("africa"))
            newer.delete_partitions(["us"])
            sync(newer, metastore)

    metastore.before = overtaken
    sync(table, metastore)
    assert metastore.before is None, "the first sync sent the request"
    assert partitions(metastore) == ("region=africa", "region=asia", "region=eu")
    last = read_last_run(table.refresh().env, "sync")
    newest = table.refresh().timeline.writes().by_completion()[-1]
    assert last is not None and last.state[COMPLETION] == newest.completion


def test_service_of_the_platform_is_refused_by_the_core_with_its_command(table: Table) -> None:
    with pytest.raises(UserError, match="lakehouse sync run"):
        table.services.named("sync")


def test_record_of_the_last_sync_that_cannot_be_parsed_makes_the_table_due(
    table: Table, metastore: MemoryMetastore
) -> None:
    sync(table, metastore)
    Path(table.location, ".hoodie/.lakehouse/services/sync.json").write_text("{", encoding="utf-8")
    assert due(table).due


def test_partition_of_a_write_that_completes_late_is_synced(
    tmp_path: Path, metastore: MemoryMetastore, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = {
        **DECLARED,
        "hoodie.write.table.version": "6",
        "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    }
    table = Table.create(
        str(tmp_path / "shared"), name="trips", record_key=["id"], partition_by=["region"], options=options
    )
    table.insert(rows("eu"))

    def late(candidate: PreparedCommit, policy: TransactionPolicy) -> Committed | Conflict:
        monkeypatch.setattr(write, "complete_commit", complete_commit)
        Table.open(table.location).insert(rows("us"))
        sync(Table.open(table.location), metastore)
        assert partitions(metastore) == ("region=eu", "region=us")
        assert not due(Table.open(table.location)).due
        return complete_commit(candidate, policy)

    monkeypatch.setattr(write, "complete_commit", late)
    table.insert(rows("jp"))
    table = Table.open(table.location)
    assert "before the newest synced write" in due(table).reason
    sync(table, metastore)
    assert partitions(metastore) == ("region=eu", "region=jp", "region=us")
    assert not due(Table.open(table.location)).due
