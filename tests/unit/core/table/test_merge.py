"""Statements on tables: UPDATE, DELETE and MERGE in one commit, refusals by name, conflicts and retries."""

from __future__ import annotations

import itertools
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.read.scan import plan_row_read
from lakehouse.core.table import statements
from lakehouse.errors import ConflictError, UserError
from lakehouse.model.commit import Operation

NUMBERS = itertools.count()
KINDS = ("COW", "MOR")
ROWS = pa.table(
    {
        "id": ["a", "b", "c", "d"],
        "v": pa.array([1, 2, 3, 4], pa.int64()),
        "w": ["x", "y", "z", "q"],
        "ts": pa.array([5, 5, 5, 5], pa.int64()),
    }
)
SOURCE = pa.table(
    {
        "id": ["a", "b", "e"],
        "v": pa.array([100, 200, 500], pa.int64()),
        "w": ["A", "B", "E"],
        "ts": pa.array([6, 3, 6], pa.int64()),
    }
)
WRITERS = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}


def create(kind: str = "COW", **declared: Any) -> Table:
    """Return a table with ROWS."""
    declared.setdefault("record_key", "id")
    table = Table.create(f"memory://merge/{next(NUMBERS)}", name="t", table_type=kind, **declared)
    table.upsert(ROWS)
    return table


