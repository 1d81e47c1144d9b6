"""Reads facts for `lakehouse doctor` from Airflow's database, on the command line only.

Tasks must not import this module.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from airflow.api.common.airflow_health import get_airflow_health
from airflow.models.taskinstance import TaskInstance
from airflow.utils.session import create_session
from airflow.utils.state import TaskInstanceState

from lakehouse.spec.contracts.dag_states import DagStates
from lakehouse.spec.contracts.pools import PoolFacts
from lakehouse_airflow.compat import timezone
from lakehouse_airflow.dag_states import dag_states, lakehouse_dag_ids
from lakehouse_airflow.doctor_facts import QueuedTasks
from lakehouse_airflow.missing_pools import pool_facts

#: A worker starts a queued task within this time, unless all workers are busy or no worker runs.
QUEUED_FOR = timedelta(minutes=10)
#: With this value Airflow also looks up connections in its database, like its own components and `airflow connections`.
_CONTEXT, _SERVER = "_AIRFLOW_PROCESS_CONTEXT", "server"


def read_pools() -> PoolFacts:
    """Return all pools, and the pools that parsed lakehouse DAGs need."""
    with create_session() as session:
        return pool_facts(session)


def read_dags() -> DagStates:
    """Return the states of all DAGs of lakehouse."""
    with create_session() as session:
        return dag_states(session, timezone.utcnow(), lakehouse_dag_ids(session))


def read_queued_tasks() -> QueuedTasks:
    """Return the tasks that have been queued for longer than `QUEUED_FOR`, and the number of running tasks."""
    now = timezone.utcnow()
    with create_session() as session:
        tasks = session.query(TaskInstance)
        queued = tasks.filter(TaskInstance.state == TaskInstanceState.QUEUED)
        late = queued.filter(TaskInstance.queued_dttm < now - QUEUED_FOR)
        oldest = late.order_by(TaskInstance.queued_dttm).first()
        running = tasks.filter(TaskInstance.state == TaskInstanceState.RUNNING).count()
        oldest_s = (now - oldest.queued_dttm).total_seconds() if oldest else 0.0
        return QueuedTasks(count=late.count(), oldest_s=oldest_s, running=running)


def read_health() -> Mapping[str, Any]:
    """Return the health of Airflow's components, derived from their heartbeats in the database."""
    health: Mapping[str, Any] = get_airflow_health()
    if health["metadatabase"]["status"] != "healthy":
        raise OSError("Airflow's database does not answer")
    return health


@contextmanager
def connections_of_database() -> Iterator[None]:
    """Enable this process to read connections from Airflow's database.

    By default it only reads environment variables.
    """
    before = os.environ.get(_CONTEXT)
    os.environ[_CONTEXT] = _SERVER
    try:
        yield
    finally:
        if before is None:
            del os.environ[_CONTEXT]
        else:
            os.environ[_CONTEXT] = before
