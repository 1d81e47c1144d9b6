"""Bad input raises an error that names it, before a data file is written, and leaves no pending instant."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.format.properties import parse_properties, render_properties
from lakehouse.core.table.table import Table
from lakehouse.errors import CorruptTableError, UnsupportedError, UserError
from lakehouse.model.instant import Instant
from tests.support.tables import SCHEMA, Shape, base_files, batch, make_env, make_table, row, strays

PROPERTIES = ".hoodie/hoodie.properties"
GOOD = batch([row("k1"), row("k2")])


def unchanged_after(call: Callable[[], Any], table: Table, match: str, kind: type[UserError] = UserError) -> UserError:
    """Return the error of a call that must fail and must not change the table."""
    storage = table.refresh().env.storage
    files, commits = len(base_files(storage)), len(table.commits())
    with pytest.raises(kind, match=match) as raised:
        call()
    assert len(base_files(storage)) == files
    assert len(table.commits()) == commits
    assert strays(storage) == []
    assert tuple(table.timeline.where(pending=True)) == ()
    assert not raised.value.retryable
    return raised.value


@pytest.fixture(params=["empty", "filled"])
def table(request: pytest.FixtureRequest) -> Table:
    """An empty table and a table with rows."""
    made = make_table(Shape(keys="complex"), schema=None)
    if request.param == "filled":
        made.upsert(GOOD)
    return made


VERBS = ["upsert", "insert", "bulk_insert", "insert_overwrite", "insert_overwrite_table"]


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("column", ["id", "p", "region", "ts"])
def test_write_names_a_missing_key_partition_or_ordering_column(table: Table, verb: str, column: str) -> None:
    renamed = [name + "_" if name == column else name for name in SCHEMA.names]
    error = unchanged_after(lambda: getattr(table, verb)(GOOD.rename_columns(renamed)), table, f"'{column}' is not in")
    assert f"Did you mean '{column}_'" in str(error) or len(column) < 3
    assert error.facts["column"] == column


@pytest.mark.parametrize("verb", VERBS)
@pytest.mark.parametrize("bad", [{"id": None, "region": None}, {"id": "", "region": ""}, {"id": "", "region": None}])
def test_write_error_counts_and_shows_rows_without_key(table: Table, verb: str, bad: Mapping[str, Any]) -> None:
    rows = batch([row("k1"), row("k2") | bad])
    unchanged_after(
        lambda: getattr(table, verb)(rows), table, r"1 of 2 rows have a null or empty record key .*row 1: .*'id': "
    )


@pytest.mark.parametrize("verb", VERBS)
def test_write_refuses_a_partition_value_that_leaves_the_table_directory(table: Table, verb: str) -> None:
    rows = batch([row("k1"), row("k2", p="..")])
    unchanged_after(lambda: getattr(table, verb)(rows), table, "cannot form a partition path")


@pytest.mark.parametrize(
    "kind", [pa.list_(pa.int64()), pa.map_(pa.string(), pa.int64()), pa.struct([("a", pa.int64())])]
)
def test_write_refuses_an_ordering_column_of_a_type_without_order(kind: pa.DataType) -> None:
    table = make_table(schema=None)
    rows = GOOD.set_column(SCHEMA.get_field_index("ts"), "ts", pa.nulls(2, kind))
    unchanged_after(lambda: table.upsert(rows), table, "ordering column 'ts' has type .* no order")


@pytest.mark.parametrize(
    ("column", "values", "message"),
    [
        ("amount", pa.array([True, False]), "'amount' is double in the table and bool in the data"),
        ("at", pa.array([1, 2], pa.timestamp("us")), "'at' is int64 in the table"),
        ("v", pa.array([[1], [2]]), "'v' is string in the table and list"),
        ("_hoodie_is_deleted", pa.array(["x", "y"]), "'_hoodie_is_deleted' is bool"),
    ],
)
def test_illegal_type_change_names_the_column_and_both_types(column: str, values: pa.Array, message: str) -> None:
    table = make_table()
    table.upsert(GOOD)
    rows = GOOD.set_column(SCHEMA.get_field_index(column), column, values)
    error = unchanged_after(lambda: table.upsert(rows), table, message)
    assert "Cast the column" in str(error)


def test_missing_column_is_refused_or_filled_with_nulls_by_option() -> None:
    table = make_table()
    table.upsert(GOOD)
    rows = batch([row("k1", v="new", ts=2)]).drop_columns(["amount"])
    failing = {"lakehouse.schema.missing.column": "fail"}
    error = unchanged_after(
        lambda: table.upsert(rows, options=failing), table, "'amount' of the table is not in the data"
    )
    assert "hoodie.write.set.null.for.missing.columns=true" in str(error)
    table.upsert(rows, options={"hoodie.write.set.null.for.missing.columns": "true"})
    assert table.scan(["id", "amount"], where="v = 'new'").to_arrow().to_pylist() == [{"id": "k1", "amount": None}]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (pa.field("n", pa.null()), "'n' has no type"),
        (pa.field("n", pa.uint64()), "'n' has type uint64"),
        (pa.field("n", pa.duration("us")), "'n' has type duration"),
        (pa.field("n", pa.map_(pa.int32(), pa.string())), "'n' has type map.*the keys of a map must be strings"),
        (pa.field("n", pa.struct([])), "'n' is a struct without fields"),
        (pa.field("V", pa.string()), "'v' and 'V'"),
        (pa.field("a column", pa.string()), "'a column' is not a name"),
    ],
)
def test_write_refuses_types_that_the_format_does_not_support(column: pa.Field, message: str) -> None:
    table = make_table(schema=None)
    rows = GOOD.append_column(column, pa.nulls(2, column.type))
    unchanged_after(lambda: table.upsert(rows), table, message)


def test_write_refuses_nulls_in_a_required_column() -> None:
    declared = SCHEMA.set(SCHEMA.get_field_index("v"), pa.field("v", pa.string(), nullable=False))
    table = make_table(schema=declared)
    table.upsert(batch([row("k1", v="x")]))
    unchanged_after(
        lambda: table.upsert(batch([row("k1", v="x"), row("k2")])), table, "'v' must not be null, but 1 of 2"
    )


def test_write_refuses_objects_without_rows_and_lists_the_accepted_kinds() -> None:
    table = make_table()
    unchanged_after(lambda: table.upsert(5), table, "of type int; give a list or iterator of dicts")


def test_unknown_option_of_a_call_is_refused_with_the_nearest_name() -> None:
    table = make_table()
    unchanged_after(
        lambda: table.upsert(GOOD, options={"hoodie.parquet.max.filesize": "1"}),
        table,
        r"'hoodie\.parquet\.max\.filesize'.*Did you mean 'hoodie\.parquet\.max\.file\.size'",
    )


def test_unknown_argument_of_a_write_is_refused_with_the_nearest_name() -> None:
    table = make_table()
    unchanged_after(lambda: table.upsert(GOOD, option={}), table, "'option'.*Did you mean 'options'")


def test_number_of_buckets_cannot_change() -> None:
    table = make_table(Shape(index="BUCKET", buckets=4))
    table.upsert(batch(row(f"k{n}") for n in range(20)))
    for count in (0, 2, 8):
        options = {"hoodie.bucket.index.num.buckets": str(count)}
        message = f"num.buckets={count} contradicts the table, whose rows are stored by 4"
        unchanged_after(lambda options=options: table.upsert(GOOD, options=options), table, message)
    unchanged_after(
        lambda: table.upsert(GOOD, options={"hoodie.bucket.index.hash.field": "id"}),
        table,
        "hash.field='id' contradicts",
    )
    unchanged_after(
        lambda: table.upsert(GOOD, options={"hoodie.bucket.index.hash.field": "v"}), table, r"\['v'\] are not among"
    )


@pytest.mark.parametrize("keys", [[], ["absent"]])
def test_delete_of_absent_keys_makes_no_commit(keys: list[str]) -> None:
    table = make_table()
    table.upsert(GOOD)
    outcome = table.delete(keys)
    assert outcome.reason
    assert len(table.commits()) == 1 and tuple(table.timeline.where(pending=True)) == ()


def test_delete_needs_key_columns_and_a_table_with_rows() -> None:
    table = make_table(schema=None)
    unchanged_after(lambda: table.delete(["k1"]), table, "nothing to delete")
    table.upsert(GOOD)
    unchanged_after(lambda: table.delete(GOOD.select(["p", "v"])), table, "'id' is not in the data")


def test_delete_of_an_absent_partition_is_refused() -> None:
    table = make_table()
    table.upsert(GOOD)
    unchanged_after(lambda: table.delete_partitions(["a", "b"]), table, "'b' is not a partition")


def test_open_names_a_location_without_a_table() -> None:
    env = make_env()
    with pytest.raises(UserError, match=r"is not a Hudi table: it has no \.hoodie/hoodie\.properties") as raised:
        Table.open(env.storage.root, env=env)
    assert env.storage.root in str(raised.value)


def test_create_refuses_a_location_with_other_files() -> None:
    env = make_env()
    env.storage.put("photos/cat.jpg", b"")
    with pytest.raises(UserError, match="not empty and not a Hudi table"):
        make_table(env=env)
    assert [file.path for file in env.storage.list("")] == ["photos/cat.jpg"]


def test_create_refuses_an_existing_table() -> None:
    env = make_env()
    table = make_table(env=env)
    table.upsert(GOOD)
    with pytest.raises(UserError, match="is already a table"):
        make_table(env=env)
    again = Table.create(env.storage.root, name="events", record_key=["id"], exist_ok=True, env=env)
    assert again.scan().count() == 2


def altered(changes: Mapping[str, str]) -> tuple[Env, Table]:
    """Return a table with one commit whose properties were changed."""
    env = make_env()
    table = make_table(env=env)
    table.upsert(GOOD)
    values = parse_properties(env.storage.get(PROPERTIES)) | changes
    env.storage.put(PROPERTIES, render_properties(values))
    return env, table


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hoodie.table.version": "5"}, "table version 5"),
        ({"hoodie.table.version": "10"}, "table version 10"),
        ({"hoodie.table.type": "MERGE"}, "table type MERGE is not supported; COPY_ON_WRITE and MERGE_ON_READ are"),
        ({"hoodie.table.base.file.format": "ORC"}, "base file format ORC"),
        ({"hoodie.datasource.write.drop.partition.columns": "true"}, "drop.partition.columns=true"),
        ({"hoodie.table.format": "iceberg"}, "hoodie.table.format=iceberg"),
    ],
)
def test_open_refuses_a_table_that_cannot_be_read(changes: Mapping[str, str], named: str) -> None:
    env, _ = altered(changes)
    with pytest.raises(UnsupportedError, match=named):
        Table.open(env.storage.root, env=env)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"hoodie.record.merge.mode": "CUSTOM"}, "merge mode CUSTOM"),
        ({"hoodie.populate.meta.fields": "false"}, "hoodie.populate.meta.fields=false"),
    ],
)
def test_write_refuses_a_read_only_table_and_names_the_cause(changes: Mapping[str, str], named: str) -> None:
    env, _ = altered(changes)
    table = Table.open(env.storage.root, env=env)
    assert table.scan(["id"]).count() == 2
    unchanged_after(lambda: table.upsert(GOOD), table, named, UnsupportedError)


def test_incremental_read_needs_meta_columns() -> None:
    env, first = altered({"hoodie.populate.meta.fields": "false"})
    begin = first.commits()[0][0].completion
    with pytest.raises(UnsupportedError, match=r"hoodie\.populate\.meta\.fields=false"):
        Table.open(env.storage.root, env=env).incremental(begin).to_arrow()


@pytest.mark.parametrize("verb", VERBS)
def test_reader_that_fails_late_leaves_no_files_and_no_instant(table: Table, verb: str) -> None:
    good = [batch(row(f"n{n:04d}", v="text" * 9) for n in range(start, start + 200)) for start in range(0, 2_000, 200)]
    stream = [part for rows in (*good, batch([row("k") | {"id": None, "region": None}])) for part in rows.to_batches()]
    tight = {"hoodie.parquet.max.file.size": "4000", "lakehouse.write.memory.budget": "4000"}
    unchanged_after(
        lambda: getattr(table, verb)(pa.RecordBatchReader.from_batches(SCHEMA, stream), options=tight),
        table,
        "null or empty record key",
    )
    assert len(base_files(table.refresh().env.storage)) == len(table.commits())


def test_create_refuses_a_key_that_the_schema_lacks(tmp_path: Path) -> None:
    schema = pa.schema([("order_id", pa.string()), ("day", pa.string())])
    with pytest.raises(UserError, match=r"'order_idd' is not in the data\. Did you mean 'order_id'"):
        Table.create(str(tmp_path / "t"), name="t", record_key=["order_idd"], schema=schema)
    assert not (tmp_path / "t" / ".hoodie").exists()


def test_malformed_schema_with_column_ids_is_a_corrupt_table(tmp_path: Path) -> None:
    table = Table.create(str(tmp_path / "t"), name="t", record_key=["id"])
    table.upsert(pa.table({"id": ["a"]}), commit_metadata={"latest_schema": '{"max_column_id":5}'})
    with pytest.raises(CorruptTableError, match=r"a schema with column ids is malformed"):
        table.scan().to_arrow()


def merge_on_read(**declared: Any) -> Table:
    env = make_env()
    settings: dict[str, Any] = {"ordering": "ts", "table_type": "MERGE_ON_READ", "schema": SCHEMA} | declared
    return Table.create(env.storage.root, name="events", record_key=["id"], partition_by=["p"], env=env, **settings)


@pytest.mark.parametrize("call", ["due", "plan", "schedule", "run", "cost"])
def test_compaction_has_nothing_to_do_without_log_files(call: str) -> None:
    table = make_table()
    table.upsert(GOOD)
    verb = getattr(table.services.compaction, call)
    unchanged_after(verb, table, "is a copy-on-write table: it has no logs", UnsupportedError)


def test_unknown_compaction_instant_is_named_with_the_pending_ones() -> None:
    table = merge_on_read()
    table.upsert(GOOD)
    table.upsert(GOOD)
    with pytest.raises(UserError, match="compaction 20200101000000000 does not exist; pending plans: none"):
        table.services.compaction.run(instant="20200101000000000")
    planned = table.services.compaction.schedule(force=True)
    assert isinstance(planned, Instant)
    with pytest.raises(UserError, match=f"does not exist; pending plans: {planned.requested}"):
        table.services.compaction.run(instant="20200101000000000")
    with pytest.raises(UserError, match=f"logcompaction {planned.requested}"):
        table.services.log_compaction.run(instant=planned.requested)
    table.services.compaction.run(instant=planned.requested)
    with pytest.raises(UserError, match=f"{planned.requested} is completed"):
        table.services.compaction.run(instant=planned.requested)


@pytest.mark.parametrize("verb", VERBS)
def test_write_needs_each_ordering_column(verb: str) -> None:
    table = merge_on_read(ordering=["ts", "at"], schema=None)
    rows = GOOD.rename_columns(["at_" if name == "at" else name for name in SCHEMA.names])
    unchanged_after(lambda: getattr(table, verb)(rows), table, "'at' is not in the data. Did you mean 'at_'")
    nested = GOOD.set_column(SCHEMA.get_field_index("at"), "at", pa.nulls(2, pa.list_(pa.int64())))
    unchanged_after(lambda: getattr(table, verb)(nested), table, "ordering column 'at' has type .* no order")


def test_partial_update_needs_key_partition_and_ordering_columns() -> None:
    table = merge_on_read()
    table.upsert(GOOD)
    partial = {"lakehouse.write.partial.update": "true"}
    for column in ("id", "p", "ts"):
        rows = GOOD.select([name for name in ("id", "p", "ts", "v") if name != column])
        with pytest.raises(UserError, match=f"'{column}' is not in the data"):
            table.upsert(rows, options=partial)
    assert len(table.commits()) == 1


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (
            {"hoodie.record.merge.mode": "CUSTOM", "hoodie.compaction.payload.class": "com.example.Own"},
            "com.example.Own",
        ),
        ({"hoodie.record.merge.mode": "CUSTOM", "hoodie.record.merge.strategy.id": "9b450e53"}, "strategy 9b450e53"),
        ({"hoodie.table.partial.update.mode": "KEEP_SOME"}, "partial.update.mode=KEEP_SOME"),
    ],
)
def test_unavailable_merger_prevents_reads_of_logs_but_not_of_base_files(
    changes: Mapping[str, str], named: str
) -> None:
    table = merge_on_read()
    table.upsert(GOOD)
    table.upsert(batch([row("k1", ts=2, v="new")]))
    storage = table.refresh().env.storage
    storage.put(PROPERTIES, render_properties(parse_properties(storage.get(PROPERTIES)) | changes))
    opened = Table.open(storage.root, env=table.refresh().env)
    assert opened.scan(["id"], read_optimized=True).count() == 2
    for refused in (
        lambda: opened.scan().to_arrow(),
        lambda: opened.upsert(GOOD),
        lambda: opened.services.compaction.run(force=True),
    ):
        unchanged_after_refusal(refused, opened, named)


def unchanged_after_refusal(call: Callable[[], Any], table: Table, named: str) -> None:
    commits = len(table.commits())
    with pytest.raises(UnsupportedError, match=named) as raised:
        call()
    assert "hoodie.record.merge.property.lakehouse.merger=package.module:function" in str(raised.value)
    assert len(table.commits()) == commits
    assert tuple(table.timeline.where(pending=True)) == ()
