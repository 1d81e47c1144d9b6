"""Functions of the interface for components that read Airflow 2's database."""

from __future__ import annotations

from typing import Any

from airflow.models.dag import DagModel
from airflow.models.xcom import XCom


def existing_dags() -> Any:
    """Return the SQL condition for DAGs whose files exist."""
    return DagModel.is_active.is_(True)


def schedule_text(model: Any) -> str:
    """Return the schedule in a DagModel row."""
    return str(model.schedule_interval or "")


def run_after(run: Any) -> Any:
    """Return the time from which a DAG run may start."""
    return run.data_interval_end or run.execution_date


def refusals_of_run(session: Any, dag_run: Any, key: str) -> dict[tuple[str, int], str]:
    """Return the XCom values of a run with this key, by task and map index."""
    rows = session.query(XCom).filter(XCom.dag_id == dag_run.dag_id, XCom.run_id == dag_run.run_id, XCom.key == key)
    return {(row.task_id, row.map_index): str(XCom.deserialize_value(row)) for row in rows}
