"""Restore plans: the instants to undo, and the files that the target needs."""

from __future__ import annotations

import pytest

from lakehouse.core.format.file_names import parse_base_file, parse_instant, parse_log_file
from lakehouse.core.layout.registry import table_layout
from lakehouse.core.planning.restore import instants_to_roll_back, missing_files, slice_paths, slices_after, without
from lakehouse.core.state.file_system_view import DataFile
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.instant import Instant, Timeline

V9 = table_layout(9)

DAY = "20250101"


def at(second: int) -> str:
    return f"{DAY}{second:09d}"


def timeline(*names: str) -> Timeline:
    """Return a timeline of instants with short names, such as `1_3.commit` and `2.deltacommit.inflight`."""
    found = []
    for name in names:
        times, _, rest = name.partition(".")
        instant = parse_instant("_".join(at(int(time)) for time in times.split("_")) + "." + rest)
        assert instant is not None, name
        found.append(instant)
    return Timeline(tuple(found))


def undone(line: Timeline, to: int, *, merge_on_read: bool = True) -> list[str]:
    target = line.find(at(to))
    assert target is not None
    found = instants_to_roll_back(line, target, merge_on_read=merge_on_read)
    return [f"{int(i.requested[8:])}.{i.action}" for i in found]


def test_restore_undoes_writes_in_descending_order_of_completion() -> None:
    line = timeline("1_2.commit", "3_9.commit", "4_5.commit", "6_7.commit")
    assert undone(line, 1, merge_on_read=False) == ["3.commit", "6.commit", "4.commit"]
    assert undone(line, 6, merge_on_read=False) == ["3.commit"]
    assert undone(line, 3, merge_on_read=False) == []


def test_restore_undoes_pending_clustering_then_pending_writes_first() -> None:
    line = timeline(
        "1.deltacommit.requested",
        "2_3.deltacommit",
        "4.clustering.inflight",
        "5_6.deltacommit",
        "7.deltacommit.inflight",
    )
    assert undone(line, 2) == ["4.clustering", "7.deltacommit", "1.deltacommit", "5.deltacommit"]


def test_restore_undoes_compactions_by_request_time_on_merge_on_read_tables() -> None:
    line = timeline("1_2.deltacommit", "3_9.commit", "4_5.deltacommit", "6_7.commit", "8.compaction.requested")
    assert undone(line, 4) == ["8.compaction", "6.commit"]
    assert undone(line, 1) == ["8.compaction", "3.commit", "6.commit", "4.deltacommit"]


def test_restore_keeps_older_compaction_plans_and_drops_log_compaction_plans() -> None:
    line = timeline("1_2.deltacommit", "3.compaction.inflight", "4.logcompaction.requested", "5_6.deltacommit")
    assert undone(line, 5) == ["4.logcompaction"]


def test_restore_does_not_undo_cleans_savepoints_and_rollbacks() -> None:
    line = timeline("1_2.commit", "1_9.savepoint", "3_4.clean", "5_6.rollback", "7_8.restore", "9.clean.requested")
    assert undone(line, 1, merge_on_read=False) == []


def test_without_removes_instants_and_keeps_savepoints_of_the_same_time() -> None:
    line = timeline("1_2.commit", "1_3.savepoint", "4_5.commit")
    gone = [i for i in line if str(i.action) == "commit"]
    assert [str(i.action) for i in without(line, gone)] == ["savepoint"]


def stat(name: str, *, prev: str | None = None) -> WriteStat:
    file = file_of(name)
    return WriteStat(partition="p", file_id=file.file_id, path=file.path, prev_base_file=prev)


def file_of(name: str) -> DataFile:
    file = parse_base_file(name, "p", 1) or parse_log_file(name, "p", 1)
    assert file is not None, name
    return file


def base(group: str, second: int) -> str:
    return f"{group}_0-0-0_{at(second)}.parquet"


def log(group: str, second: int) -> str:
    return f".{group}_{at(second)}.log.1_0-0-0"


def commit(
    line: Timeline, second: int, *stats: WriteStat, **replaced: tuple[str, ...]
) -> tuple[Instant, CommitMetadata]:
    instant = line.find(at(second))
    assert instant is not None
    return instant, CommitMetadata(operation="UPSERT", stats=stats, replaced=replaced)


def test_missing_files_contains_the_cleaned_predecessor_of_an_undone_file() -> None:
    line = timeline("1_2.commit", "3_4.commit", "5_6.clean")
    kept = [commit(line, 1, stat(base("g", 1)), stat(base("h", 1)))]
    gone = [commit(line, 3, stat(base("g", 3), prev=base("g", 1)))]
    left = without(line, [gone[0][0]])
    assert missing_files(left, kept, gone, [file_of(base("h", 1))], layout=V9) == (f"p/{base('g', 1)}",)
    assert missing_files(left, kept, gone, [file_of(base("h", 1)), file_of(base("g", 1))], layout=V9) == ()


def test_missing_files_contains_only_files_of_the_newest_slice_at_the_target() -> None:
    line = timeline("1_2.deltacommit", "3_4.deltacommit", "5_6.commit", "7_8.deltacommit", "9_10.deltacommit")
    kept = [
        commit(line, 1, stat(base("g", 1))),
        commit(line, 3, stat(log("g", 3))),
        commit(line, 5, stat(base("g", 5))),
        commit(line, 7, stat(log("g", 7))),
    ]
    gone = [commit(line, 9, stat(log("g", 9)))]
    left = without(line, [gone[0][0]])
    found = [file_of(base("g", 5)), file_of(log("g", 9))]
    assert missing_files(left, kept, gone, found, layout=V9) == (f"p/{log('g', 7)}",)
    (newest,) = slices_after(left, kept, [*found, file_of(log("g", 7))], layout=V9)
    assert slice_paths(newest) == (f"p/{base('g', 5)}", f"p/{log('g', 7)}")


def test_missing_files_contains_groups_replaced_by_an_undone_commit() -> None:
    line = timeline("1_2.commit", "3_4.replacecommit")
    kept = [commit(line, 1, stat(base("g", 1)))]
    gone = [commit(line, 3, stat(base("n", 3)), p=("g", "n-old"))]
    left = without(line, [gone[0][0]])
    assert missing_files(left, kept, gone, [], layout=V9) == (f"p/{base('g', 1)}", "p/n-old")
    # A group that a kept commit replaced is not needed.
    assert missing_files(line, [*kept, *gone], [], [file_of(base("n", 3))], layout=V9) == ()


@pytest.mark.parametrize("prev", [base("g", 0), base("g", 4)])
def test_missing_files_finds_files_of_archived_commits_by_their_successors(prev: str) -> None:
    line = timeline("1_2.commit", "4_5.commit", "6_7.commit")
    kept, away = [commit(line, 1, stat(base("h", 1)))], line.find(at(4))
    assert away is not None
    gone = [commit(line, 6, stat(base("g", 6), prev=prev)), commit(line, 4, stat(base("g", 4)))]
    left = without(line, [instant for instant, _ in gone])
    expected = (f"p/{prev}",) if prev == base("g", 0) else ()
    assert missing_files(left, kept, gone, [file_of(base("h", 1))], layout=V9) == expected
