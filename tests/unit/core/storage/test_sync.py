"""With fsync, data files are synced to disk before their commit, and the commit before the write returns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lakehouse.core.storage import local
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.local_sync import FSYNC_VARIABLE, outlives_write
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.spec.table.location import HOME
from tests.support.tables import batch, row

ON = {"lakehouse.storage.fsync": "true"}


@pytest.fixture
def steps(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Record calls of fsync and renames, in order, as (`sync` or `name`, path)."""
    found: list[tuple[str, str]] = []
    fsync, link, replace = os.fsync, os.link, os.replace

    def synced(descriptor: int) -> None:
        found.append(("sync", os.readlink(f"/proc/self/fd/{descriptor}")))
        fsync(descriptor)

    def linked(source: str, target: str) -> None:
        link(source, target)
        found.append(("name", target))

    def replaced(source: str, target: str) -> None:
        replace(source, target)
        found.append(("name", target))

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(local.os, "link", linked)
    monkeypatch.setattr(local.os, "replace", replaced)
    return found


def write(root: Path, options: dict[str, str]) -> Table:
    table = Table.create(
        str(root), name="t", record_key=["id"], partition_by=["p"], ordering="ts", storage_options=options
    )
    table.insert(batch([row("k", p="a")]))
    return table


def test_data_is_synced_before_the_commit_and_the_commit_before_the_write_returns(
    tmp_path: Path, steps: list[tuple[str, str]]
) -> None:
    write(tmp_path / "t", ON)
    named = [path for what, path in steps if what == "name"]
    (data,) = [path for path in named if path.endswith(".parquet")]
    (commit,) = [path for path in named if path.endswith(".commit")]
    places = {path: number for number, (what, path) in enumerate(steps) if what == "name"}
    before_name = [path for what, path in steps[: places[data]] if what == "sync"]
    assert any(path.startswith(f"{tmp_path}/t/a/.") for path in before_name)
    between = {path for what, path in steps[places[data] : places[commit]] if what == "sync"}
    assert f"{tmp_path}/t/a" in between
    # The partition is new, so the directory of the table is synced too.
    assert ("sync", f"{tmp_path}/t") in steps[: places[commit]]
    assert any(os.path.basename(path).startswith(f".{os.path.basename(commit)[:17]}") for path in between)
    assert ("sync", f"{tmp_path}/t/.hoodie/timeline") in steps[places[commit] :]


def test_files_that_cleanup_deletes_are_not_synced(tmp_path: Path, steps: list[tuple[str, str]]) -> None:
    write(tmp_path / "t", ON)
    passing = (".temp", ".heartbeat", ".staging", "holder", "lock")
    assert not [path for what, path in steps if what == "sync" and any(name in path for name in passing)]
    assert [
        outlives_write(path) for path in (".hoodie/.temp/1/MARKERS0", ".hoodie/timeline/1.commit", "a/f.parquet")
    ] == [
        False,
        True,
        True,
    ]


def test_fsync_is_off_by_default_and_set_by_environment_or_option(
    tmp_path: Path, steps: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FSYNC_VARIABLE, raising=False)
    monkeypatch.delenv(HOME, raising=False)
    write(tmp_path / "plain", {})
    assert not [path for what, path in steps if what == "sync"]
    monkeypatch.setenv(FSYNC_VARIABLE, "true")
    write(tmp_path / "synced", {})
    assert [path for what, path in steps if what == "sync"]
    steps.clear()
    write(tmp_path / "overridden", {"lakehouse.storage.fsync": "false"})
    assert not [path for what, path in steps if what == "sync"]


def test_fsync_is_on_in_a_deployment_on_one_machine_unless_turned_off(
    tmp_path: Path, steps: list[tuple[str, str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv(FSYNC_VARIABLE, raising=False)
    monkeypatch.setenv(HOME, str(tmp_path))
    write(tmp_path / "synced", {})
    assert [path for what, path in steps if what == "sync"]
    steps.clear()
    monkeypatch.setenv(FSYNC_VARIABLE, "false")
    write(tmp_path / "plain", {})
    assert not [path for what, path in steps if what == "sync"]


def test_unknown_spelling_of_fsync_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="neither true nor false"):
        open_storage(str(tmp_path), {"lakehouse.storage.fsync": "maybe"})


def test_synced_storage_returns_the_written_bytes(tmp_path: Path) -> None:
    storage = LocalStorage(str(tmp_path), fsync=True)
    assert storage.create("a/b/c", b"1") and not storage.create("a/b/c", b"2")
    storage.put("a/b/c", b"3")
    with storage.open_output("d/e") as sink:
        sink.write(b"4")
    assert (storage.get("a/b/c"), storage.get("d/e")) == (b"3", b"4")
