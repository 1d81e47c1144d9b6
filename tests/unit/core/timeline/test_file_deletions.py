"""Deletions by metadata: a plan with a forged file name is refused, and nothing of it is deleted."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakehouse.core.format.file_names import encode_markers
from lakehouse.core.format.timeline.clean import encode_clean_plan
from lakehouse.core.format.timeline.restore import encode_restore_plan
from lakehouse.core.format.timeline.rollback import encode_rollback_plan
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.services.partition_purge import purge_table
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.file_deletions import check_instant, delete_data_files, delete_leftovers
from lakehouse.core.timeline.publications import STATE, change_publication, delete_copy
from lakehouse.errors import CorruptTableError, LakehouseError, UserError
from lakehouse.model.clean import CleanPlan
from lakehouse.model.commit import RollbackPlan, RollbackRequest
from lakehouse.model.instant import Action, Instant, State
from lakehouse.model.publication import Publication
from lakehouse.model.restore import RestorePlan
from lakehouse.platform.publish.run import run as publish
from tests.support.publishing import make_job, rows_of
from tests.support.tables import Shape, batch, data_rows, make_env, make_table, row

PROPERTIES = ".hoodie/hoodie.properties"
#: Paths in metadata that no plan and no marker may delete.
FORGED = (
    PROPERTIES,
    "../other/a/f-0_0-1-1_20250101000000000.parquet",
    "a/../.hoodie/hoodie.properties",
    ".hoodie/timeline/20250101000000000_20250101000000001.commit",
    "a/notes.txt",
    "nested/.hoodie/hoodie.properties",
    "a//f-0_0-1-1_20250101000000000.parquet",
)


def filled(location: Path | None = None) -> Table:
    """Return a table with two commits in partitions a and b."""
    table = make_table(Shape(rows_per_file=1_000), env=make_env(None if location is None else str(location)))
    table.insert(batch([row("k1", p="a", v="one"), row("k2", p="b", v="one")]))
    table.upsert(batch([row("k1", p="a", ts=2, v="two")]))
    return table


def paths(storage: Storage) -> set[str]:
    """Return the paths of all files."""
    return {file.path for file in storage.list("")}


def pending(table: Table, action: Action, content: bytes) -> Instant:
    """Put a requested instant on the timeline."""
    loaded = table.refresh()
    return loaded.store.request(loaded.timeline, action, content)


def expired_write(table: Table, *marked: str) -> tuple[LoadedTable, Instant]:
    """Create an expired write with one data file, whose markers name this file and the files `marked`."""
    loaded = table.refresh()
    instant = loaded.store.start(loaded.store.request(loaded.timeline, Action.COMMIT, b""), b"")
    own = f"a/expired-0_0-9-9_{instant.requested}.parquet"
    loaded.env.storage.put(own, b"PAR1 half a file")
    leave_markers(loaded.env.storage, instant.requested, own, *marked)
    return loaded, instant


def leave_markers(storage: Storage, requested: str, *marked: str) -> None:
    """Write markers in the format of Hudi's timeline server."""
    storage.put(f".hoodie/.temp/{requested}/MARKERS.type", b"TIMELINE_SERVER_BASED")
    storage.put(f".hoodie/.temp/{requested}/MARKERS0", encode_markers(f"{path}.marker.CREATE" for path in marked))


@pytest.mark.parametrize("forged", FORGED)
def test_rollback_deletes_nothing_if_a_marker_names_no_data_file(forged: str) -> None:
    table = filled()
    loaded, expired = expired_write(table, forged)
    before = paths(loaded.env.storage)
    undo: list[Callable[[], Any]] = [
        table.rollback_failed,
        lambda: table.rollback(expired.requested),
        lambda: table.upsert(batch([row("k3", p="a")])),
        lambda: table.restore(table.commits()[0][0].requested),
    ]
    for call in undo:
        with pytest.raises(CorruptTableError) as error:
            call()
        assert repr(forged) in error.value.message
        assert paths(loaded.env.storage) == before


def test_rollback_deletes_no_file_of_another_write() -> None:
    table = filled()
    newest = table.commits()[-1][1].stats[0].path
    loaded, expired = expired_write(table, newest)
    with pytest.raises(CorruptTableError, match="it was written by"):
        table.rollback(expired.requested)
    assert newest in paths(loaded.env.storage)


