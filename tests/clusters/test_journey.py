"""Ingestion, writes, services and a stream on a standalone cluster and on `local-cluster`."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from tests.clusters.models import JOBS, Rows, check, create_table, printed, rows
from tests.support.spark_cluster import REPOSITORY, SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]

SPEC = """
table: t
location: {place}/t
type: merge_on_read
record_key: id
partition_by: day
ordering: ts
schema: {{id: string, day: string, v: bigint, ts: bigint}}
ingest: {{path: {place}/landing}}
"""


def land(folder: Path, values: Rows, ordering: int) -> None:
    """Write a file of JSON lines."""
    folder.mkdir()
    lines = [
        json.dumps({"id": key, "day": str(int(key) % 4), "v": value, "ts": ordering}) for key, value in values.items()
    ]
    (folder / "a.json").write_text("\n".join(lines))


def test_ingest_upsert_compaction_clustering_and_stream_on_two_workers(cluster: SparkCluster, tmp_path: Path) -> None:
    spec = tmp_path / "t.yaml"
    spec.write_text(SPEC.format(place=tmp_path))
    ingested, streamed = rows(20, 60, 2), rows(30, 70, 7)
    land(tmp_path / "landing", ingested, 2)
    land(tmp_path / "landing-stream", streamed, 7)
    code, output = cluster.run(
        JOBS, "journey", str(spec), str(tmp_path / "t"), str(tmp_path / "landing"), LAKEHOUSE_HOME=str(tmp_path)
    )
    assert code == 0, output[-5000:] + cluster.logs()[-3000:]
    check(tmp_path / "t", {**ingested, **rows(20, 50, 3), **streamed})
    actions = {path.name.rpartition(".")[2] for path in (tmp_path / "t" / ".hoodie" / "timeline").iterdir()}
    assert {"deltacommit", "commit", "replacecommit"} <= actions


def test_upsert_on_a_local_cluster(cluster: SparkCluster, tmp_path: Path) -> None:
    create_table(tmp_path / "t")
    code, output = cluster.run(
        *("--master", "local-cluster[2,1,1024]", JOBS, "upsert", str(tmp_path / "t"), "0", "60", "2"),
        PYSPARK_PYTHON=sys.executable,
        PYTHONPATH=str(REPOSITORY),
    )
    assert code == 0, output[-5000:]
    assert printed(output) == {"rows": 60, "sum": sum(rows(0, 60, 2).values())}
    check(tmp_path / "t", rows(0, 60, 2))


def test_executors_that_spark_removes_and_starts_again_write_all_rows(cluster: SparkCluster, tmp_path: Path) -> None:
    create_table(tmp_path / "t")
    dynamic = {
        "spark.dynamicAllocation.enabled": "true",
        "spark.dynamicAllocation.shuffleTracking.enabled": "true",
        "spark.dynamicAllocation.minExecutors": "0",
        "spark.dynamicAllocation.maxExecutors": "2",
        "spark.dynamicAllocation.executorIdleTimeout": "2s",
        "spark.dynamicAllocation.shuffleTracking.timeout": "2s",
        "spark.dynamicAllocation.cachedExecutorIdleTimeout": "2s",
    }
    code, output = cluster.run(JOBS, "allocated", str(tmp_path / "t"), conf=dynamic)
    assert code == 0, output[-5000:]
    counts = printed(output)["executors"]
    assert isinstance(counts, list)
    assert counts[0] > 0 and counts[1] == 0 and counts[2] > 0, counts
    check(tmp_path / "t", rows(0, 60, 5))
