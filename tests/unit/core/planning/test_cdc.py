"""Plans of change reads: the cases of Hudi, inferred from write stats and from the slices before and after."""

from __future__ import annotations

from typing import Any

import pytest

from lakehouse.core.layout.registry import table_layout
from lakehouse.core.planning.cdc import ChangeCase, ChangePart, FileGroupChange, in_order, plan_changes
from lakehouse.core.state.file_system_view import Group
from lakehouse.errors import UserError
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.files import BaseFile, FileSlice, LogFile
from lakehouse.model.instant import Action, Instant, State, Timeline

V9 = table_layout(9)

TOKEN = "0-0-0"
GROUP = ("p", "g")


def instant(requested: int, completed: int, action: Action = Action.DELTACOMMIT) -> Instant:
    return Instant(requested=f"{requested:04}", action=action, state=State.COMPLETED, completed=f"{completed:04}")


def base(time: int) -> BaseFile:
    return BaseFile(partition="p", file_id="g", write_token=TOKEN, instant=f"{time:04}")


def log(time: int, suffix: str = "") -> LogFile:
    return LogFile(partition="p", file_id="g", instant=f"{time:04}", version=1, write_token=TOKEN, suffix=suffix)


def slices(*found: tuple[BaseFile | None, tuple[LogFile, ...]]) -> dict[Group, tuple[FileSlice, ...]]:
    return {
        GROUP: tuple(
            FileSlice(
                partition="p",
                file_id="g",
                base_instant=of.instant if of is not None else logs[0].instant,
                base=of,
                logs=logs,
            )
            for of, logs in found
        )
    }


def stat(file: BaseFile | LogFile, previous: int | None = None, **counts: Any) -> WriteStat:
    before = None if previous is None else base(previous)
    return WriteStat(
        partition="p",
        file_id="g",
        path=file.path,
        prev_commit=before and before.instant,
        prev_base_file=before and before.name,
        **{"num_writes": 1, **counts},
    )


def commit(*stats: WriteStat, operation: str = "UPSERT", **of: Any) -> CommitMetadata:
    return CommitMetadata(operation=operation, stats=stats, **of)


def one(
    known: dict[Group, tuple[FileSlice, ...]], at: Instant, metadata: CommitMetadata, *others: Instant
) -> FileGroupChange:
    (change,) = plan_changes([(at, metadata)], known, Timeline((at, *others)), layout=V9)
    assert (change.instant, change.partition, change.file_id) == (at.requested, *GROUP)
    return change


C1, C2 = instant(10, 19), instant(20, 29)


def test_first_base_file_of_a_group_is_an_insert() -> None:
    change = one(slices((base(10), ())), C1, commit(stat(base(10))))
    assert (change.case, change.before) == (ChangeCase.BASE_FILE_INSERT, None)
    assert change.after is not None and change.after.base == base(10)


def test_change_log_of_a_commit_is_read_directly() -> None:
    found = stat(base(20), 10, cdc_files={log(20, ".cdc").path: 7})
    change = one(slices((base(20), ()), (base(10), ())), C2, commit(found), C1)
    assert change.case is ChangeCase.AS_IS
    assert [(file.name, file.size_bytes) for file in change.change_logs] == [(log(20, ".cdc").name, 7)]
    assert change.before is not None and change.before.base == base(10)


def test_change_log_needs_no_data_files() -> None:
    found = stat(base(20), 10, cdc_files={log(20, ".cdc").path: 7})
    change = one({}, C2, commit(found), C1)
    assert (change.case, change.before, change.after) == (ChangeCase.AS_IS, None, None)


def test_slice_before_is_the_previous_base_file_of_the_write_stat() -> None:
    found = stat(base(20), 15, cdc_files={log(20, ".cdc").path: 7})
    assert one(slices((base(20), ()), (base(10), ())), C2, commit(found), C1).before is None
    with pytest.raises(UserError, match="cleaned"):
        one(slices((base(20), ()), (base(10), ())), C2, commit(stat(base(20), 15)), C1)


def test_base_files_without_change_log_are_compared_or_deleted() -> None:
    known = slices((base(20), ()), (base(10), ()))
    assert one(known, C2, commit(stat(base(20), 10)), C1).case is ChangeCase.BASE_FILE_COMPARE
    empty = commit(stat(base(20), 10, num_writes=0, num_deletes=3), operation="DELETE")
    assert one(known, C2, empty, C1).case is ChangeCase.BASE_FILE_DELETE


def test_log_file_changes_have_the_slices_before_and_after() -> None:
    change = one(slices((base(10), (log(15), log(20)))), C2, commit(stat(log(20))), C1, instant(15, 17))
    assert (change.case, change.logs) == (ChangeCase.LOG_FILE, (log(20),))
    assert change.before is not None and change.before.logs == (log(15),)
    assert change.after is not None and change.after.logs == (log(15), log(20))


