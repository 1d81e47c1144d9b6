"""Writes in process with one and with several threads give the same files; faults leave no partial file."""

from __future__ import annotations

import random
import shutil
import threading
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.engine import adapters
from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.files.base import base_writer, bulk_writer, column_file, group_rewrite
from lakehouse.core.files.base.column_file import ColumnFile
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.rows.numbered_texts import numbered_texts
from lakehouse.core.system.process_state import ProcessState
from lakehouse.core.table.table import Table
from tests.support.model import Run, Verb, histories, shapes
from tests.support.tables import SCHEMA, Shape, check_storage, data_rows, examples, make_env, make_table, strays

Rewrites = Counter[str]


@pytest.fixture(autouse=True)
def any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    """Divide and copy row groups of any size; gather few rows, so that small tests have several pieces."""
    monkeypatch.setattr(group_rewrite, "MIN_GROUP_BYTES", 0)
    monkeypatch.setattr(base_writer, "_SHARED_BYTES", 0)
    monkeypatch.setattr(bulk_writer, "_GATHERED_ROWS", 64)
    monkeypatch.setattr(bulk_writer, "_PARTITIONS_AT_ONCE", 2)


@pytest.fixture
def rewrites(monkeypatch: pytest.MonkeyPatch) -> Rewrites:
    """Count how row groups were rewritten."""
    count: Rewrites = Counter()

    def counted(name: str, function: Callable[..., object]) -> Callable[..., object]:
        def call(*arguments: object) -> object:
            count[name] += 1
            return function(*arguments)

        return call

    for name in ("_copy", "_replace", "_encode_rows"):
        monkeypatch.setattr(group_rewrite, name, counted(name, getattr(group_rewrite, name)))
    return count


def use_threads(monkeypatch: pytest.MonkeyPatch, threads: int) -> None:
    """Run the writes of Arrow data with this number of threads."""
    monkeypatch.setattr(adapters, "LocalEngine", partial(LocalEngine, threads))


def delay_encoding(monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """Let threads wait for each other at random before they encode columns, but never forever."""
    chance, lock, passed = random.Random(seed), threading.Lock(), threading.Event()
    encode = column_file.encoded_chunks

    def delayed(*arguments: object) -> object:
        with lock:
            waits = chance.random() < 0.5
        if waits:
            passed.wait(timeout=0.002)
        passed.set()
        return encode(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(column_file, "encoded_chunks", delayed)
    monkeypatch.setattr(base_writer, "encoded_chunks", delayed)


def wide_rows(count: int, version: int, seed: int) -> pa.Table:
    """Return rows of several partitions with columns of many kinds, among them NaN, nulls, long texts and lists."""
    random_numbers = np.random.default_rng(seed)
    keys = random_numbers.permutation(count)
    real = np.where(keys % 7 == 0, np.nan, keys / 3)
    return pa.table(
        {
            "id": pa.array([f"k{key:05d}" for key in keys]),
            "p": pa.array([f"p{key % 3}" for key in keys]),
            "ts": pa.array(np.full(count, version)),
            "real": pa.array(real, mask=keys % 11 == 0),
            "few": pa.array([None if key % 5 == 0 else f"value-{key % 4}" for key in keys]),
            "long": pa.array(["x" * (600 if key % 50 == 0 else 3) + str(key) for key in keys]),
            "items": pa.array([[int(key), None] if key % 3 else None for key in keys], pa.list_(pa.int64())),
            "place": pa.array([{"x": float(key), "y": str(key)} for key in keys]),
            "money": pa.array([Decimal(int(key)) for key in keys], pa.decimal128(12, 2)),
            "day": pa.array(keys.astype(np.int32)).cast(pa.date32()),
        }
    )


def changed(rows: pa.Table, version: int, columns: tuple[str, ...]) -> pa.Table:
    """Return some of the rows with new values in these columns."""
    part = rows.slice(len(rows) // 3, 40)
    values = {"ts": pa.array(np.full(len(part), version)), "few": pa.array(["other"] * len(part))}
    values["real"] = pa.array(np.full(len(part), -0.0))
    for name in columns:
        part = part.set_column(part.schema.get_field_index(name), name, values[name])
    return part


def write_all(home: Path) -> dict[str, bytes]:
    """Write a table by several verbs; return its base files."""
    shutil.rmtree(home, ignore_errors=True)
    options = {"hoodie.parquet.small.file.limit": "0", "lakehouse.write.memory.budget": str(1 << 20)}
    # A process that remembers the lock of an earlier table reads the clock at other times.
    env = replace(make_env(str(home)), process_state=ProcessState())
    table = Table.create(
        str(home), name="t", record_key="id", partition_by="p", ordering="ts", options=options, env=env
    )
    rows = wide_rows(900, 1, seed=5)
    table.bulk_insert(pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=50)))
    table.upsert(changed(rows, 2, ("ts",)))
    table.upsert(changed(rows, 3, ("ts", "few", "real")))
    table.delete(rows.select(["id", "p"]).slice(10, 5))
    check_storage(table)
    return {str(path.relative_to(home)): path.read_bytes() for path in sorted(home.rglob("p*/*.parquet"))}


def test_files_have_the_same_bytes_with_one_and_with_several_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rewrites: Rewrites
) -> None:
    use_threads(monkeypatch, 1)
    expected = write_all(tmp_path / "t")
    assert len(expected) > 6 and rewrites["_replace"] and rewrites["_encode_rows"]
    for seed in range(3):
        use_threads(monkeypatch, 2 + seed)
        delay_encoding(monkeypatch, seed)
        assert write_all(tmp_path / "t") == expected


