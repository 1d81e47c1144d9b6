from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.platform.sources.files.file_checkpoint import LIMIT, Checkpoint, SourceFile


def _file(number: int, modified_ms: int, size_bytes: int = 1) -> SourceFile:
    path = f"{number}.json"
    return SourceFile(url=f"/landing/{path}", path=path, size_bytes=size_bytes, modified_ms=modified_ms)


FILES = st.lists(
    st.builds(_file, st.integers(0, 30), st.integers(0, 2**41), st.integers(0, 3)), max_size=40, unique=True
)


@given(FILES, st.integers(1, 20))
def test_checkpoint_equals_its_parsed_json(files: list[SourceFile], limit: int) -> None:
    checkpoint = Checkpoint().after(files, limit=limit)
    assert Checkpoint.from_json(checkpoint.to_json()) == checkpoint


@given(FILES, FILES, st.integers(1, 20))
def test_checkpoint_includes_all_added_files(first: list[SourceFile], second: list[SourceFile], limit: int) -> None:
    checkpoint = Checkpoint().after(first, limit=limit).after(second, limit=limit)
    assert all(checkpoint.has(file) for file in (*first, *second))
    assert len(checkpoint.taken) <= limit


@given(FILES, st.data())
def test_checkpoint_excludes_late_files_with_old_times(files: list[SourceFile], data: st.DataObject) -> None:
    late = data.draw(st.lists(st.sampled_from(files), unique=True)) if files else []
    checkpoint = Checkpoint().after(file for file in files if file not in late)
    assert [file for file in files if not checkpoint.has(file)] == [file for file in files if file in late]


def test_checkpoint_excludes_a_file_that_was_written_again() -> None:
    checkpoint = Checkpoint().after([_file(1, 1000, size_bytes=5)])
    assert checkpoint.has(_file(1, 1000, size_bytes=5))
    assert not checkpoint.has(_file(1, 1000, size_bytes=6))
    assert not checkpoint.has(_file(1, 1001, size_bytes=5))


def test_checkpoint_includes_every_file_below_its_floor() -> None:
    checkpoint = Checkpoint().after((_file(n, 1000 + n) for n in range(10)), limit=4)
    assert not checkpoint.has(_file(99, 1006))
    assert checkpoint.has(_file(99, 1004))


def test_full_checkpoint_is_smaller_than_100_kilobytes() -> None:
    checkpoint = Checkpoint().after(_file(n, 1_700_000_000_000 + n * 3_600_000) for n in range(3 * LIMIT))
    assert len(checkpoint.taken) == LIMIT
    assert len(checkpoint.to_json()) < 100_000


def test_checkpoint_refuses_damaged_text_and_newer_versions() -> None:
    with pytest.raises(CorruptTableError, match="checkpoint in the last commit is unreadable"):
        Checkpoint.from_json('{"version": 1, "floor": null, "files": 3, "taken": "AAAA"}')
    with pytest.raises(CorruptTableError, match="unreadable"):
        Checkpoint.from_json("nonsense")
    with pytest.raises(UnsupportedError, match="version 2"):
        Checkpoint.from_json(json.dumps({"version": 2}))


@pytest.mark.parametrize("more", [-1, 0, 1, 3])
def test_checkpoint_has_entries_of_the_newest_files_up_to_its_limit(more: int) -> None:
    limit = 5
    files = [_file(number, 1_000 + number) for number in range(limit + more)]
    checkpoint = Checkpoint().after(files, limit=limit)
    kept = files[max(more, 0) :]
    assert checkpoint.taken == frozenset(kept_file.entry for kept_file in kept)
    assert checkpoint.floor == (files[more - 1].entry if more > 0 else None)
    assert all(checkpoint.has(file) for file in files)
    assert not checkpoint.has(_file(99, 5_000))
    # A file above the floor without an entry was not read.
    assert more <= 0 or not checkpoint.has(_file(98, 1_000 + more))


def test_checkpoint_of_a_run_uses_the_documented_limit() -> None:
    files = [_file(number, 1_000 + number) for number in range(LIMIT + 2)]
    checkpoint = Checkpoint().after(files)
    assert (len(checkpoint.taken), checkpoint.floor) == (LIMIT, files[1].entry)
    assert len(Checkpoint().after(files[:LIMIT]).taken) == LIMIT and Checkpoint().after(files[:LIMIT]).floor is None
