"""Partial updates: a row does not depend on the table type or on when services merged its log files."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse import Table
from lakehouse.model.merge import MergeMode
from tests.support.tables import examples, make_env

COLUMNS = ("v", "w")
PARTIAL = {"lakehouse.write.partial.update": "true"}
UNAVAILABLE = "__none__"
Step = tuple[int, dict[str, str | None]] | str


def make(table_type: str, mode: str, *, event_time: bool = True, **options: str) -> Table:
    env = make_env()
    return Table.create(
        env.storage.root,
        name="orders",
        record_key="id",
        ordering="ts",
        merge_mode=MergeMode.EVENT_TIME_ORDERING if event_time else MergeMode.COMMIT_TIME_ORDERING,
        partial_update=None if mode == "columns" else mode,
        unavailable_value=UNAVAILABLE if mode == "FILL_UNAVAILABLE" else None,
        table_type=table_type,
        schema=pa.schema([("id", pa.string()), ("ts", pa.int64()), *((name, pa.string()) for name in COLUMNS)]),
        options={"hoodie.log.compaction.blocks.threshold": "2", "hoodie.metadata.enable": "false", **options},
        env=env,
    )


def apply(table: Table, steps: list[Step], mode: str) -> None:
    """Write rows of the key "a", delete it, or run a service of a merge-on-read table."""
    for step in steps:
        if step == "delete":
            table.delete(["a"])
        elif isinstance(step, str):
            if table.config.is_merge_on_read:
                getattr(table.services, step).run(force=True)
        else:
            ts, values = step
            row = {"id": "a", "ts": ts, **values}
            schema = pa.schema([table.schema.field(name) for name in row])
            table.upsert(pa.Table.from_pylist([row], schema), options=PARTIAL if mode == "columns" else {})


def stored(table: Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.scan(["ts", *COLUMNS]).to_arrow().to_pylist()
    return found


@pytest.mark.parametrize("services", [[], ["compaction"], ["log_compaction"]])
@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_late_row_does_not_replace_a_value_of_a_newer_row(table_type: str, services: list[str]) -> None:
    """apache/hudi#8579: the null of ts=22 takes a value of the stored row or of a late row, by the order of merging."""
    steps: list[Step] = [(9, {"v": "first", "w": "1"}), (22, {"v": None, "w": "2"})]
    steps += [*services, (3, {"v": "late", "w": "3"}), *services]
    table = make(table_type, "IGNORE_DEFAULTS")
    apply(table, steps, "IGNORE_DEFAULTS")
    assert stored(table) == [{"ts": 22, "v": "first", "w": "2"}]


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_row_after_a_delete_takes_no_values_of_the_deleted_row(table_type: str) -> None:
    """apache/hudi#7842: which stored version a partial update is merged with depends on the ordering column."""
    table = make(table_type, "IGNORE_DEFAULTS", event_time=False)
    apply(table, [(1, {"v": "x", "w": "y"}), "delete", (2, {"v": None, "w": "z"})], "IGNORE_DEFAULTS")
    assert stored(table) == [{"ts": 2, "v": None, "w": "z"}]


def steps_of(mode: str) -> st.SearchStrategy[list[Step]]:
    gap = st.just(UNAVAILABLE) if mode == "FILL_UNAVAILABLE" else st.none()
    values = {name: st.one_of(gap, st.sampled_from("xyz")) for name in COLUMNS}
    rows = st.fixed_dictionaries({}, optional=values) if mode == "columns" else st.fixed_dictionaries(values)
    row = st.tuples(st.integers(1, 6), rows)
    service = st.sampled_from(["compaction", "log_compaction", "delete"])
    return st.lists(st.one_of(row, row, row, service), min_size=2, max_size=7)


@pytest.mark.parametrize("event_time", [True, False])
@pytest.mark.parametrize("mode", ["IGNORE_DEFAULTS", "FILL_UNAVAILABLE", "columns"])
@examples(8)
@given(data=st.data())
def test_merge_on_read_gives_the_rows_of_copy_on_write_whenever_services_run(
    mode: str, event_time: bool, data: st.DataObject
) -> None:
    """apache/hudi#2756: log records were merged without the ordering values of older versions."""
    first = (data.draw(st.integers(1, 6)), dict.fromkeys(COLUMNS, "base"))
    steps: list[Step] = [first, *data.draw(steps_of(mode))]
    begins_in_log = {
        "hoodie.index.type": "BUCKET",
        "hoodie.bucket.index.num.buckets": "1",
        "lakehouse.bucket.inserts": "log",
    }
    options = data.draw(st.sampled_from([{}, begins_in_log]))
    expected = make("COPY_ON_WRITE", mode, event_time=event_time)
    apply(expected, steps, mode)
    table = make("MERGE_ON_READ", mode, event_time=event_time, **options)
    apply(table, steps, mode)
    assert stored(table) == stored(expected)
    table.services.compaction.run(force=True)
    assert stored(table) == stored(expected)
