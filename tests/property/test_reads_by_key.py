"""After any history a read by key or by an indexed value returns the rows of a filtered full read.

The record index has one place for each key. So inserts of stored keys are refused, and reads do not use the index after
commits of other programs, which may repeat keys.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.table.table import Table
from lakehouse.errors import UnsupportedError, UserError
from tests.support.foreign_writes import foreign
from tests.support.tables import examples, make_env

KEYS = [f"k{number}" for number in range(6)]
GLOBAL = {"hoodie.metadata.global.record.level.index.enable": "true"}
PARTITIONED = {"hoodie.metadata.record.level.index.enable": "true"}
KINDS = {
    "global": GLOBAL | {"hoodie.index.type": "RECORD_INDEX"},
    "by files": GLOBAL | {"hoodie.index.type": "GLOBAL_SIMPLE"},
    "mixed scopes": GLOBAL | {"hoodie.index.type": "SIMPLE"},
    "partitioned": PARTITIONED | {"hoodie.index.type": "RECORD_LEVEL_INDEX"},
}
WRITES = ("upsert", "upsert", "insert", "insert", "bulk_insert", "insert_overwrite", "delete", "foreign insert")
OTHERS = ("compaction", "clustering", "clean", "rebuild", "undo", "other index")
Step = tuple[str, list[tuple[str, str, int]]]


def steps() -> st.SearchStrategy[list[Step]]:
    """Return random histories: the name of each step, and rows of key, partition and value."""
    row = st.tuples(st.sampled_from(KEYS), st.sampled_from(["a", "b"]), st.integers(0, 3))
    first = st.tuples(st.just("upsert"), st.lists(row, min_size=4, max_size=8))
    write = st.tuples(st.sampled_from(WRITES), st.lists(row, min_size=1, max_size=3))
    other = st.tuples(st.sampled_from(OTHERS), st.just([]))
    rest = st.lists(st.one_of(write, write, write, other), min_size=2, max_size=8)
    return st.builds(lambda step, more: [step, *more], first, rest)


def batch(rows: list[tuple[str, str, int]], *, unique: bool) -> pa.Table:
    chosen = list({key: (key, *rest) for key, *rest in rows}.values()) if unique else rows
    return pa.table(
        {
            "id": [key for key, _, _ in chosen],
            "p": [partition for _, partition, _ in chosen],
            "v": pa.array([value for _, _, value in chosen], pa.int64()),
        }
    )


def applied(table: Table, name: str, rows: list[tuple[str, str, int]]) -> Table:
    """Apply a step; return the table with the options of the next one."""
    verbs: dict[str, Callable[[], Any]] = {
        "upsert": lambda: table.upsert(batch(rows, unique=True)),
        "insert": lambda: table.insert(batch(rows, unique=False)),
        "bulk_insert": lambda: table.bulk_insert(batch(rows, unique=False)),
        "insert_overwrite": lambda: table.insert_overwrite(batch(rows, unique=False)),
        "delete": lambda: table.delete([key for key, _, _ in rows]),
        "compaction": lambda: table.services.compaction.run(force=True),
        "clustering": lambda: table.services.clustering.run(force=True),
        "clean": lambda: table.services.clean.run(force=True),
        "rebuild": table.metadata.rebuild,
        "undo": lambda: table.restore(table.commits()[-2][0].requested),
    }
    if name == "other index":
        return table.with_options({"hoodie.index.type": "SIMPLE"})
    # Writes that would repeat a key, and actions that the table does not support now, are refused.
    with suppress(UserError, UnsupportedError, IndexError):
        if name == "foreign insert":
            with foreign():
                table.insert(batch(rows, unique=True))
        else:
            verbs[name]()
    return table


def counted(rows: pa.Table) -> Counter[tuple[Any, ...]]:
    return Counter(zip(*(rows.column(name).to_pylist() for name in ("id", "p", "v")), strict=True))


def check_reads(table: Table) -> None:
    """Compare reads by each key and each value with the full read."""
    whole = counted(table.scan().to_arrow())
    for key in KEYS:
        expected = Counter({row: count for row, count in whole.items() if row[0] == key})
        assert counted(table.scan(where=f"id = '{key}'").to_arrow()) == expected, key
    for value in range(4):
        expected = Counter({row: count for row, count in whole.items() if row[2] == value})
        assert counted(table.scan(where=f"v = {value}").to_arrow()) == expected, value


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("kind", KINDS)
@examples(16)
@given(history=steps(), small_files=st.booleans(), version=st.sampled_from(["9", "8", "6"]))
def test_reads_by_key_return_all_rows(
    kind: str, table_type: str, history: list[Step], small_files: bool, version: str
) -> None:
    # Version 6 has no index for each partition.
    version = "9" if kind == "partitioned" else version
    env = make_env()
    options = {
        **KINDS[kind],
        "hoodie.write.table.version": version,
        **({} if small_files else {"hoodie.parquet.small.file.limit": "0"}),
        **({"lakehouse.index.secondary": "v"} if version != "6" and kind != "partitioned" else {}),
        "hoodie.clean.commits.retained": "1",
    }
    schema = pa.schema([("id", pa.string()), ("p", pa.string()), ("v", pa.int64())])
    table = Table.create(
        env.storage.root,
        name="t",
        record_key="id",
        partition_by="p",
        table_type=table_type,
        env=env,
        options=options,
        schema=schema,
    )
    if "lakehouse.index.secondary" in options:
        table.services.index.run(force=True)
    for name, rows in history:
        table = applied(table, name, rows)
        check_reads(table)
