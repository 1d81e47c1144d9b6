"""Each cell of the matrix of readers (readers.yaml) that can be tried here is true.

Every reader has one test that tries all its cells, because CI runs a part of the cases of parametrized tests.
"""

from __future__ import annotations

from dataclasses import replace

import duckdb
import pyarrow as pa
import pytest

from docs.generators.readers import COLUMNS, ROOT, Cell, Reader, load_readers
from lakehouse.core.table.scan import TableScan
from lakehouse.core.table.table import Table
from tests.support import hudi_rs
from tests.support.hudi import Hudi
from tests.support.readers import (
    ATTEMPTS,
    CHANGED,
    FIRST,
    LATEST,
    Query,
    Sample,
    batch,
    contradictions,
    read_by_hudi,
    samples_of_hudi,
    samples_of_lakehouse,
)

READERS = {reader.id: reader for reader in load_readers()}


@pytest.fixture(scope="module")
def samples(hudi_0_15: Hudi, tmp_path_factory: pytest.TempPathFactory) -> tuple[Sample, ...]:
    """Return a table of each version and type."""
    home = tmp_path_factory.mktemp("samples")
    return (*samples_of_hudi(hudi_0_15, home), *samples_of_lakehouse(home))


def scan_of(sample: Sample, query: Query) -> TableScan:
    table = Table.open(sample.location)
    if query is Query.AS_OF:
        return table.scan(as_of=sample.first)
    if query is Query.INCREMENTAL:
        return table.incremental(sample.start, sample.end)
    return table.scan(read_optimized=query is Query.READ_OPTIMIZED)


def read_by_lakehouse(sample: Sample, query: Query) -> pa.Table:
    return scan_of(sample, query).to_arrow()


def read_by_hudi_rs(sample: Sample, query: Query) -> pa.Table:
    if query is Query.AS_OF:
        return hudi_rs.read_as_of(sample.location, sample.first)
    if query is Query.INCREMENTAL:
        return hudi_rs.read_incremental(sample.location, sample.start, sample.end)
    if query is Query.READ_OPTIMIZED:
        return hudi_rs.read_optimized(sample.location)
    return hudi_rs.read(sample.location)


def read_by_duckdb(sample: Sample, query: Query) -> pa.Table:
    rows = scan_of(sample, query).to_pyarrow_dataset()
    with duckdb.connect() as connection:
        connection.register("rows", rows)
        return connection.sql("SELECT id, v FROM rows WHERE id IS NOT NULL").to_arrow_table()


def read_by_polars(sample: Sample, query: Query) -> pa.Table:
    return scan_of(sample, query).to_polars().select("id", "v").collect().to_arrow()


@pytest.mark.jvm
def test_hudi_0_15_reads_what_the_matrix_says(hudi_0_15: Hudi, samples: tuple[Sample, ...]) -> None:
    assert list(contradictions(READERS["hudi-0.15"], samples, read_by_hudi(hudi_0_15))) == []


@pytest.mark.jvm
def test_hudi_1_2_reads_what_the_matrix_says(hudi: Hudi, samples: tuple[Sample, ...]) -> None:
    assert list(contradictions(READERS["hudi-1.2"], samples, read_by_hudi(hudi))) == []


@pytest.mark.jvm
def test_hudi_rs_reads_what_the_matrix_says(samples: tuple[Sample, ...]) -> None:
    assert list(contradictions(READERS["hudi-rs"], samples, read_by_hudi_rs)) == []


@pytest.mark.jvm
def test_lakehouse_reads_what_the_matrix_says(samples: tuple[Sample, ...]) -> None:
    assert list(contradictions(READERS["lakehouse"], samples, read_by_lakehouse)) == []


@pytest.mark.jvm
def test_duckdb_reads_what_the_matrix_says(samples: tuple[Sample, ...]) -> None:
    assert list(contradictions(READERS["duckdb"], samples, read_by_duckdb)) == []


@pytest.mark.jvm
def test_polars_reads_what_the_matrix_says(samples: tuple[Sample, ...]) -> None:
    assert list(contradictions(READERS["polars"], samples, read_by_polars)) == []


def made_up_samples() -> tuple[Sample, ...]:
    """Return a sample of each version and type; there are no tables."""
    return tuple(
        Sample(version=version, table_type=kind, location="", first="1", start="1", end="2")
        for version in (6, 8, 9)
        for kind in ("COPY_ON_WRITE", "MERGE_ON_READ")
    )


def read_like_0_15(sample: Sample, query: Query) -> pa.Table:
    """Refuse the versions 8 and 9, and incremental reads."""
    if sample.version > 6 or query is Query.INCREMENTAL:
        raise ValueError("IllegalArgumentException: None")
    is_stale = query is Query.AS_OF or (query is Query.READ_OPTIMIZED and sample.table_type == "MERGE_ON_READ")
    return batch(FIRST if is_stale else LATEST, 1)


def with_cell(reader: Reader, column: str, *, reads: bool) -> Reader:
    return replace(reader, cells={**reader.cells, column: Cell(reads=reads, tried="x")})


def test_every_false_cell_is_found() -> None:
    truth = with_cell(READERS["hudi-0.15"], "incremental", reads=False)
    assert list(contradictions(truth, made_up_samples(), read_like_0_15)) == []
    for column, cell in truth.cells.items():
        lie = with_cell(truth, column, reads=not cell.reads)
        found = list(contradictions(lie, made_up_samples(), read_like_0_15))
        assert found, f"the false cell {column} is not found"
    assert CHANGED.items() <= LATEST.items()


def test_an_error_that_is_not_the_documented_refusal_is_found() -> None:
    other = replace(with_cell(READERS["hudi-0.15"], "incremental", reads=False), refusal="another message")
    assert "the refusal is not the documented one" in next(contradictions(other, made_up_samples(), read_like_0_15))


def test_every_column_has_an_attempt_and_every_cited_test_exists() -> None:
    assert {attempt.column for attempt in ATTEMPTS} == {name for name in COLUMNS if not name.startswith("version_")}
    tried = {cell.tried for reader in READERS.values() for cell in reader.cells.values() if cell.tried}
    for test in tried:
        path, _, name = test.partition("::")
        assert f"def {name}(" in (ROOT / path).read_text(encoding="utf-8"), test
    refusing = [r for r in READERS.values() if r.is_tried and any(r.reads(version) is False for version in (6, 8, 9))]
    assert refusing and all(reader.refusal for reader in refusing)
