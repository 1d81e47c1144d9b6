"""Workers whose own Python has no package: the archive of the driver's environment runs their tasks."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from lakehouse import Table
from lakehouse.errors import UserError
from tests.support.spark_cluster import REPOSITORY, SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]

JOBS = str(REPOSITORY / "tests" / "clusters" / "jobs.py")


@pytest.fixture
def place(tmp_path: Path) -> str:
    location = str(tmp_path / "t")
    Table.create(location, name="t", record_key=["id"], partition_by=["day"], ordering="ts")
    return location


def rows_of(output: str) -> dict[str, int]:
    """Return the line of JSON that a job printed last."""
    line = [text for text in output.splitlines() if text.startswith("{")][-1]
    rows: dict[str, int] = json.loads(line)
    return rows


def test_packed_python_runs_an_upsert_where_workers_have_no_packages(
    bare_cluster: SparkCluster, packed: Path, place: str
) -> None:
    archived = {
        "spark.archives": f"{packed}#environment",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.pyspark.driver.python": sys.executable,
    }
    code, output = bare_cluster.run(JOBS, "upsert", place, "0", "60", "2", conf=archived)
    assert code == 0, output + bare_cluster.logs()[-5000:]
    assert rows_of(output) == {"rows": 60, "sum": sum(2 * number for number in range(60))}
    assert str(packed.name) in bare_cluster.logs()


def test_workers_without_packages_are_a_user_error_before_the_source_is_read(
    bare_cluster: SparkCluster, tmp_path: Path
) -> None:
    spec = tmp_path / "t.yaml"
    (tmp_path / "landing").mkdir()
    (tmp_path / "landing" / "a.csv").write_text("id,v\n1,2\n")
    spec.write_text(
        f"table: t\nlocation: {tmp_path}/table\nrecord_key: id\n"
        f"schema: {{id: bigint, v: bigint}}\ningest: {{path: {tmp_path}/landing}}\n"
    )
    words = [str(REPOSITORY / "lakehouse" / "__main__.py"), "ingest", "run", "--table", str(spec)]
    code, output = bare_cluster.run(*words, PYSPARK_PYTHON="python3", LAKEHOUSE_HOME=str(tmp_path))
    assert code == UserError.exit_code, output
    assert "No module named 'numpy'" in output
    assert "lakehouse environment pack" in output
    assert "Traceback" not in output
    assert not list((tmp_path / "table").rglob("*.parquet"))
