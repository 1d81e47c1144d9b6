"""Partition values whose paths a storage cannot hold, and values that look alike."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from lakehouse.core.env import Env
from lakehouse.core.files.stage.markers import MarkerBatch, marker_directory
from lakehouse.core.format.file_names import MARKERS_TYPE, marker_name
from lakehouse.core.format.timeline.rollback import encode_rollback_plan
from lakehouse.core.layout.registry import table_layout
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.undo.undo_checks import plan_of_files
from lakehouse.core.rows import keys
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.files import BaseFile
from lakehouse.model.instant import Action, Instant
from tests.support.tables import SeededIds, SteadyClock, make_env

ENCODE = "hoodie.datasource.write.partitionpath.urlencode"
DIRECT = "hoodie.write.markers.type"
FAULTS = {
    "ascii segment": ("x" * 256, "256 bytes, and the file system allows 255"),
    "cjk segment": ("語" * 86, "258 bytes, and the file system allows 255"),
    "deep path": ("/".join(["x"] * 2100), "path has 4,199 bytes"),
    "nul": ("a\0b", "it contains NUL"),
    "line break": ("a\nb", "line break, which the markers"),
    "carriage return": ("a\rb", "line break, which the markers"),
    "metadata folder": ("x/.hoodie/y", "a directory .hoodie"),
}


def created(storage: Storage, *, encode: bool = False, **options: str) -> Table:
    """Return a new table with one row in partition `p`."""
    env = Env(storage=storage, clock=SteadyClock(), ids=SeededIds())
    table = Table.create(
        storage.root,
        name="t",
        record_key="id",
        partition_by="p",
        options={ENCODE: str(encode).lower(), **options},
        env=env,
    )
    table.upsert(rows("a", "p"))
    return table


def rows(key: str, *partitions: str | None) -> pa.Table:
    """Return one row of the key for each partition."""
    return pa.table({"id": [key] * len(partitions), "p": pa.array(partitions, pa.string())})


def stored(table: Table) -> list[tuple[str, str | None]]:
    """Return keys and partition values, in order."""
    return sorted((row["id"], row["p"]) for row in table.scan(["id", "p"]).to_arrow().to_pylist())


def writes_of(table: Table) -> dict[str, Callable[..., Any]]:
    """Return the methods that write rows."""
    names = ("upsert", "insert", "bulk_insert", "insert_overwrite", "insert_overwrite_table")
    return {name: getattr(table, name) for name in names}


@pytest.mark.parametrize("name", FAULTS)
def test_a_path_that_cannot_exist_is_refused_before_the_instant(name: str, tmp_path: Any) -> None:
    """apache/datafusion-comet#5836, lensesio/stream-reactor#1719: the write fails, and the table stays writable."""
    value, reason = FAULTS[name]
    table = created(open_storage(str(tmp_path / "t")))
    before = sorted(os.walk(tmp_path))
    for write in writes_of(table).values():
        with pytest.raises(UserError, match=f"partition column 'p' cannot be a partition path: .*{reason}") as caught:
            write(rows("b", "p", value))
        assert len(str(caught.value)) < 1500
        assert (f"{ENCODE}=true" in str(caught.value)) == ("segment" not in name and name != "deep path")
        assert sorted(os.walk(tmp_path)) == before
    table.upsert(rows("c", "p"))
    assert stored(table) == [("a", "p"), ("c", "p")]


@pytest.mark.parametrize(
    ("name", "markers"), [("ascii segment", "DIRECT"), *((name, "TIMELINE_SERVER_BASED") for name in FAULTS)]
)
def test_rows_that_are_streamed_into_the_write_roll_it_back(name: str, markers: str, tmp_path: Any) -> None:
    """apache/datafusion-comet#5836: values of a stream are seen when the instant exists already."""
    value, _ = FAULTS[name]
    table = created(open_storage(str(tmp_path / "t")), **{DIRECT: markers})
    for write in writes_of(table).values():
        batches = [*rows("b", "p", "q").to_batches(), *rows("b", value).to_batches()]
        with pytest.raises(UserError, match="partition column 'p' cannot be a partition path"):
            write(pa.RecordBatchReader.from_batches(batches[0].schema, batches))
        assert not table.timeline.where(pending=True)
        assert sorted(os.listdir(tmp_path / "t")) == [".hoodie", "p"]
    table.upsert(rows("c", "p"))
    assert stored(table) == [("a", "p"), ("c", "p")]