@pytest.mark.parametrize("forged", FORGED)
def test_rollback_plan_of_the_timeline_deletes_nothing_if_it_names_no_data_file(forged: str) -> None:
    table = filled()
    loaded, expired = expired_write(table)
    storage = loaded.env.storage
    own = f"a/expired-0_0-9-9_{expired.requested}.parquet"
    plan = RollbackPlan(
        target=expired.requested,
        action="commit",
        requests=tuple(RollbackRequest(partition=p.rpartition("/")[0], files=(p,)) for p in (own, forged)),
    )
    pending(table, Action.ROLLBACK, encode_rollback_plan(plan, base_path=table.location))
    before = paths(storage)
    for call in (table.rollback_failed, lambda: table.rollback(expired.requested)):
        with pytest.raises(CorruptTableError):
            call()
        assert paths(storage) == before


@pytest.mark.parametrize("target", ["../../t/.hoodie/x", "", "20250101000000000/..", "hoodie"])
def test_rollback_of_an_invalid_instant_is_refused(target: str) -> None:
    table = filled()
    plan = RollbackPlan(target=target, action="commit", requests=())
    pending(table, Action.ROLLBACK, encode_rollback_plan(plan, base_path=table.location))
    before = paths(table.refresh().env.storage)
    with pytest.raises(CorruptTableError, match="not an instant time"):
        table.rollback_failed()
    assert paths(table.refresh().env.storage) == before


@pytest.mark.parametrize("action", ["", "../x", "COMMIT", "savepoints"])
def test_rollback_or_restore_with_an_unknown_action_is_refused(action: str) -> None:
    table = filled()
    first, last = (commit[0].requested for commit in table.commits()[:: len(table.commits()) - 1])
    before = paths(table.refresh().env.storage)
    plan = RollbackPlan(target=last, action=action, requests=())
    undo = pending(table, Action.ROLLBACK, encode_rollback_plan(plan, base_path=table.location))
    with pytest.raises(CorruptTableError, match="names the action"):
        table.rollback_failed()
    assert paths(table.refresh().env.storage) == {*before, f".hoodie/timeline/{undo.requested}.rollback.requested"}
    other = filled()
    pending(other, Action.RESTORE, encode_restore_plan(RestorePlan(target=first, instants=((last, action),))))
    with pytest.raises(CorruptTableError, match="names the action"):
        other.restore(first)
    assert len(data_rows(other)) == 2


@pytest.mark.parametrize("forged", FORGED)
def test_clean_plan_deletes_nothing_if_it_names_no_data_file(forged: str) -> None:
    table = filled()
    real = table.commits()[0][1].stats[0].path
    files: dict[str, tuple[str, ...]] = {}
    for path in (real, forged):
        partition = path.rpartition("/")[0]
        files[partition] = (*files.get(partition, ()), path)
    plan = CleanPlan(policy="KEEP_LATEST_COMMITS", earliest=None, last_completed="", files=files)
    clean = pending(table, Action.CLEAN, encode_clean_plan(plan, base_path=table.location))
    before = paths(table.refresh().env.storage)
    for call in (table.services.clean.run, table.services.clean.plan):
        with pytest.raises(CorruptTableError):
            call()
        assert paths(table.refresh().env.storage) == before
    assert table.timeline.find(clean.requested) is not None


@pytest.mark.parametrize("partition", [".hoodie/timeline", "../other", "a/../.hoodie"])
def test_clean_plan_with_an_invalid_partition_deletes_nothing(partition: str) -> None:
    table = filled()
    plan = CleanPlan(
        policy="KEEP_LATEST_COMMITS", earliest=None, last_completed="", files={}, partitions_to_delete=(partition,)
    )
    pending(table, Action.CLEAN, encode_clean_plan(plan, base_path=table.location))
    before = paths(table.refresh().env.storage)
    with pytest.raises(CorruptTableError, match="names the partition"):
        table.services.clean.run()
    assert paths(table.refresh().env.storage) == before


def test_restore_plan_with_an_invalid_instant_is_refused() -> None:
    table = filled()
    first = table.commits()[0][0].requested
    plan = RestorePlan(target=first, instants=(("../../t/.hoodie/x", "commit"),))
    pending(table, Action.RESTORE, encode_restore_plan(plan))
    with pytest.raises(CorruptTableError, match="not an instant time"):
        table.restore(first)
    assert len(data_rows(table)) == 2


def test_cleanup_keeps_and_reports_a_completed_write_with_forged_markers() -> None:
    table = filled()
    storage, last = table.refresh().env.storage, table.commits()[-1][0].requested
    leave_markers(storage, last, PROPERTIES)
    table.upsert(batch([row("k1", p="a", ts=3, v="three")]))
    assert {r["id"]: r["v"] for r in data_rows(table)} == {"k1": "three", "k2": "one"}
    outcome = table.rollback_failed()
    assert outcome.refused == (last,)
    assert {PROPERTIES, f".hoodie/.temp/{last}/MARKERS0"} <= paths(storage)


