"""`Table.alter()`: columns change by metadata alone, and old files are read by column ids."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.table.table import Table
from lakehouse.errors import ConflictError, UserError
from lakehouse.model.commit import Operation
from tests.support.tables import data_rows, make_env

KINDS = ("COPY_ON_WRITE", "MERGE_ON_READ")
SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("ts", pa.int64()),
        ("name", pa.string()),
        ("amount", pa.int32()),
        ("place", pa.struct([("city", pa.string()), ("zip", pa.int32())])),
        ("tags", pa.list_(pa.struct([("key", pa.string()), ("n", pa.int32())]))),
    ]
)


def rows(*values: Mapping[str, Any], schema: pa.Schema = SCHEMA) -> pa.Table:
    return pa.Table.from_pylist([{"ts": 1, **value} for value in values], schema=schema)


def make(kind: str = "COPY_ON_WRITE", env: Env | None = None, **options: str) -> Table:
    env = env or make_env()
    dotted = {key.replace("__", "."): value for key, value in options.items()}
    return Table.create(
        env.storage.root,
        name="t",
        record_key=["id"],
        ordering="ts",
        table_type=kind,
        schema=SCHEMA,
        options={"hoodie.compact.inline.max.delta.commits": "1", **dotted},
        env=env,
    )


def filled(kind: str = "COPY_ON_WRITE", env: Env | None = None, **options: str) -> Table:
    """Return a table with a file and, if it is merge-on-read, a log."""
    table = make(kind, env, **options)
    tags = [{"key": "k", "n": 1}]
    place = {"city": "Ulm", "zip": 1}
    table.upsert(rows(*({"id": i, "name": f"n{i}", "amount": 1, "place": place, "tags": tags} for i in "abc")))
    table.upsert(rows({"id": "b", "ts": 2, "name": "changed", "amount": 2, "place": place, "tags": tags}))
    return table


def column(table: Table, name: str, **scan: Any) -> dict[str, Any]:
    return {row["id"]: row[name] for row in data_rows(table, ["id", name], **scan)}


@pytest.mark.parametrize("kind", KINDS)
def test_renamed_column_keeps_its_values_in_old_files_and_logs(kind: str) -> None:
    table = filled(kind)
    outcome = table.alter().rename_column("name", "title").execute()
    assert isinstance(outcome, Committed)
    assert outcome.metadata.operation == Operation.ALTER_SCHEMA and outcome.metadata.stats == ()
    assert table.schema.names == ["id", "ts", "title", "amount", "place", "tags"]
    assert column(table, "title") == {"a": "na", "b": "changed", "c": "nc"}
    assert column(table, "title", where="title = 'changed'") == {"b": "changed"}
    with pytest.raises(UserError, match="name"):
        table.scan(["name"]).to_arrow()


@pytest.mark.parametrize("kind", KINDS)
def test_values_of_a_dropped_column_do_not_come_back(kind: str) -> None:
    table = filled(kind)
    table.alter().drop_column("amount").execute()
    assert "amount" not in table.schema.names
    table.alter().add_column("amount", pa.int32()).execute()
    assert column(table, "amount") == {"a": None, "b": None, "c": None}
    assert column(table, "amount", where="amount is null") == {"a": None, "b": None, "c": None}
    assert column(table, "amount", where="amount = 1") == {}


@pytest.mark.parametrize("kind", KINDS)
def test_column_of_a_dropped_name_that_a_write_adds_is_null_in_old_rows(kind: str) -> None:
    table = filled(kind)
    table.alter().drop_column("amount").execute()
    table.upsert(pa.table({"id": ["c", "d"], "ts": [3, 3], "amount": pa.array([7, 8], pa.int32())}))
    assert column(table, "amount") == {"a": None, "b": None, "c": 7, "d": 8}
    assert column(table, "name") == {"a": "na", "b": "changed", "c": "nc", "d": None}


@pytest.mark.parametrize("kind", KINDS)
def test_two_columns_exchange_their_names(kind: str) -> None:
    table = filled(kind)
    table.alter().add_column("other", "string", after="name").execute()
    changed = rows({"id": "c", "ts": 5, "name": "N", "other": "O"}, schema=table.schema)
    table.upsert(changed.select(["id", "ts", "name", "other"]))
    table.alter().rename_column("name", "x").rename_column("other", "name").rename_column("x", "other").execute()
    assert table.schema.names[2:4] == ["other", "name"]
    assert column(table, "other") == {"a": "na", "b": "changed", "c": "N"}
    assert column(table, "name") == {"a": None, "b": None, "c": "O"}


@pytest.mark.parametrize("kind", KINDS)
def test_nested_fields_are_renamed_dropped_and_added(kind: str) -> None:
    table = filled(kind)
    builder = table.alter().rename_column("place.zip", "code").add_column("place.zip", "string", first=True)
    builder.rename_column("tags.element.key", "name").drop_column("tags.element.n").execute()
    assert column(table, "place")["a"] == {"zip": None, "city": "Ulm", "code": 1}
    assert column(table, "tags")["b"] == [{"name": "k"}]
    table.upsert(
        pa.Table.from_pylist(
            [{"id": "a", "ts": 9, "place": {"zip": "89", "city": "Ulm", "code": 2}, "tags": [{"name": "x"}]}],
            schema=pa.schema([table.schema.field(name) for name in ("id", "ts", "place", "tags")]),
        )
    )
    assert column(table, "place")["a"] == {"zip": "89", "city": "Ulm", "code": 2}
    assert column(table, "name")["a"] == "na"


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("new", "value"),
    [(pa.int64(), 1), (pa.float64(), 1.0), (pa.decimal128(12, 2), 1), (pa.string(), "1")],
)
def test_type_changes_convert_the_values_of_old_files(kind: str, new: pa.DataType, value: Any) -> None:
    table = filled(kind)
    table.alter().change_type("amount", new).execute()
    assert table.schema.field("amount").type == new
    assert column(table, "amount")["a"] == value
    assert column(table, "amount", where=f"amount = {value!r}").keys() == {"a", "c"}


@pytest.mark.parametrize("kind", KINDS)
def test_old_instants_are_read_with_the_columns_of_their_time(kind: str) -> None:
    table = filled(kind)
    before = table.timeline.latest_time()
    table.alter().rename_column("name", "title").drop_column("amount").execute()
    middle = table.timeline.latest_time()
    table.alter().add_column("amount", "string").execute()
    assert column(table, "amount", as_of=before) == {"a": 1, "b": 2, "c": 1}
    assert column(table, "name", as_of=before)["a"] == "na"
    assert "amount" not in table.scan(as_of=middle).to_arrow().column_names
    assert column(table, "title", as_of=middle)["b"] == "changed"


@pytest.mark.parametrize("kind", KINDS)
def test_writes_and_services_after_a_change_keep_all_values(kind: str) -> None:
    table = filled(kind)
    table.alter().rename_column("name", "title").drop_column("amount").add_column("amount", "string").execute()
    table.upsert(pa.table({"id": ["c", "d"], "ts": [4, 4], "title": ["C", "D"], "amount": ["x", "y"]}))
    expected = {"a": ("na", None), "b": ("changed", None), "c": ("C", "x"), "d": ("D", "y")}

    def check() -> None:
        assert {r["id"]: (r["title"], r["amount"]) for r in data_rows(table)} == expected
        assert not table.validate(deep=True).findings

    check()
    if kind == "MERGE_ON_READ":
        assert isinstance(table.services.compaction.run(force=True), Committed)
        check()
        assert column(table, "title", read_optimized=True)["b"] == "changed"
    table.services.clustering.run(force=True)
    check()
    table.delete(["a"])
    del expected["a"]
    check()
    table.services.clean.run(force=True)
    check()


def test_incremental_read_returns_current_columns() -> None:
    table = filled()
    begin = table.timeline.writes().by_completion()[0].completed
    table.alter().rename_column("name", "title").execute()
    changed = table.incremental(begin=begin, columns=["id", "title"]).to_arrow().to_pylist()
    assert changed == [{"id": "b", "title": "changed"}]


def test_comments_and_places_are_part_of_the_schema() -> None:
    table = filled()
    table.alter().set_comment("name", "full name").move_column("amount", first=True).move_column("id").execute()
    assert table.schema.names == ["amount", "ts", "name", "place", "tags", "id"]
    assert table.schema.field("name").metadata == {b"comment": b"full name"}
    table.upsert(rows({"id": "z", "name": "Z"}).select(["id", "ts", "name"]))
    assert table.schema.field("name").metadata == {b"comment": b"full name"}
    table.alter().set_comment("name", "").execute()
    assert table.schema.field("name").metadata is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda b: b.rename_column("id", "key"), "'id' is a record key column"),
        (lambda b: b.drop_column("ts"), "'ts' is an ordering column"),
        (lambda b: b.change_type("id", "binary"), "'id' is a record key column"),
        (lambda b: b.drop_column("nam"), "'nam' is not in the table. Did you mean 'name'"),
        (lambda b: b.rename_column("name", "Amount"), "there is a column 'amount' already"),
        (lambda b: b.add_column("a b", "int"), "not a name that Avro .*for example .a_b."),
        (lambda b: b.add_column("x", "number"), "'number' is not a type"),
        (lambda b: b.change_type("name", "int"), "Hudi has no such change"),
        (lambda b: b.change_type("amount", "float"), "would lose digits"),
        (lambda b: b.change_type("amount", "decimal(5,2)"), "up to 10 digits"),
        (lambda b: b.change_type("place", "string"), "is a struct"),
        (lambda b: b.drop_column("tags.element"), "can only be retyped"),
        (lambda b: b.rename_column("name.x", "y"), "which has no fields"),
        (lambda b: b.rename_column("place.zip", "other.zip"), "does not move to another struct"),
        (lambda b: b.drop_column("_hoodie_record_key"), "meta column"),
        (lambda b: b.drop_column("place.city").drop_column("place.zip"), "the only field of 'place'"),
        (lambda b: b.set_properties({"hoodie.table.name": "x"}), "cannot be changed here"),
        (lambda b: b.move_column("name", after="no"), "'no' is not in the table"),
    ],
)
def test_impossible_changes_are_refused_and_change_nothing(change: Any, message: str) -> None:
    table = filled()
    before = [instant.requested for instant in table.timeline]
    with pytest.raises(UserError, match=message.replace("(", r"\(")):
        change(table.alter()).execute()
    assert [instant.requested for instant in table.timeline] == before


def test_changes_that_change_nothing_make_no_commit() -> None:
    table = filled()
    before = len(table.timeline)
    assert isinstance(table.alter().change_type("amount", pa.int32()).execute(), NothingToDo)
    assert len(table.timeline) == before


def test_properties_are_set_and_removed_without_a_commit() -> None:
    table = filled()
    before = len(table.timeline)
    table.alter().set_properties({"team": "sales"}).execute()
    assert table.refresh().config.raw["team"] == "sales"
    table.alter().unset_properties(["team"]).execute()
    assert "team" not in table.refresh().config.raw and len(table.timeline) == before


@pytest.mark.parametrize(
    "option",
    [
        "hoodie.clustering.plan.strategy.sort.columns",
        "lakehouse.write.spread.column",
        "hoodie.payload.event.time.field",
    ],
)
def test_column_that_a_stored_option_names_can_be_changed_after_the_option_is_removed(option: str) -> None:
    """A clustering that is due would fail in each run if its sort column were renamed."""
    table = Table.create("memory://alter/options", name="t", record_key="id", options={option: "v"}, env=make_env())
    table.upsert(pa.table({"id": ["a"], "v": [1], "w": [2]}))
    for change in (table.alter().rename_column("v", "x"), table.alter().drop_column("v")):
        with pytest.raises(UserError, match=rf"named by the option {option} of this table; remove it first with alter"):
            change.execute()
    table.alter().unset_properties(option).execute()
    table.alter().rename_column("v", "x").execute()
    table.alter().set_properties({option: "w"}).execute()
    reopened = Table.open(table.location, env=make_env(storage=table._env.storage))
    with pytest.raises(UserError, match="remove it first"):
        reopened.alter().drop_column("w").execute()
    reopened.alter().unset_properties(option).drop_column("w").execute()
    assert reopened.schema.names == ["id", "x"]


def test_stored_options_of_services_change_for_the_next_open() -> None:
    table = filled()
    table.alter().set_properties({"hoodie.clean.commits.retained": "3"}).execute()
    policies = Table.open(table.location, env=make_env(storage=table._env.storage))._policies
    assert policies.clean.commits_retained == 3
    for properties, message in (
        ({"hoodie.clean.commits.retained": "many"}, "hoodie.clean.commits.retained='many'"),
        ({"hoodie.index.type": "BLOOM"}, "cannot be changed here"),
        ({"hoodie.clean.comits.retained": "3"}, "hoodie.clean.commits.retained"),
    ):
        with pytest.raises(UserError, match=message):
            table.alter().set_properties(properties).execute()
    table.alter().unset_properties(["hoodie.clean.commits.retained"]).execute()
    assert not [key for key in table.refresh().config.raw if "retained" in key]


def test_write_that_began_before_a_change_conflicts_with_it() -> None:
    table = filled()
    other = Table.open(table.location, env=table._env)

    def altering(batches: list[pa.RecordBatch]) -> Any:
        yield from batches
        other.alter().rename_column("name", "title").execute(
            options={"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
        )

    late = rows({"id": "x", "name": "late"})
    reader = pa.RecordBatchReader.from_batches(late.schema, altering(late.to_batches()))
    options = {
        "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
        "hoodie.write.num.retries.on.conflict.failures": "0",
    }
    with pytest.raises(ConflictError, match="changed the columns"):
        table.insert(reader, options=options)
    assert column(table, "title") == {"a": "na", "b": "changed", "c": "nc"}


def test_rolled_back_change_is_undone() -> None:
    table = filled()
    first = table.alter().rename_column("name", "title").execute()
    second = table.alter().rename_column("title", "label").execute()
    assert isinstance(first, Committed) and isinstance(second, Committed)
    table.rollback(second.instant.requested)
    assert column(table, "title")["a"] == "na"
    table.rollback(first.instant.requested)
    assert column(table, "name")["a"] == "na"
    table.upsert(rows({"id": "d", "name": "D"}).select(["id", "ts", "name"]))
    assert column(table, "name")["d"] == "D"


def test_restore_to_a_savepoint_undoes_a_change() -> None:
    table = filled()
    table.alter().rename_column("name", "title").execute()
    point = table.savepoint()
    assert not isinstance(point, NothingToDo)
    table.alter().drop_column("title").add_column("title", "int").execute()
    table.restore(point.instant.requested)
    assert column(table, "title")["b"] == "changed"


def test_history_survives_the_archive_of_the_change() -> None:
    table = filled(hoodie__keep__min__commits="2", hoodie__keep__max__commits="3", hoodie__clean__commits__retained="1")
    outcome = table.alter().rename_column("name", "title").drop_column("amount").execute()
    assert isinstance(outcome, Committed)
    for number in range(8):
        table.upsert(rows({"id": "z", "ts": number}).select(["id", "ts"]))
        table.services.clean.run(force=True)
        table.services.archive.run(force=True)
    assert table.timeline.find(outcome.instant.requested) is None
    fresh = Table.open(table.location, env=table._env)
    assert column(fresh, "title")["a"] == "na"
    fresh.alter().add_column("amount", "string").execute()
    assert column(fresh, "amount")["a"] is None


@pytest.mark.parametrize("kind", KINDS)
def test_change_sends_a_bounded_number_of_requests_and_lists_no_data(kind: str) -> None:
    """The number of files does not matter, because no data file is listed, read or written."""
    counts = []
    for files in (1, 40):
        env = make_env()
        counting = CountingStorage(env.storage)
        table = make(kind, replace(env, storage=counting), hoodie__parquet__small__file__limit="0")
        for number in range(files):
            table.bulk_insert(rows({"id": f"{number}", "name": "n"}))
        counting.reset()
        table.alter().rename_column("name", "title").drop_column("amount").change_type("place.zip", "bigint").execute()
        assert counting.listed_data() == ()
        counts.append(sum(counting.counts().values()))
    assert counts[1] <= counts[0] + 2 and counts[1] <= 60, counts


STATISTICS = {"hoodie__metadata__index__column__stats__enable": "true"}


@pytest.mark.parametrize("kind", KINDS)
def test_statistics_of_old_files_count_under_the_old_name(kind: str) -> None:
    table = make(kind, hoodie__parquet__small__file__limit="0", **STATISTICS)
    for key in ("a", "m", "z"):
        table.bulk_insert(rows({"id": key, "name": key, "amount": ord(key)}))
    table.alter().rename_column("name", "title").drop_column("amount").add_column("amount", "string").execute()
    table.bulk_insert(rows({"id": "zz", "title": "zz"}, schema=table.schema))
    step = table.scan(where="title = 'm'").explain().step("column_stats")
    assert step.slices is not None and step.slices <= 2
    assert column(table, "title", where="title = 'm'") == {"m": "m"}
    assert column(table, "title", where="title >= 'z'") == {"z": "z", "zz": "zz"}
    assert column(table, "amount", where="amount is null").keys() == {"a", "m", "z", "zz"}
    assert table.metadata.validate().ok


@pytest.mark.parametrize("kind", KINDS)
def test_rebuilt_metadata_table_agrees_with_the_columns(kind: str) -> None:
    table = filled(kind, **STATISTICS)
    table.alter().rename_column("name", "title").drop_column("amount").add_column("amount", "string").execute()
    table.upsert(rows({"id": "z", "ts": 3, "title": "zz", "amount": "x"}, schema=table.schema))
    table.metadata.rebuild()
    assert table.metadata.validate().ok
    for where in ("title = 'na'", "title = 'zz'", "amount is null", "amount = 'x'"):
        expected = [row["id"] for row in data_rows(table) if _meets(row, where)]
        assert sorted(column(table, "title", where=where)) == sorted(expected)


def _meets(row: Mapping[str, Any], where: str) -> bool:
    name, _, rest = where.partition(" ")
    return row[name] is None if rest == "is null" else row[name] == rest.removeprefix("= ").strip("'")


@pytest.mark.parametrize("kind", KINDS)
def test_indexed_column_is_refused_with_the_name_of_the_index(kind: str) -> None:
    table = filled(kind, hoodie__metadata__record__index__enable="true")
    table.services.create_index("name", name="name_index")
    table.services.index.run()
    for change in (table.alter().rename_column("name", "title"), table.alter().drop_column("name")):
        with pytest.raises(UserError, match="indexed by secondary_index_name_index; drop the index first"):
            change.execute()
    table.services.drop_index("name_index")
    table.alter().rename_column("name", "title").execute()
    table.services.create_index("title", name="title_index")
    table.services.index.run()
    assert column(table, "title", where="title = 'changed'") == {"b": "changed"}


@pytest.mark.parametrize("mode", ["OP_KEY_ONLY", "DATA_BEFORE", "DATA_BEFORE_AFTER"])
@pytest.mark.parametrize("kind", KINDS)
def test_changes_are_read_with_the_current_columns(kind: str, mode: str) -> None:
    env = make_env()
    table = Table.create(
        env.storage.root,
        name="t",
        record_key=["id"],
        ordering="ts",
        table_type=kind,
        schema=SCHEMA,
        cdc=mode,
        env=env,
    )
    table.upsert(rows({"id": "a", "name": "A", "amount": 1}))
    table.upsert(rows({"id": "a", "ts": 2, "name": "B", "amount": 2}))
    table.alter().rename_column("name", "title").drop_column("amount").add_column("amount", "string").execute()
    table.upsert(rows({"id": "a", "ts": 3, "title": "C", "amount": "x"}, schema=table.schema))
    changes = table.incremental("earliest", format="cdc", columns=["id", "title", "amount"]).to_arrow().to_pylist()
    assert [
        (c["op"], (c["before"] or {}).get("title"), c["after"]["title"], c["after"]["amount"]) for c in changes
    ] == [
        ("i", None, "A", None),
        ("u", "A", "B", None),
        ("u", "B", "C", "x"),
    ]


def test_dataset_reads_changed_columns() -> None:
    table = filled()
    table.alter().rename_column("name", "title").execute()
    dataset = table.scan().to_pyarrow_dataset()
    assert sorted(dataset.to_table(columns=["title"]).column("title").to_pylist()) == ["changed", "na", "nc"]
    assert table.scan().count() == 3


@pytest.mark.parametrize("version", ["6", "8", "9"])
def test_changes_of_tables_of_each_version(version: str) -> None:
    table = filled("MERGE_ON_READ", hoodie__write__table__version=version)
    table.alter().rename_column("name", "title").execute()
    assert column(Table.open(table.location, env=table._env), "title")["b"] == "changed"


@pytest.mark.parametrize("version", ["6", "9"])
@pytest.mark.parametrize("kind", KINDS)
def test_service_that_was_planned_before_a_change_writes_the_earlier_columns(kind: str, version: str) -> None:
    """The files of a plan have the instant of the plan, so readers expect the columns of that time in them."""
    table = filled(kind, hoodie__write__table__version=version)
    service = table.services.compaction if kind == "MERGE_ON_READ" else table.services.clustering
    table.upsert(rows({"id": "q", "ts": 5, "name": "Q", "amount": 5}))
    service.schedule(force=True)
    table.alter().rename_column("name", "title").drop_column("amount").add_column("amount", "string").execute()
    service.run(force=True)
    assert column(table, "title") == {"a": "na", "b": "changed", "c": "nc", "q": "Q"}
    assert set(column(table, "amount").values()) == {None}
    table.upsert(rows({"id": "q", "ts": 6, "title": "QQ", "amount": "x"}, schema=table.schema))
    assert column(table, "title")["q"] == "QQ" and column(table, "amount")["q"] == "x"
    assert not table.validate(deep=True).findings
