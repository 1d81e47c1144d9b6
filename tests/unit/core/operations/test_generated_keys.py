"""Tables without a record key: each inserted row gets a key, and rows are changed by the place of their key."""

from __future__ import annotations

import re
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.files.stage import staged_parts
from lakehouse.core.operations.write import staged
from lakehouse.core.planning.changed_rows import ChangedRows
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from tests.support.tables import make_env

KEY = "_hoodie_record_key"
ROWS = [{"n": 1, "day": "a"}, {"n": 2, "day": "b"}, {"n": 2, "day": "b"}]


@pytest.fixture(params=["COPY_ON_WRITE", "MERGE_ON_READ"])
def table(request: pytest.FixtureRequest) -> Table:
    env = make_env()
    return Table.create(env.storage.root, name="events", partition_by="day", table_type=request.param, env=env)


def keys_of(table: Table) -> list[str]:
    return table.scan(columns=KEY).to_arrow().column(0).to_pylist()  # type: ignore[no-any-return]


def numbers(table: Table) -> list[int]:
    return sorted(table.scan(columns="n").to_arrow().column(0).to_pylist())


@pytest.mark.parametrize("verb", ["insert", "bulk_insert", "insert_overwrite", "insert_overwrite_table"])
def test_each_row_gets_a_key_of_instant_task_and_row(table: Table, verb: str) -> None:
    getattr(table, verb)(ROWS)
    instant = table.commits()[0][0].requested
    assert sorted(keys_of(table)) == [f"{instant}_0_{row}" for row in range(3)]
    assert not table.validate(deep=True).findings


def test_properties_are_those_of_hudi(table: Table) -> None:
    raw = table.config.raw
    assert "hoodie.table.recordkey.fields" not in raw
    assert raw["hoodie.table.keygenerator.type"] == "SIMPLE"
    plain = Table.create(make_env().storage.root, name="events", env=make_env())
    assert plain.config.raw["hoodie.table.keygenerator.type"] == "NON_PARTITION"


def test_equal_rows_are_all_kept_and_batches_are_numbered_in_sequence(table: Table) -> None:
    rows = pa.table({"n": [7] * 5_000, "day": ["a"] * 5_000})
    table.insert(pa.RecordBatchReader.from_batches(rows.schema, rows.to_batches(max_chunksize=700)))
    table.insert(rows, options={"hoodie.combine.before.insert": "true"})
    keys = keys_of(table)
    assert len(set(keys)) == len(keys) == 10_000
    assert all(re.fullmatch(r"\d{17}_0_\d+", key) for key in keys)


def test_rows_of_a_scan_get_new_keys(table: Table) -> None:
    table.insert(ROWS)
    table.insert(table.scan())
    assert len(set(keys_of(table))) == 6


@pytest.mark.parametrize(
    ("call", "verb"),
    [(lambda t: t.upsert(ROWS), "upsert"), (lambda t: t.delete([{"n": 1, "day": "a"}]), "delete by columns")],
)
def test_write_by_key_columns_is_refused(table: Table, call: Any, verb: str) -> None:
    table.insert(ROWS)
    with pytest.raises(UserError, match=f"{verb} needs a record key.*delete_where"):
        call(table)
    assert len(table.commits()) == 1


def test_rows_are_changed_by_their_generated_key(table: Table) -> None:
    table.insert(ROWS)
    rows = table.scan(where="n = 2").to_arrow()
    table.upsert(rows.set_column(rows.schema.get_field_index("n"), "n", pa.array([3, 4])))
    assert numbers(table) == [1, 3, 4]
    table.delete_where("n = 3")
    table.delete(table.scan(columns=KEY, where="n = 4").to_arrow().column(0).to_pylist())
    assert numbers(table) == [1]
    assert not table.validate(deep=True).findings


def test_statements_change_rows_by_the_place_of_their_key(table: Table) -> None:
    table.insert(ROWS)
    keys = sorted(keys_of(table))
    table.update({"n": "n + 10"}, where="n = 2")
    assert numbers(table) == [1, 12, 12]
    (table.merge([{"m": 12}], on="n = m").when_matched_update({"n": "100"}).execute())
    assert numbers(table) == [1, 100, 100]
    assert sorted(keys_of(table)) == keys
    (table.merge([{"m": 1}], on="n = m").when_matched_delete().execute())
    assert numbers(table) == [100, 100]
    assert not table.validate(deep=True).findings


