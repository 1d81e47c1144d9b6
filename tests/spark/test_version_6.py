"""Tables of version 6 in Spark: executors write and service them, and streams miss no commit that completes late."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from lakehouse.core.operations.commit.complete import PreparedCommit, complete_commit
from lakehouse.core.operations.commit.results import Committed, Conflict
from lakehouse.core.operations.write import write
from lakehouse.core.table.table import Table
from lakehouse.spark import register
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.support.version_6 import MANY_WRITERS, SORTED, assert_valid, batch, created

pytestmark = pytest.mark.spark

QUERY, BEGIN, END = (
    "hoodie.datasource.query.type",
    "hoodie.datasource.read.begin.instanttime",
    "hoodie.datasource.read.end.instanttime",
)


def frame_of(spark: SparkSession, ids: str, ts: int, v: str) -> Any:
    return spark.createDataFrame(batch(ids.split(), ts, v).to_pandas(), "id string, p string, ts long, v string")


def source(spark: SparkSession, table: Table, **options: str) -> dict[str, str]:
    rows = spark.read.format("lakehouse").options(**options).load(table.location).select("id", "v").collect()
    return {row.id: row.v for row in rows}


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_executors_write_and_service_a_table(kind: str, spark: SparkSession, tmp_path: Path) -> None:
    register(spark)
    table = created(tmp_path, kind, options=SORTED)
    first = table.insert(frame_of(spark, "a1 a2 b1 c1", 1, "x"))
    assert isinstance(first, Committed)
    second = table.upsert(frame_of(spark, "a1 b2", 2, "y"))
    assert isinstance(second, Committed)
    table.delete(frame_of(spark, "a2", 3, "").select("id", "p"))
    assert source(spark, table) == {"a1": "y", "b1": "x", "b2": "y", "c1": "x"}
    if kind == "MERGE_ON_READ":
        assert isinstance(table.services.compaction.run(force=True, spark=spark), Committed)
        table.upsert(frame_of(spark, "a1", 4, "z"))
    table.insert_overwrite(frame_of(spark, "b8 b9", 5, "over"))
    assert isinstance(table.services.clustering.run(force=True, spark=spark), Committed)
    newest = {"a1": "z" if kind == "MERGE_ON_READ" else "y", "b8": "over", "b9": "over", "c1": "x"}
    assert source(spark, table) == newest
    assert source(spark, table, **{"as.of.instant": first.instant.requested}) == dict.fromkeys(
        ["a1", "a2", "b1", "c1"], "x"
    )
    changed = {QUERY: "incremental", BEGIN: first.instant.requested, END: second.instant.requested}
    assert source(spark, table, **changed) == {"a1": "y", "b2": "y"}
    assert {path.name.split(".")[1] for path in Path(table.location, ".hoodie").glob("2*")} <= {
        *("commit", "deltacommit", "replacecommit", "compaction", "clean"),
        *("inflight", "requested"),
    }
    assert_valid(table)


def test_stream_returns_a_commit_that_completes_late(
    spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    register(spark)
    table = created(tmp_path, "COPY_ON_WRITE", options=MANY_WRITERS)
    table.insert(batch(["a1", "b1"], 1, "x"))
    out = str(tmp_path / "out")

    def run() -> list[tuple[str, str]]:
        stream = spark.readStream.format("lakehouse").option("columns", "id,v").load(table.location)
        sink = stream.writeStream.format("parquet").option("path", out)
        sink.option("checkpointLocation", f"{out}-checkpoint").trigger(availableNow=True).start().awaitTermination()
        return sorted((row.id, row.v) for row in spark.read.parquet(out).collect())

    seen: list[list[tuple[str, str]]] = []

    def late(candidate: PreparedCommit, policy: TransactionPolicy) -> Committed | Conflict:
        monkeypatch.setattr(write, "complete_commit", complete_commit)
        assert isinstance(Table.open(table.location).upsert(batch(["b1"], 2, "early")), Committed)
        seen.append(run())
        return complete_commit(candidate, policy)

    monkeypatch.setattr(write, "complete_commit", late)
    assert isinstance(table.upsert(batch(["a1"], 2, "late")), Committed)
    assert seen == [[("a1", "x"), ("b1", "x")]]
    assert run() == [("a1", "late"), ("a1", "x"), ("b1", "early"), ("b1", "x")]
    assert run() == [("a1", "late"), ("a1", "x"), ("b1", "early"), ("b1", "x")]
