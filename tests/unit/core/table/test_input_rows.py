"""The write methods take rows of any kind, convert them to the types of the table exactly, and write all or nothing."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.dataset as ds
import pytest

from lakehouse.core.table.input_rows import InputRules, input_batch
from lakehouse.core.table.row_spool import RowSpool
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from tests.support.tables import make_env

pd = pytest.importorskip("pandas", reason="missing: pandas")
pl = pytest.importorskip("polars", reason="missing: polars")
duckdb = pytest.importorskip("duckdb", reason="missing: duckdb")
pydantic = pytest.importorskip("pydantic", reason="missing: pydantic")

SCHEMA = pa.schema([("id", pa.int64()), ("n", pa.int32()), ("s", pa.string())])
ROWS = [{"id": 1, "n": 10, "s": "x"}, {"id": 2, "n": 20, "s": None}]
ARROW = pa.Table.from_pylist(ROWS, SCHEMA)
NO_GAPS = {"lakehouse.schema.missing.column": "fail"}
OTHER_COLUMNS = {"lakehouse.schema.new.column": "add"}


@dataclass(slots=True)
class Order:
    id: int
    n: int
    s: str | None


class Named(NamedTuple):
    id: int
    n: int
    s: str | None


class Model(pydantic.BaseModel):  # type: ignore[misc]
    id: int
    n: int
    s: str | None


class OnlyStream:
    """An object of another library with the interface of Arrow only."""

    def __arrow_c_stream__(self, requested_schema: object = None) -> object:
        return ARROW.__arrow_c_stream__(requested_schema)


class OnlyArray:
    def __arrow_c_array__(self, requested_schema: object = None) -> object:
        return ARROW.to_batches()[0].__arrow_c_array__(requested_schema)


KINDS: dict[str, Callable[[], Any]] = {
    "list of dicts": lambda: ROWS,
    "tuple of dicts": lambda: tuple(ROWS),
    "generator of dicts": lambda: (row for row in ROWS),
    "dataclasses": lambda: [Order(**row) for row in ROWS],
    "pydantic models": lambda: [Model(**row) for row in ROWS],
    "named tuples": lambda: [Named(**row) for row in ROWS],
    "mixed rows": lambda: [ROWS[0], Order(**ROWS[1])],
    "pandas": lambda: pd.DataFrame(ROWS),
    "pandas of Arrow": lambda: ARROW.to_pandas(types_mapper=pd.ArrowDtype),
    "polars": lambda: pl.DataFrame(ROWS).with_columns(pl.col("n").cast(pl.Int32)),
    "lazy polars": lambda: pl.DataFrame(ROWS).with_columns(pl.col("n").cast(pl.Int32)).lazy(),
    "duckdb": lambda: duckdb.from_arrow(ARROW),
    "table": lambda: ARROW,
    "batches": ARROW.to_batches,
    "iterator of batches": lambda: iter(ARROW.to_batches(max_chunksize=1)),
    "reader": ARROW.to_reader,
    "dataset": lambda: ds.dataset(ARROW),
    "scanner": lambda: ds.dataset(ARROW).scanner(),
    "stream": OnlyStream,
    "array": OnlyArray,
}


def created(**options: Any) -> Table:
    env = make_env()
    return Table.create(env.storage.root, name="orders", record_key="id", env=env, **options)


def rows_of(table: Table) -> list[dict[str, Any]]:
    return sorted(table.scan(columns=["id", "n", "s"]).to_arrow().to_pylist(), key=lambda row: row["id"])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("verb", ["insert", "upsert", "bulk_insert", "insert_overwrite_table"])
def test_write_takes_rows_of_any_kind(verb: str, kind: str) -> None:
    table = created(schema=SCHEMA)
    getattr(table, verb)(KINDS[kind]())
    assert rows_of(table) == ROWS
    assert table.schema == SCHEMA


@pytest.mark.parametrize("kind", KINDS)
def test_delete_takes_keys_of_any_kind(kind: str) -> None:
    table = created(schema=SCHEMA)
    table.insert([*ROWS, {"id": 3, "n": 30, "s": "z"}])
    table.delete(KINDS[kind]())
    assert [row["id"] for row in rows_of(table)] == [3]


def test_write_takes_a_scan_of_another_table() -> None:
    source, table = created(), created()
    source.insert(ROWS)
    table.insert(source.scan(where="id = 2"))
    assert rows_of(table) == ROWS[1:]


def test_new_table_gets_the_types_of_all_rows_and_not_of_the_first() -> None:
    table = created()
    rows = [{"id": number, "v": None} for number in range(3_000)]
    rows += [{"id": 3_000, "v": 1}, {"id": 3_001, "v": 2.5, "late": Decimal("1.5")}]
    table.insert(iter(rows))
    assert table.schema.field("v").type == pa.float64()
    assert table.schema.field("late").type == pa.decimal128(2, 1)
    assert table.scan(where="id >= 3000", columns=["v", "late"]).to_arrow().to_pylist() == [
        {"v": 1.0, "late": None},
        {"v": 2.5, "late": Decimal("1.5")},
    ]


def test_mixed_types_in_distant_rows_are_an_error_with_the_row() -> None:
    table = created()
    rows = [{"id": number, "v": 1 if number < 4_321 else "x"} for number in range(5_000)]
    with pytest.raises(UserError, match=r"row 4321, column 'v': 'x'"):
        table.insert(iter(rows))
    assert not table.commits()


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"id": 3, "n": 2**31}, "row 2500, column 'n': 2147483648 does not fit the type int32"),
        ({"id": 3, "n": "x"}, "row 2500, column 'n': 'x' is of type str"),
        ({"id": 3, "nn": 5}, "row 2500, column 'nn', value 5: the table has no column 'nn'. Did you mean 'n'?"),
        (["x"], r"row 2500 is \['x'\], which is of type list"),
    ],
    ids=str,
)
def test_wrong_value_of_an_iterator_leaves_the_table_unchanged(row: Any, text: str) -> None:
    table = created(schema=SCHEMA)

    def rows() -> Iterator[Any]:
        yield from ({"id": number, "n": 1, "s": None} for number in range(2_500))
        yield row

    with pytest.raises(UserError, match=text):
        table.insert(rows())
    assert len(table.timeline) == 0


def test_new_columns_of_dicts_are_added_if_the_option_says_so() -> None:
    table = created(schema=SCHEMA)
    table.insert([{"id": 1, "extra": 5}], options=OTHER_COLUMNS)
    assert table.schema.field("extra").type == pa.int64()


def test_row_of_an_upsert_without_a_column_keeps_its_stored_value() -> None:
    table = created(schema=SCHEMA)
    table.insert(ROWS)
    outcome = table.upsert([{"id": 1, "s": "new"}, {"id": 2, "n": None, "s": "y"}, {"id": 3, "n": 5}])
    assert rows_of(table) == [
        {"id": 1, "n": 10, "s": "new"},
        {"id": 2, "n": None, "s": "y"},
        {"id": 3, "n": 5, "s": None},
    ]
    assert outcome


def test_row_of_an_insert_without_a_column_has_null() -> None:
    table = created(schema=SCHEMA)
    table.insert([{"id": 1, "s": "x"}, {"id": 2, "n": 5}])
    assert rows_of(table) == [{"id": 1, "n": None, "s": "x"}, {"id": 2, "n": 5, "s": None}]


def test_missing_columns_of_some_rows_are_refused_if_the_option_says_so() -> None:
    table = created(schema=SCHEMA)
    with pytest.raises(UserError, match="'n'"):
        table.insert(
            [{"id": 1, "s": "x"}, {"id": 2, "n": 5, "s": "y"}], options={"lakehouse.schema.missing.column": "fail"}
        )


def test_missing_values_of_pandas_are_null_and_its_integers_are_exact() -> None:
    table = created(schema=SCHEMA)
    frame = pd.DataFrame({"id": [1, 2], "n": [5.0, float("nan")], "s": pd.Series(["x", float("nan")], dtype=object)})
    table.insert(frame)
    assert rows_of(table) == [{"id": 1, "n": 5, "s": "x"}, {"id": 2, "n": None, "s": None}]
    with pytest.raises(UserError, match=r"row 1, column 'n': 5.5 of type double does not fit the type int32"):
        table.insert(pd.DataFrame({"id": [1, 2], "n": [5.0, 5.5]}))
    with pytest.raises(UserError, match=r"row 1, column 's': 5 is of type int"):
        table.insert(pd.DataFrame({"id": [1, 2], "s": pd.Series(["x", 5], dtype=object)}))


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (lambda: pd.DataFrame({"n": [1]}, index=pd.Index([5], name="id")), "reset_index"),
        (lambda: pd.DataFrame({1: [1]}), "column 1"),
        (lambda: pd.DataFrame([[1, 2]], columns=["id", "id"]), "several columns 'id'"),
        (lambda: pd.Series([1], name="id"), "to_frame"),
        (lambda: pl.Series("id", [1]), "give a table"),
    ],
)
def test_frame_whose_columns_are_not_clear_is_refused(frame: Callable[[], Any], text: str) -> None:
    with pytest.raises(UserError, match=text):
        created().insert(frame())


def test_batches_with_other_columns_are_refused() -> None:
    batches = [*ARROW.to_batches(), *ARROW.select(["id"]).to_batches()]
    with pytest.raises(UserError, match="batch 1 has the columns"):
        created().insert(iter(batches))


def test_no_rows_are_nothing_to_do_if_the_table_has_columns() -> None:
    assert not hasattr(created(schema=SCHEMA).insert([]), "instant")
    with pytest.raises(UserError, match="no rows"):
        created().insert([])


def test_rows_beyond_the_memory_limit_are_spilled_and_read_in_order() -> None:
    rules = InputRules(schema=None, adds_columns=True, separates_absent=False, budget_bytes=8 << 20)
    count, text = 60_000, "x" * 200
    before = pa.total_allocated_bytes()
    batch = input_batch(({"id": number, "s": text} for number in range(count)), lambda: rules)
    assert pa.total_allocated_bytes() - before < 4 << 20
    assert isinstance(batch.rows, pa.RecordBatchReader)
    ids = [number for part in batch.rows for number in part.column("id").to_pylist()]
    assert ids == list(range(count))


def test_spool_deletes_its_file_after_the_last_batch() -> None:
    spool = RowSpool(10)
    spool.add(pa.record_batch({"a": [1, 2, 3]}))
    spool.add(pa.record_batch({"a": [4], "b": [5]}))
    assert spool.is_spilled
    sizes = [len(batch) for batch in spool.reader(pa.schema([("a", pa.int64())]), lambda batch: batch.select(["a"]))]
    assert sizes == [3, 1]
    assert spool._file is not None and spool._file.closed


def test_write_of_dicts_needs_none_of_the_other_packages() -> None:
    # pyarrow itself imports pandas where it is installed.
    code = (
        "import sys; sys.modules['pandas'] = None; from lakehouse import Table\n"
        "t = Table.create('memory://light/orders', name='orders', record_key='id')\n"
        "t.insert([{'id': 1}]); t.upsert([{'id': 1}]); t.scan().to_arrow()\n"
        "print(sorted({'polars', 'duckdb', 'pydantic', 'sqlglot'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=True)
    assert done.stdout.strip() == "[]"


def test_frames_with_values_that_no_type_holds_exactly_are_refused() -> None:
    table = created()
    moments = pd.to_datetime([0, 1], unit="ns")
    with pytest.raises(UserError, match=r"row 1, column 'at'.* does not fit the type timestamp"):
        table.insert(pd.DataFrame({"id": [1, 2], "at": moments}))
    objects = pl.DataFrame({"id": [1], "o": pl.Series([object()], dtype=pl.Object)})
    for rows in (objects, objects.lazy()):
        with pytest.raises(UserError, match="column 'o' of the frame has type Object"):
            table.insert(rows)
    table.insert(pd.DataFrame({"id": [1], "at": moments[:1]}))
    assert table.scan().count() == 1


@pytest.mark.parametrize("entries", [["ab"], [{"key": "a", "value": "b"}], [("a", "b", "c")], {None: "b"}, [1]])
def test_entries_of_a_map_are_pairs(entries: Any) -> None:
    """Two letters, or the names of two fields, are not a key and its value."""
    kind = pa.map_(pa.string(), pa.string())
    table = created(schema=pa.schema([("id", pa.int64()), ("m", kind)]))
    with pytest.raises(UserError, match=r"row 1, column 'm': .* is not a pair of a key and a value"):
        table.insert([{"id": 1, "m": [("a", "b")]}, {"id": 2, "m": entries}])
    assert table.scan().count() == 0
