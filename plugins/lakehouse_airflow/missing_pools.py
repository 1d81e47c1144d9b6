"""When a run starts, fail its tasks whose pool does not exist, with a reason that the UI shows.

This runs in the scheduler, because tasks have no access to Airflow's database. It changes rows in the scheduler's own
transaction and never commits. The reason is in the notes of the run and of the task, and in the audit log of the run
(event `missing pool`). When the run is cleared and starts again, the notes are removed.

Only tasks of lakehouse are checked: tasks of DAGs with the tag `lakehouse`, tasks of operators of this package, and
tasks in the pools of this package.
"""

from __future__ import annotations

import logging
from typing import Any

from airflow import settings
from airflow.models.dag import DagTag
from airflow.models.log import Log
from airflow.models.pool import Pool
from airflow.models.serialized_dag import SerializedDagModel
from airflow.models.taskinstance import TaskInstance
from airflow.utils.state import TaskInstanceState

from lakehouse.spec.contracts.pools import PoolFacts
from lakehouse_airflow.pools import DEFAULT_POOL, POOLS, missing_pool_message

log = logging.getLogger(__name__)

EVENT = "missing pool"
TAG = "lakehouse"
_PACKAGE = "lakehouse_airflow."
#: Prefix of the notes, by which they are found and removed.
NOTE = "lakehouse: "


def fail_tasks_without_pool(dag_run: Any) -> None:
    """Mark tasks of a run as `failed` if they belong to lakehouse and their pool does not exist."""
    session = settings.Session.object_session(dag_run)
    if dag_run.clear_number:
        _remove_notes(session, dag_run)
    pools = session.query(Pool.pool)
    for instance in _instances(session, dag_run).filter(TaskInstance.pool.notin_(pools)).all():
        if instance.state is None and _is_ours(dag_run.dag, instance):
            reason = missing_pool_message(instance.pool)
            log.error("%s: %s", instance, reason)
            instance.set_state(TaskInstanceState.FAILED, session=session)
            instance.note = dag_run.note = f"{NOTE}{instance.task_id}: {reason}"
            session.add(Log(event=EVENT, task_instance=instance, extra=reason))


def pool_facts(session: Any) -> PoolFacts:
    """Return all pools, and the pools that parsed DAGs with the tag `lakehouse` use, except the default pool."""
    tagged = [dag_id for (dag_id,) in session.query(DagTag.dag_id).filter(DagTag.name == TAG)]
    stored = [SerializedDagModel.get(dag_id, session=session) for dag_id in tagged]
    named = {task.pool for row in stored if row is not None for task in row.dag.tasks}
    return PoolFacts(
        slots={str(pool.pool): pool.slots for pool in session.query(Pool).all()},
        needed=tuple(sorted(named - {DEFAULT_POOL})),
    )


def _instances(session: Any, dag_run: Any) -> Any:
    return session.query(TaskInstance).filter(
        TaskInstance.dag_id == dag_run.dag_id, TaskInstance.run_id == dag_run.run_id
    )


def _is_ours(dag: Any, instance: Any) -> bool:
    if TAG in dag.tags or instance.pool in {setting.name for setting in POOLS}:
        return True
    task = dag.task_dict.get(instance.task_id)
    return str(getattr(task, "_task_module", "")).startswith(_PACKAGE)


def _remove_notes(session: Any, dag_run: Any) -> None:
    for noted in (dag_run, *_instances(session, dag_run).all()):
        if (noted.note or "").startswith(NOTE):
            noted.note = None
