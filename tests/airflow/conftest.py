"""Configure a separate Airflow for these tests: home and database in the temporary directory, no example DAGs."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.airflow.publishing import SPARK_HOME, Shop
from tests.support.fake_submit import FakeSubmit, install

ROOT = Path(__file__).resolve().parents[2]

# Airflow reads its configuration when it is imported.
os.environ |= {
    "AIRFLOW_HOME": tempfile.mkdtemp(prefix="lakehouse-airflow-"),
    "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
    "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
    "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
    "AIRFLOW__LOGGING__LOGGING_LEVEL": "WARNING",
    # Processes of the tests find the project as Airflow's components do.
    "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "plugins"))),
}


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark the tests of this folder, and ignore the warnings of Airflow's own dependencies."""
    for item in items:
        if item.path.is_relative_to(Path(__file__).parent):
            item.add_marker(pytest.mark.airflow)
            item.add_marker(pytest.mark.filterwarnings("ignore:GitWildMatchPattern:DeprecationWarning"))


@pytest.fixture(scope="session")
def database() -> None:
    """Migrate the database."""
    from airflow.utils.db import initdb

    initdb()


@pytest.fixture(scope="module")
def shop(tmp_path_factory: pytest.TempPathFactory, hive_uri: str) -> Shop:
    """A folder for tables and their specs, and a metastore."""
    if not (SPARK_HOME / "bin" / "spark-submit").exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    place = tmp_path_factory.mktemp("shop")
    (place / "specs").mkdir()
    return Shop(place=place, uri=hive_uri)


@pytest.fixture
def submit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, database: None) -> Iterator[FakeSubmit]:
    """A Spark environment whose spark-submit is a fake, and a connection to a local master."""
    fake = install(tmp_path)
    monkeypatch.setenv("LAKEHOUSE_SPARK_HOME", str(fake.home))
    monkeypatch.setenv("LAKEHOUSE_REPORTS", str(tmp_path / "reports"))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    yield fake
    if fake.driver_pid is not None:
        _end(fake.driver_pid)


def _end(pid: int) -> None:
    import psutil

    try:
        psutil.Process(pid).kill()
    except psutil.NoSuchProcess:
        return