def test_instant_that_is_not_a_time_is_refused() -> None:
    table = filled()
    loaded = table.refresh()
    with pytest.raises(CorruptTableError, match="not an instant time"):
        loaded.store.remove_pending(Instant(requested="../../x", action=Action.COMMIT, state=State.INFLIGHT))
    with pytest.raises(CorruptTableError):
        check_instant(loaded.env.storage, "٣", "a plan")


@pytest.mark.parametrize("path", [PROPERTIES, ".hoodie/timeline/1.commit", "a/f.parquet", ".hoodie/.temp/1/../../x"])
def test_only_files_of_finished_writes_are_leftover_files(path: str) -> None:
    storage = filled().refresh().env.storage
    storage.put(".hoodie/.temp/1/MARKERS0", b"")
    with pytest.raises(CorruptTableError, match="not a leftover"):
        delete_leftovers(storage, [".hoodie/.temp/1/MARKERS0", path])
    assert {PROPERTIES, ".hoodie/.temp/1/MARKERS0"} <= paths(storage)


@pytest.fixture
def linked(tmp_path: Path) -> tuple[Table, Table, str]:
    """A table whose partition b is a link to a partition of another table, the other table, and a file behind the link.

    The store follows links, unlike the default store. Deletions must be refused even if a read followed the link.
    """
    mine, other = filled(tmp_path / "mine"), filled(tmp_path / "other")
    following = LocalStorage(mine.location, follow_links=True)
    mine = Table.open(mine.location, env=replace(mine.refresh().env, storage=following))
    theirs = other.commits()[0][1].stats
    path = next(stat.path for stat in theirs if stat.partition == "b")
    for file in (tmp_path / "mine" / "b").iterdir():
        file.unlink()
    (tmp_path / "mine" / "b").rmdir()
    os.symlink(tmp_path / "other" / "b", tmp_path / "mine" / "b")
    return mine, other, path


def test_storage_deletes_nothing_through_a_symbolic_link(linked: tuple[Table, Table, str]) -> None:
    mine, other, path = linked
    storage = LocalStorage(mine.location)
    for call in (lambda: storage.delete(path), lambda: storage.delete_many([path])):
        with pytest.raises(CorruptTableError, match="'b' is a symbolic link"):
            call()
    assert path in paths(LocalStorage(other.location))


def test_table_root_may_be_a_symbolic_link(tmp_path: Path) -> None:
    table = filled(tmp_path / "real")
    os.symlink(tmp_path / "real", tmp_path / "named")
    path = table.commits()[0][1].stats[0].path
    assert LocalStorage(str(tmp_path / "named")).delete(path)


def test_plans_delete_no_files_behind_a_symbolic_link(linked: tuple[Table, Table, str]) -> None:
    mine, other, path = linked
    kept = mine.commits()[0][1].stats[0].path
    files = {"a": (kept,), "b": (path,)}
    plan = CleanPlan(policy="KEEP_LATEST_COMMITS", earliest=None, last_completed="", files=files)
    pending(mine, Action.CLEAN, encode_clean_plan(plan, base_path=mine.location))
    with pytest.raises(CorruptTableError, match="symbolic link"):
        mine.services.clean.run()
    loaded, expired = expired_write(mine)
    leave_markers(loaded.env.storage, expired.requested, f"b/theirs-0_0-1-1_{expired.requested}.parquet")
    with pytest.raises(CorruptTableError, match="symbolic link"):
        mine.rollback(expired.requested)
    assert path in paths(LocalStorage(other.location)) and kept in paths(mine.refresh().env.storage)


def test_orphans_behind_a_symbolic_link_are_ignored(
    linked: tuple[Table, Table, str], caplog: pytest.LogCaptureFixture
) -> None:
    mine, other, _ = linked
    orphan = "a/orphan-0_0-1-1_20300101000000000.parquet"
    mine.refresh().env.storage.put(orphan, b"")
    before = paths(LocalStorage(other.location))
    mine.refresh().env.clock.sleep(10 * 365 * 24 * 3600)
    assert [found.path for found in mine.services.orphans(remove=True)] == [orphan]
    assert paths(LocalStorage(other.location)) == before
    assert "'b' is a symbolic link" in caplog.text


def test_purge_keeps_the_target_of_a_link(linked: tuple[Table, Table, str]) -> None:
    mine, other, _ = linked
    before = paths(LocalStorage(other.location))
    assert purge_table(LocalStorage(mine.location, follow_links=True)) == ("b",)
    assert paths(LocalStorage(other.location)) == before
    assert not Path(mine.location, PROPERTIES).exists()


