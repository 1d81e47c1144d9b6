"""Statistics of columns whose type changed: bounds of two types are never compared as the same number."""

from __future__ import annotations

import datetime as dt
from collections.abc import Callable, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.files.base import column_bounds
from lakehouse.core.operations.metadata.validation import Validated
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.table.table import Table
from lakehouse.errors import UnsupportedError
from lakehouse.model.commit import ColumnBounds
from tests.support.tables import make_env

OPTIONS = {"hoodie.metadata.enable": "true", "lakehouse.schema.type.change": "any"}
NARROW, WIDE = pa.decimal128(5, 2), pa.decimal128(7, 3)
DAY = dt.date(2020, 1, 1)


def new_table(location: str | None = None, **options: str) -> Table:
    env = make_env(location)
    return Table.create(
        env.storage.root, name="t", record_key="id", partition_by="p", options=OPTIONS | options, env=env
    )


def rows(kind: pa.DataType, values: Sequence[Any], first: int = 0) -> pa.Table:
    ids = [f"k{first + n}" for n in range(len(values))]
    nested = pa.array([{"v": value} for value in values], pa.struct([("v", kind)]))
    return pa.table({"id": ids, "p": ["a"] * len(values), "v": pa.array(values, kind), "s": nested})


def prices(*texts: str) -> list[Decimal]:
    return [Decimal(text) for text in texts]


def priced_table(**options: str) -> Table:
    """Return a table of three files in one partition, whose prices got another scale."""
    table = new_table(**options)
    table.bulk_insert(rows(NARROW, prices("1.00", "99.00")))
    table.bulk_insert(rows(WIDE, prices("1.5", "60.125"), 2))
    table.bulk_insert(rows(NARROW, prices("70.00"), 4))
    return table


def ids_of(table: Table, where: str) -> list[str]:
    return sorted(table.scan(["id"], where).to_arrow().column("id").to_pylist())


def assert_valid(table: Table) -> None:
    report = table.metadata.validate()
    assert report.ok, [(check.partition, check.error, check.examples) for check in report.checks]
    assert not table.validate(deep=True).findings


@pytest.mark.parametrize("column, version", [("v", "9"), ("s.v", "9"), ("v", "8")])
def test_conditions_find_all_rows_after_the_scale_of_a_decimal_grew(column: str, version: str) -> None:
    """apache/hudi#12714, apache/hudi#19467: bounds of the old scale were read as unscaled numbers of the new one."""
    listed = {"hoodie.metadata.index.column.stats.column.list": column, "hoodie.write.table.version": version}
    table = priced_table(**listed)
    for _ in range(2):
        assert ids_of(table, f"{column} > 50") == ["k1", "k3", "k4"]
        assert ids_of(table, f"{column} = 99") == ["k1"]
        assert ids_of(table, f"{column} < 1.2") == ["k0"]
        assert_valid(table)
        table.metadata.rebuild()
    table.delete_where(f"{column} > 50")
    assert ids_of(table, "id IS NOT NULL") == ["k0", "k2"]


@pytest.mark.parametrize(
    "kind, values", [(pa.int64(), [5, 10]), (pa.float64(), [5.0, -0.0]), (pa.date32(), [DAY, DAY])]
)
def test_writes_continue_after_a_column_became_a_string(kind: pa.DataType, values: list[Any]) -> None:
    """apache/paimon#7803: bounds of numbers were united with those of texts."""
    table = new_table()
    table.bulk_insert(rows(kind, values))
    table.bulk_insert(rows(pa.string(), ["a"], 2))
    table.upsert(rows(pa.string(), ["b"], 3))
    for row in table.scan(["id", "v"]).to_arrow().to_pylist():
        assert row["id"] in ids_of(table, f"v = '{row['v']}'")
    assert ids_of(table, "v >= 'a'") == ["k2", "k3"]
    assert_valid(table)


def test_bounds_of_an_earlier_release_are_reported_and_a_rebuild_replaces_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """apache/hudi#12714: a table whose bounds are unscaled numbers of another scale hides rows until they are found."""

    def unconverted(bounds: ColumnBounds, stored: pa.DataType | None, kind: pa.DataType) -> ColumnBounds:
        return bounds

    table = priced_table()
    with monkeypatch.context() as patch:
        patch.setattr(column_bounds, "converted_bounds", unconverted)
        table.metadata.rebuild()
    assert ids_of(table, "v = 99") == [], "the stored bounds are those of an earlier release"
    problems = [finding.problem for finding in table.validate(deep=True).corrupt]
    assert [problem.partition(":")[0] for problem in problems] == [
        "the bounds of 'v' exclude values of 1 file",
        "the bounds of 'v' exclude values of 1 partition",
    ]
    checks = {check.partition: check.ok for check in table.metadata.validate().checks}
    assert not checks["column_stats"] and not checks["partition_stats"]
    table.metadata.rebuild()
    assert ids_of(table, "v = 99") == ["k1"]
    assert_valid(table)