@pytest.mark.parametrize("name", ["deep path", "nul", "line break", "metadata folder"])
def test_url_encoding_accepts_values_whose_characters_it_escapes(name: str, tmp_path: Any) -> None:
    """apache/hudi#10754, delta-io/delta#3290: the encoded path counts, with three bytes for each escaped one."""
    table = created(open_storage(str(tmp_path / "t")), encode=True)
    value, _ = FAULTS[name]
    if name == "deep path":
        with pytest.raises(UserError, match="directory name has 8,397 bytes"):
            table.upsert(rows("b", value))
        with pytest.raises(UserError, match="directory name has 258 bytes"):
            table.upsert(rows("b", "/" * 86))
        value = "/" * 85
    table.upsert(rows("b", value))
    table.upsert(rows("b", value))
    assert stored(table) == [("a", "p"), ("b", value)]


def test_the_longest_paths_of_a_local_disk_are_written_and_rolled_back(tmp_path: Any) -> None:
    """lensesio/stream-reactor#1719: files, markers and temporary files fit below the longest allowed path."""
    for markers in ("DIRECT", "TIMELINE_SERVER_BASED"):
        root = str(tmp_path / markers)
        table = created(open_storage(root), **{DIRECT: markers})
        longest = 4095 - len(root) - 1 - 128 - (48 if markers == "DIRECT" else 0)
        # The name of the last directory can grow by one byte, and the path cannot.
        width = next(width for width in (200, 201) if longest % (width + 1))
        value = "/".join(["y" * width] * (longest // (width + 1)) + ["z" * (longest % (width + 1))])
        assert len(value) == longest
        with pytest.raises(UserError, match=f"path has {longest + 1:,} bytes, and the storage allows {longest:,}"):
            table.upsert(rows("b", value + "z"))
        outcome = table.upsert(rows("b", value))
        table.upsert(rows("b", value))
        table.bulk_insert(rows("c", value))
        assert stored(table) == [("a", "p"), ("b", value), ("c", value)]
        newest = max(instant.requested for instant in table.timeline.writes())
        assert newest > outcome.instant.requested
        table.rollback(newest)
        assert stored(table) == [("a", "p"), ("b", value)]


@pytest.mark.s3
def test_keys_of_object_stores_count_with_the_prefix_of_the_table(s3_server: Any) -> None:
    """prestodb/presto#6850: a key has 1,024 bytes, and the encoded partition path is a part of it."""
    storage = open_storage(f"s3://{s3_server.bucket}/prefix/keys", s3_server.options)
    table = created(storage, encode=True)
    limit = 1024 - len("prefix/keys/") - 128
    with pytest.raises(UserError, match=f"path has {limit + 1:,} bytes, and the storage allows {limit:,}"):
        table.upsert(rows("b", "x" * (limit + 1)))
    table.upsert(rows("b", "x" * limit))
    assert len(stored(table)) == 2
    too_long = "y" * 1100
    assert storage.list(too_long) == storage.list_dir(too_long)[0] == []
    assert storage.find(too_long) is None
    assert storage.delete(too_long) is False
    assert storage.delete_many([too_long]) == 0


def left_behind(table: Table, paths: Sequence[str], *, undone: bool) -> Instant:
    """Leave an instant behind as older code did; its markers name files in `paths`. `undone`: with a pending rollback.

    Another marker names a file in partition `p` that exists.
    """
    loaded = table.refresh()
    store, storage = loaded.store, loaded.env.storage
    instant = store.request(loaded.timeline, Action.COMMIT, b"")
    store.start(instant, table_layout(9).encode_inflight(CommitMetadata(operation="upsert")))
    files = [
        BaseFile(
            partition=partition,
            file_id=f"{loaded.env.ids.uuid()}-0",
            write_token="0-1-0",
            instant=instant.requested,
        )
        for partition in ("p", *paths)
    ]
    storage.put(f"{marker_directory(instant.requested)}/{MARKERS_TYPE}", b"TIMELINE_SERVER_BASED")
    MarkerBatch(storage, instant.requested, 0).write([marker_name(file.path, "CREATE") for file in files])
    storage.put(files[0].path, b"rows of a failed write")
    if undone:
        plan = plan_of_files(instant.requested, Action.COMMIT, [file.path for file in files])
        undoing = store.request(store.load(), Action.ROLLBACK, encode_rollback_plan(plan, base_path=storage.root))
        store.start(undoing, b"")
    return instant


@pytest.mark.parametrize("undone", [False, True], ids=["pending", "being rolled back"])
def test_a_table_that_older_code_left_broken_recovers(undone: bool, each_store: Storage) -> None:
    """apache/datafusion-comet#5836, apache/hudi#2749: a rollback treats a path that cannot exist as absent."""
    # Older code refused to begin the rollback of a path with NUL.
    paths = [FAULTS[name][0] for name in ("ascii segment", "cjk segment", "deep path", *(() if undone else ("nul",)))]
    table = created(each_store)
    left_behind(table, paths, undone=undone)
    table.upsert(rows("b", "p"))
    assert stored(table) == [("a", "p"), ("b", "p")]
    assert not table.timeline.where(pending=True)
    assert not each_store.list(".hoodie/.temp")

    instant = left_behind(table, paths, undone=undone)
    if undone:
        table.rollback_failed()
    else:
        table.rollback(instant.requested)
    kept = max(write.requested for write in table.timeline.writes())
    table.upsert(rows("c", "p"))
    left_behind(table, paths, undone=undone)
    table.restore(kept)
    table.upsert(rows("d", "p"))
    assert stored(table) == [("a", "p"), ("b", "p"), ("d", "p")]
    assert not table.validate().findings


@pytest.mark.parametrize("encode", [False, True])
def test_values_that_look_alike_stay_apart(encode: bool, tmp_path: Any) -> None:
    """apache/hudi#10754: partitions differ if their bytes differ: case, Unicode normal forms, blanks, escapes."""
    table = created(open_storage(str(tmp_path / "t")), encode=encode)
    values = ["A", "\u00c9", "E\u0301", "\u00e9", "e\u0301", " ", "  ", "x", "x ", "%41", "a%2Fb", "p=1", ".x", "x.tmp"]
    table.upsert(rows("k", *values))
    table.upsert(rows("k", *values))
    assert [value for key, value in stored(table) if key == "k"] == sorted(values)
    for value in values:
        assert table.scan(["id"], f"p = '{value}'").count() == 1
    # As in Hudi, an empty value and null have the path of the default partition, so they are one record.
    table.upsert(rows("n", None))
    table.upsert(rows("n", ""))
    assert [value for key, value in stored(table) if key == "n"] == [""]


@pytest.mark.parametrize("value", [".", "..", ".hoodie", "a/", "/a", "a//b", "a/../b", "x/./y"])
def test_values_that_name_no_directory_are_refused_with_the_value(value: str) -> None:
    """apache/hudi#19342: such a path would be another directory than its text says."""
    table = created(make_env().storage)
    with pytest.raises(UserError, match="a value in 'p' that cannot form a partition path") as caught:
        table.upsert(rows("b", value))
    assert repr(value) in str(caught.value)
    assert stored(table) == [("a", "p")]


def test_deletes_in_a_path_that_cannot_exist_find_nothing(tmp_path: Any) -> None:
    """apache/datafusion-comet#5836: no row can be there, so nothing is deleted."""
    table = created(open_storage(str(tmp_path / "t")))
    for value in ("x" * 256, "a\nb"):
        assert isinstance(table.delete(rows("a", value)), NothingToDo)
    assert stored(table) == [("a", "p")]


@pytest.mark.parametrize("value", ["a\nb", "x/.hoodie/y"])
def test_a_stored_partition_that_is_refused_now_stays_writable(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """apache/hudi#10754: only new partitions are refused; a stored one must not become read-only."""
    table = created(make_env().storage)
    with monkeypatch.context() as patch:
        patch.setattr(keys, "first_fault", lambda *_: None)
        table.upsert(rows("b", value))
    for number in range(3):
        table.upsert(rows(str(number), "p"))
    table.services.clean.run()
    table.upsert(rows("c", value))
    table.upsert(pa.RecordBatchReader.from_batches(rows("d", value).schema, rows("d", value).to_batches()))
    assert [key for key, partition in stored(table) if partition == value] == ["b", "c", "d"]


def test_numbers_of_any_size_have_short_partition_paths(tmp_path: Any) -> None:
    """apache/datafusion-comet#5836: the largest double is a text of 22 characters, as in Java, not of 309 digits."""
    env = make_env(str(tmp_path / "t"))
    table = Table.create(env.storage.root, name="t", record_key="id", partition_by="p", env=env)
    values = [1.7976931348623157e308, 5e-324, -1e7, 1e-3, 0.0]
    table.upsert(pa.table({"id": ["a"] * len(values), "p": values}))
    paths = table.scan(["_hoodie_partition_path"]).to_arrow().column(0).to_pylist()
    assert sorted(paths) == ["-1.0E7", "0.0", "0.001", "1.7976931348623157E308", "4.9E-324"]


@pytest.mark.spark
def test_spark_writes_roll_back_and_leave_the_table_writable(spark: SparkSession, tmp_path: Any) -> None:
    """apache/datafusion-comet#5836: the values are known in the workers only."""
    table = created(open_storage(str(tmp_path / "t")))
    for value, write in (("x" * 256, table.upsert), ("a\0b", table.bulk_insert)):
        frame = spark.createDataFrame([("b", "p"), ("b", value)], "id string, p string")
        with pytest.raises(UserError, match="partition column 'p' cannot be a partition path"):
            write(frame)
        assert not table.timeline.where(pending=True)
    table.upsert(rows("c", "p"))
    assert stored(table) == [("a", "p"), ("c", "p")]
