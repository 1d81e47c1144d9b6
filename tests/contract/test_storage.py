"""Contract of storage: the behaviour of every store for reads, writes, listings and deletions."""

from __future__ import annotations

import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.protocol import NotFoundError, Storage, is_temporary
from lakehouse.errors import UserError

STRANGE_NAMES = (
    "plain/file.parquet",
    "city=São Paulo/日本 語.parquet",
    "p=a%2Fb/100%/x",
    "ts=2024-01-01 10:11:12/.hidden_file",
    "q=a+b&c#d?e*f[g]{h}~!@$^`'|\"<>;,()\\/x",
    ".hoodie/timeline/20240101000000000_20240101000001000.commit",
    "trailing space /x ",
)


def paths(store: Storage, prefix: str = "") -> list[str]:
    return [file.path for file in store.list(prefix)]


def test_get_returns_the_bytes_of_the_last_put(each_store: Storage) -> None:
    each_store.put("a/b/c", b"one")
    assert each_store.get("a/b/c") == b"one"
    each_store.put("a/b/c", b"")
    assert each_store.get("a/b/c") == b""


def test_reads_of_a_missing_file_raise_not_found(each_store: Storage) -> None:
    each_store.put("a/b", b"x")
    for missing in ("nothing", "a", "a/nothing", "nothing/a"):
        with pytest.raises(NotFoundError, match=missing):
            each_store.get(missing)
        with pytest.raises(NotFoundError):
            each_store.get_range(missing, 0, 1)
        with pytest.raises(NotFoundError):
            each_store.open_input(missing)


@pytest.mark.parametrize("directory", ["x" * 1_100, "語" * 400, "/".join(["x"] * 2_100)], ids=["wide", "cjk", "deep"])
def test_a_path_that_is_too_long_for_the_store_is_absent(each_store: Storage, directory: str) -> None:
    each_store.put("a/b", b"x")
    path = f"{directory}/file"
    with pytest.raises(NotFoundError):
        each_store.get(path)
    with pytest.raises(NotFoundError):
        each_store.get_range(path, 0, 1)
    with pytest.raises(NotFoundError):
        each_store.get_tagged(path)
    with pytest.raises(NotFoundError):
        each_store.open_input(path)
    assert each_store.find(path) is None
    assert each_store.list(directory) == each_store.list_names(directory) == []
    assert each_store.list_dir(directory) == ([], [])
    assert each_store.delete(path) is False
    each_store.delete_many([path, "a/b"])
    assert each_store.list("") == []


def test_listing_after_a_path_and_finding_a_file_agree_with_the_list_of_all(each_store: Storage) -> None:
    for path in ("a/1", "a/2", "b", "b/3" if each_store.root.startswith("s3") else "b2/3", "c d+e%2F"):
        each_store.put(path, path.encode())
    everything = each_store.list("")
    for after in ("", "a/1", "a/15", "b", "c", "z"):
        assert each_store.list_after(after) == [file for file in everything if file.path > after]
    assert [each_store.find(file.path) for file in everything] == everything
    assert each_store.find("a/3") is None and each_store.find("no/such") is None


def test_get_range_stops_at_the_end_of_the_file(each_store: Storage) -> None:
    each_store.put("digits", b"0123456789")
    assert each_store.get_range("digits", 0, 3) == b"012"
    assert each_store.get_range("digits", 4, 1) == b"4"
    assert each_store.get_range("digits", 8, 100) == b"89"
    assert each_store.get_range("digits", 10, 5) == b""
    assert each_store.get_range("digits", 100, 5) == b""
    assert each_store.get_range("digits", 3, 0) == b""


def test_create_succeeds_only_if_the_file_is_absent(each_store: Storage) -> None:
    assert each_store.create("t/1.commit", b"first") is True
    assert each_store.create("t/1.commit", b"second") is False
    assert each_store.create("t/1.commit", b"first", unique=True) is False
    assert each_store.get("t/1.commit") == b"first"
    assert paths(each_store) == ["t/1.commit"]