def test_slices_of_a_change_exclude_files_completed_later() -> None:
    # The compaction at 16 and the log at 18 were requested before the commit, and completed after it.
    known = slices((base(16), (log(18), log(20))), (base(10), (log(15),)))
    others = (C1, instant(15, 155), instant(16, 40, Action.COMMIT), instant(18, 50))
    change = one(known, C2, commit(stat(log(20))), *others)
    assert change.before is not None and change.after is not None
    assert (change.before.base, change.before.logs) == (base(10), ())
    assert (change.after.base, change.after.logs) == (base(10), (log(20),))


def test_log_of_a_new_group_has_no_slice_before() -> None:
    change = one(slices((None, (log(10),))), C1, commit(stat(log(10))))
    assert (change.case, change.before, change.logs) == (ChangeCase.LOG_FILE, None, (log(10),))


def test_replaced_group_has_its_previous_slice_and_no_slice_after() -> None:
    replacing = instant(20, 29, Action.REPLACECOMMIT)
    metadata = commit(operation="INSERT_OVERWRITE", replaced={"p": ("g",)})
    change = one(slices((base(10), (log(15),))), replacing, metadata, C1, instant(15, 17))
    assert (change.case, change.after) == (ChangeCase.REPLACE_COMMIT, None)
    assert change.before is not None and change.before.logs == (log(15),)
    with pytest.raises(UserError, match="0020"):
        one({}, replacing, metadata)


@pytest.mark.parametrize("operation", ["COMPACT", "LOG_COMPACT", "CLUSTER"])
def test_services_have_no_changes(operation: str) -> None:
    metadata = commit(stat(base(20), 10), operation=operation, replaced={"p": ("g",)})
    assert plan_changes([(C2, metadata)], slices((base(20), ()), (base(10), ())), Timeline((C1, C2)), layout=V9) == ()


def test_changes_are_sorted_by_commit_partition_and_group() -> None:
    files = {
        (partition, name): (
            FileSlice(
                partition=partition,
                file_id=name,
                base_instant="0010",
                base=BaseFile(partition=partition, file_id=name, write_token=TOKEN, instant="0010"),
            ),
        )
        for partition, name in (("q", "a"), ("p", "z"), ("p", "b"))
    }
    stats = [
        WriteStat(partition=p, file_id=name, path=found[0].base.path, num_writes=1)
        for (p, name), found in files.items()
        if found[0].base is not None
    ]
    found = plan_changes([(C1, commit(*stats))], files, Timeline((C1,)), layout=V9)
    assert [(change.partition, change.file_id) for change in found] == [("p", "b"), ("p", "z"), ("q", "a")]


def test_changes_are_split_and_ordered_by_kind_within_each_commit() -> None:
    def change(instant: str, file_id: str, *, deletes: bool, upserts: bool) -> FileGroupChange:
        return FileGroupChange(
            instant=instant,
            partition="p",
            file_id=file_id,
            case=ChangeCase.AS_IS,
            may_delete=deletes,
            may_upsert=upserts,
        )

    changes = [
        change("0010", "a", deletes=False, upserts=True),
        change("0010", "b", deletes=True, upserts=True),
        change("0010", "c", deletes=True, upserts=False),
        change("0020", "a", deletes=True, upserts=False),
    ]
    assert [(c.instant, c.file_id, c.part) for c in in_order(changes, rows_delete=False)] == [
        ("0010", "b", ChangePart.DELETES),
        ("0010", "c", ChangePart.ALL),
        ("0010", "a", ChangePart.ALL),
        ("0010", "b", ChangePart.UPSERTS),
        ("0020", "a", ChangePart.ALL),
    ]


@pytest.mark.parametrize(
    ("counts", "expected"),
    [
        ({"num_updates": 1}, (False, True)),
        ({"num_deletes": 1}, (True, False)),
        ({"num_deletes": 1, "num_inserts": 1}, (True, True)),
        ({}, (False, True)),
    ],
)
def test_kinds_of_log_changes_follow_from_the_counts_of_the_commit(
    counts: dict[str, int], expected: tuple[bool, bool]
) -> None:
    files = slices((base(10), (log(20),)))
    (change,) = plan_changes([(C2, commit(stat(log(20), **counts)))], files, Timeline((C2, C1)), layout=V9)
    assert (change.may_delete, change.may_upsert) == expected
    # Rows that delete without being counted may be in any log.
    assert [part.part for part in in_order([change], rows_delete=True)] == [ChangePart.DELETES, ChangePart.UPSERTS]