def test_rows_that_a_merge_inserts_get_keys(table: Table) -> None:
    table.insert(ROWS)
    keys = keys_of(table)
    source = pa.table({"n": [2, 5, 5], "day": ["b", "c", "a"]})
    merge = table.merge(source, on="target.n = source.n").when_matched_update({"n": "target.n + 10"})
    outcome = merge.when_not_matched_insert_all().execute()
    assert (outcome.totals.updates, outcome.totals.inserts) == (2, 2)  # type: ignore[union-attr]
    assert numbers(table) == [1, 5, 5, 12, 12]
    new = sorted(set(keys_of(table)) - set(keys))
    assert len(set(keys_of(table))) == 5
    instant = table.commits()[-1][0].requested
    assert all(re.fullmatch(rf"{instant}_0_\d+", key) for key in new)
    again = (
        table.merge(source.slice(0, 2), on="target.n = source.n").when_matched_delete().when_not_matched_insert_all()
    )
    again.execute()
    assert numbers(table) == [1, 2, 12, 12]
    table.services.clustering.run()
    assert numbers(table) == [1, 2, 12, 12]
    assert not table.validate(deep=True).findings


def test_large_source_of_a_merge_is_divided_by_columns_that_are_no_key(table: Table) -> None:
    table.insert(ROWS)
    source = pa.table({"n": range(2, 60_002), "day": ["b"] * 60_000, "text": ["x" * 100] * 60_000})
    merge = table.merge(source.to_reader(), on="target.n = source.n").when_matched_update({"n": "0"})
    merge.when_not_matched_insert({"n": "source.n", "day": "source.day"}).execute(
        options={"lakehouse.write.memory.budget": str(16 << 20)}
    )
    assert numbers(table) == [0, 0, 1, *range(3, 60_002)]
    assert len(set(keys_of(table))) == 60_002


def test_concurrent_merges_do_not_insert_a_row_twice(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without key columns only the check of the statement can tell that another writer inserted the row."""
    table.insert(ROWS)
    writers = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
    original, pending = ChangedRows.inserted, [table.with_options(writers)]
    source = pa.table({"n": [5], "day": ["c"]})

    def merged(each: Table) -> None:
        each.merge(source, on="target.n = source.n").when_not_matched_insert_all().execute()

    def inserted(changes: ChangedRows) -> pa.Table:
        if pending:
            merged(pending.pop())
        return original(changes)

    monkeypatch.setattr(ChangedRows, "inserted", inserted)
    merged(table.with_options(writers))
    assert numbers(table) == [1, 2, 2, 5]


def test_upsert_of_rows_without_a_generated_key_stays_an_error(table: Table) -> None:
    table.insert(ROWS)
    rows = table.scan().to_arrow()
    keyless = rows.set_column(rows.schema.get_field_index(KEY), KEY, pa.nulls(3, pa.string()))
    with pytest.raises(UserError, match="key"):
        table.upsert(keyless)
    assert numbers(table) == [1, 2, 2]


def test_services_keep_the_keys(table: Table) -> None:
    for _ in range(3):
        table.insert(ROWS)
    keys = sorted(keys_of(table))
    table.services.clustering.run()
    table.delete_where("day = 'a'")
    if table.config.is_merge_on_read:
        table.services.compaction.run()
    assert sorted(keys_of(table)) == sorted(set(keys) & set(keys_of(table)))
    assert len(keys_of(table)) == 6


def test_concurrent_inserts_do_not_conflict(table: Table) -> None:
    options = {
        "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    }
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: table.with_options(options).insert(ROWS), range(4)))
    assert len(set(keys_of(table))) == 12


def test_tasks_of_one_write_make_different_keys(table: Table, monkeypatch: pytest.MonkeyPatch) -> None:
    class Divided(LocalEngine):
        """Gives each batch to a task of its own, as Spark does."""

        def exchange(self, frame: Any, function: Any, **options: Any) -> list[Any]:
            assert options["hint"] == "none"
            attempts = [staged.Attempt(partition=number, stage=0, number=0) for number in range(len(frame))]
            made = [function(each, iter([batch])) for each, batch in zip(attempts, frame, strict=True)]
            return [result for results in made for result in results]

        def schema(self, frame: Any) -> pa.Schema:
            return frame[0].schema

        def repeats(self, frame: Any) -> bool:
            return True

    monkeypatch.setattr("lakehouse.core.table.writes.frame_engine", lambda *_: Divided())
    monkeypatch.setattr("lakehouse.core.table.writes.is_frame", lambda _: True)
    table.insert(pa.Table.from_pylist(ROWS).to_batches(max_chunksize=1))
    assert len(set(keys_of(table))) == 3
    assert staged_parts.with_generated_keys


def test_index_that_hashes_key_columns_is_refused() -> None:
    env = make_env()
    with pytest.raises(UserError, match="hashes the columns of the record key"):
        Table.create(env.storage.root, name="events", env=env, options={"hoodie.index.type": "BUCKET"})
