"""Checksum files of Hadoop's local file system are deleted with the files that this package replaces or deletes."""

from __future__ import annotations

from pathlib import Path

from lakehouse.core.storage.local import LocalStorage


def written_by_hadoop(directory: Path) -> LocalStorage:
    """Return a storage with one file `a/b` and its checksum file."""
    (directory / "a").mkdir()
    (directory / "a" / "b").write_bytes(b"old")
    (directory / "a" / ".b.crc").write_bytes(b"crc\\0 of old")
    return LocalStorage(str(directory))


def test_put_deletes_the_checksum_of_a_replaced_file(tmp_path: Path) -> None:
    store = written_by_hadoop(tmp_path)
    store.put("a/b", b"new")
    assert [file.path for file in store.list("")] == ["a/b"]
    assert store.get("a/b") == b"new"


def test_output_deletes_the_checksum_of_a_replaced_file(tmp_path: Path) -> None:
    store = written_by_hadoop(tmp_path)
    with store.open_output("a/b") as output:
        output.write(b"new")
    assert [file.path for file in store.list("")] == ["a/b"]


def test_delete_removes_the_checksum_and_the_empty_directory(tmp_path: Path) -> None:
    store = written_by_hadoop(tmp_path)
    assert store.delete_many(["a/b"]) == 1
    assert store.list_dir("") == ([], [])
    assert written_by_hadoop(tmp_path).delete("a/b")
    assert store.list_dir("") == ([], [])


def test_delete_keeps_directories_that_hudi_creates_in_two_steps(tmp_path: Path) -> None:
    """Hadoop creates a directory, then sets its mode: a write of Hudi fails if the directory is removed in between."""
    store = LocalStorage(str(tmp_path))
    for name in (".temp", ".heartbeat", ".staging"):
        store.put(f".hoodie/{name}/20261130125643049/marker", b"")
        assert store.delete_many([f".hoodie/{name}/20261130125643049/marker"]) == 1
    assert sorted(path.name for path in (tmp_path / ".hoodie").iterdir()) == [".heartbeat", ".temp"]
    assert not [*(tmp_path / ".hoodie/.temp").iterdir()]
