from __future__ import annotations

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.storage.locate import open_storage
from lakehouse.errors import UserError
from lakehouse.platform.ingest.run import skip_reason
from lakehouse.platform.sources.files.file_checkpoint import Checkpoint, SourceFile
from lakehouse.platform.sources.files.file_choice import choose_files
from lakehouse.platform.sources.files.file_listing import list_source
from lakehouse.platform.sources.files.file_paths import interval_paths, split_path
from lakehouse.platform.sources.files.missing_folders import check_missing
from lakehouse.spec.contracts.job import interval_text
from lakehouse.spec.sources.file_source import FileSourceSpec
from lakehouse.spec.table.location import resolve

JANUARY = (datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 2, 1, tzinfo=UTC))


def _file(number: int, modified_ms: int) -> SourceFile:
    return SourceFile(url=f"/landing/{number}", path=str(number), size_bytes=1, modified_ms=modified_ms)


ARRIVALS = st.lists(
    st.lists(st.builds(_file, st.integers(0, 50), st.integers(0, 100)), max_size=8), min_size=1, max_size=6
)


@given(ARRIVALS)
def test_runs_by_checkpoint_read_every_file_once_in_any_order_of_arrival(
    arrivals: list[list[SourceFile]],
) -> None:
    present: list[SourceFile] = []
    taken: list[SourceFile] = []
    committed: str | None = None
    for arriving in arrivals:
        present += [file for file in arriving if file not in present]
        checkpoint = Checkpoint() if committed is None else Checkpoint.from_json(committed)
        choice = choose_files(present, checkpoint)
        assert choose_files(present, checkpoint) == choice
        if choice.files:
            assert choice.checkpoint is not None
            taken += choice.files
            committed = choice.checkpoint.to_json()
    assert sorted(taken, key=str) == sorted(present, key=str)


@given(ARRIVALS, st.integers(0, 4), st.integers(0, 4))
def test_runs_with_limits_read_every_file_once_from_the_oldest(
    arrivals: list[list[SourceFile]], max_files: int, max_bytes: int
) -> None:
    files = list({file for arriving in arrivals for file in arriving})
    checkpoint, taken = Checkpoint(), list[SourceFile]()
    while (choice := choose_files(files, checkpoint, max_files=max_files, max_bytes=max_bytes)).files:
        # Each of these files has one byte.
        assert len(choice.files) == min(max_files or 99, max_bytes or 99, len(files) - len(taken))
        assert choice.left == len(files) - len(taken) - len(choice.files)
        taken += choice.files
        assert choice.checkpoint is not None
        checkpoint = choice.checkpoint
    assert taken == sorted(files, key=lambda file: (file.modified_ms, file.url))


@given(ARRIVALS)
def test_choose_files_repeats_the_choice_of_a_run_without_commit(arrivals: list[list[SourceFile]]) -> None:
    present = [file for arriving in arrivals for file in arriving]
    killed = choose_files(present, Checkpoint())
    assert choose_files(present, Checkpoint()) == killed
    assert set(killed.files) == set(present)


def test_committed_interval_is_skipped_unless_the_run_repeats_it() -> None:
    files = [_file(1, 1), _file(2, 2)]
    reason = skip_reason(JANUARY, "20260201000000000", repeat=False)
    assert reason == "interval 2026-01-01T00:00:00Z/2026-02-01T00:00:00Z is in commit 20260201000000000 already"
    assert skip_reason(JANUARY, "20260201000000000", repeat=True) == ""
    assert choose_files(files, None).files == tuple(files)


def test_run_by_interval_reads_all_its_files_and_has_no_checkpoint() -> None:
    files = [_file(1, 1), _file(2, 2)]
    choice = choose_files(files, None)
    assert choice.files == tuple(files)
    assert choice.checkpoint is None


def test_full_refresh_reads_all_files_and_has_a_checkpoint() -> None:
    files = [_file(1, 1), _file(2, 2)]
    assert skip_reason(JANUARY, "2026", repeat=True) == ""
    choice = choose_files(files, Checkpoint().after(files), full_refresh=True)
    assert choice.files == tuple(files)
    assert choice.checkpoint == Checkpoint().after(files)


def test_summary_counts_all_files_and_names_the_first_20() -> None:
    choice = choose_files([_file(n, n) for n in range(50)], Checkpoint())
    summary = json.loads(choice.summary())
    assert (summary["count"], summary["bytes"], len(summary["names"])) == (50, 50, 20)
    assert summary["names"][0] == "/landing/0"


@pytest.fixture
def landing(tmp_path: Path) -> Path:
    for n, name in enumerate(("2026-01/a.json", "2026-01/b.csv", "2026-02/c.json", "2026-02/deep/d.json", "top.json")):
        path = tmp_path / "landing" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
        os.utime(path, (1000 + n, 1000 + n))
    for name in ("_SUCCESS", ".a.json.tmp", "2026-01/_temporary/x.json"):
        path = tmp_path / "landing" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("{}")
    (tmp_path / "landing/empty").mkdir()
    return tmp_path / "landing"


