"""Writes the reasons why parameters were refused into the notes of a failed run. It runs in the scheduler.

It changes rows in the scheduler's own transaction and never commits, as `missing_pools` does. Notes by users are not
overwritten.
"""

from __future__ import annotations

from typing import Any

from airflow import settings
from airflow.models.dagrun import DagRun
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session

from lakehouse_airflow.compat import refusals_of_run
from lakehouse_airflow.missing_pools import NOTE
from lakehouse_airflow.refusals import REFUSED

#: Maximum length of a note in Airflow's database.
_LONGEST = 1000


def note_refusals(dag_run: Any) -> None:
    """Write the reasons why tasks refused the run's parameters into the notes of the run and of these tasks."""
    session = settings.Session.object_session(dag_run)
    if session is not None:
        _write_notes(session, dag_run)
        return
    # Under `dag.test()` there is no transaction of a scheduler.
    with create_session() as own:
        _write_notes(own, own.get(DagRun, dag_run.id))


def _write_notes(session: Any, dag_run: Any) -> None:
    reasons = refusals_of_run(session, dag_run, REFUSED)
    if not reasons:
        return
    of_run = session.query(TaskInstance).filter(
        TaskInstance.dag_id == dag_run.dag_id, TaskInstance.run_id == dag_run.run_id
    )
    for instance in of_run.all():
        reason = reasons.get((instance.task_id, instance.map_index))
        if reason is None:
            continue
        text = f"{NOTE}{instance.task_id}: {reason}"
        note = text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"
        for noted in (dag_run, instance):
            if not noted.note or noted.note.startswith(NOTE):
                noted.note = note
