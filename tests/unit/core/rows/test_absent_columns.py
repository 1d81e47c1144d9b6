"""Batches whose rows provide different columns: stored rows keep their values of absent columns."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.rows.absent_columns import LACKS, bits_without, grouped, lacking_columns
from lakehouse.core.table.source_batch import SourceBatch
from lakehouse.core.table.table import Table
from lakehouse.model.drift import BatchColumns
from tests.support.tables import data_rows, examples, make_env

COLUMNS = {"id": pa.string(), "ts": pa.int64(), "a": pa.string(), "b": pa.string(), "c": pa.string()}
sets = st.lists(st.frozensets(st.sampled_from("abcdef")), min_size=1, max_size=6)


@examples(60)
@given(lacking=sets)
def test_grouped_returns_the_columns_that_rows_lack(lacking: list[frozenset[str]]) -> None:
    groups, bits = grouped(lacking)
    assert [lacking_columns(groups, number) for number in bits] == lacking
    names = frozenset("abcdef")
    assert [bits_without(groups, names - missing) for missing in lacking] == list(bits)


def batch(*rows: dict[str, Any]) -> tuple[pa.Table, BatchColumns]:
    """Return rows that have only the columns of their values."""
    lacking = [frozenset(COLUMNS) - frozenset(row) for row in rows]
    groups, bits = grouped(lacking)
    made = pa.Table.from_pylist([dict.fromkeys(COLUMNS) | row for row in rows], pa.schema(list(COLUMNS.items())))
    counts = {name: sum(name in missing for missing in lacking) for name in COLUMNS}
    columns = BatchColumns(rows=len(rows), lacks=groups, lacking_rows={n: c for n, c in counts.items() if c})
    return made.append_column(LACKS, pa.array(bits)), columns


@pytest.fixture(params=["COPY_ON_WRITE", "MERGE_ON_READ"])
def table_type(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def make(table_type: str, options: dict[str, str], ordering: str | None = "ts") -> Table:
    env = make_env()
    return Table.create(
        env.storage.root,
        name="t",
        record_key=["id"],
        ordering=ordering,
        table_type=table_type,
        options=options,
        env=env,
    )


KINDS = [
    {"hoodie.index.type": "SIMPLE"},
    {"hoodie.index.type": "SIMPLE", "lakehouse.write.memory.budget": "500"},
    {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"},
]
values = st.sampled_from("xyz")
row_values = st.fixed_dictionaries({"id": st.sampled_from("pqrs")}, optional={"a": values, "b": values, "c": values})


@pytest.mark.parametrize("options", KINDS, ids=["simple", "spilling", "bucket"])
@examples(12)
@given(history=st.lists(st.lists(row_values, min_size=1, max_size=5), min_size=1, max_size=4))
def test_upsert_changes_only_the_columns_that_each_row_provides(
    options: dict[str, str], history: list[list[dict[str, Any]]]
) -> None:
    for kind in ("COPY_ON_WRITE", "MERGE_ON_READ"):
        table = make(kind, options)
        model: dict[str, dict[str, Any]] = {}
        clock = 0
        for rows in history:
            timed = []
            for row in rows:
                clock += 1
                timed.append({**row, "ts": clock})
                model[row["id"]] = {**dict.fromkeys(COLUMNS), **model.get(row["id"], {}), **timed[-1]}
            frame, columns = batch(*timed)
            table.upsert(SourceBatch(frame, columns))
            assert data_rows(table) == sorted(model.values(), key=repr)


def test_commit_counts_kept_and_nulled_values_by_column(table_type: str) -> None:
    table = make(table_type, KINDS[0])
    table.upsert(batch({"id": "p", "ts": 1, "a": "1", "b": "1", "c": "1"})[0].drop_columns([LACKS]))
    frame, columns = batch(
        {"id": "p", "ts": 2, "a": "2"},
        {"id": "q", "ts": 2, "a": "2", "b": "2"},
        {"id": "r", "ts": 2, "b": "2", "c": "2"},
    )
    outcome = table.upsert(SourceBatch(frame, columns))
    assert isinstance(outcome, Committed)
    assert {(one.column, str(one.change), one.rows) for one in outcome.drift} == {
        ("a", "nulled", 1),
        ("b", "kept", 1),
        ("c", "kept", 1),
        ("c", "nulled", 1),
    }
    assert [(row["id"], row["a"], row["b"], row["c"]) for row in data_rows(table)] == [
        ("p", "2", "1", "1"),
        ("q", "2", "2", None),
        ("r", None, "2", "2"),
    ]


def test_non_blocking_writers_log_rows_by_the_columns_that_they_provide() -> None:
    options = {
        "hoodie.index.type": "BUCKET",
        "hoodie.bucket.index.num.buckets": "1",
        "hoodie.write.concurrency.mode": "NON_BLOCKING_CONCURRENCY_CONTROL",
    }
    table = make("MERGE_ON_READ", options)
    rows = [{"id": key, "ts": 1, "a": "1", "b": "1", "c": "1"} for key in "pq"]
    table.upsert(batch(*rows)[0].drop_columns([LACKS]))
    frame, columns = batch({"id": "p", "ts": 2, "a": "2"}, {"id": "q", "ts": 2, "b": "2", "c": "2"})
    table.upsert(SourceBatch(frame, columns))
    assert [(row["a"], row["b"], row["c"]) for row in data_rows(table)] == [("2", "1", "1"), ("1", "2", "2")]
