"""Clusters of the tests, and the archive of the environment; both are made once."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.spark_cluster import REPOSITORY, SparkCluster, bare_python, spark_cluster


@pytest.fixture(scope="session")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Pack the environment of the tests with the packages that jobs need, and return the archive."""
    folder = tmp_path_factory.mktemp("packed")
    words = ["-m", "lakehouse", "environment", "pack", "--to", str(folder), "--only", "lakehouse-tables[spark]"]
    done = subprocess.run(
        [sys.executable, *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = folder.glob("*.tar.gz")
    return archive


@pytest.fixture(scope="module")
def bare_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A cluster whose workers have only a Python without packages."""
    folder = tmp_path_factory.mktemp("bare")
    programs = bare_python(folder / "bin")
    with spark_cluster(folder, PATH=f"{programs}:/usr/bin:/bin") as cluster:
        yield cluster


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkCluster]:
    """A cluster whose workers have the environment of the tests."""
    folder = tmp_path_factory.mktemp("cluster")
    with spark_cluster(folder, PYSPARK_PYTHON=sys.executable, PYTHONPATH=str(REPOSITORY)) as cluster:
        yield cluster
