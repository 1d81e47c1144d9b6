"""The short suite for one combination of versions of Spark, Python, PyArrow and NumPy.

Run it with the Python of that environment, which needs pytest, the package's dependencies and the repository:

    PYTHONPATH=. python -m pytest tests/matrix/test_spark_matrix.py
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("pyspark") is None:
    pytest.skip("this environment has no pyspark", allow_module_level=True)

import pyarrow as pa
import pyarrow.parquet as pq

import lakehouse.spark
from lakehouse import Committed, Table
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.spark.versions.choice import spark_version
from lakehouse.spec.contracts.job import JobStatus
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import parse_spec

pytestmark = pytest.mark.spark

SCHEMA = pa.schema([("id", pa.string()), ("day", pa.string()), ("v", pa.float64()), ("ts", pa.int64())])
QUERY_TYPE, BEGIN = "hoodie.datasource.query.type", "hoodie.datasource.read.begin.instanttime"
FORMAT = "hoodie.datasource.query.incremental.format"
SETTINGS = {"spark.master": "local[2]", "spark.sql.shuffle.partitions": "2", "spark.driver.host": "127.0.0.1"}
SERVICES = (
    "compaction",
    "logcompaction",
    "clustering",
    "index",
    "clean",
    "archive",
    "ttl",
    "orphans",
    "validation",
)


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """Return the session of a job."""
    os.environ["PYSPARK_PYTHON"] = sys.executable
    started = lakehouse.spark.job_session(
        "matrix", {**SETTINGS, "spark.sql.warehouse.dir": str(tmp_path_factory.mktemp("warehouse"))}
    )
    yield started
    started.stop()


def rows(ids: range, ts: int) -> pa.Table:
    """Return rows in two partitions."""
    records = [{"id": f"k{n}", "day": f"2026-01-0{n % 2 + 1}", "v": n + ts / 10, "ts": ts} for n in ids]
    return pa.Table.from_pylist(records, SCHEMA)


def frame(session: Any, table: pa.Table) -> Any:
    """Return the rows as a DataFrame."""
    return session.createDataFrame(table.to_pylist(), "id string, day string, v double, ts long")


def values(frame: Any) -> dict[str, float]:
    """Return the value of each key; a key must not be repeated."""
    result = {row.id: row.v for row in frame.select("id", "v").collect()}
    assert frame.count() == len(result)
    return result


def expected(table: pa.Table) -> dict[str, float]:
    """Return the value of each key."""
    return dict(zip(table.column("id").to_pylist(), table.column("v").to_pylist(), strict=True))


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_table_is_written_read_and_serviced(session: Any, tmp_path: Path, table_type: str) -> None:
    table = Table.create(
        str(tmp_path / "t"),
        name="t",
        record_key="id",
        partition_by="day",
        ordering="ts",
        table_type=table_type,
        cdc="data_before_after",
    )
    first = table.bulk_insert(frame(session, rows(range(40), 1)))
    assert isinstance(first, Committed)
    assert isinstance(table.upsert(frame(session, rows(range(30, 50), 2))), Committed)
    assert isinstance(table.delete(frame(session, rows(range(5), 3)).select("id", "day")), Committed)
    model = expected(rows(range(5, 40), 1)) | expected(rows(range(30, 50), 2))
    assert expected(table.scan().to_arrow()) == model
    assert values(table.scan().to_spark(session)) == model
    location = table.location

    assert values(lakehouse.spark.read(session, location)) == model
    assert values(lakehouse.spark.read(session, location, where="day = '2026-01-01'")) == {
        key: value for key, value in model.items() if int(key[1:]) % 2 == 0
    }
    optimized = lakehouse.spark.read(session, location, {QUERY_TYPE: "read_optimized"})
    assert optimized.count() == (45 if table_type == "COPY_ON_WRITE" else optimized.count())
    instant = first.instant.requested
    assert values(lakehouse.spark.read(session, location, {"as.of.instant": instant})) == expected(rows(range(40), 1))
    later = {BEGIN: first.instant.completion or ""}
    incremental = lakehouse.spark.read(session, location, {QUERY_TYPE: "incremental", **later})
    assert values(incremental) == expected(rows(range(30, 50), 2))
    changes = lakehouse.spark.read(session, location, {FORMAT: "cdc", **later}, columns=["op", "before", "after"])
    operations = [row.op for row in changes.collect()]
    assert {op: operations.count(op) for op in set(operations)} == {"i": 10, "u": 10, "d": 5}

    for name in SERVICES:
        if "compaction" not in name or table_type == "MERGE_ON_READ":
            table.services.named(name).run(spark=session)
    assert values(table.scan().to_spark(session)) == model


def test_ingest_reads_csv_json_and_parquet(session: Any, tmp_path: Path) -> None:
    data = rows(range(6), 1)
    for kind in ("csv", "json", "parquet"):
        landing = tmp_path / kind
        landing.mkdir()
        if kind == "csv":
            lines = ["id,day,v,ts", *(",".join(map(str, row.values())) for row in data.to_pylist()), "k9,x,y,z"]
            (landing / "a.csv").write_text("\n".join(lines))
        elif kind == "json":
            records = [*map(json.dumps, data.to_pylist()), '{"id": "k9", "v": {"a": {"b": 1, "b": 2}}}', "{broken"]
            (landing / "a.json").write_text("\n".join(records))
        else:
            pq.write_table(data, landing / "a.parquet")
        spec = parse_spec(
            f"table: {kind}\nlocation: {tmp_path}/lake/{kind}\nrecord_key: [id]\npartition_by: [day]\n"
            f"ordering: ts\nschema: {{id: string, day: string, v: double, ts: long}}\n"
            f"ingest: {{path: {landing}/, format: {kind}, max_bad_records: 2}}\n",
            source=f"{kind}.yaml",
        )
        report = run_ingest(session, spec, IngestCommand(table=f"{kind}.yaml", run_id="1"), environ={})
        assert (report.status, report.rows) == (JobStatus.COMMITTED, 6), report
        assert report.bad_records == {"csv": 1, "json": 2, "parquet": 0}[kind]
        assert expected(Table.open(f"{tmp_path}/lake/{kind}").scan().to_arrow()) == expected(data)


def test_data_source_reads_batches_and_a_stream(session: Any, tmp_path: Path) -> None:
    if not spark_version().HAS_DATA_SOURCE:
        pytest.skip(f"Spark {session.version} has no Python data source")
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", ordering="ts", schema=SCHEMA)
    table.upsert(rows(range(3), 1))
    assert values(session.read.format("lakehouse").load(table.location)) == expected(rows(range(3), 1))
    stream = session.readStream.format("lakehouse").load(table.location).writeStream.format("parquet")
    stream = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True)
    query = stream.start(str(tmp_path / "out"))
    query.awaitTermination()
    assert [progress["batchId"] for progress in query.recentProgress] == [0]
    assert values(session.read.parquet(str(tmp_path / "out"))) == expected(rows(range(3), 1))
