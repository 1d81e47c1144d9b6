"""Test that links and paths in a table of another owner do not make the reader leave the table's directory."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.format.properties import parse_properties, render_properties
from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.format.timeline.paths import relative_paths
from lakehouse.core.layout.registry import table_layout
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.errors import CorruptTableError, LakehouseError

ROWS = pa.table({"id": ["1", "2"], "p": ["a", "b"], "v": ["x", "y"]})
PROPERTIES = ".hoodie/hoodie.properties"
USES: dict[str, Callable[[str], object]] = {
    "describe": lambda location: Table.open(location).describe(),
    "validate": lambda location: Table.open(location).validate(deep=True),
    "read": lambda location: Table.open(location).scan().to_arrow(),
    "health": lambda location: Table.open(location).health(),
    "list": lambda location: Table.open(location).partitions(),
}


#: Without a metadata table each use lists the storage.
LISTED = {"hoodie.metadata.enable": "false"}


def table_at(place: Path, options: dict[str, str] | None = None) -> Table:
    table = Table.create(str(place), name="t", record_key=["id"], partition_by=["p"], options=options or {})
    table.upsert(ROWS)
    return table


def data_file(place: Path) -> Path:
    return next(place.glob("*.parquet"))


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A partition of another table, which the reader has access to, but the owner of the first table does not."""
    table_at(tmp_path / "secret")
    return tmp_path / "secret" / "b"


@pytest.mark.parametrize("use", USES.values(), ids=USES)
@pytest.mark.parametrize("linked", ["partition", "data file", "metadata folder", "properties"])
def test_symbolic_link_out_of_a_table_is_refused_with_its_name(
    use: Callable[[str], object], linked: str, tmp_path: Path, secret: Path
) -> None:
    mine = tmp_path / "mine"
    table_at(mine, LISTED)
    link, target = {
        "partition": (mine / "b", secret),
        "data file": (data_file(mine / "b"), data_file(secret)),
        "metadata folder": (mine / ".hoodie" / "timeline", secret.parent / ".hoodie" / "timeline"),
        "properties": (mine / PROPERTIES, secret.parent / PROPERTIES),
    }[linked]
    shutil.rmtree(link) if link.is_dir() else link.unlink()
    link.symlink_to(target)
    with pytest.raises(CorruptTableError, match="reached through a symbolic link") as raised:
        use(str(mine))
    assert str(raised.value.facts["path"]).startswith(str(link.relative_to(mine)))


@pytest.mark.parametrize("use", ["read", "validate"])
@pytest.mark.parametrize("linked", ["partition", "data file"])
def test_data_file_behind_a_link_is_not_opened_with_a_metadata_table(
    use: str, linked: str, tmp_path: Path, secret: Path
) -> None:
    mine = tmp_path / "mine"
    table_at(mine)
    link, target = {"partition": (mine / "b", secret), "data file": (data_file(mine / "b"), data_file(secret))}[linked]
    shutil.rmtree(link) if link.is_dir() else link.unlink()
    link.symlink_to(target)
    with pytest.raises(CorruptTableError, match="reached through a symbolic link"):
        USES[use](str(mine))


def test_circular_link_is_refused(tmp_path: Path) -> None:
    table_at(tmp_path / "t", LISTED)
    (tmp_path / "t" / "a" / "up").symlink_to(tmp_path / "t")
    with pytest.raises(CorruptTableError, match=r"'a/up' is reached through a symbolic link"):
        Table.open(str(tmp_path / "t")).partitions()