@pytest.mark.parametrize("columns", [("ts",), ("ts", "few"), ("ts", "real")])
def test_upsert_changes_the_values_of_its_rows_only(
    tmp_path: Path, rewrites: Rewrites, columns: tuple[str, ...]
) -> None:
    rows = wide_rows(600, 1, seed=4)
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", partition_by="p", ordering="ts")
    table.bulk_insert(rows)
    expected = {row["id"]: row for row in rows.to_pylist()}
    for version in (2, 3):
        part = changed(rows.slice(100 * version), version, columns)
        table.upsert(part)
        expected |= {row["id"]: row for row in part.to_pylist()}
    stored = {row["id"]: row for row in data_rows(table)}
    assert repr(sorted(stored.items())) == repr(sorted(expected.items()))
    assert rewrites["_replace"] == 6
    for path in sorted((tmp_path / "t").glob("p*/*.parquet")):
        for group in range(pq.read_metadata(path).num_row_groups):
            few = pq.ParquetFile(path, read_dictionary=["few"]).read_row_group(group, ["few"])["few"].combine_chunks()
            # The dictionary has no values that were replaced.
            assert set(few.dictionary.to_pylist()) == set(few.to_pylist()) - {None}


@pytest.mark.parametrize("index", ["SIMPLE", "BUCKET"])
@examples(10)
@given(data=st.data())
def test_table_equals_the_model_with_several_threads_and_copied_chunks(index: str, data: st.DataObject) -> None:
    shape: Shape = data.draw(shapes(index=index))
    history: list[Verb] = data.draw(histories())
    with pytest.MonkeyPatch.context() as patch:
        use_threads(patch, 3)
        run = Run(make_table(shape), shape)
        for verb in history:
            run.step(verb)


def test_upsert_copies_the_chunks_of_columns_that_do_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, rewrites: Rewrites
) -> None:
    encoded: list[str] = []
    encode = column_file.encoded_chunks

    def noted(new_writer: column_file.NewWriter, rows: pa.Table) -> object:
        encoded.extend(rows.column_names)
        return encode(new_writer, rows)

    rows = wide_rows(300, 1, seed=1)
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", partition_by="p", ordering="ts")
    table.bulk_insert(rows)
    monkeypatch.setattr(base_writer, "encoded_chunks", noted)
    part = rows.filter(pa.array([name == "p1" for name in rows["p"].to_pylist()])).slice(0, 3)
    table.upsert(part.set_column(2, "ts", pa.array([2, 2, 2])))
    assert rewrites == {"_replace": 1, "_copy": 1}
    # Real numbers and nested values may be equal and yet have other bits, so they are encoded.
    assert set(encoded) == {"_hoodie_commit_time", "_hoodie_commit_seqno", "ts", "real", "items", "place"}
    stored = table.scan().to_arrow()
    assert Counter(stored["ts"].to_pylist()) == {1: 297, 2: 3}
    newest = stored.filter(pa.array([value == 2 for value in stored["ts"].to_pylist()]))
    assert len(set(newest["_hoodie_commit_seqno"].to_pylist())) == 3
    assert len(set(stored["_hoodie_file_name"].to_pylist())) == 3
    check_storage(table)