def test_create_is_exclusive_for_an_empty_file(each_store: Storage) -> None:
    assert each_store.create("t/1.requested", b"") is True
    assert each_store.create("t/1.requested", b"") is False


def test_exactly_one_of_concurrent_creates_succeeds_and_its_bytes_stay(each_store: Storage) -> None:
    threads = 8
    for instant in range(5):
        barrier = threading.Barrier(threads)

        def race(number: int, path: str = f"timeline/{instant}", barrier: threading.Barrier = barrier) -> bool:
            barrier.wait()
            return each_store.create(path, b"%d" % number)

        with ThreadPoolExecutor(threads) as pool:
            won = list(pool.map(race, range(threads)))
        assert won.count(True) == 1
        assert each_store.get(f"timeline/{instant}") == b"%d" % won.index(True)
    assert paths(each_store) == [f"timeline/{instant}" for instant in range(5)]


def test_reader_never_sees_a_partial_put(each_store: Storage) -> None:
    versions = [bytes([letter]) * 200_000 for letter in b"abcd"]
    each_store.put("shared", versions[0])
    done = threading.Event()
    torn: list[int] = []

    def read() -> int:
        reads = 0
        while not done.is_set() or not reads:
            found = each_store.get("shared")
            reads += 1
            if found not in versions:
                torn.append(len(found))
        return reads

    with ThreadPoolExecutor(2) as pool:
        readers = [pool.submit(read) for _ in range(2)]
        for number in range(24):
            each_store.put("shared", versions[number % 4])
        done.set()
        assert all(reader.result() >= 1 for reader in readers)
    assert torn == []


@pytest.mark.parametrize("name", STRANGE_NAMES)
def test_file_names_with_special_characters_are_kept_exactly(each_store: Storage, name: str) -> None:
    if each_store.root.startswith("hdfs://"):
        name = name.replace(":", "-")
    assert each_store.create(name, b"1") is True
    each_store.put(name, b"22")
    assert each_store.get(name) == b"22"
    assert [(file.path, file.size_bytes) for file in each_store.list("")] == [(name, 2)]
    directory, _, last = name.rpartition("/")
    files, names = each_store.list_dir(directory)
    assert [file.path for file in files] == [name]
    assert [file.name for file in files] == [last]
    assert names == []
    with each_store.open_output(name + "2") as output:
        output.write(b"333")
    with each_store.open_input(name + "2") as file:
        assert file.read() == b"333"
    assert each_store.delete_many([name, name + "2"]) == 2
    assert paths(each_store) == []


@pytest.mark.parametrize("path", ["", "/absolute", "a//b", "../up", "a/../b", "./a", "a/.", "a/", "a\0b"])
def test_invalid_paths_are_refused(each_store: Storage, path: str) -> None:
    for verb in (each_store.get, each_store.delete, each_store.open_input, each_store.open_output):
        with pytest.raises(UserError, match="storage path"):
            verb(path)
    for writer in (each_store.put, each_store.create):
        with pytest.raises(UserError, match="storage path"):
            writer(path, b"")


def test_list_is_recursive_sorted_and_matches_whole_path_segments(each_store: Storage) -> None:
    for path in ("b/2", "a/x/1", "a/x/y/2", "a/3", "ab/4", "root"):
        each_store.put(path, path.encode())
    assert paths(each_store) == ["a/3", "a/x/1", "a/x/y/2", "ab/4", "b/2", "root"]
    assert paths(each_store, "a") == paths(each_store, "a/") == ["a/3", "a/x/1", "a/x/y/2"]
    assert paths(each_store, "a/x/y") == ["a/x/y/2"]
    assert paths(each_store, "absent") == paths(each_store, "a/3") == []
    assert [file.size_bytes for file in each_store.list("a")] == [3, 5, 7]


