"""Functions of the interface for components that read Airflow 3's database: scheduler, API server, command line."""

from __future__ import annotations

from typing import Any

from airflow.models.dag import DagModel
from airflow.models.xcom import XComModel


def existing_dags() -> Any:
    """Return the SQL condition for DAGs whose files exist."""
    return DagModel.is_stale.is_(False)


def schedule_text(model: Any) -> str:
    """Return the schedule in a DagModel row."""
    return model.timetable_summary or ""


def run_after(run: Any) -> Any:
    """Return the time from which a DAG run may start."""
    return run.run_after


def refusals_of_run(session: Any, dag_run: Any, key: str) -> dict[tuple[str, int], str]:
    """Return the XCom values of a run with this key, by task and map index."""
    rows = session.query(XComModel).filter(
        XComModel.dag_id == dag_run.dag_id, XComModel.run_id == dag_run.run_id, XComModel.key == key
    )
    return {(row.task_id, row.map_index): str(row.value) for row in rows}