@pytest.mark.parametrize("columns", ["", "v"])
def test_writes_continue_after_a_decimal_got_more_digits_than_version_8_has_bounds_of(columns: str) -> None:
    """apache/hudi#13097: bounds of such decimals cannot be encoded, so the column loses its statistics."""
    declared = {"hoodie.metadata.index.column.stats.column.list": columns} if columns else {}
    table = new_table(**{"hoodie.write.table.version": "8"}, **declared)
    table.bulk_insert(rows(NARROW, prices("1.00", "99.00")))
    table.bulk_insert(rows(pa.decimal128(38, 20), prices("60.125"), 2))
    table.upsert(rows(NARROW, prices("70.00"), 3))
    for _ in range(2):
        assert ids_of(table, "v > 50") == ["k1", "k2", "k3"]
        assert_valid(table)
        table.metadata.rebuild()


def test_validation_service_accepts_a_table_after_the_scale_of_a_decimal_grew() -> None:
    """apache/hudi#12714: the service raised an error after each change of a scale."""
    table = priced_table(**{"lakehouse.validation.deep": "true"})
    outcome = table.services.validation.run(force=True)
    assert isinstance(outcome, Validated) and not outcome.warnings


@pytest.mark.parametrize(
    "before, after, where",
    [
        ((pa.int32(), [5, 10]), (pa.string(), ["a"]), "v = '10'"),
        ((NARROW, prices("5", "10")), (WIDE, prices("60.125")), "v = 10"),
    ],
)
def test_clustering_during_a_change_of_a_type_records_bounds_of_the_new_type(
    before: tuple[pa.DataType, list[Any]],
    after: tuple[pa.DataType, list[Any]],
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """apache/paimon#7803: files are measured in the old type, and the commit has the schema of another writer."""
    table = new_table()
    table.bulk_insert(rows(before[0], before[1][:1]))
    table.bulk_insert(rows(before[0], before[1][1:], 1))
    original: Callable[..., Any] = MemoryStorage.open_output
    other = Table.open(table.location, env=table.loaded.env, options=OPTIONS)
    started: list[str] = []

    def open_output(storage: MemoryStorage, path: str) -> Any:
        if path.endswith(".parquet") and not started:
            started.append(path)
            other.bulk_insert(rows(*after, 9))
        return original(storage, path)

    monkeypatch.setattr(MemoryStorage, "open_output", open_output)
    table.services.clustering.run(force=True)
    assert started and ids_of(table, where) == ["k1"]
    assert_valid(table)


@pytest.fixture
def indexed(tmp_path: Path) -> Table:
    """A table with a secondary index on a column of dates."""
    table = new_table(str(tmp_path / "t"), **{"hoodie.metadata.global.record.level.index.enable": "true"})
    table.upsert(rows(pa.date32(), [DAY]))
    table.services.create_index("v")
    table.services.index.run()
    return table


def test_secondary_index_finds_dates_that_became_strings(indexed: Table) -> None:
    """apache/hudi#18810: an index has entries of the type that the column had before."""
    indexed.upsert(rows(pa.string(), ["2020-01-01", "x"], 1))
    assert ids_of(indexed, "v = '2020-01-01'") == ["k0", "k1"]
    assert ids_of(indexed, "v IN ('x', '2020-01-01')") == ["k0", "k1", "k2"]
    step = indexed.scan(["id"], "v = '2020-01-01'").explain().step("secondary_index")
    assert "2 record keys" in step.reason


def test_secondary_index_names_the_way_out_if_the_new_type_has_no_text(tmp_path: Path) -> None:
    """apache/hudi#18810: a column became one that the index cannot contain."""
    table = new_table(str(tmp_path / "t"), **{"hoodie.metadata.global.record.level.index.enable": "true"})
    table.upsert(rows(pa.int32(), [5]))
    table.services.create_index("v")
    table.services.index.run()
    with pytest.raises(UnsupportedError, match=r"the index v on 'v' cannot be maintained.*lakehouse index drop"):
        table.upsert(rows(pa.float64(), [1.5], 1))
    table.services.drop_index("v")
    table.upsert(rows(pa.float64(), [1.5], 1))
    assert ids_of(table, "v > 1") == ["k0", "k1"]
