"""Checksums that Hadoop's local file system keeps beside its files never contradict what we write."""

from __future__ import annotations

from pathlib import Path

from lakehouse.core.storage.local import LocalStorage


def written_by_hadoop(directory: Path) -> LocalStorage:
    """Return a store with one file `a/b` and its checksum."""
    (directory / "a").mkdir()
    (directory / "a" / "b").write_bytes(b"old")
    (directory / "a" / ".b.crc").write_bytes(b"crc\\0 of old")
    return LocalStorage(str(directory))


def test_a_replaced_file_loses_its_checksum(tmp_path: Path) -> None:
    store = written_by_hadoop(tmp_path)
    store.put("a/b", b"new")
    assert [file.path for file in store.list("")] == ["a/b"]
    assert store.get("a/b") == b"new"


def test_an_output_that_replaces_a_file_takes_its_checksum_away(tmp_path: Path) -> None:
    store = written_by_hadoop(tmp_path)
    with store.open_output("a/b") as output:
        output.write(b"new")
    assert [file.path for file in store.list("")] == ["a/b"]


def test_a_deleted_file_takes_its_checksum_and_its_directory_along(tmp_path: Path) -> None:
    store = written_by_hadoop(tmp_path)
    assert store.delete_many(["a/b"]) == 1
    assert store.list_dir("") == ([], [])
    assert written_by_hadoop(tmp_path).delete("a/b")
    assert store.list_dir("") == ([], [])