def rows(table: Table, *names: str) -> list[tuple[Any, ...]]:
    """Return the rows, ordered by id."""
    columns = ["id", *(names or ("v",))]
    read = table.scan(columns=columns).to_arrow().sort_by("id")
    return list(zip(*(read.column(name).to_pylist() for name in columns), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_clauses_of_all_kinds_are_one_commit_and_add_no_column(kind: str) -> None:
    table = create(kind)
    outcome = (
        table.merge(SOURCE, "source.id = target.id")
        .when_matched_delete("target.v > 1")
        .when_matched_update({"w": "concat(source.w, target.w)"})
        .when_not_matched_insert({"id": "source.id", "v": "source.v + 1"})
        .when_not_matched_by_source_update({"v": "-v"}, "target.id = 'd'")
        .execute(commit_metadata={"by": "test"})
    )
    assert isinstance(outcome, Committed)
    assert len(table.timeline.writes()) == 2
    assert (outcome.totals.deletes, outcome.metadata.extra["by"]) == (1, "test")
    assert outcome.drift == ()
    assert rows(table, "v", "w", "ts") == [
        ("a", 1, "Ax", 5),
        ("c", 3, "z", 5),
        ("d", -4, "q", 5),
        ("e", 501, None, None),
    ]
    assert table.schema == ROWS.schema


@pytest.mark.parametrize("kind", KINDS)
def test_update_evaluates_expressions_on_the_old_values(kind: str) -> None:
    table = create(kind)
    table.update({"v": "v * 10 + length(w)", "w": "cast(v as string)"}, where="v % 2 = 0 OR id = 'a'")
    assert rows(table, "v", "w") == [("a", 11, "1"), ("b", 21, "2"), ("c", 3, "z"), ("d", 41, "4")]
    assert table.update({"v": 7}).rows == 4  # type: ignore[union-attr]
    assert {row[1] for row in rows(table)} == {7}
    assert isinstance(table.update({"v": 8}, where="v < 0"), NothingToDo)


def test_update_writes_only_keys_and_assigned_columns_of_the_matching_rows() -> None:
    table = create("MOR")
    outcome = table.update({"w": "upper(w)"}, where="v > 2")
    assert isinstance(outcome, Committed)
    assert outcome.metadata.operation == Operation.UPSERT.value
    assert outcome.rows == 2
    assert all(stat.is_partial for stat in outcome.metadata.stats)


@pytest.mark.parametrize("kind", KINDS)
def test_update_with_lower_ordering_value_has_no_effect_and_is_counted(kind: str) -> None:
    table = create(kind, ordering="ts")
    merge = table.merge(SOURCE, ["id"]).when_matched_update_all().when_not_matched_insert_all()
    outcome = merge.execute()
    assert outcome.ignored_updates == 1
    assert "1 update without effect" in str(outcome)
    assert rows(table) == [("a", 100), ("b", 2), ("c", 3), ("d", 4), ("e", 500)]
    # An update that does not set the ordering column takes effect.
    assert table.update({"v": "v + 1"}, where="id = 'b'").ignored_updates == 0
    assert rows(table)[1] == ("b", 3)
    ignored = table.update({"ts": 1}, where="id = 'b'")
    assert isinstance(ignored, NothingToDo)
    assert ignored.ignored_updates == 1


@pytest.mark.parametrize("kind", KINDS)
def test_row_is_inserted_again_after_a_merge_deleted_it(kind: str) -> None:
    table = create(kind, ordering="ts")
    table.merge(SOURCE, ["id"]).when_matched_delete().when_not_matched_insert_all().execute()
    assert rows(table) == [("c", 3), ("d", 4), ("e", 500)]
    table.merge(SOURCE, ["id"]).when_not_matched_insert_all().execute()
    assert rows(table) == [("a", 100), ("b", 200), ("c", 3), ("d", 4), ("e", 500)]


@pytest.mark.parametrize("kind", KINDS)
def test_required_columns_that_a_clause_does_not_assign_keep_their_values(kind: str) -> None:
    schema = pa.schema([ROWS.schema.field("id"), pa.field("v", pa.int64(), nullable=False), *list(ROWS.schema)[2:]])
    table = Table.create(f"memory://merge/{next(NUMBERS)}", name="t", record_key="id", schema=schema, table_type=kind)
    table.upsert(ROWS.cast(schema))
    merge = table.merge(SOURCE, ["id"]).when_matched_delete("source.v > 100").when_matched_update({"w": "'new'"})
    merge.execute()
    assert rows(table, "v", "w") == [("a", 1, "new"), ("c", 3, "z"), ("d", 4, "q")]
    with pytest.raises(UserError, match="'v' must not be null"):
        table.merge(SOURCE, ["id"]).when_not_matched_insert({"id": "source.id"}).execute()


@pytest.mark.parametrize(
    ("statement", "message"),
    [
        (lambda t: t.merge(SOURCE, ["id"]).execute(), "add at least one clause"),
        (lambda t: t.merge(SOURCE, ["nope"]).when_matched_delete().execute(), "column 'nope' is not in the table"),
        (lambda t: t.merge(SOURCE, "id = 1").when_matched_delete().execute(), "write target.id or source.id"),
        (lambda t: t.merge(SOURCE, "source.id = target.idd").when_matched_delete().execute(), "Did you mean"),
        (
            lambda t: t.merge(SOURCE, ["id"]).when_not_matched_insert({"id": "target.id"}).execute(),
            "uses a column of the table, which has no row when not matched",
        ),
        (lambda t: t.merge(SOURCE, ["id"]).when_matched_update({"x": "1"}).execute(), "'x' is not in the table"),
        (lambda t: t.merge(SOURCE, ["id"]).when_matched_update({}).execute(), "name at least one column"),
        (lambda t: t.merge(SOURCE, ["id"]).when_matched_update({"v": "source.w"}).execute(), "column 'v': CAST"),
        (lambda t: t.merge(SOURCE, ["id"]).when_matched_delete("source.v").execute(), "must be true or false"),
        (
            lambda t: t.merge(SOURCE.append_column("n", SOURCE["v"]), ["id"]).when_matched_update_all().execute(),
            "the source has the columns n, which the table lacks",
        ),
        (
            lambda t: t.merge(pa.concat_tables([SOURCE, SOURCE]), ["id"]).when_matched_delete().execute(),
            r"2 rows of the source change the row with the key {'id': 'a'}",
        ),
        (
            lambda t: t.merge(pa.concat_tables([SOURCE, SOURCE]), ["id"]).when_not_matched_insert_all().execute(),
            r"several rows of the source insert the key {'id': 'e'}",
        ),
        (
            lambda t: (
                t.merge(pa.concat_tables([SOURCE, SOURCE]), ["id"])
                .when_matched_update_all()
                .when_not_matched_insert_all()
                .execute()
            ),
            "2 rows of the source have the key",
        ),
        (
            lambda t: t.merge(SOURCE, "source.v = target.v").when_not_matched_insert_all().execute(),
            r"inserts the key {'id': 'a'}, which is stored in a row that the condition `on` does not match",
        ),
        (lambda t: t.update({"id": "'x'"}), "changes 'id', a column of the record key, from 'a' to 'x'"),
        (lambda t: t.update({"v": "w"}), "column 'v': CAST to int64: Failed to parse string"),
        (lambda t: t.update({"v": "1.5"}), "column 'v' has the type int64"),
        (lambda t: t.update({"v": "v / 0"}), "division by zero"),
        (lambda t: t.delete_where("lenght(w) = 1"), "Did you mean 'length'"),
        (lambda t: t.merge("rows", ["id"]).when_matched_delete().execute(), "rows are of type str"),
        (
            lambda t: (
                t.merge(SOURCE, "source.v > target.v")
                .when_matched_delete()
                .execute(options={"lakehouse.write.memory.budget": "100"})
            ),
            "`on` has no equality of columns by which it can be divided",
        ),
    ],
)
def test_statement_is_refused_by_name_and_nothing_is_written(statement: Any, message: str) -> None:
    table = create()
    with pytest.raises(UserError, match=message):
        statement(table)
    assert rows(table) == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    assert len(table.timeline.writes()) == 1


def test_changed_partition_is_refused_and_an_equal_one_is_not() -> None:
    table = create(partition_by="w")
    with pytest.raises(UserError, match="changes 'w', a column of the partition, from 'x' to 'A'"):
        table.merge(SOURCE, ["id"]).when_matched_update_all().execute()
    table.update({"w": "w", "v": 9})
    assert {row[1] for row in rows(table)} == {9}


@pytest.mark.parametrize("form", ["batch", "reader", "table", "scan"])
def test_source_may_be_any_arrow_data_or_another_table(form: str) -> None:
    table, other = create(), Table.create(f"memory://merge/{next(NUMBERS)}", name="o", record_key="id")
    other.upsert(SOURCE)
    source: Any = {
        "batch": SOURCE.to_batches()[0],
        "reader": SOURCE.to_reader(),
        "table": other,
        "scan": other.scan(where="v >= 200"),
    }[form]
    table.merge(source, "t.id = s.id", source_alias="s", target_alias="t").when_matched_update({"v": "s.v"}).execute()
    assert dict(rows(table))["b"] == 200


def test_condition_without_equality_compares_all_pairs() -> None:
    table = create()
    source = pa.table({"low": [2], "high": [3]})
    table.merge(source, "target.v BETWEEN source.low AND source.high").when_matched_update({"w": "'in'"}).execute()
    assert rows(table, "w") == [("a", "x"), ("b", "in"), ("c", "in"), ("d", "q")]


def test_merge_reads_only_files_whose_keys_match() -> None:
    table = create(partition_by="w", record_key="id")
    assert isinstance(table.merge(SOURCE, ["id", "w"]).when_matched_delete().execute(), NothingToDo)
    source = pa.table({"id": ["a"], "w": ["x"], "v": [9]})
    outcome = table.merge(source, ["id", "w"]).when_matched_update({"v": "source.v"}).execute()
    assert [stat.partition for stat in outcome.metadata.stats] == ["x"]  # type: ignore[union-attr]


def test_decimal_source_is_compared_and_assigned_exactly() -> None:
    table = create()
    source = pa.table({"n": pa.array([Decimal("2.0"), Decimal("3.5")], pa.decimal128(5, 1))})
    table.merge(source, "target.v = source.n").when_matched_update({"v": "source.n * 2"}).execute()
    assert rows(table) == [("a", 1), ("b", 4), ("c", 3), ("d", 4)]


def racing(table: Table, monkeypatch: pytest.MonkeyPatch, write: Any) -> None:
    """Let another writer commit once, after the statement read the table and before it commits."""
    from lakehouse.core.planning.changed_rows import ChangedRows

    original, pending = ChangedRows.inserted, [write]

    def inserted(changes: ChangedRows) -> pa.Table:
        if pending:
            pending.pop()()
        return original(changes)

    monkeypatch.setattr(ChangedRows, "inserted", inserted)


def test_statement_runs_again_if_another_writer_changed_the_rows_that_it_read(monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(options=WRITERS)
    other = Table.open(table.location, options=WRITERS)
    racing(table, monkeypatch, lambda: other.update({"v": "v + 1000"}, where="id = 'b'"))
    table.update({"v": "v * 2"}, where="v >= 2")
    assert rows(table) == [("a", 1), ("b", 2004), ("c", 6), ("d", 8)]


def test_merge_of_a_reader_is_not_repeated_after_a_conflict(monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(options=WRITERS)
    other = Table.open(table.location, options=WRITERS)
    racing(table, monkeypatch, lambda: other.update({"v": "v + 1000"}, where="id = 'b'"))
    merge = table.merge(SOURCE.to_reader(), ["id"]).when_matched_update({"v": "target.v + source.v"})
    with pytest.raises(ConflictError, match="changed file group"):
        merge.execute()
    assert rows(table) == [("a", 1), ("b", 1002), ("c", 3), ("d", 4)]


def test_merge_sees_a_row_that_another_writer_inserted_meanwhile(monkeypatch: pytest.MonkeyPatch) -> None:
    table = create(options=WRITERS)
    other = Table.open(table.location, options=WRITERS)
    racing(table, monkeypatch, lambda: other.insert(SOURCE.slice(2, 1)))
    merge = table.merge(SOURCE, ["id"]).when_matched_update({"w": "'met'"}).when_not_matched_insert_all()
    merge.execute()
    assert rows(table, "v", "w")[-1] == ("e", 500, "met")


@pytest.mark.parametrize("kind", KINDS)
def test_rows_with_the_same_key_are_not_changed_alike(kind: str) -> None:
    table = Table.create(f"memory://merge/{next(NUMBERS)}", name="t", table_type=kind, record_key="id")
    table.insert(pa.table({"id": ["a", "a", "b"], "v": [1, 2, 3]}))
    ids_without_values = pa.table({"id": ["a"]})
    for change in (
        lambda: table.update({"v": "v + 1"}),
        lambda: table.update({"v": "v + 1"}, "v = 2"),
        lambda: table.delete_where("v = 2"),
        lambda: table.merge(ids_without_values, on=["id"]).when_matched_delete("target.v = 2").execute(),
        lambda: table.merge(ids_without_values, on=["id"]).when_matched_update({"v": "target.v + 1"}).execute(),
    ):
        with pytest.raises(UserError, match="several rows have the key"):
            change()
    assert sorted(rows(table)) == [("a", 1), ("a", 2), ("b", 3)]
    table.update({"v": "30"}, "v = 3")
    if kind == "MOR":
        table.services.compaction.run(force=True)
    table.delete_where("id = 'a'")
    assert rows(table) == [("b", 30)]


@pytest.mark.parametrize(
    ("on", "reads"),
    [
        (["id"], 1),
        ("lower(source.id) = target.id and source.v > target.v", 1),
        # A stored row with the same key may have another value, so the keys of changed rows are read again.
        ("source.id = target.id and source.ts - 1 = target.ts", 2),
    ],
)
def test_merge_by_key_with_conditions_reads_the_table_once(
    on: Any, reads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    table, planned = create(), list[Any]()

    def counted(*arguments: Any, **options: Any) -> Any:
        planned.append(arguments)
        return plan_row_read(*arguments, **options)

    monkeypatch.setattr(statements, "plan_row_read", counted)
    table.merge(SOURCE, on).when_matched_update_all("source.w <> target.w").execute()
    assert len(planned) == reads
    assert rows(table)[0] == ("a", 100)


@pytest.mark.parametrize("kind", KINDS)
def test_merge_by_key_compares_each_stored_row_of_the_key(kind: str) -> None:
    table = Table.create(
        f"memory://merge/{next(NUMBERS)}", name="t", table_type=kind, record_key="id", partition_by="p"
    )
    stored = pa.table({"id": ["a", "a", "b", "c", "c"], "p": ["1", "2", "1", "1", "1"], "v": [1, 2, 3, 4, 5]})
    table.insert(stored)
    source = pa.table({"id": ["a", "c"]})
    # The condition `on` excludes one of the two rows with the key c, and the update would change both.
    for on in ("source.id = target.id and target.v <> 4", "source.id = target.id"):
        with pytest.raises(UserError, match=r"several rows have the key \{'id': 'c', 'p': '1'\}"):
            table.merge(source, on).when_matched_update({"v": "0"}, "target.v <> 4").execute()
    assert sorted(rows(table)) == [("a", 1), ("a", 2), ("b", 3), ("c", 4), ("c", 5)]
    # One key in two partitions is two records.
    table.merge(source, ["id"]).when_matched_update({"v": "target.v + 10"}, "target.id = 'a'").execute()
    assert sorted(rows(table)) == [("a", 11), ("a", 12), ("b", 3), ("c", 4), ("c", 5)]
    if kind == "COW":
        table.merge(source, ["id"]).when_matched_delete("target.id = 'c'").execute()
        assert sorted(rows(table)) == [("a", 11), ("a", 12), ("b", 3)]


@pytest.mark.parametrize("kind", KINDS)
def test_names_of_columns_are_found_without_regard_to_case(kind: str) -> None:
    table = create(kind)
    table.update({"V": "v + TS"}, where="ID = 'a' AND w = 'x'")
    table.delete_where("W = 'q'")
    source = SOURCE.rename_columns(["ID", "V", "W", "TS"])
    merge = table.merge(source, ["Id"]).when_matched_update_all("SOURCE.v > Target.V").when_not_matched_insert_all()
    merge.execute()
    assert rows(table) == [("a", 100), ("b", 200), ("c", 3), ("e", 500)]
    assert table.schema == ROWS.schema
    twice = SOURCE.append_column("V", SOURCE["v"])
    with pytest.raises(UserError, match="several columns for the column 'v' of the table"):
        table.merge(twice, ["id"]).when_matched_update_all().execute()


def test_values_that_engines_read_differently_are_refused_with_another_form() -> None:
    table = Table.create(f"memory://merge/{next(NUMBERS)}", name="t", record_key="id")
    moment = pa.array([0], pa.timestamp("us", "UTC"))
    table.upsert(pa.table({"id": ["a"], "at": moment, "n": pa.array([1.0])}))
    with pytest.raises(UserError, match=r"depends on the engine\. Write the time in UTC without a zone"):
        table.update({"at": "'2026-01-01 10:00:00+02:00'"})
    table.update({"at": "TIMESTAMP '2026-01-01 10:00:00+02:00'"})
    assert str(rows(table, "at")[0][1]) == "2026-01-01 08:00:00+00:00"
    digits = "1234567890" * 4
    for text in (digits, f"0.{digits[1:]}"):
        with pytest.raises(UserError, match="digits, and a decimal has at most 38"):
            table.update({"n": f"n + {text}"})
    table.update({"n": "n + 1.5e40"})
    assert rows(table, "n")[0][1] == 1.5e40
