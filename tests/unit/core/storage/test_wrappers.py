"""Counting storage, fault injection, and the range reader of counted inputs."""

from __future__ import annotations

import os
import pickle
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.local import LocalStorage, temporary_name
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import NotFoundError, Storage, is_temporary
from lakehouse.core.storage.ranged_input import BLOCK_BYTES, RangeReader
from lakehouse.errors import RetryableError


def counted(**expected: int) -> dict[str, int]:
    return {"LIST": 0, "GET": 0, "PUT": 0, "HEAD": 0, "DELETE": 0} | expected


def test_counting_storage_counts_the_requests_of_each_method() -> None:
    store = CountingStorage(MemoryStorage())
    store.put("a", b"")
    store.create("a", b"")
    assert store.counts() == counted(PUT=2)
    store.get("a")
    store.get_range("a", 0, 1)
    assert store.counts() == counted(PUT=2, GET=2)
    store.reset()
    store.list("")
    store.list_dir("absent")
    store.delete_many(["a", "b"])
    store.delete_many([])
    assert store.counts() == counted(LIST=2, DELETE=1)
    store.delete("a")
    assert store.counts() == counted(LIST=2, DELETE=2, HEAD=1)


def test_failed_calls_are_counted() -> None:
    store = CountingStorage(MemoryStorage())
    for verb in (store.get, store.open_input):
        with pytest.raises(NotFoundError):
            verb("absent")
    assert store.counts() == counted(GET=2)


def test_listings_and_deletes_count_one_request_per_thousand() -> None:
    store = CountingStorage(MemoryStorage())
    names = [f"d/{number}" for number in range(2001)]
    for name in names:
        store.inner.put(name, b"")
    store.list("d")
    store.list_dir("d")
    store.delete_many(names)
    assert store.counts() == counted(LIST=6, DELETE=3)


def test_output_is_counted_when_it_is_closed() -> None:
    store = CountingStorage(MemoryStorage())
    store.open_output("aborted").abort()
    with store.open_output("small") as output:
        output.write(b"x" * 100)
        assert store.counts() == counted()
    assert store.counts() == counted(PUT=1)
    with store.open_output("large") as output:
        output.write(b"x" * (17 << 20))
    assert store.counts() == counted(PUT=1 + 5)


def test_parquet_reads_need_one_request_if_small_and_few_if_large(tmp_path: Path) -> None:
    store = CountingStorage(LocalStorage(str(tmp_path)))
    columns = {name: pa.array([f"{name}-{i * 7919 % 1000003}" for i in range(150_000)]) for name in "abcdef"}
    for name, data in (("small", pa.table(columns).slice(0, 1000)), ("large", pa.table(columns))):
        with store.open_output(name) as output:
            pq.write_table(data, output, compression="none", use_dictionary=False)
    store.reset()
    with store.open_input("small") as file:
        assert pq.read_table(file).num_rows == 1000
    assert store.counts() == counted(GET=1)
    store.reset()
    with store.open_input("large") as file:
        assert file.size() > 8 << 20
        assert pq.read_table(file, columns=["b"]).column("b").equals(pa.table(columns).column("b"))
    assert store.counts()["GET"] <= 3


def test_pickled_counting_storage_starts_at_zero() -> None:
    store = CountingStorage(MemoryStorage())
    store.put("a", b"")
    copy = pickle.loads(pickle.dumps(store))
    assert copy.counts() == counted()
    assert copy.get("a") == b""
    assert store.counts() == counted(PUT=1)


CONTENT = bytes(i * 31 % 251 for i in range(3 * BLOCK_BYTES))


@given(
    size=st.integers(0, len(CONTENT)),
    tail=st.integers(0, len(CONTENT)),
    reads=st.lists(st.tuples(st.integers(0, len(CONTENT) + 10), st.integers(-1, len(CONTENT))), max_size=12),
)
def test_range_reader_returns_the_bytes_of_the_file(size: int, tail: int, reads: list[tuple[int, int]]) -> None:
    data = CONTENT[:size]
    reader = RangeReader(lambda start, length: data[start : start + length], size, data[max(size - tail, 0) :])
    for position, length in reads:
        reader.seek(position)
        expected = data[position:] if length < 0 else data[position : position + length]
        assert reader.read(length) == expected
        assert reader.tell() == position + len(expected)


def test_range_reader_refuses_a_truncated_file() -> None:
    reader = RangeReader(lambda start, length: b"short", 1000, b"")
    with pytest.raises(EOFError, match="1000 expected"):
        reader.read(100)


def steps_of(store: Storage) -> None:
    """Write like a commit: requested instant, data, completed instant, cleanup."""
    store.create("1.requested", b"")
    with store.open_output("data") as output:
        output.write(b"rows")
    store.create("1.commit", b"stats")
    store.delete_many(["marker-1", "marker-2"])


