"""Orphan cleaning and validation as services: when they are due, what a run does, and what it reports."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse import Table, load_catalog
from lakehouse.cli.main import main
from lakehouse.core.env import Env
from lakehouse.core.metadata.place import PARTITIONS_KEY
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.metadata.validation import Validated
from lakehouse.core.operations.services.orphan_removal import RemovedOrphans
from lakehouse.core.planning.orphans import OrphanPlan
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.timeline.service_log import DIRECTORY, read_last_run, record_run
from lakehouse.core.timeline.table_properties import update_properties
from lakehouse.errors import CorruptTableError, SettingError
from lakehouse.model.instant import Action
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.model.upkeep import ValidationPlan, upkeep_due
from lakehouse.platform.catalog.run_history import RunState
from lakehouse.platform.services.schedule import decide
from lakehouse.spec.contracts.decisions import DecisionReason
from lakehouse.spec.options.policies import Policies

HOUR_MS = 3_600_000
#: Files count as orphans at once, so that a test needs no old file.
NOW = {"lakehouse.clean.orphans.hours": "0"}


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(str(tmp_path / "t"), name="t", record_key="id", partition_by="day", options=NOW)
    for value in range(2):
        made.upsert(pa.table({"id": ["a", "b"], "day": ["1", "2"], "v": [value] * 2}))
    return made


def orphan_of(table: Table) -> Path:
    """Write a base file under the name of a second attempt of a task, and return its path."""
    newest = sorted(Path(table.location, "1").glob("*.parquet"))[-1]
    file_id, _, instant = newest.name.split("_")
    orphan = newest.with_name(f"{file_id}_9-9-9_{instant}")
    orphan.write_bytes(newest.read_bytes())
    return orphan


def test_orphans_run_deletes_only_files_that_no_instant_names(table: Table) -> None:
    orphan, files = orphan_of(table), set(Path(table.location).rglob("*.parquet"))
    planned = table.services.orphan_removal.plan()
    assert isinstance(planned, OrphanPlan)
    assert [found.path for found in planned.orphans] == [f"1/{orphan.name}"]
    outcome = table.services.orphan_removal.run()
    assert isinstance(outcome, RemovedOrphans)
    assert (outcome.instant, outcome.totals.files) == (None, 1)
    left = {path for path in Path(table.location).rglob("*.parquet") if ".hoodie" not in path.parts}
    assert left == {path for path in files if ".hoodie" not in path.parts} - {orphan}
    assert table.validate().findings == ()


def test_orphans_run_keeps_files_of_pending_writes_and_young_files(table: Table) -> None:
    kept = table.with_options({"lakehouse.clean.orphans.hours": "1"})
    orphan = orphan_of(table)
    assert isinstance(kept.services.orphan_removal.run(), NothingToDo) and orphan.exists()
    loaded = table.refresh()
    pending = loaded.store.request(loaded.timeline, Action.COMMIT, b"")
    written = orphan.with_name(f"{orphan.name.rsplit('_', 1)[0]}_{pending.requested}.parquet")
    orphan.rename(written)
    assert isinstance(table.services.orphan_removal.run(force=True), NothingToDo)
    assert written.exists(), "a file of a pending write is no orphan"


@pytest.mark.parametrize("service", ["orphans", "validation"])
def test_upkeep_service_is_due_again_after_its_hours(table: Table, service: str) -> None:
    found = table.services.named(service)
    assert found.due().due and found.due().hours is None
    assert isinstance(found.schedule(), NothingToDo)
    found.run()
    again = table.services.named(service)
    assert not again.due().due and again.due().hours == 0
    refused = again.run()
    assert isinstance(refused, NothingToDo) and refused.code is NothingToDoReason.NOT_DUE


@pytest.mark.parametrize(
    ("hours", "failed", "due"), [(167, False, False), (168, False, True), (23, True, False), (24, True, True)]
)
def test_upkeep_is_due_by_hours_and_a_failed_run_is_repeated_after_a_day(hours: int, failed: bool, due: bool) -> None:
    assert upkeep_due(0, hours * HOUR_MS, 168, failed=failed).due is due


def test_upkeep_of_a_table_without_writes_is_not_due(tmp_path: Path) -> None:
    empty = Table.create(str(tmp_path / "e"), name="e", record_key="id")
    assert not empty.services.validation.due().due and not empty.services.orphan_removal.due().due


def test_damaged_file_of_the_last_run_counts_as_no_run(tmp_path: Path) -> None:
    env = Env(storage=open_storage(str(tmp_path)))
    record_run(env, "validation", failed=True)
    last = read_last_run(env, "validation")
    assert last is not None and last.failed
    for damaged in (b"{", b"[]", b'{"at_ms": null}'):
        env.storage.put(f"{DIRECTORY}/validation.json", damaged)
        assert read_last_run(env, "validation") is None


def test_validation_of_a_valid_table_reports_what_it_read(table: Table) -> None:
    plan = table.services.validation.plan()
    assert isinstance(plan, ValidationPlan) and (plan.file_groups, plan.footers, plan.deep) == (2, 2, False)
    outcome = table.services.validation.run()
    assert isinstance(outcome, Validated)
    assert outcome.footers == 2 and outcome.rows == 0 and outcome.files > 0
    deep = table.with_options({"lakehouse.validation.deep": "true", "lakehouse.validation.footers": "1"})
    outcome = deep.services.validation.run(force=True)
    assert isinstance(outcome, Validated) and (outcome.footers, outcome.rows) == (1, 2)


@pytest.mark.parametrize("damage", ["missing file", "damaged footer", "metadata table"])
def test_validation_fails_with_details_and_repairs_nothing(table: Table, damage: str) -> None:
    newest = sorted(Path(table.location, "1").glob("*.parquet"), key=lambda path: path.stat().st_mtime)[-1]
    if damage == "missing file":
        newest.unlink()
    elif damage == "damaged footer":
        content = bytearray(newest.read_bytes())
        content[-12:-8] = b"\xff\xff\xff\xff"
        newest.write_bytes(content)
    else:
        env, listed = table.refresh().env, table.config.raw[PARTITIONS_KEY]
        update_properties(env, {PARTITIONS_KEY: None})
        table.upsert(pa.table({"id": ["a"], "day": ["1"], "v": [9]}))
        update_properties(env, {PARTITIONS_KEY: listed})
    before = {path: path.read_bytes() for path in Path(table.location).rglob("*") if path.is_file()}
    with pytest.raises(CorruptTableError, match="violations, and repaired none") as failed:
        table.services.validation.run()
    words = {"missing file": newest.name, "damaged footer": newest.name, "metadata table": "metadata table"}
    assert words[damage] in str(failed.value)
    after = {path: path.read_bytes() for path in Path(table.location).rglob("*") if path.is_file()}
    assert {path: data for path, data in after.items() if DIRECTORY not in str(path)} == before
    assert not table.services.validation.due().due, "a failed validation is repeated after a day"


def test_validation_failure_is_a_failed_run_in_the_history(
    table: Table, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    with load_catalog() as catalog:
        catalog.register_table("sales.t", table.location)
        (choice,) = decide(catalog, ["validation"])
        assert choice.code is DecisionReason.DISABLED, "a policy enables the service"
        catalog.set_policy("sales", "validation", {"enabled": True})
        (choice,) = decide(catalog, ["validation"])
        assert choice.chosen, choice.reason
        sorted(Path(table.location, "1").glob("*.parquet"))[-1].unlink()
        assert main(["validation", "run", "--table", "sales.t"]) == CorruptTableError.exit_code
        (run,) = catalog.history.runs(catalog.entry("sales.t").id, "validation")
        assert run.state is RunState.FAILED and "the validation found" in str(run.error)


def test_upkeep_services_have_the_verbs_of_the_command_line(table: Table, capsys: pytest.CaptureFixture[str]) -> None:
    def shown(*words: str) -> dict[str, object]:
        capsys.readouterr()
        assert main([*words, "--table", table.location, "--output", "json"]) == 0
        found: dict[str, object] = json.loads(capsys.readouterr().out)
        return found

    orphan = orphan_of(table)
    zero = ("--option", "lakehouse.clean.orphans.hours=0")
    assert shown("orphans", "due")["due"] is True
    (listed,) = shown("orphans", "plan", *zero)["orphans"]  # type: ignore[misc]
    assert listed["file"] == f"1/{orphan.name}"
    assert shown("orphans", "run", *zero)["status"] == "committed" and not orphan.exists()
    assert shown("validation", "due")["due"] is True
    assert shown("validation", "plan")["file_groups"] == 2
    assert shown("validation", "run")["files"] != 0


@pytest.mark.parametrize("key", ["lakehouse.orphans.every.hours", "lakehouse.validation.every.hours"])
def test_upkeep_without_a_pause_is_refused(key: str) -> None:
    with pytest.raises(SettingError, match="must be at least 1"):
        Policies().override({key: "0"})
