"""Changes of one commit: a replay by key, in the order in which they are read, gives the table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse import Table
from lakehouse.core.format.log.cdc import CdcMode
from lakehouse.spark import register
from tests.support.tables import examples, make_env

TYPES = ["COPY_ON_WRITE", "MERGE_ON_READ"]
GLOBAL = {"hoodie.index.type": "GLOBAL_SIMPLE", "hoodie.simple.index.update.partition.path": "true"}


def make(table_type: str, mode: str = "DATA_BEFORE_AFTER", location: str | None = None) -> Table:
    env = make_env(location)
    return Table.create(
        env.storage.root,
        name="orders",
        record_key="id",
        partition_by=["p"],
        table_type=table_type,
        cdc=mode,
        options=GLOBAL,
        env=env,
    )


def rows(ids: str, partitions: str, v: int) -> pa.Table:
    return pa.table({"id": list(ids), "p": list(partitions), "v": [v] * len(ids)})


def changes(table: Table) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = table.incremental("earliest", format="cdc").to_arrow().to_pylist()
    return found


def replayed(table: Table) -> dict[str, dict[str, Any]]:
    """Apply the changes by key, as a consumer does that stores one row for each key."""
    state: dict[str, dict[str, Any]] = {}
    for change in changes(table):
        if change["op"] == "d":
            del state[change["before"]["id"]]
        else:
            state[change["after"]["id"]] = {name: change["after"][name] for name in ("id", "p", "v")}
    return state


def snapshot(table: Table) -> dict[str, dict[str, Any]]:
    return {row["id"]: row for row in table.scan(["id", "p", "v"]).to_arrow().to_pylist()}


@pytest.mark.parametrize("mode", [mode.value for mode in CdcMode])
@pytest.mark.parametrize("table_type", TYPES)
def test_replay_of_changes_gives_the_table_after_rows_moved_between_partitions(table_type: str, mode: str) -> None:
    """apache/iceberg#4870: changes of one commit need an order in which they are applied."""
    table = make(table_type, mode)
    table.upsert(rows("abcdef", "112233", 1))
    # "a" and "c" change places, so neither partition can be read as a whole before the other one.
    table.upsert(rows("acx", "219", 2))
    assert replayed(table) == snapshot(table)
    assert [change["op"] for change in changes(table)][6:] == ["d", "d", "i", "i", "i"]


@pytest.mark.parametrize("table_type", TYPES)
def test_replay_of_changes_gives_the_table_after_an_overwrite_of_the_same_keys(table_type: str) -> None:
    """apache/iceberg-go#1883: deletes of a snapshot come before its inserts."""
    for _ in range(5):  # The ids of file groups are random, and changes were ordered by them.
        table = make(table_type)
        table.upsert(rows("abc", "112", 1))
        table.insert_overwrite(rows("ax", "11", 2))
        assert replayed(table) == snapshot(table)
        table.insert_overwrite_table(rows("ac", "12", 3))
        assert replayed(table) == snapshot(table)


@pytest.mark.parametrize("table_type", TYPES)
def test_replay_of_changes_gives_the_table_when_flagged_rows_delete_and_others_arrive(table_type: str) -> None:
    """apache/iceberg#15570: the order of inserts and deletes within a commit decides which row a consumer stores."""
    table = make(table_type)
    table.upsert(rows("abc", "112", 1).append_column("_hoodie_is_deleted", pa.array([False] * 3)))
    later = rows("abcd", "2211", 2)
    table.upsert(later.append_column("_hoodie_is_deleted", pa.array([False, True, False, False])))
    assert replayed(table) == snapshot(table)
    ops = [change["op"] for change in changes(table)][3:]
    # "a" moves, "b" is deleted, "c" moves and "d" is new.
    assert (ops.count("d"), ops[: ops.count("d")]) == (3, ["d"] * 3)


@pytest.mark.spark
@pytest.mark.parametrize("table_type", TYPES)
def test_rows_of_change_frames_have_the_order_of_a_replay(spark: Any, tmp_path: Path, table_type: str) -> None:
    """apache/iceberg#4870: a frame of changes has the rows of each commit with its deletes first."""
    table = make(table_type, location=str(tmp_path / "orders"))
    table.upsert(rows("abcdef", "112233", 1))
    table.upsert(rows("acx", "219", 2))
    table.insert_overwrite(rows("ay", "22", 3))
    expected = [(change["op"], change["ts_ms"]) for change in changes(table)]
    structs = table.incremental("earliest", format="cdc").to_spark(spark).collect()
    assert [(row["op"], row["ts_ms"]) for row in structs] == expected
    register(spark)
    options = {
        "hoodie.datasource.query.type": "incremental",
        "hoodie.datasource.query.incremental.format": "cdc",
        "hoodie.datasource.read.begin.instanttime": "earliest",
    }
    texts = spark.read.format("lakehouse").options(**options).load(table.location).collect()
    assert [(row["op"], row["ts_ms"]) for row in texts] == expected


@pytest.mark.parametrize("table_type", TYPES)
@examples(6)
@given(data=st.data())
def test_replay_of_changes_gives_the_table_after_any_writes(table_type: str, data: st.DataObject) -> None:
    """apache/iceberg#4870: the order holds for all operations of one commit together."""
    table = make(table_type)
    table.upsert(rows("abc", "123", -1))
    keys = st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True)
    for number in range(data.draw(st.integers(1, 4))):
        ids = "".join(data.draw(keys))
        places = "".join(data.draw(st.lists(st.sampled_from("123"), min_size=len(ids), max_size=len(ids))))
        verb = data.draw(st.sampled_from(["upsert", "upsert", "insert_overwrite", "insert_overwrite_table", "delete"]))
        if verb == "delete":
            table.delete(list(ids))
        else:
            getattr(table, verb)(rows(ids, places, number))
        stored = snapshot(table)
        assert replayed(table) == stored