@pytest.mark.parametrize("verb", ["get", "get_range", "open_input", "list", "list_dir", "list_names"])
def test_each_read_verb_refuses_a_link_in_a_path(verb: str, tmp_path: Path, secret: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(secret)
    storage, name = LocalStorage(str(tmp_path / "root")), data_file(secret).name
    calls: dict[str, Callable[[], object]] = {
        "get": lambda: storage.get(f"link/{name}"),
        "get_range": lambda: storage.get_range(f"link/{name}", 0, 4),
        "open_input": lambda: storage.open_input(f"link/{name}"),
        "list": lambda: storage.list("link"),
        "list_dir": lambda: storage.list_dir("link"),
        "list_names": lambda: storage.list_names("link"),
    }
    with pytest.raises(CorruptTableError, match="reached through a symbolic link"):
        calls[verb]()


@pytest.mark.parametrize("verb", ["put", "create", "open_output"])
@pytest.mark.parametrize("path", ["link/f", "link/below/f"])
def test_nothing_is_written_through_a_link(verb: str, path: str, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "other")
    storage = LocalStorage(str(tmp_path / "root"))
    calls: dict[str, Callable[[], object]] = {
        "put": lambda: storage.put(path, b"x"),
        "create": lambda: storage.create(path, b"x"),
        "open_output": lambda: storage.open_output(path),
    }
    with pytest.raises(CorruptTableError, match="reached through a symbolic link"):
        calls[verb]()
    assert list((tmp_path / "other").iterdir()) == []


@pytest.mark.parametrize("verb", ["get", "get_range", "open_input"])
def test_absent_file_behind_a_link_is_refused_with_the_link_as_the_reason(verb: str, tmp_path: Path) -> None:
    (tmp_path / "root").mkdir()
    (tmp_path / "root" / "link").symlink_to(tmp_path / "absent")
    storage = LocalStorage(str(tmp_path / "root"))
    arguments = (0, 4) if verb == "get_range" else ()
    with pytest.raises(CorruptTableError, match="reached through a symbolic link"):
        getattr(storage, verb)("link/f", *arguments)


@pytest.mark.parametrize("content", ["no files", "the files of the partition"])
@pytest.mark.parametrize("options", [LISTED, {}], ids=["listed", "metadata table"])
@pytest.mark.parametrize("verb", ["bulk_insert", "insert", "upsert"])
def test_write_into_a_partition_that_is_a_link_commits_nothing(
    verb: str, options: dict[str, str], content: str, tmp_path: Path
) -> None:
    table, partition, other = table_at(tmp_path / "t", options), tmp_path / "t" / "b", tmp_path / "other"
    shutil.move(partition, other)
    if content == "no files":
        shutil.rmtree(other)
        other.mkdir()
    partition.symlink_to(other)
    before, files = len(table.commits()), sorted(other.iterdir())
    with pytest.raises(CorruptTableError, match="symbolic link"):
        getattr(table, verb)(ROWS)
    assert len(table.commits()) == before and sorted(other.iterdir()) == files


def test_errors_of_damaged_metadata_and_logs_name_the_file(tmp_path: Path) -> None:
    table_at(tmp_path / "t")
    (commit,) = (tmp_path / "t" / ".hoodie" / "timeline").glob("*_*.commit")
    commit.write_bytes(commit.read_bytes()[:50])
    with pytest.raises(CorruptTableError, match=f"{commit}: Avro content cannot be read"):
        Table.open(str(tmp_path / "t")).describe()
    table = Table.create(str(tmp_path / "m"), name="m", record_key=["id"], table_type="MERGE_ON_READ")
    for _ in range(2):
        table.upsert(ROWS)
    (log,) = (tmp_path / "m").glob(".*.log.*")
    content = bytearray(log.read_bytes())
    content[400:420] = b"\xff" * 20
    log.write_bytes(content)
    with pytest.raises(CorruptTableError, match=f"{log}: the log block at byte 0"):
        table.scan().to_arrow()


def test_root_of_a_table_may_be_a_link_and_landing_folders_may_hold_links(tmp_path: Path) -> None:
    table_at(tmp_path / "real")
    (tmp_path / "named").symlink_to(tmp_path / "real")
    assert Table.open(str(tmp_path / "named")).scan().count() == 2
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "newest").symlink_to(tmp_path / "real" / "a")
    landing = open_storage(str(tmp_path / "landing"), follow_links=True)
    (landed,) = [file for file in landing.list("") if file.name.endswith(".parquet")]
    assert landing.get_range(landed.path, 0, 4) == b"PAR1"


@pytest.mark.parametrize("place", [PROPERTIES, "a/data"])
def test_named_pipe_instead_of_a_file_is_refused_without_waiting(place: str, tmp_path: Path) -> None:
    table_at(tmp_path / "t")
    path = data_file(tmp_path / "t" / "a") if place == "a/data" else tmp_path / "t" / place
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CorruptTableError, match=r"is not a regular file but a pipe|has 0 bytes"):
        Table.open(str(tmp_path / "t")).scan().to_arrow()


def test_file_of_huge_size_is_not_read_into_memory(tmp_path: Path) -> None:
    table_at(tmp_path / "t")
    os.truncate(tmp_path / "t" / PROPERTIES, 1 << 40)  # a sparse file, which uses no disk space
    with pytest.raises(CorruptTableError, match=r"1099511627776 bytes"):
        Table.open(str(tmp_path / "t"))


@pytest.mark.parametrize("path", ["../secret/b/{name}", "b/../../secret/b/{name}"])
def test_commit_that_names_a_file_outside_the_table_is_refused(path: str, tmp_path: Path, secret: Path) -> None:
    mine = table_at(tmp_path / "mine")
    (commit,) = (tmp_path / "mine" / ".hoodie" / "timeline").glob("*_*.commit")
    metadata = decode_commit(commit.read_bytes())
    named = replace(metadata.stats[0], path=path.format(name=data_file(secret).name))
    without_schema = {key: value for key, value in metadata.extra.items() if key != "schema"}
    forged = replace(metadata, stats=(named, *metadata.stats[1:]), extra=without_schema)
    commit.write_bytes(table_layout(9).encode_commit(forged))
    for use in (USES["describe"], USES["read"]):
        with pytest.raises(CorruptTableError, match="points outside the table"):
            use(mine.location)


def test_plans_that_name_files_outside_the_table_are_refused() -> None:
    for partition, path in (("../other", "/lake/t/../other/f"), ("a", "/lake/t/a/../../o/f"), ("a", "x/../t/a/f")):
        with pytest.raises(CorruptTableError, match="points outside the table"):
            relative_paths("/lake/t", partition, [path], what="plan")


@pytest.mark.parametrize("folder", ["../../secret/.hoodie/timeline", "/etc", "timeline/../../../x"])
def test_properties_with_a_timeline_outside_the_table_are_refused(folder: str, tmp_path: Path, secret: Path) -> None:
    table_at(tmp_path / "t")
    path = tmp_path / "t" / PROPERTIES
    path.write_bytes(render_properties(parse_properties(path.read_bytes()) | {"hoodie.timeline.path": folder}))
    with pytest.raises(LakehouseError, match=r"without empty segments, '\.', '\.\.' or NUL"):
        Table.open(str(tmp_path / "t")).describe()