def test_faulty_storage_numbers_and_names_steps() -> None:
    store = FaultyStorage(MemoryStorage())
    steps_of(store)
    assert store.trace == [
        "create 1.requested",
        "open_output data",
        "close data",
        "create 1.commit",
        "delete marker-1",
        "delete marker-2",
    ]
    assert store.steps == 6


@pytest.mark.parametrize("make", [lambda path: MemoryStorage(), lambda path: LocalStorage(str(path))])
@pytest.mark.parametrize(
    ("mode", "expected"),
    [
        ("crash_before", [0, 1, 1, 2, 3, 3]),
        ("crash_after", [1, 1, 2, 3, 3, 3]),
    ],
)
def test_crash_keeps_the_objects_of_earlier_steps(tmp_path: Path, make: object, mode: str, expected: list[int]) -> None:
    found = []
    for number in range(1, 7):
        inner = make(tmp_path / str(number))
        with pytest.raises(SimulatedCrash):
            steps_of(FaultyStorage(inner, number, mode))
        found.append(len(inner.list("")))
    assert found == expected


def test_storage_refuses_calls_after_a_crash() -> None:
    inner = MemoryStorage()
    inner.put("marker", b"")
    store = FaultyStorage(inner, 1, "crash_after")
    with pytest.raises(SimulatedCrash, match="crashed before"):
        try:
            store.put("data", b"")
        finally:
            store.delete("marker")
    assert [file.path for file in inner.list("")] == ["data", "marker"]
    assert store.steps == 1


def test_simulated_crash_is_not_an_exception_subclass() -> None:
    assert not issubclass(SimulatedCrash, Exception)


def test_lost_reply_raises_a_retryable_error_after_the_write() -> None:
    inner = MemoryStorage()
    store = FaultyStorage(inner, 2, FaultMode.LOSE_REPLY)
    assert store.create("1", b"") is True
    with pytest.raises(RetryableError, match="step 2"):
        store.create("2", b"mine")
    assert inner.get("2") == b"mine"
    assert store.create("2", b"mine") is False


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
@pytest.mark.parametrize(("mode", "expected"), [("kill_before", ["1"]), ("kill_after", ["1", "2"])])
def test_kill_mode_ends_the_process_at_the_step(tmp_path: Path, mode: str, expected: list[str]) -> None:
    child = os.fork()
    if child == 0:
        store = FaultyStorage(LocalStorage(str(tmp_path)), 2, mode)
        store.put("1", b"")
        store.put("2", b"")
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WTERMSIG(status) == signal.SIGKILL
    assert sorted(os.listdir(tmp_path)) == expected


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_killed_process_leaves_only_a_temporary_file(tmp_path: Path) -> None:
    child = os.fork()
    if child == 0:
        output = LocalStorage(str(tmp_path)).open_output("p=1/fileid_1-2-3_20240101000000000.parquet")
        output.write(b"x" * 100_000)
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(child, 0)
    (leftover,) = LocalStorage(str(tmp_path)).list("")
    assert is_temporary(leftover.path)
    assert not leftover.path.endswith(".parquet")


@pytest.mark.parametrize(
    "name", ["f.parquet", ".id_2024.log.1_0-1-2", "20240101.commit", "x" * 250, "日" * 80, "🚕" * 60]
)
def test_temporary_names_are_short_and_differ_from_table_files(tmp_path: Path, name: str) -> None:
    temporary = temporary_name(name, "1-1")
    assert is_temporary(f"p=1/{temporary}")
    assert not is_temporary(name)
    assert not [part for part in (".log", ".parquet", ".commit") if part in temporary]
    assert len(temporary.encode()) <= 255
    LocalStorage(str(tmp_path)).put(name, b"1")
    assert [file.path for file in LocalStorage(str(tmp_path)).list("")] == [name]


def test_temporary_name_of_an_ended_process_is_skipped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse.core.storage.local._tokens", iter([1, 2]))
    (tmp_path / temporary_name("f", f"{os.getpid()}-1")).write_bytes(b"left behind")
    LocalStorage(str(tmp_path)).put("f", b"1")
    assert (tmp_path / "f").read_bytes() == b"1"


def test_delete_keeps_the_root_and_put_below_a_file_is_refused(tmp_path: Path) -> None:
    store = LocalStorage(str(tmp_path / "root"))
    store.put("a", b"")
    assert store.delete("a") is True
    assert (tmp_path / "root").is_dir()
    store.put("file", b"")
    with pytest.raises(Exception, match="file/below") as caught:
        store.put("file/below", b"")
    assert type(caught.value).__name__ == "UserError"
