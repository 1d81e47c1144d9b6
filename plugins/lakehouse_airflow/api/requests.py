"""Execute a recorded action: start a DAG run, change a policy, or stop a task.

The web server never works on a table.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from airflow.api.common.trigger_dag import trigger_dag
from airflow.exceptions import DagNotFound, DagRunAlreadyExists
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState
from airflow.utils.types import DagRunTriggeredByType
from fastapi import HTTPException
from sqlalchemy import select

from lakehouse.model.texts import error_text
from lakehouse.platform.fleet_views.actions import ActionState, end_action
from lakehouse.platform.fleet_views.stopping import AirflowTask
from lakehouse.spec.actions import dag_run_id
from lakehouse_airflow.api.access import ACTIONS_DAG
from lakehouse_airflow.api.catalog import database
from lakehouse_airflow.api.reads import run_json


def start_run(number: int, author: str) -> None:
    """Start the DAG run of an action as the user.

    The run id contains the action's number, so the run starts only once.
    """
    try:
        trigger_dag(
            dag_id=ACTIONS_DAG,
            run_id=dag_run_id(number),
            conf={"action_id": number},
            triggered_by=DagRunTriggeredByType.REST_API,
            triggering_user_name=author,
        )
    except DagRunAlreadyExists:
        return
    except DagNotFound:
        text = f"there is no DAG {ACTIONS_DAG}; add dags/actions.py to the DAGs of this deployment"
        raise HTTPException(409, text) from None


@contextmanager
def recorded_failure(number: int) -> Iterator[None]:
    """Record an action as failed if the `with` block raises an error, so that no action stays requested forever."""
    try:
        yield
    except Exception as error:
        text = str(error.detail) if isinstance(error, HTTPException) else error_text(error)
        with database().session() as session:
            end_action(session, number, ActionState.FAILED, {"error": text})
        raise


def change_policy(number: int, words: list[str], author: str) -> None:
    """Run the command of an action on a policy, and record its result."""
    result = run_json(words, author=author)
    with database().session() as session:
        end_action(session, number, ActionState.DONE, result)


def is_finished(task: AirflowTask) -> bool:
    """Return whether a task has ended or does not exist in Airflow."""
    with create_session() as session:
        instance = session.scalar(_query(task))
        return instance is None or instance.state in _ENDED


def stop_task(task: AirflowTask) -> Mapping[str, Any]:
    """Mark a task failed like Airflow's own button. Its worker then ends its processes. Return the action's result.

    A finished task is not changed.
    """
    with create_session() as session:
        instance = session.scalar(_query(task).with_for_update())
        if instance is None or instance.state in _ENDED:
            return {"stopped": False, "reason": "the task has ended"}
        instance.set_state(TaskInstanceState.FAILED, session=session)
    return {"stopped": True, "task": task.text}


_ENDED = frozenset(
    {
        TaskInstanceState.SUCCESS,
        TaskInstanceState.FAILED,
        TaskInstanceState.SKIPPED,
        TaskInstanceState.UPSTREAM_FAILED,
        TaskInstanceState.REMOVED,
    }
)


def _query(task: AirflowTask) -> Any:
    return select(TaskInstance).where(
        TaskInstance.dag_id == task.dag,
        TaskInstance.run_id == task.run,
        TaskInstance.task_id == task.task,
        TaskInstance.map_index == task.map_index,
    )
