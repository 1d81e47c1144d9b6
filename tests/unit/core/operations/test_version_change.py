"""Changes of the table version: plans, the effects for other processes, and the commands."""

from __future__ import annotations

import json
from contextlib import suppress
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.cli.main import main
from lakehouse.core.format.timeline import archive_log
from lakehouse.core.metadata.write.drop import drop_metadata
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.services.archive import Archived
from lakehouse.core.operations.version import version_plan
from lakehouse.core.operations.version.version_plan import VersionPlan
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from tests.support.archived import eager

ROWS = pa.table({"id": ["a", "b"], "day": ["x", "y"], "at": [1, 1], "status": ["new", "new"]})


def created(location: Path, version: int, kind: str = "MERGE_ON_READ") -> Table:
    """Return a table with an insert and an update."""
    options = {"hoodie.write.table.version": str(version)}
    table = Table.create(
        str(location), name="t", record_key="id", partition_by="day", ordering="at", table_type=kind, options=options
    )
    table.insert(ROWS)
    table.upsert(pa.table({"id": ["a"], "day": ["x"], "at": [2], "status": ["paid"]}))
    return table


def statuses(table: Table) -> dict[str, str]:
    return {row["id"]: row["status"] for row in table.scan().to_arrow().to_pylist()}


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize(
    ("first", "verb", "second"), [(6, "upgrade", 9), (6, "upgrade", 8), (9, "downgrade", 6), (8, "downgrade", 6)]
)
def test_rows_and_writes_continue_in_the_other_version(
    tmp_path: Path, kind: str, first: int, verb: str, second: int
) -> None:
    table = created(tmp_path / "t", first, kind)
    plan = getattr(table, verb)(second, dry_run=True)
    assert isinstance(plan, VersionPlan) and (plan.is_done, plan.blockers) == (False, ())
    assert Table.open(table.location).config.version == first
    assert getattr(table, verb)(second, grace_s=0).is_done
    again = Table.open(table.location)
    assert (again.config.version, statuses(again)) == (second, {"a": "paid", "b": "new"})
    again.upsert(pa.table({"id": ["b"], "day": ["y"], "at": [3], "status": ["sent"]}))
    assert statuses(Table.open(table.location)) == {"a": "paid", "b": "sent"}
    assert again.validate(deep=True).findings == ()


def archived(table: Table) -> list[tuple[str, str, str, str]]:
    """Return requested time, action, operation and first inserted file of the archived writes."""
    store = table.refresh().store
    writes = store.commits(table.archived())
    return [(i.requested, str(i.action), str(m.operation), sorted(s.path for s in m.stats)[0]) for i, m in writes]


@pytest.mark.parametrize(("first", "verb", "second"), [(6, "upgrade", 9), (9, "downgrade", 6)])
def test_archive_is_copied_once_with_its_times_in_both_directions(
    tmp_path: Path, first: int, verb: str, second: int
) -> None:
    table = created(tmp_path / "t", first, "COPY_ON_WRITE")
    for number in range(3, 9):
        table.upsert(pa.table({"id": ["a"], "day": ["x"], "at": [number], "status": [f"{number}"]}))
    eager(table).services.clean.run(force=True)
    assert isinstance(eager(table).services.archive.run(force=True), Archived)
    before = archived(table)
    plan = getattr(table, verb)(second, grace_s=0)
    assert plan.archived_actions == len(table.refresh().store.archived_timeline.instants()) >= len(before) > 4
    assert archived(Table.open(table.location)) == before
    times = [i.completion for i in Table.open(table.location).archived()]
    back = "upgrade" if verb == "downgrade" else "downgrade"
    getattr(Table.open(table.location), back)(first, grace_s=0)
    getattr(Table.open(table.location), verb)(second, grace_s=0)
    again = Table.open(table.location)
    assert (archived(again), [i.completion for i in again.archived()]) == (before, times)
    logs = [archive_log.read_instants(p.read_bytes()) for p in (tmp_path / "t/.hoodie/archived").glob(".commits*")]
    assert len([i for some in logs for i in some]) == len({i.key for some in logs for i in some})
    # An archive of version 6 waits for a compaction of the metadata table, which was built again.
    compacting = again.with_options({"hoodie.metadata.compact.max.delta.commits": "1"})
    for number in (98, 99):
        compacting.upsert(pa.table({"id": ["b"], "day": ["y"], "at": [number], "status": ["last"]}))
    eager(again).services.clean.run(force=True)
    assert isinstance(eager(again).services.archive.run(force=True), Archived)
    assert archived(again)[: len(before)] == before and len(archived(again)) > len(before)
    assert again.validate(deep=True).findings == ()


def test_table_that_was_opened_earlier_writes_the_present_version(tmp_path: Path) -> None:
    table = created(tmp_path / "t", 6)
    opened = Table.open(table.location)
    table.upgrade(9, grace_s=0)
    opened.upsert(pa.table({"id": ["b"], "day": ["y"], "at": [3], "status": ["sent"]}))
    again = Table.open(table.location)
    assert (again.config.version, statuses(again)) == (9, {"a": "paid", "b": "sent"})
    assert again.validate(deep=True).findings == ()


def test_present_version_is_nothing_to_do_and_the_other_direction_is_refused(tmp_path: Path) -> None:
    table = created(tmp_path / "t", 9)
    assert isinstance(table.upgrade(9), NothingToDo)
    with pytest.raises(UserError, match="downgrade"):
        table.upgrade(6)
    with pytest.raises(UserError, match="7"):
        table.downgrade(7)


def test_commands_show_the_plan_and_change_the_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = created(tmp_path / "t", 9)
    words = ["table", "downgrade", "--table", table.location, "--to", "6", "--grace-s", "0", "--output", "json"]
    assert main([*words, "--dry-run"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert (plan["source"], plan["target"], plan["is_done"], plan["blockers"]) == (9, 6, False, [])
    assert plan["steps"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["is_done"]
    assert Table.open(table.location).config.version == 6
    assert main(["table", "upgrade", "--table", table.location, "--grace-s", "0", "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["readers_lost"]
    assert Table.open(table.location).config.version == 9


def test_dropped_metadata_table_leaves_no_empty_folder_of_hudi(tmp_path: Path) -> None:
    table = created(tmp_path / "t", 9)
    for name in (".temp", ".aux/.bootstrap/.fileids", "archived"):
        (tmp_path / "t/.hoodie/metadata/.hoodie" / name).mkdir(parents=True)
    drop_metadata(table.refresh().env)
    assert not (tmp_path / "t/.hoodie/metadata").exists()


@pytest.mark.parametrize("command", sorted(version_plan._COMMANDS.values()))
def test_commands_that_finish_pending_services_exist(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with suppress(SystemExit):
        main([*command.split()[1:], "--help"])
    assert f"Usage: {command} " in capsys.readouterr().out
