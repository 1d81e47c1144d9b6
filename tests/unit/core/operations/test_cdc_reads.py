"""Reads of change data: the changes of each kind of commit, conditions, columns of images, refused reads."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.files.log.cdc_writer import ChangeLog
from lakehouse.core.format.log.cdc import CdcMode
from lakehouse.core.operations.read.cdc import ChangeScan, as_json
from lakehouse.core.planning.cdc import ChangeCase
from lakehouse.core.table.table import Table
from lakehouse.errors import CorruptTableError, UserError
from tests.support.archived import eager
from tests.support.tables import DELETED, Shape, batch, make_env, row

FULL = CdcMode.DATA_BEFORE_AFTER.value
MODES = [mode.value for mode in CdcMode]
TYPES = ["COPY_ON_WRITE", "MERGE_ON_READ"]
#: A table whose files are listed, so that a deleted file looks like a cleaned one.
LISTED = Shape(rows_per_file=100, options={"hoodie.metadata.enable": "false"})


def make(mode: str = FULL, *, env: Env | None = None, shape: Shape | None = None, **declared: Any) -> Table:
    env = env or make_env()
    return Table.create(
        env.storage.root,
        name="events",
        record_key=["id"],
        partition_by=["p"],
        ordering="ts",
        cdc=mode,
        options=(shape or Shape(rows_per_file=100)).table_options(),
        env=env,
        **declared,
    )


def changes(table: Table, begin: str | None = None, **options: Any) -> list[tuple[str, Any, Any]]:
    """Return (op, v before, v after) of the changes, in order; `-` stands for no row."""
    found = table.incremental(begin, format="cdc", **options).to_arrow().to_pylist()
    return [(c["op"], *("-" if c[name] is None else c[name]["v"] for name in ("before", "after"))) for c in found]


def cases(table: Table, begin: str | None = None) -> list[ChangeCase]:
    scan = table.incremental(begin, format="cdc").plan()
    assert isinstance(scan, ChangeScan)
    return [change.case for change in scan.changes]


@pytest.mark.parametrize("table_type", TYPES)
@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("columns", [["id", "v"], ["v"], ["ts"]])
def test_rows_of_one_side_are_those_of_the_changes(mode: str, table_type: str, columns: list[str]) -> None:
    table = make(mode, table_type=table_type)
    table.upsert(batch([row(f"k{i}", v=f"v{i}") for i in range(3)]))
    table.upsert(batch([row("k0", ts=2, v="new"), row("k2", ts=5) | {DELETED: True}, row("k7", v="more")]))
    table.insert_overwrite(batch([row("k9", v="over")]))
    for where in (None, "v != 'v1'"):
        found = table.incremental("earliest", format="cdc", columns=columns, where=where)
        scan = found.plan()
        assert isinstance(scan, ChangeScan)
        expected = found.to_arrow().to_pylist()
        for sides in (("before",), ("after",), ("before", "after")):
            rows = [one for change in scan.changes for part in scan.rows(change, sides) for one in part.to_pylist()]
            wanted = [change[side] for change in expected for side in sides if change[side] is not None]
            assert sorted(map(repr, rows)) == sorted(map(repr, wanted))


@pytest.mark.parametrize("table_type", TYPES)
@pytest.mark.parametrize("mode", MODES)
def test_changes_contain_the_rows_of_each_write_method(mode: str, table_type: str) -> None:
    table = make(mode, table_type=table_type)
    table.upsert(batch([row(f"k{i}", v=f"v{i}") for i in range(3)]))
    assert changes(table) == [("i", "-", "v0"), ("i", "-", "v1"), ("i", "-", "v2")]
    table.upsert(batch([row("k0", ts=2, v="new"), row("k1", ts=0, v="too old"), row("k2", ts=5) | {DELETED: True}]))
    assert changes(table) == [("d", "v2", "-"), ("u", "v0", "new")]
    table.delete(["k1", "never there"])
    assert changes(table) == [("d", "v1", "-")]
    table.insert_overwrite(batch([row("k9", v="over")]))
    assert sorted(changes(table)) == [("d", "new", "-"), ("i", "-", "over")]
    assert set(cases(table)) == {ChangeCase.BASE_FILE_INSERT, ChangeCase.REPLACE_COMMIT}
    table.delete_partitions(["a"])
    assert changes(table) == [("d", "over", "-")]


def test_changes_have_commit_times_and_only_commits_of_the_range() -> None:
    table = make()
    for number in range(4):
        table.upsert(batch([row("a", ts=number, v=str(number))]))
    commits = [instant for instant, _ in table.commits()]
    found = table.incremental(commits[0].completion, commits[2].completion, format="cdc").to_arrow()
    assert found.column("ts_ms").to_pylist() == [commits[1].requested, commits[2].requested]
    assert changes(table, "earliest", end=commits[1].completion) == [("i", "-", "0"), ("u", "0", "1")]
    assert table.incremental(commits[3].completion, format="cdc").to_arrow().num_rows == 0
    assert table.incremental("earliest", format="cdc").count() == 4


def test_compaction_has_no_changes() -> None:
    table = make(table_type="MERGE_ON_READ")
    table.upsert(batch([row("a", v="1")]))
    table.upsert(batch([row("a", ts=2, v="2")]))
    table.services.compaction.run(force=True)
    assert table.commits()[-1][1].operation == "COMPACT"
    assert changes(table) == []
    table.upsert(batch([row("a", ts=3, v="3")]))
    assert changes(table, "earliest") == [("i", "-", "1"), ("u", "1", "2"), ("u", "2", "3")]


def test_changes_beside_a_pending_compaction_compare_with_the_visible_rows() -> None:
    table = make(table_type="MERGE_ON_READ")
    table.upsert(batch([row("a", v="1")]))
    table.upsert(batch([row("a", ts=2, v="2")]))
    table.services.compaction.schedule(force=True)
    table.upsert(batch([row("a", ts=3, v="3")]))
    table.services.compaction.run()
    table.upsert(batch([row("a", ts=4, v="4")]))
    assert changes(table, "earliest") == [("i", "-", "1"), ("u", "1", "2"), ("u", "2", "3"), ("u", "3", "4")]


def test_row_deleted_in_a_log_is_not_inserted_by_an_older_version() -> None:
    table = make(table_type="MERGE_ON_READ", shape=Shape(index="BUCKET", buckets=1))
    table.upsert(batch([row("a", ts=1, v="1")]))
    table.upsert(batch([row("a", ts=9) | {DELETED: True}]))
    table.upsert(batch([row("a", ts=5, v="late")]))
    assert changes(table, "earliest") == [("i", "-", "1"), ("d", "1", "-")]
    assert table.scan().count() == 0


class Silent(ChangeLog):
    """Logs nothing, like writers without support for change data."""

    def __enter__(self) -> ChangeLog:
        self._previous = None
        return self


def test_changes_of_commits_without_change_log_come_from_their_files(monkeypatch: pytest.MonkeyPatch) -> None:
    table = make()
    monkeypatch.setattr("lakehouse.core.files.base.file_group_writer.ChangeLog", Silent)
    table.upsert(batch([row("a", v="a"), row("b", v="b"), row("c", v="c")]))
    table.upsert(batch([row("a", ts=2, v="a2"), row("d", v="d"), row("b", ts=2) | {DELETED: True}]))
    assert cases(table) == [ChangeCase.BASE_FILE_COMPARE]
    assert sorted(changes(table)) == [("d", "b", "-"), ("i", "-", "d"), ("u", "a", "a2")]
    table.delete(["a", "c", "d"])
    assert cases(table) == [ChangeCase.BASE_FILE_DELETE]
    assert sorted(changes(table)) == [("d", "a2", "-"), ("d", "c", "-"), ("d", "d", "-")]


@pytest.mark.parametrize("table_type", TYPES)
def test_condition_keeps_changes_whose_row_before_or_after_meets_it(table_type: str) -> None:
    table = make(table_type=table_type)
    table.upsert(batch([row("a", v="red"), row("b", v="blue"), row("c", v="green"), row("x", p="b", v="red")]))
    table.upsert(batch([row("a", ts=2, v="blue"), row("b", ts=2, v="red"), row("c", ts=2, v="grey")]))
    assert changes(table, where="v = 'red'") == [("u", "red", "blue"), ("u", "blue", "red")]
    assert changes(table, "earliest", where="v = 'red' and p = 'b'") == [("i", "-", "red")]
    narrow = table.incremental(where="v = 'red'", columns=["id"], format="cdc").to_arrow()
    assert narrow.column("before").to_pylist() == [{"id": "a"}, {"id": "b"}]
    assert changes(table, "earliest", where="amount is null") == []


def test_condition_on_partitions_prunes_partitions() -> None:
    table = make()
    table.upsert(batch([row("a"), row("b", p="b"), row("c", p="c")]))
    scan = table.incremental(where="p = 'b'", format="cdc").plan()
    assert isinstance(scan, ChangeScan)
    assert [change.partition for change in scan.changes] == ["b"]


@pytest.mark.parametrize("mode", MODES)
def test_images_have_the_current_columns(mode: str) -> None:
    table = make(mode)
    small = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int32())])
    table.upsert(pa.Table.from_pylist([{"id": "a", "p": "a", "ts": 1}], small))
    table.upsert(pa.Table.from_pylist([{"id": "a", "p": "a", "ts": 2}], small))
    wide = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("n", pa.float64())])
    table.upsert(pa.Table.from_pylist([{"id": "a", "p": "a", "ts": 1 << 40, "n": 0.5}], wide))
    images = table.incremental("earliest", format="cdc").to_arrow().column("after").to_pylist()
    assert images == [
        {"id": "a", "p": "a", "ts": 1, "n": None},
        {"id": "a", "p": "a", "ts": 2, "n": None},
        {"id": "a", "p": "a", "ts": 1 << 40, "n": 0.5},
    ]


def test_as_json_returns_images_as_text() -> None:
    table = make()
    table.upsert(batch([row("a", v='"q"')]))
    table.upsert(batch([row("a", ts=2, v="n")]))
    (found,) = (as_json(b).to_pylist()[0] for b in table.incremental(format="cdc", columns=["id", "v"]).to_batches())
    assert found["op"] == "u"
    assert json.loads(found["before"]) == {"id": "a", "v": '"q"'}
    assert json.loads(found["after"]) == {"id": "a", "v": "n"}


def test_table_without_change_data_is_refused_with_a_hint() -> None:
    env = make_env()
    table = Table.create(env.storage.root, name="t", record_key=["id"], env=env)
    table.upsert(batch([row("a")]))
    with pytest.raises(UserError, match=r"keeps no change data.*cdc='DATA_BEFORE_AFTER'"):
        table.incremental("earliest", format="cdc").to_arrow()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"columns": ["nope"]}, "'nope' is not among the data columns"),
        ({"columns": ["_hoodie_record_key"]}, "not among the data columns"),
        ({"columns": []}, "name at least one column"),
        ({"where": "nope = 1"}, "nope"),
        ({"begin": "yesterday"}, "is not a time"),
    ],
)
def test_invalid_columns_and_conditions_are_refused(options: dict[str, Any], message: str) -> None:
    table = make()
    table.upsert(batch([row("a")]))
    with pytest.raises(UserError, match=message):
        table.incremental(**options, format="cdc").to_arrow()


def test_unknown_format_is_refused() -> None:
    with pytest.raises(UserError, match="'latest_state' or 'cdc'"):
        make().incremental(format="changes")


def test_empty_table_has_no_changes() -> None:
    assert make(schema=batch([]).schema).incremental("earliest", format="cdc").to_arrow().num_rows == 0


@pytest.mark.parametrize("mode", ["OP_KEY_ONLY", "DATA_BEFORE"])
def test_changes_whose_files_were_cleaned_are_refused(mode: str) -> None:
    table = make(mode, shape=LISTED)
    for ts in range(3):
        table.upsert(batch([row("a", ts=ts, v=str(ts))]))
    storage = table.refresh().env.storage
    first, second, _ = (metadata.stats[0].path for _, metadata in table.commits())
    storage.delete(second if mode == "DATA_BEFORE" else first)
    begin = table.commits()[0][0].completion
    with pytest.raises(UserError, match="cleaned"):
        table.incremental(begin, table.commits()[1][0].completion, format="cdc").to_arrow()
    with pytest.raises(UserError, match="cleaned"):
        table.incremental("earliest", format="cdc").to_arrow()
    if mode == "DATA_BEFORE":
        assert changes(table) == [("u", "1", "2")]


def test_change_log_with_both_images_needs_no_other_file() -> None:
    table = make()
    for ts in range(3):
        table.upsert(batch([row("a", ts=ts, v=str(ts))]))
    storage = table.refresh().env.storage
    storage.delete_many([metadata.stats[0].path for _, metadata in table.commits()[:2]])
    begin = table.commits()[0][0].completion
    assert changes(table, begin) == [("u", "0", "1"), ("u", "1", "2")]
    (log,) = table.commits()[1][1].stats[0].cdc_files
    storage.delete(log)
    with pytest.raises(UserError, match="was cleaned"):
        changes(table, begin)


def test_changes_whose_file_is_lost_name_the_file_with_a_metadata_table() -> None:
    table = make("OP_KEY_ONLY")
    for ts in range(2):
        table.upsert(batch([row("a", ts=ts, v=str(ts))]))
    lost = table.commits()[0][1].stats[0].path
    table.refresh().env.storage.delete(lost)
    with pytest.raises(CorruptTableError, match="does not exist although the table names it") as raised:
        changes(table, "earliest")
    assert lost in raised.value.message


def test_changes_of_a_replaced_and_cleaned_group_are_refused() -> None:
    table = make(shape=LISTED)
    table.upsert(batch([row("a")]))
    table.insert_overwrite_table(batch([row("b")]))
    table.refresh().env.storage.delete(table.commits()[0][1].stats[0].path)
    with pytest.raises(UserError, match="cannot be read"):
        changes(table)


def test_broken_change_log_raises_an_error() -> None:
    table = make()
    table.upsert(batch([row("a")]))
    table.upsert(batch([row("a", ts=2)]))
    storage = table.refresh().env.storage
    (log,) = table.commits()[1][1].stats[0].cdc_files
    storage.put(log, storage.get(log)[:-9])
    with pytest.raises(CorruptTableError, match="not a complete change block"):
        changes(table)


@pytest.mark.parametrize("table_type", TYPES)
@pytest.mark.parametrize("mode", MODES)
def test_changes_of_archived_commits_are_read_while_their_files_exist(mode: str, table_type: str) -> None:
    table = make(mode, table_type=table_type)
    for ts in range(6):
        eager(table).upsert(batch([row("a", ts=ts, v=f"{ts}")]))
    times = [instant.completion for instant, _ in table.commits()]
    before = {begin: changes(table, begin) for begin in ("earliest", *times)}
    eagerly = eager(table, **{"hoodie.compact.inline.max.delta.commits": "2"})
    eagerly.services.archive.run(force=True)
    assert len(table.archived()) == 4
    assert {begin: changes(table, begin) for begin in ("earliest", *times)} == before
    if table_type == "MERGE_ON_READ":
        eagerly.services.compaction.run(force=True)
    table.upsert(batch([row("a", ts=7)]))
    eagerly.services.clean.run(force=True)
    if mode != FULL:
        with pytest.raises(UserError, match="cleaned"):
            changes(table, "earliest")