def test_list_dir_returns_files_and_names_of_directories_of_one_level(each_store: Storage) -> None:
    for path in ("p=1/f", "p=2/deep/f", "g", "f"):
        each_store.put(path, b"")
    files, names = each_store.list_dir("")
    assert ([file.path for file in files], names) == (["f", "g"], ["p=1", "p=2"])
    files, names = each_store.list_dir("p=2/")
    assert ([file.path for file in files], names) == ([], ["deep"])
    assert each_store.list_dir("absent") == ([], [])
    assert each_store.list_dir("f") == ([], [])


def test_list_names_returns_the_file_names_of_one_level(each_store: Storage) -> None:
    for path in ("p=1/f", "p=2/deep/f", "p=2/b", "p=2/a", "g", "f"):
        each_store.put(path, b"")
    for prefix in ("", "p=1", "p=2/", "p=2/deep", "absent", "f"):
        assert each_store.list_names(prefix) == [file.name for file in each_store.list_dir(prefix)[0]]
    assert each_store.list_names("p=2") == ["a", "b"]


def test_modification_times_of_a_listing_do_not_decrease(each_store: Storage) -> None:
    each_store.put("first", b"")
    each_store.put("second", b"")
    first, second = each_store.list("")
    assert 0 < first.modified_ms <= second.modified_ms


def test_listing_of_more_than_one_page_is_complete(each_store: Storage) -> None:
    expected = [f"many/{number:04d}" for number in range(1100)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda path: each_store.put(path, b""), expected))
    assert paths(each_store, "many") == expected
    assert len(each_store.list_dir("many")[0]) == len(each_store.list_names("many")) == 1100
    assert each_store.delete_many(expected) == 1100
    assert paths(each_store) == []


def test_delete_of_a_missing_file_is_no_error(each_store: Storage) -> None:
    each_store.put("a/b", b"")
    assert each_store.delete("a/b") is True
    assert each_store.delete("a/b") is False
    assert each_store.delete("absent/file") is False
    each_store.delete_many(["a/b", "absent/file"])
    assert each_store.delete_many([]) == 0


def test_delete_of_a_directory_deletes_nothing(each_store: Storage) -> None:
    each_store.put("a/b", b"kept")
    assert each_store.delete("a") is False
    assert each_store.get("a/b") == b"kept"


def test_directory_disappears_with_its_last_file(each_store: Storage) -> None:
    each_store.put("a/b/c/1", b"")
    each_store.put("a/2", b"")
    each_store.delete("a/b/c/1")
    assert each_store.list_dir("a")[1] == []
    each_store.delete_many(["a/2"])
    assert each_store.list_dir("") == ([], [])
    each_store.put("a/b/c/1", b"again")
    assert each_store.get("a/b/c/1") == b"again"


def test_pickled_store_reads_and_writes_the_same_files(each_store: Storage) -> None:
    each_store.put("before", b"1")
    copy: Storage = pickle.loads(pickle.dumps(each_store))
    assert copy.root == each_store.root
    assert copy.get("before") == b"1"
    copy.put("after", b"2")
    assert each_store.get("after") == b"2"
    for wrapper in (CountingStorage(each_store), FaultyStorage(each_store)):
        assert pickle.loads(pickle.dumps(wrapper)).get("after") == b"2"


def test_repr_of_a_store_shows_its_root_and_no_secrets(each_store: Storage) -> None:
    assert "secret" not in repr(each_store)
    assert each_store.root in repr(each_store)


def table(rows: int) -> pa.Table:
    return pa.table({"id": pa.array(range(rows)), "name": [f"name-{i}" for i in range(rows)], "value": [0.5] * rows})


def test_parquet_file_is_written_as_a_stream_and_read_by_column(each_store: Storage) -> None:
    data = table(50_000)
    with (
        each_store.open_output("p=1/f.parquet") as output,
        pq.ParquetWriter(output, data.schema, compression="zstd") as writer,
    ):
        for batch in data.to_batches(max_chunksize=10_000):
            writer.write_batch(batch)
        assert paths(each_store, "p=1") in ([], [path for path in paths(each_store, "p=1") if is_temporary(path)])
    assert paths(each_store) == ["p=1/f.parquet"]
    assert each_store.list("")[0].size_bytes == output.tell()
    with each_store.open_input("p=1/f.parquet") as file:
        assert file.size() == output.tell()
        assert pq.read_table(file, columns=["id"]).equals(data.select(["id"]))
    with each_store.open_input("p=1/f.parquet") as file:
        reader = pq.ParquetFile(file, pre_buffer=True)
        assert reader.metadata.num_row_groups == 5
        assert pa.Table.from_batches(reader.iter_batches(columns=["name"])).equals(data.select(["name"]))