@pytest.mark.parametrize("failing", [1, 4, 9])
def test_error_in_a_thread_leaves_the_table_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: int
) -> None:
    use_threads(monkeypatch, 3)
    rows = wide_rows(300, 1, seed=2)
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", partition_by="p", ordering="ts")
    table.bulk_insert(rows.slice(0, 200))
    before, encode, lock, calls = repr(data_rows(table)), column_file.encoded_chunks, threading.Lock(), Counter[str]()

    def broken(*arguments: object) -> object:
        with lock:
            calls["encode"] += 1
            number = calls["encode"]
        if number == failing:
            raise MemoryError("no memory to encode")
        return encode(*arguments)  # type: ignore[arg-type]

    writes: list[Callable[[], object]] = [
        lambda: table.bulk_insert(rows.slice(200)),
        lambda: table.upsert(changed(rows.slice(0, 200), 9, ("ts", "few"))),
    ]
    for write in writes:
        calls.clear()
        with monkeypatch.context() as patch:
            patch.setattr(column_file, "encoded_chunks", broken)
            patch.setattr(base_writer, "encoded_chunks", broken)
            with pytest.raises(MemoryError, match="no memory to encode"):
                write()
        assert repr(data_rows(table)) == before
        assert not strays(make_env(str(tmp_path / "t")).storage) and not list(tmp_path.rglob("*.tmp"))
    assert isinstance(table.bulk_insert(rows.slice(200)), Committed)
    assert len(data_rows(table)) == 300


@pytest.mark.parametrize("threads", [1, 2, 7])
def test_composed_file_has_the_bytes_that_arrow_writes(threads: int) -> None:
    rows = wide_rows(500, 1, seed=3)
    properties = {"use_dictionary": ["few"], "compression": "zstd", "store_schema": False}
    properties["column_encoding"] = {"id": "DELTA_BYTE_ARRAY", "ts": "DELTA_BINARY_PACKED"}
    new_writer = partial(pq.ParquetWriter, **properties)
    whole, composed = pa.BufferOutputStream(), pa.BufferOutputStream()
    with new_writer(whole, rows.schema) as plain:
        file = ColumnFile(composed, rows.schema, new_writer, threads)
        for start in range(0, 500, 200):
            part = rows.slice(start, 200)
            plain.write_table(part, row_group_size=len(part))
            file.write_table(part, row_group_size=len(part))
        for writer in (plain, file):
            writer.add_key_value_metadata({"key": "value"})
    footer = file.close()
    assert composed.getvalue().equals(whole.getvalue())
    assert footer.num_row_groups == 3 and footer.num_rows == 500


@examples(60)
@given(first=st.integers(0, 10**12), count=st.integers(0, 300), near=st.integers(0, 7))
def test_numbered_texts_are_the_prefix_and_the_numbers(first: int, count: int, near: int) -> None:
    for start in (first, max(10**near - count // 2, 0)):
        texts = numbered_texts("20250101000000000_3_", start, count)
        texts.validate(full=True)
        assert texts.to_pylist() == [f"20250101000000000_3_{number}" for number in range(start, start + count)]


def test_rewritten_file_of_the_test_schema_is_readable_by_arrow(tmp_path: Path) -> None:
    table = make_table(Shape(rows_per_file=100), env=make_env(str(tmp_path / "t")))
    rows = pa.Table.from_pylist(
        [{"id": f"k{n}", "region": "eu", "p": "a", "at": n, "ts": 1, "amount": float(n)} for n in range(50)], SCHEMA
    )
    table.upsert(rows)
    table.upsert(rows.slice(5, 3).set_column(4, "ts", pa.array([2, 2, 2])))
    (newest, *_) = sorted((tmp_path / "t" / "a").glob("*.parquet"), key=lambda path: path.stat().st_mtime)[::-1]
    stored = pq.read_table(newest)
    # The new rows have the places of the old ones.
    assert stored["id"].to_pylist() == pq.read_table(newest, columns=["id"])["id"].to_pylist()
    assert sorted(stored["ts"].to_pylist()) == [1] * 47 + [2] * 3
