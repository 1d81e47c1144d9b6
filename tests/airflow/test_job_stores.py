"""Documents of jobs in a store that Airflow's environment has no client for, through Spark's environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.errors import UserError
from lakehouse.spec.report_store import FolderStore, JobDocument
from lakehouse_airflow.job_reports import CommandStore, job_store, read_report
from lakehouse_airflow.submission.trigger import store_at
from tests.airflow.test_operators import COMMITTED
from tests.airflow.test_services import SPARK_HOME

ADDRESS = "catalog:dag/scheduled__2026-01-01T00:00:00+00:00/task/report.json"


@pytest.fixture
def catalog(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if not (SPARK_HOME / "bin" / "python").exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    monkeypatch.setenv("LAKEHOUSE_SPARK_HOME", str(SPARK_HOME))
    monkeypatch.setenv("LAKEHOUSE_CATALOG", f"sqlite:///{tmp_path}/catalog.db")


def test_documents_in_the_catalog_are_changed_and_read(catalog: None) -> None:
    store = store_at(ADDRESS, "{}")
    assert isinstance(store, CommandStore)
    store.change({JobDocument.REPORT: COMMITTED.to_json(), JobDocument.STOP: None, JobDocument.HEARTBEAT: "né"})
    assert store.read(JobDocument.HEARTBEAT, JobDocument.STOP) == {JobDocument.HEARTBEAT: "né"}
    assert read_report(store) == COMMITTED


def test_store_that_cannot_be_opened_is_a_user_error_with_its_reason(
    catalog: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHOUSE_CATALOG", "nothing://x")
    with pytest.raises(UserError, match=r"the reports at catalog:dag.* cannot be used: UserError: the catalog's URL"):
        store_at(ADDRESS, "{}").read(JobDocument.REPORT)


def test_folder_is_used_directly(tmp_path: Path) -> None:
    assert isinstance(job_store(str(tmp_path / "report.json"), "no python", {}), FolderStore)