@pytest.mark.parametrize(
    ("path", "names"),
    [
        ("", ["2026-01/a.json", "2026-01/b.csv", "2026-02/c.json", "2026-02/deep/d.json", "top.json"]),
        ("2026-02/", ["c.json", "deep/d.json"]),
        ("top.json", ["top.json"]),
        ("*.json", ["top.json"]),
        ("*/*.json", ["2026-01/a.json", "2026-02/c.json"]),
        ("2026-0[12]", ["2026-01/a.json", "2026-01/b.csv", "2026-02/c.json", "2026-02/deep/d.json"]),
        ("**/*.json", ["2026-01/a.json", "2026-02/c.json", "2026-02/deep/d.json", "top.json"]),
        ("2026-0?/c.json", ["2026-02/c.json"]),
        ("empty", []),
        ("*.parquet", []),
    ],
)
def test_list_source_accepts_files_directories_and_patterns(landing: Path, path: str, names: list[str]) -> None:
    listing = list_source((f"{landing}/{path}" if path else str(landing),), {})
    assert [file.path for file in listing.files] == names
    assert all(Path(file.url).is_file() for file in listing.files)
    assert all(listing.storage.get(file.path) == b"{}" for file in listing.files)


def test_list_source_orders_files_by_modification_time(landing: Path) -> None:
    os.utime(landing / "top.json", (1, 1))
    assert list_source((str(landing),), {}).files[0].path == "top.json"


@pytest.mark.parametrize("path", ["nothing", "nothing/*.json", "nothing.json"])
def test_check_missing_names_a_path_that_does_not_exist(landing: Path, path: str) -> None:
    (folder,) = list_source((f"{landing}/{path}",), {}).folders
    assert not folder.exists
    with pytest.raises(UserError, match=f"no file or directory '.*{path[:7]}"):
        check_missing([folder], FileSourceSpec(path=path))


def test_list_source_accepts_empty_directories_and_patterns_of_object_stores() -> None:
    open_storage("memory://landing").put("orders/a.json", b"{}")
    assert [f.url for f in list_source(("memory://landing/orders/",), {}).files] == ["memory://landing/orders/a.json"]
    assert [f.url for f in list_source(("memory://landing/orders/a.json",), {}).files] == [
        "memory://landing/orders/a.json"
    ]
    assert [f.url for f in list_source(("memory://landing/o*/*",), {}).files] == ["memory://landing/orders/a.json"]
    assert list_source(("memory://landing/trips/",), {}).files == ()
    assert list_source(("memory://landing/trips/*.json",), {}).files == ()
    assert list_source(("memory://void",), {}).files == ()
    assert all(folder.exists for folder in list_source(("memory://landing/trips/",), {}).folders)
    assert not any(folder.exists for folder in list_source(("memory://landing/trips",), {}).folders)


def test_interval_paths_fill_placeholders_in_utc() -> None:
    zone = timezone(timedelta(hours=2))
    interval = (datetime(2026, 1, 1, 1, tzinfo=zone), datetime(2026, 2, 1, tzinfo=UTC))
    path = "a/{start:%Y-%m-%d}/{start:%H}_{end:%Y%m}.json"
    assert interval_paths(path, interval) == ("a/2025-12-31/23_202602.json",)
    assert interval_text(interval) == "2025-12-31T23:00:00Z/2026-02-01T00:00:00Z"
    assert interval_paths("a/*.json", None) == ("a/*.json",)
    with pytest.raises(UserError, match="read by data interval, and this run has none"):
        interval_paths("a/{start:%Y}.json", None)


@pytest.mark.parametrize(
    ("text", "environ", "expected"),
    [
        ("s3://b/x", {}, "s3://b/x"),
        ("${ROOT}/x/", {"ROOT": "s3://b"}, "s3://b/x/"),
        ("${ROOT}/x", {"ROOT": "/data"}, "/data/x"),
        ("x/{start:%Y}", {"LAKEHOUSE_HOME": "/home"}, "/home/x/{start:%Y}"),
        ("x/", {"LAKEHOUSE_HOME": "/home"}, "/home/x/"),
        ("/abs", {"LAKEHOUSE_HOME": "/home"}, "/abs"),
    ],
)
def test_resolve_fills_variables_and_relative_paths(text: str, environ: Mapping[str, str], expected: str) -> None:
    assert resolve(text, environ, name="location") == expected


def test_resolve_names_a_missing_variable_and_the_nearest_one() -> None:
    with pytest.raises(
        UserError, match=r"location: '\$\{LAKEHOUSE_SHARD\}/x' needs .*LAKEHOUSE_SHARD.*LAKEHOUSE_SHARED"
    ):
        resolve("${LAKEHOUSE_SHARD}/x", {"LAKEHOUSE_SHARED": "/s"}, name="location")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/a/b/c.json", ("/a/b/c.json", ())),
        ("/a/b/", ("/a/b", ())),
        ("/a/*/c", ("/a", ("*", "c"))),
        ("/*.json", ("/", ("*.json",))),
        ("s3://b/x/*.json", ("s3://b/x", ("*.json",))),
        ("s3://b/*", ("s3://b", ("*",))),
    ],
)
def test_split_path_divides_before_the_first_wildcard(path: str, expected: tuple[str, tuple[str, ...]]) -> None:
    assert split_path(path) == expected


def test_split_path_refuses_a_pattern_in_the_bucket() -> None:
    with pytest.raises(UserError, match="bucket cannot be a pattern"):
        split_path("s3://*/x")
