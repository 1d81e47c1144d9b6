"""A suggested spec has the types that the product infers, and an ingestion with it has no bad records."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.platform.sources.dead_letters import DeadLetterBox
from lakehouse.platform.sources.registry import open_source
from lakehouse.platform.sources.source import KnownColumns
from lakehouse.platform.sources.source_context import SourceContext
from lakehouse.platform.suggest.document import suggested_spec
from lakehouse.platform.suggest.files import sample_files
from lakehouse.platform.suggest.sample import Limits
from lakehouse.platform.suggest.text_types import TextRules, text_type
from lakehouse.spark.field_values import FieldRules
from lakehouse.spark.inferred_types import inferred_types
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.options.schema import SchemaPolicy
from lakehouse.spec.table.table_spec import TableSpec, parse_spec
from tests.support.dirty_files import ROWS, DirtyFile, dirty_files, write
from tests.support.shared import shared_dir

pytestmark = pytest.mark.spark
#: Texts of all kinds, and those at the limits of the kinds.
TEXTS = (
    *("0", "-1", "12", " 12 ", "007", "+5", "12D", "-0", "1.", ".5", "-.5", "1e5", "1E-3", "1e400", "1e-400", "0e0"),
    *("2147483647", "2147483648", "-2147483649", "9223372036854775807", "9223372036854775808", "9007199254740993"),
    *("9" * 38, "9" * 39, "123456789012345678901", "NaN", "nan", "Infinity", "-INF", "0x1p3", "1_000", "1,5"),
    *("2026-01-31", "2026-1-1", "2026-02-30", "0000-01-01", "12345-01-01", "2026-1", "2026", " 2026-01-31 "),
    *("2026-01-31 10:00", "2026-01-31T10:00:00.123456Z", "2026-01-31 10:00:00.1234567", "2026-01-31 24:00", "12:30"),
    *("2026-01-31 10:00:00 Europe/Berlin", "2026-01-31 10:00:00 Europe/Nowhere", "2026-01-31 10:00:00+05:30"),
    *("2026-01-31 10:00:00+19:00", "2026-01-31 10:00 UTC+1", "2026-01-31 10:60", "2026-01-31 1:2:3", "2026-01-31 10"),
    *("true", "FALSE", " true", "yes", "abc", "-", "\u0663", "2026-01-31 10:00:00 +01:00", "2026-01-31 10:00Z"),
)

#: Two texts of one column.
MIXED = (
    *(("12", "0.5"), ("12", "3000000000"), ("3000000000", "0.5"), ("9007199254740993", "0.5"), ("12", "9" * 30)),
    *(("2026-01-31", "2026-01-31 10:00"), ("2026-01-31", "12"), ("true", "1"), ("NaN", "12"), ("-" + "9" * 30, "1")),
    *(("007", "7"), ("9" * 38, "0.5"), ("2026-01-31 10:00", "10:00")),
)


def spec_of(path: Path, limits: Limits | None = None) -> TableSpec:
    """Return the spec that is suggested for a path."""
    text = suggested_spec(sample_files(str(path), "", limits or Limits(), os.environ, {}))
    return parse_spec(text, source="suggested.yaml")


def read(session: Any, spec: TableSpec, folder: Path) -> tuple[int, int]:
    """Read the files of a spec as a run does; return the numbers of rows and of bad records."""
    source = open_source(SourceContext(session=session, spec=spec, environ=os.environ, storage_options={}))
    plan = source.plan(None, None, full_refresh=False)
    box = DeadLetterBox(storage=open_storage(str(folder), {}), folder="letters", attempt="a")
    with source.read(plan, known=KnownColumns(policy=SchemaPolicy()), dead_letters=box) as batch:
        assert batch is not None
        assert batch.frame.collect()
        return batch.rows or 0, batch.bad_records


def test_types_of_texts_are_those_that_the_product_infers(spark: Any) -> None:
    pairs = [*((text, None) for text in TEXTS), *MIXED]
    different = {}
    for start in range(0, len(pairs), 8):
        part = pairs[start : start + 8]
        schema = ", ".join(f"c{number} string" for number in range(len(part)))
        types = inferred_types(spark.createDataFrame(list(zip(*part, strict=True)), schema), FieldRules())
        for pair, column in zip(part, types, strict=True):
            suggested = text_type([text for text in pair if text is not None], TextRules())
            if suggested != column.dataType.simpleString():
                different[pair] = (suggested, column.dataType.simpleString())
    assert different == {}


@pytest.mark.parametrize("file", dirty_files(), ids=lambda file: file.name)
def test_ingestion_with_the_suggestion_reads_every_record(spark: Any, file: DirtyFile, tmp_path: Path) -> None:
    spec = spec_of(write(file, tmp_path))
    assert read(spark, spec, tmp_path) == (ROWS + (file.name == "headless.csv"), 0)


@pytest.mark.parametrize(
    ("path", "rows"),
    [
        ("nyc_taxi", 60_000),
        ("stock_ticks", 5150),
        ("nycflights13/weather.csv.gz", 26_115),
        ("nycflights13/planes.csv.gz", 3322),
        ("nycflights13/airports.csv.gz", 1458),
        ("nycflights13/airlines.csv.gz", 16),
        ("cdc/debezium_1.1_inventory_products.jsonl", 16),
    ],
)
def test_ingestion_with_the_suggestion_reads_every_record_of_real_data(
    spark: Any, path: str, rows: int, tmp_path: Path
) -> None:
    assert read(spark, spec_of(shared_dir() / "data" / path), tmp_path) == (rows, 0)


@pytest.mark.parametrize(
    "name", ["german.csv", "names.csv", "latin.csv", "epoch.csv", "american_times.csv", "lines.jsonl", "a.parquet"]
)
def test_table_of_a_suggestion_has_the_rows_in_partitions_by_day(spark: Any, name: str, tmp_path: Path) -> None:
    file = next(one for one in dirty_files() if one.name == name)
    spec = replace(spec_of(write(file, tmp_path)), location=str(tmp_path / "table"))
    report = run_ingest(spark, spec, IngestCommand(table="t.yaml"), environ={})
    assert report.bad_records == 0
    table = Table.open(spec.location)
    assert table.scan().to_arrow().num_rows == ROWS
    if not file.partition:
        assert table.partitions() == ("",)
        return
    assert all(partition.startswith("202") and len(partition) == 10 for partition in table.partitions())


def test_ingestion_of_taxi_trips_with_the_suggestion_loses_no_trip(spark: Any, tmp_path: Path) -> None:
    spec = replace(spec_of(shared_dir() / "data" / "nyc_taxi"), location=str(tmp_path / "table"))
    run_ingest(spark, spec, IngestCommand(table="t.yaml"), environ={})
    assert Table.open(spec.location).scan().to_arrow().num_rows == 60_000
