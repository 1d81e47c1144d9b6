"""Mistakes in calls of the Table API get an answer that names the value and a right call, not a bare Python error."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.services.archive import Archived
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.table.source_batch import SourceBatch
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from tests.support.archived import eager
from tests.support.tables import SteadyClock

ROWS = pa.table({"id": [1, 2, 3], "v": ["a", "b", "c"], "ts": [1, 1, 1], "p": ["x", "x", "y"]})
Call = Callable[[Any], object]
_numbers = itertools.count()


def new(**changes: Any) -> Table:
    """Create a table in memory with other arguments than the right ones."""
    location = f"memory://orders-{next(_numbers)}"
    env = Env(storage=MemoryStorage(location), clock=SteadyClock())
    arguments = {"name": "orders", "record_key": "id", "ordering": "ts", "partition_by": "p", "env": env, **changes}
    return Table.create(location, **arguments)


@pytest.fixture(scope="module")
def table() -> Table:
    """A table with one commit."""
    made = new()
    made.upsert(ROWS)
    return made


def refused(call: Callable[[], object]) -> str:
    """Return the message of a call that raises UserError, and assert that it is one sentence or two without a trace."""
    with pytest.raises(UserError) as raised:
        call()
    message = str(raised.value)
    assert message and "\n" not in message and "object at 0x" not in message
    return message


MISTAKES: dict[str, tuple[Call, tuple[str, ...]]] = {
    "delete with numbers": (
        lambda t: t.delete([3]),
        (
            "keys contains 3",
            "of type int",
            "give a string",
            "orders is id (int64)",
            "pyarrow.table({'id': [3]})",
            "table.delete(['3'])",
        ),
    ),
    "delete with a number": (lambda t: t.delete(3), ("keys is 3", "pyarrow.table({'id': [3]})")),
    "delete with a dictionary": (lambda t: t.delete({"id": [3]}), ("keys is {'id': [3]}", "pyarrow.table(")),
    "delete with mixed keys": (lambda t: t.delete(["3", 4]), ("contains 4", "pyarrow.table({'id': [4]})")),
    "delete with bytes": (lambda t: t.delete(b"3"), ("of type bytes", "id (int64)")),
    "delete with None": (lambda t: t.delete(None), ("keys is None",)),
    "delete with a condition": (lambda t: t.delete(where="id = 3"), ("Table.delete: unknown argument 'where'",)),
    "delete_where with a number": (lambda t: t.delete_where(3), ("where=3 is of type int", "such as where=")),
    "delete_where unknown column": (lambda t: t.delete_where("idd = 3"), ("'idd'", "Did you mean 'id'?")),
    "upsert of a wrong type": (lambda t: t.upsert([{"id": "x"}]), ("row 0, column 'id': 'x' is of type str", "int64")),
    "upsert of a misspelt column": (lambda t: t.upsert([{"idd": 1}]), ("row 0, column 'idd'", "Did you mean 'id'?")),
    "upsert of one row": (lambda t: t.upsert({"id": 1}), ("of type dict", "Pass [row] for one row")),
    "upsert of columns": (lambda t: t.upsert({"id": [1]}), ("of type dict", "pyarrow.table(columns)")),
    "upsert of a number": (lambda t: t.upsert(5), ("of type int", "dicts, dataclasses", "a Spark DataFrame")),
    "upsert of values": (lambda t: t.upsert([1]), ("row 0 is 1", "a dataclass")),
    "upsert of an array": (lambda t: t.upsert(pa.array([1])), ("of type Int64Array", "give a table")),
    "upsert of a path": (lambda t: t.upsert("orders.csv"), ("of type str", "pyarrow.csv.read_csv(path)")),
    "upsert of None": (lambda t: t.upsert(None), ("of type NoneType", "Pass the rows")),
    "upsert without rows": (lambda t: t.upsert(), ("missing a required argument: 'rows'",)),
    "options as list": (lambda t: t.upsert(ROWS, options=["a"]), ("options=['a'] is of type list", "a mapping")),
    "option None": (lambda t: t.upsert(ROWS, options={"hoodie.parquet.max.file.size": None}), ("=None", "a string")),
    "metadata as text": (lambda t: t.upsert(ROWS, commit_metadata="x"), ("commit_metadata='x'", "a mapping")),
    "metadata number": (lambda t: t.upsert(ROWS, commit_metadata={"a": 1}), ("commit_metadata['a']=1", "write '1'")),
    "flag as text": (lambda t: t.upsert(ROWS, allow_empty="no"), ("allow_empty='no'", "True or False")),
    "precondition as text": (lambda t: t.upsert(ROWS, precondition="x"), ("precondition='x'", "Precondition")),
    "scan with limit": (lambda t: t.scan(limit=-1), ("Table.scan: unknown argument 'limit'", "columns, where, as_of")),
    "scan unknown column": (lambda t: t.scan(["idd"]).plan(), ("column 'idd' is not", "Did you mean 'id'?")),
    "scan columns number": (lambda t: t.scan(3), ("columns=3 is of type int",)),
    "scan expression": (lambda t: t.scan(where=pc.field("id") == 1), ("of type Expression", "such as where=")),
    "as_of number": (lambda t: t.scan(as_of=20260101000000), ("as_of=20260101000000", "text or datetime")),
    "as_of date": (lambda t: t.scan(as_of=date(2030, 1, 1)), ("of type date", "as_of='2030-01-01'")),
    "as_of instant": (lambda t: t.scan(as_of=t.commits()[0][0]), ("of type Instant", "as_of=instant.requested")),
    "as_of words": (lambda t: t.scan(as_of="yesterday"), ("'yesterday' is not a time", "2026-01-31")),
    "as_of impossible day": (lambda t: t.scan(as_of="2026-13-45"), ("'2026-13-45' is not a time", "month")),
    "event time number": (lambda t: t.scan(as_of_event_time=3), ("as_of_event_time=3", "datetime")),
    "flag of scan": (lambda t: t.scan(read_optimized="no"), ("read_optimized='no'", "True or False")),
    "incremental number": (lambda t: t.incremental(3), ("begin=3 is of type int",)),
    "incremental start": (lambda t: t.incremental(start="x"), ("unknown argument 'start'", "begin, end")),
    "incremental backwards": (
        lambda t: t.incremental("2030-01-01", "2026-01-01"),
        ("begin='2030-01-01' is after end='2026-01-01'",),
    ),
    "incremental format": (lambda t: t.incremental(format=3), ("format=3",)),
    "session missing": (lambda t: t.scan().to_spark(), ("missing a required argument: 'spark'",)),
    "session None": (lambda t: t.scan().to_spark(None), ("expected a session of pyspark",)),
    "changes number": (lambda t: t.changes(3), ("begin=3",)),
    "version number": (lambda t: t.version_at(3), ("event_time=3",)),
    "extra number": (lambda t: t.last_commit_extra(3), ("key=3",)),
    "commits_with number": (lambda t: t.commits_with(3, 4), ("key=3",)),
    "rollback instant": (lambda t: t.rollback(t.commits()[0][0]), ("instant=instant.requested",)),
    "savepoint number": (lambda t: t.savepoint(3), ("instant=3",)),
    "delete_savepoint number": (lambda t: t.delete_savepoint(3), ("instant=3",)),
    "restore number": (lambda t: t.restore(3), ("instant=3",)),
    "validate keys": (lambda t: t.validate(keys=3), ("keys=3",)),
    "options None": (lambda t: t.with_options(None), ("options=None", "a mapping")),
    "service by number": (lambda t: t.services.named(3), ("name=3",)),
    "service misspelt": (lambda t: t.services.named("compation"), ("Did you mean 'compaction'?",)),
    "run dry": (lambda t: t.services.clean.run(dry_run=True), ("unknown argument 'dry_run'", "force")),
    "run instant": (lambda t: t.services.clean.run(instant=3), ("instant=3",)),
    "due force": (lambda t: t.services.clustering.due(force=True), ("unknown argument 'force'",)),
    "filters spark": (lambda t: t.services.bloom_filters.run(spark=3), ("expected a session of pyspark",)),
    "ttl pattern": (lambda t: t.services.set_ttl(3), ("pattern=3",)),
    "ttl rule id": (lambda t: t.services.set_ttl("x", rule_id=3, partition_age="3d"), ("rule_id=3",)),
    "ttl limit": (lambda t: t.services.set_ttl("x", partition_agee="3d"), ("Did you mean 'partition_age'?",)),
    "ttl count": (lambda t: t.services.set_ttl("x", max_partitions="3"), ("max_partitions='3'", "max_partitions=30")),
    "create type": (lambda t: new(table_type="MERGE"), ("table_type='MERGE'", "COPY_ON_WRITE, MERGE_ON_READ", "MOR")),
    "create type typo": (lambda t: new(table_type="merge_onread"), ("Did you mean 'MERGE_ON_READ'?",)),
    "create type number": (lambda t: new(table_type=3), ("table_type=3",)),
    "create key": (lambda t: new(record_key=3), ("record_key=3 is of type int",)),
    "create without name": (
        lambda t: Table.create("memory://q", record_key="id"),
        ("missing a required argument: 'name'",),
    ),
    "create name": (lambda t: new(name=3), ("name=3",)),
    "create schema": (lambda t: new(schema={"id": "int"}), ("schema={'id': 'int'}", "pyarrow.schema(")),
    "create schema of rows": (lambda t: new(schema=ROWS), ("of type Table", "schema=rows.schema")),
    "create options": (lambda t: new(options="x"), ("options='x'", "a mapping")),
    "create argument": (lambda t: new(partition_bye="p"), ("unknown argument 'partition_bye'", "'partition_by'?")),
    "create cdc": (lambda t: new(cdc=True), ("cdc=True", "cdc='DATA_BEFORE_AFTER'")),
    "create generator": (lambda t: new(key_generator="simpel"), ("Did you mean 'SIMPLE'?",)),
    "create timestamp": (lambda t: new(timestamp="yyyy"), ("timestamp='yyyy'", "TimestampFormat")),
    "open None": (lambda t: Table.open(None), ("location=None", "s3://lake/sales/orders")),
    "open options": (lambda t: Table.open("memory://orders", options="x"), ("options='x'",)),
    "open argument": (lambda t: Table.open("memory://orders", option={}), ("Did you mean 'options'?",)),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistake_is_answered_with_the_value_and_the_correction(table: Table, name: str) -> None:
    call, fragments = MISTAKES[name]
    commits = len(table.commits())
    message = refused(lambda: call(table))
    assert [part for part in fragments if part not in message] == [], message
    assert len(table.commits()) == commits and not len(table.timeline.where(pending=True))


def test_delete_of_composite_keys_names_all_key_columns() -> None:
    table = new(record_key=["id", "v"])
    table.upsert(ROWS)
    message = refused(lambda: table.delete([(1, "a")]))
    assert "id (int64), v (string)" in message and "{'id': [1], 'v': ['...']}" in message


def test_delete_of_an_empty_list_says_so_and_commits_nothing(table: Table) -> None:
    outcome = table.delete([])
    assert (
        isinstance(outcome, NothingToDo) and outcome.reason == "the list of keys is empty, so there is no row to delete"
    )


def test_delete_accepts_a_set_of_keys() -> None:
    table = new()
    table.upsert(ROWS)
    table.delete({"1", "2"})
    assert table.scan(["id"]).to_arrow().column("id").to_pylist() == [3]


@pytest.mark.parametrize(
    ("text", "stored"), [("MOR", "MERGE_ON_READ"), ("cow", "COPY_ON_WRITE"), ("merge_on_read", "MERGE_ON_READ")]
)
def test_table_type_accepts_abbreviations_and_any_case(text: str, stored: str) -> None:
    assert new(table_type=text).config.table_type == stored


def test_option_numbers_and_truth_values_are_converted() -> None:
    table = new(options={"hoodie.write.table.version": 8, "hoodie.parquet.max.file.size": 1_000_000})
    assert table.config.version == 8


def test_time_travel_before_the_first_commit_names_first_and_last(table: Table) -> None:
    first, last = table.commits()[0][0].requested, table.commits()[-1][0].requested
    message = refused(lambda: table.scan(as_of="2001-01-01").to_arrow())
    assert f"as_of=20010101000000000 is before the first commit of the table, {first}" in message
    assert f"the last commit is {last}" in message
    assert table.scan(as_of=first).count() == 3


def test_time_travel_before_the_first_commit_names_the_archived_one() -> None:
    table = eager(new())
    for _ in range(6):
        table.upsert(ROWS)
    archived = table.services.archive.run(force=True)
    assert isinstance(archived, Archived)
    first = archived.instants[0].requested
    assert first < table.timeline.instants[0].requested
    message = refused(lambda: table.scan(as_of="2001-01-01").to_arrow())
    assert f"before the first commit of the table, {first}" in message


def test_time_travel_on_a_table_without_commits_returns_no_rows() -> None:
    assert new(schema=ROWS.schema).scan(as_of="2001-01-01").count() == 0


def test_time_travel_accepts_a_datetime_in_any_zone(table: Table) -> None:
    requested = table.commits()[0][0].requested
    moment = datetime.strptime(requested[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC) + timedelta(seconds=1)
    assert table.scan(as_of=moment).count() == table.scan(as_of=moment.replace(tzinfo=None)).count() == 3


def test_open_names_the_tables_below_and_above_a_location_and_a_file(tmp_path: Path) -> None:
    made = Table.create(tmp_path / "lake" / "orders", name="orders", record_key="id", partition_by="p")
    made.upsert(ROWS)
    (tmp_path / "rows.csv").write_text("id")
    root = str(tmp_path / "lake")
    assert f"It contains the tables {root}/orders; open one of them" in refused(lambda: Table.open(root))
    assert f"It is inside the table {root}/orders" in refused(lambda: Table.open(f"{root}/orders/x"))
    assert "It is a file" in refused(lambda: Table.open(tmp_path / "rows.csv"))
    assert "Create it with" in refused(lambda: Table.open(tmp_path / "none"))
    assert Table.open(tmp_path / "lake" / "orders").scan().count() == 3


def test_checks_of_arguments_send_no_request(table: Table, tmp_path: Path) -> None:
    storage = CountingStorage(MemoryStorage("memory://t"))
    made = Table.create("memory://t", name="t", record_key="id", env=Env(storage=storage, clock=SteadyClock()))
    storage.reset()
    for call in (lambda: made.scan(limit=1), lambda: made.upsert([1]), lambda: made.rollback(3)):
        refused(call)
    assert sum(storage.counts().values()) == 0


def test_deletes_that_yield_are_for_upserts() -> None:
    table = new()
    marked = [ROWS.append_column("_hoodie_is_deleted", pa.array([deleted] * 3)) for deleted in (False, True)]
    both = pa.concat_tables([marked[0], marked[1].set_column(2, "ts", pa.array([9, 9, 9]))])
    table.upsert(SourceBatch(both, deletes_yield=True))
    assert sorted(table.scan("id").to_arrow().column("id").to_pylist()) == [1, 2, 3]
    with pytest.raises(UserError, match="deletes_yield=True is for upserts, and this is insert; remove it"):
        table.insert(SourceBatch(both, deletes_yield=True))