def test_file_larger_than_one_upload_part_round_trips(each_store: Storage) -> None:
    block = bytes(range(256)) * 4096
    with each_store.open_output("large") as output:
        for _ in range(20):
            output.write(block)
    with each_store.open_input("large") as file:
        assert file.size() == 20 << 20
        assert file.read(10) == block[:10]
        file.seek(-(3 << 20), 2)
        assert file.tell() == 17 << 20
        assert file.read() == block * 3
        file.seek((5 << 20) + 7)
        assert file.read(2 << 20) == (block * 3)[7 : 7 + (2 << 20)]
        assert file.read(0) == b""
    assert each_store.get_range("large", 256, 4) == b"\0\1\2\3"


def test_empty_file_can_be_written_and_opened(each_store: Storage) -> None:
    each_store.open_output("empty").close()
    with each_store.open_input("empty") as file:
        assert (file.size(), file.read()) == (0, b"")


@pytest.mark.parametrize("written", [10, 9 << 20, 30 << 20])
def test_open_output_leaves_no_file_after_an_exception(each_store: Storage, written: int) -> None:
    with pytest.raises(ZeroDivisionError), each_store.open_output("p=1/f.parquet") as output:
        for _ in range(0, written, 1 << 20):
            output.write(b"x" * min(written, 1 << 20))
        raise ZeroDivisionError
    assert output.closed
    assert each_store.list("") == []
    with pytest.raises(NotFoundError):
        each_store.get("p=1/f.parquet")


def test_open_output_keeps_the_existing_file_after_an_exception_in_a_parquet_writer(each_store: Storage) -> None:
    each_store.put("f.parquet", b"former")
    data = table(10)
    with (
        pytest.raises(ZeroDivisionError),
        each_store.open_output("f.parquet") as output,
        pq.ParquetWriter(output, data.schema) as writer,
    ):
        writer.write_table(data)
        raise ZeroDivisionError
    assert each_store.get("f.parquet") == b"former"
    assert paths(each_store) == ["f.parquet"]


def test_aborted_output_refuses_more_bytes_and_leaves_no_file(each_store: Storage) -> None:
    output = each_store.open_output("a")
    output.write(b"1")
    output.abort()
    output.close()
    with pytest.raises(ValueError, match="closed"):
        output.write(b"2")
    assert each_store.list("") == []


def test_open_output_replaces_an_existing_file_on_close(each_store: Storage) -> None:
    each_store.put("a", b"old")
    with each_store.open_output("a") as output:
        output.write(memoryview(b"new and longer"))
        assert each_store.get("a") == b"old"
    assert each_store.get("a") == b"new and longer"


def test_native_path_is_under_the_native_root(each_store: Storage) -> None:
    root, file = each_store.native(""), each_store.native("p=1/f x")
    assert file == f"{root}/p=1/f x"
    assert root == ("s3a" + each_store.root[2:] if each_store.root.startswith("s3://") else each_store.root)


def test_parent_store_sees_the_same_files_up_to_a_root_without_parent(each_store: Storage) -> None:
    each_store.put("a/b", b"x")
    counted = CountingStorage(each_store).above()
    above = FaultyStorage(each_store).above()
    assert counted is not None and above is not None
    assert above.get("store/a/b") == counted.get("store/a/b") == b"x"
    assert above.root == each_store.root.removesuffix("/store")
    levels = 1
    while (next_above := above.above()) is not None:
        above, levels = next_above, levels + 1
    assert 1 <= levels < 30
    assert len(above.root) <= len(each_store.root)
