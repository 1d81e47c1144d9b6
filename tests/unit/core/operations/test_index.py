"""The service index: indexes are built beside writers, maintained by each action, resumed and dropped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.cli.main import main
from lakehouse.core.format.timeline.indexing import decode_index_metadata, decode_index_plan
from lakehouse.core.metadata.place import listed_partitions
from lakehouse.core.operations.commit.index_staging import IndexStaging
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.services import index
from lakehouse.core.operations.services.index import Indexed
from lakehouse.core.table.table import Table
from lakehouse.errors import RetryableError, UserError
from lakehouse.model.instant import Action, Instant, State
from lakehouse.model.nothing_to_do import NothingToDoReason
from tests.support.indexes import indexed_values, stored_keys, table_with_metadata
from tests.support.tables import batch, row

NAME = "secondary_index_v"
#: A secondary index needs a record index.
BUILT = ("record_index", NAME)


def built(table: Table) -> Table:
    table.services.create_index("v")
    assert isinstance(table.services.index.run(), Indexed)
    return table


def listed(table: Table) -> tuple[tuple[str, ...], tuple[str, ...]]:
    return listed_partitions(table.refresh().config.raw)


@pytest.mark.parametrize("type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_index_is_built_from_the_rows_of_all_slices(type: str, tmp_path: Path) -> None:
    table = table_with_metadata(tmp_path, type=type)
    table.insert(batch([row(f"k{n}", p="ab"[n % 2], v=str(n)) for n in range(6)]))
    table.upsert(batch([row("k1", p="b", v="new", ts=9)]))
    assert not table.services.index.due().due
    table.services.create_index("v")
    assert table.services.index.due().missing == BUILT
    outcome = table.services.index.run()
    assert isinstance(outcome, Indexed) and outcome.partitions == BUILT
    assert outcome.totals.rows == 12 and outcome.instant.action is Action.INDEXING
    assert listed(table)[1] == () and NAME in listed(table)[0]
    assert stored_keys(table, NAME) == indexed_values(table, "v")
    assert isinstance(table.services.index.run(), NothingToDo), "a second run has nothing to do"


def test_indexing_is_on_the_timeline_as_hudi_writes_it(tmp_path: Path) -> None:
    table = table_with_metadata(tmp_path)
    first = table.insert(batch([row("a", v="1")]))
    assert isinstance(first, Committed)
    table.services.create_index("v")
    planned = table.services.index.schedule()
    assert isinstance(planned, Instant) and planned.state is State.REQUESTED
    store = table.refresh().store
    plan = decode_index_plan(store.read(planned, State.REQUESTED) or b"")
    assert [(info.partition, info.up_to) for info in plan.partitions] == [
        (name, first.instant.requested) for name in BUILT
    ]
    outcome = table.services.index.run()
    assert isinstance(outcome, Indexed) and outcome.instant.requested == planned.requested
    assert store.read(outcome.instant, State.INFLIGHT) == b""
    assert decode_index_metadata(store.read(outcome.instant, State.COMPLETED) or b"").partitions == plan.partitions


@pytest.mark.parametrize("type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("when", ["after", "between"])
def test_each_action_maintains_an_index_that_is_built_or_being_built(type: str, when: str, tmp_path: Path) -> None:
    table = table_with_metadata(tmp_path, type=type)
    table.insert(batch([row(f"k{n}", p="abc"[n % 3], v=f"v{n}") for n in range(9)]))
    table.services.create_index("v")
    table.services.index.schedule()
    if when == "after":
        assert isinstance(table.services.index.run(), Indexed)
    table.upsert(batch([row("k0", p="a", v="changed", ts=9), row("new", p="a", v="v0", ts=9)]))
    table.upsert(batch([row("k1", p="b", v="v1", ts=9)]))
    table.delete(["k2"])
    table.bulk_insert(batch([row("bulk", p="b", v=None, ts=9)]))
    table.upsert(batch([row("k4", p="b", v="$\\x", ts=9)]))
    if type == "MERGE_ON_READ":
        assert isinstance(table.services.compaction.run(force=True), Committed)
    table.insert_overwrite(batch([row("over", p="c", v="v3", ts=9)]))
    table.delete_partitions("b")
    if when == "between":
        assert isinstance(table.services.index.run(), Indexed)
    assert stored_keys(table, NAME) == indexed_values(table, "v")
    table.services.clean.run(force=True)
    assert stored_keys(table, NAME) == indexed_values(table, "v")


def test_rollback_takes_back_what_a_write_recorded(tmp_path: Path) -> None:
    table = table_with_metadata(tmp_path)
    table.insert(batch([row("a", v="1"), row("b", v="2")]))
    built(table)
    outcome = table.upsert(batch([row("a", v="3", ts=9)]))
    assert isinstance(outcome, Committed)
    table.rollback(outcome.instant.requested)
    assert stored_keys(table, NAME) == indexed_values(table, "v") == {"1$a", "2$b"}


def test_second_plan_is_not_made_while_one_is_pending(tmp_path: Path) -> None:
    table = table_with_metadata(tmp_path)
    table.insert(batch([row("a", v="1")]))
    table.services.create_index("v")
    planned = table.services.index.schedule()
    assert isinstance(planned, Instant)
    again = table.services.index.schedule()
    assert isinstance(again, NothingToDo) and again.code is NothingToDoReason.ALREADY_PENDING
    due = table.services.index.due()
    assert due.due and planned.requested in due.reason and due.building == BUILT


def test_dropped_index_leaves_neither_files_nor_definition_nor_plan(tmp_path: Path) -> None:
    table = table_with_metadata(tmp_path)
    table.insert(batch([row("a", v="1")]))
    before = listed(table)
    table.services.create_index("v")
    planned = table.services.index.schedule()
    assert isinstance(planned, Instant)
    dropped = table.services.drop_index("v")
    assert NAME in dropped.partitions and dropped.plans == (planned.requested,)
    assert listed(table) == before, "the record index, which the plan would have built, is dropped as well"
    assert not list((tmp_path / "t" / ".hoodie" / "metadata" / NAME).rglob("*.*"))
    assert not table.services.index.due().due
    assert table.timeline.where(action=Action.INDEXING).instants == ()
    table.upsert(batch([row("a", v="2", ts=9)]))


def test_index_that_is_dropped_during_its_build_is_not_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_with_metadata(tmp_path)
    table.insert(batch([row("a", v="1")]))
    table.services.create_index("v")
    table.services.index.schedule()
    build = index.build_base_files

    def drop_then_build(*given: object) -> object:
        monkeypatch.setattr(index, "build_base_files", build)
        made = build(*given)  # type: ignore[arg-type]
        Table.open(table.location, env=table.refresh().env).services.drop_index("v")
        return made

    monkeypatch.setattr(index, "build_base_files", drop_then_build)
    with pytest.raises(RetryableError, match="completed or dropped the indexing"):
        table.services.index.run()
    assert listed(table)[1] == () and NAME not in listed(table)[0]


def test_two_executors_of_one_plan_exclude_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    table = table_with_metadata(tmp_path)
    table.insert(batch([row("a", v="1")]))
    table.services.create_index("v")
    planned = table.services.index.schedule()
    assert isinstance(planned, Instant)
    build = index.build_base_files

    def build_beside_another(*given: object) -> object:
        monkeypatch.setattr(index, "build_base_files", build)
        with pytest.raises(RetryableError, match="another executor"):
            Table.open(table.location, env=table.refresh().env).services.index.run(instant=planned.requested)
        return build(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(index, "build_base_files", build_beside_another)
    assert isinstance(table.services.index.run(), Indexed)
    assert stored_keys(table, NAME) == {"1$a"}


def test_write_that_began_before_the_index_was_declared_records_its_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = table_with_metadata(tmp_path)
    table.insert(batch([row("a", v="1")]))
    table.services.create_index("v")
    other = Table.open(table.location, env=table.refresh().env)

    stage, calls = IndexStaging.stage, list[bool]()

    def stage_then_declare(staging: IndexStaging, commit: Any, timeline: Any = None) -> Any:
        again = timeline is not None
        calls.append(again)
        stats = stage(staging, commit, timeline)
        if not again:
            other.services.index.schedule()
        return stats

    monkeypatch.setattr(IndexStaging, "stage", stage_then_declare)
    table.upsert(batch([row("a", v="2", ts=9)]))
    assert calls == [False, True]
    assert isinstance(table.services.index.run(), Indexed)
    assert stored_keys(table, NAME) == {"2$a"}


def test_index_of_an_unknown_column_or_type_is_refused(tmp_path: Path) -> None:
    table = table_with_metadata(tmp_path)
    table.insert(batch([row("a", v="1")]))
    with pytest.raises(UserError, match=r"column 'w' is not in the table"):
        table.services.create_index("w")
    with pytest.raises(UserError, match="integers"):
        table.services.create_index("amount")
    table.services.create_index("v")
    table.services.create_index("v")
    with pytest.raises(UserError, match="another definition"):
        table.services.create_index("id", name="v")
    with pytest.raises(UserError, match=r"no index 'vv'"):
        table.services.drop_index("vv")
    with pytest.raises(UserError, match="all indexes need it"):
        table.services.drop_index("files")


def test_table_without_metadata_table_is_not_due_until_it_is_rebuilt(tmp_path: Path) -> None:
    table = table_with_metadata(tmp_path, rebuilt=False, options={"hoodie.metadata.enable": "false"})
    table.insert(batch([row("a", v="1")]))
    assert listed(table) == ((), ())
    table.services.create_index("v")
    due = table.services.index.due()
    assert not due.due and "lakehouse metadata rebuild" in due.reason
    rebuilt = table.with_options({"hoodie.metadata.enable": "true"}).metadata.rebuild()
    assert rebuilt.partitions[0] == "files" and NAME in rebuilt.partitions
    assert stored_keys(table, NAME) == {"1$a"}


def test_rebuild_keeps_the_indexes_of_the_table(tmp_path: Path) -> None:
    table = built(table_with_metadata(tmp_path))
    table.insert(batch([row("a", v="1"), row("b", p="q", v="2")]))
    before = listed(table)
    table.metadata.rebuild()
    assert listed(table) == before
    assert stored_keys(table, NAME) == {"1$a", "2$b"}
    table.upsert(batch([row("a", v="9", ts=9)]))
    assert stored_keys(table, NAME) == {"9$a", "2$b"}


def test_index_is_created_and_dropped_by_commands(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    table = table_with_metadata(tmp_path)
    table.insert(batch([row("a", v="1")]))
    at = ["--table", table.location]
    assert main(["index", "create", *at, "--column", "v", "--defer"]) == 0
    assert "the next run of the service builds it" in capsys.readouterr().out
    assert main(["index", "due", *at]) == 0
    assert NAME in capsys.readouterr().out
    assert main(["index", "plan", *at, "--dry-run", "--output", "json"]) == 0
    assert NAME in capsys.readouterr().out
    assert main(["index", "create", *at, "--column", "v"]) == 0
    assert stored_keys(table, NAME) == {"1$a"}
    assert main(["index", "drop", *at, "--index", "v"]) == 0
    assert listed(table)[1] == () and NAME not in listed(table)[0]
    assert main(["index", "create", *at]) == 64


def test_values_have_the_texts_of_hudi(tmp_path: Path) -> None:
    from lakehouse.core.files.keys.secondary_keys import value_texts

    days = pa.chunked_array([pa.array([0, 19_000, None], pa.int32()).cast(pa.date32())])
    assert value_texts(days).to_pylist() == ["0", "19000", None]
    assert value_texts(pa.chunked_array([pa.array([-5, 7], pa.int64())])).to_pylist() == ["-5", "7"]
    assert value_texts(pa.chunked_array([pa.array([True, False])])).to_pylist() == ["true", "false"]


def test_metadata_table_is_not_compacted_while_an_index_is_built(tmp_path: Path) -> None:
    table = table_with_metadata(tmp_path).with_options({"hoodie.metadata.compact.max.delta.commits": "2"})
    table.insert(batch([row("a", v="1")]))
    table.services.create_index("v")
    planned = table.services.index.schedule()
    assert isinstance(planned, Instant)
    for number in range(4):
        table.upsert(batch([row("a", v=str(number), ts=9 + number)]))
    compacted = table.metadata.show().compacted
    assert compacted is None or compacted < planned.requested
    assert isinstance(table.services.index.run(), Indexed)
    for number in range(4):
        table.upsert(batch([row("b", v=str(number), ts=9 + number)]))
    assert (table.metadata.show().compacted or "") > planned.requested
    assert stored_keys(table, NAME) == indexed_values(table, "v") == {"3$a", "3$b"}
    assert table.metadata.validate().ok


def test_statistics_that_are_built_beside_a_writer_contain_all_values(tmp_path: Path) -> None:
    table = table_with_metadata(tmp_path)
    table.insert(batch([row("a", ts=100), row("b", ts=200)]))
    table.services.drop_index("column_stats")
    table.services.index.schedule()
    table.insert(batch([row("c", ts=150)]))
    assert isinstance(table.services.index.run(), Indexed)
    assert {"column_stats", "partition_stats"} <= set(listed(table)[0])
    report = table.metadata.validate()
    assert report.ok, [f"{check!r} {check.examples}" for check in report.checks if not check.ok]
    for value, key in ((100, "a"), (150, "c"), (200, "b")):
        assert table.scan(["id"], f"ts = {value}").to_arrow().column(0).to_pylist() == [key]
