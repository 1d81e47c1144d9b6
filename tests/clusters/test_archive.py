"""Workers whose own Python has no package: the archive of the driver's environment runs their tasks."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lakehouse.errors import UserError
from tests.clusters.models import JOBS, check, create_table, printed, rows
from tests.support.spark_cluster import REPOSITORY, SparkCluster

pytestmark = [pytest.mark.spark, pytest.mark.slow]


def test_packed_python_runs_an_upsert_where_workers_have_no_packages(
    bare_cluster: SparkCluster, packed: Path, tmp_path: Path
) -> None:
    create_table(tmp_path / "t")
    archived = {
        "spark.archives": f"{packed}#environment",
        "spark.pyspark.python": "./environment/bin/python",
        "spark.pyspark.driver.python": sys.executable,
    }
    code, output = bare_cluster.run(JOBS, "upsert", str(tmp_path / "t"), "0", "60", "2", conf=archived)
    assert code == 0, output + bare_cluster.logs()[-5000:]
    assert printed(output) == {"rows": 60, "sum": sum(rows(0, 60, 2).values())}
    check(tmp_path / "t", rows(0, 60, 2))
    assert list(bare_cluster.folder.glob("work-*/*/*/environment/bin/python")), "no executor unpacked the archive"


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
