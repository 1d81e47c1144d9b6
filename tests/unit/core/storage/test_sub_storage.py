"""The files below one directory of a store."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.core.storage.sub_storage import SubStorage
from lakehouse.errors import UserError


def test_sub_storage_reads_and_writes_below_its_directory() -> None:
    outer = MemoryStorage()
    inner = SubStorage(outer, "a/b")
    assert inner.create("x/1", b"one")
    assert not inner.create("x/1", b"two")
    inner.put("y", b"three")
    outer.put("a/other", b"")
    assert outer.get("a/b/x/1") == b"one" == inner.get("x/1")
    assert [file.path for file in inner.list("")] == ["x/1", "y"]
    assert [file.path for file in inner.list("x")] == ["x/1"]
    files, directories = inner.list_dir("")
    assert ([file.path for file in files], directories) == (["y"], ["x"])
    assert inner.list_names("x") == ["1"]
    assert inner.get_range("y", 1, 2) == b"hr"
    with inner.open_output("z") as sink:
        sink.write(b"last")
    with inner.open_input("z") as source:
        assert source.read() == b"last"
    assert inner.delete_many(["x/1", "y"]) == 2
    assert inner.delete("z")
    assert [file.path for file in outer.list("")] == ["a/other"]
    assert inner.root == f"{outer.root}/a/b"
    assert inner.above() is outer


def test_sub_storage_refuses_paths_outside_of_its_directory() -> None:
    inner = SubStorage(MemoryStorage(), "a")
    with pytest.raises(UserError):
        inner.get("../secret")
    with pytest.raises(NotFoundError):
        inner.get("absent")


def test_sub_storage_swaps_tagged_files_below_its_directory() -> None:
    outer = MemoryStorage()
    inner = SubStorage(outer, "a")
    tag = inner.replace_if("lock", b"1", None)
    assert tag is not None
    assert inner.get_tagged("lock") == (b"1", tag)
    assert inner.create_guarded("done", b"", "lock", tag)
    assert inner.delete_if("lock", tag)
    assert [file.path for file in outer.list("")] == ["a/done"]


def test_sub_storage_keeps_its_directory_when_pickled(tmp_path: Path) -> None:

    copy = pickle.loads(pickle.dumps(SubStorage(LocalStorage(str(tmp_path)), "a")))
    copy.put("x", b"1")
    assert LocalStorage(str(tmp_path)).get("a/x") == b"1"