def test_purge_refuses_a_folder_that_is_no_longer_a_table(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("mine")
    with pytest.raises(UserError, match="has no table properties"):
        purge_table(LocalStorage(str(tmp_path)))
    assert (tmp_path / "letters.txt").exists()


def published() -> Any:
    """Return a publication job with one published day, and its storage."""
    job = make_job()
    job.table.upsert(rows_of(("a", "2025-03-01T10:00:00", 1)))
    job.table.upsert(rows_of(("b", "2025-03-02T01:00:00", 1)))
    assert publish(job).published
    return job


@pytest.mark.parametrize(
    ("manifest", "copy"),
    [
        ("", "."),
        ("", "orders"),
        ("", "../other/20250301000000000-0123abcd"),
        ("", "x/.hoodie/20250301000000000-0123abcd"),
        ("x", ""),
        (PROPERTIES, ""),
        (".hoodie/.lakehouse/published/sales.orders/manifest", ""),
        (".hoodie/.lakehouse/published/sales.orders/../../../20250301000000000/manifest", ""),
        (".hoodie/.lakehouse/published/sales.other/dt=1/20250301000000000/manifest", ""),
    ],
)
def test_publication_state_may_name_only_files_in_its_own_folders(manifest: str, copy: str) -> None:
    job = published()
    storage = job.table.refresh().env.storage
    job.place.put("orders/.hoodie/hoodie.properties", b"another table")
    document = json.loads(storage.get(STATE))
    document["tables"]["sales.orders"]["retired"] = [{"manifest": manifest, "copy": copy, "at_ms": 0}]
    storage.put(STATE, json.dumps(document).encode())
    before, beside = paths(storage), paths(job.place)
    with pytest.raises(CorruptTableError, match="not in its own directory"):
        publish(job)
    assert (paths(storage), paths(job.place)) == (before, beside)


@pytest.mark.parametrize(
    ("part", "wrong"),
    [
        ("retired", [{"manifest": 5, "copy": "", "at_ms": 0}]),
        ("retired", [{"manifest": "", "copy": ["x"], "at_ms": 0}]),
        ("partitions", {"dt=1": {"event_time_ms": "late"}}),
        ("partitions", {"dt=1": {"published_ms": [1]}}),
    ],
)
def test_publication_state_with_wrong_types_is_damaged(part: str, wrong: Any) -> None:
    job = published()
    storage = job.table.refresh().env.storage
    document = json.loads(storage.get(STATE))
    state = document["tables"]["sales.orders"]
    if isinstance(wrong, dict):
        known = next(iter(state["partitions"].values()))
        wrong = {name: {**known, **changed} for name, changed in wrong.items()}
    state[part] = wrong
    storage.put(STATE, json.dumps(document).encode())
    with pytest.raises(CorruptTableError, match=r"state\.json"):
        publish(job)


def test_cleanup_of_a_publication_keeps_files_that_are_not_of_a_copy() -> None:
    job = published()
    folder = "dt=2025-03-01/20250301000000000-0123abcd"
    for name in ("part-00000-00000.parquet", "_SUCCESS", "f-0_0-1-1_20250101000000000.parquet", "sub/part-0.parquet"):
        job.place.put(f"{folder}/{name}", b"")

    def retire(publication: Publication) -> Publication:
        return replace(publication.retire("", folder, 0))

    env = job.table.refresh().env
    change_publication(env, "sales.orders", retire)
    env.clock.sleep(job.spec.retain_s + 1)
    publish(job)
    assert paths(job.place) == {f"{folder}/f-0_0-1-1_20250101000000000.parquet", f"{folder}/sub/part-0.parquet"}
    with pytest.raises(CorruptTableError, match="not the folder of a copy"):
        delete_copy(job.place, "dt=2025-03-01")


@pytest.mark.parametrize(
    "name",
    [
        "f-0_0-1-1_20250101000000000.parquet",
        ".f-0_20250101000000000.log.1_0-1-1",
        ".f-0_20250101000000000.log.1_0-1-1.cdc",
        ".hoodie_partition_metadata",
        ".hoodie_partition_metadata.parquet",
    ],
)
def test_data_files_and_partition_metadata_are_deleted(name: str) -> None:
    storage = filled().refresh().env.storage
    storage.put(f"a/{name}", b"")
    delete_data_files(storage, [f"a/{name}"], "a plan")
    assert f"a/{name}" not in paths(storage)


def test_refused_plan_raises_an_error_that_is_not_retryable() -> None:
    storage = filled().refresh().env.storage
    with pytest.raises(LakehouseError) as error:
        delete_data_files(storage, ["a/x", PROPERTIES], "the clean plan 1")
    assert (error.value.retryable, error.value.facts["refused"]) == (False, [PROPERTIES, "a/x"])
