"""Stores facts from Airflow's database in the configuration of a `lakehouse.doctor` run, for its task.

It runs in the scheduler, in the scheduler's transaction, and never commits.
"""

from __future__ import annotations

from typing import Any

from airflow import settings

from lakehouse_airflow.compat import timezone
from lakehouse_airflow.dag_states import dag_states, lakehouse_dag_ids
from lakehouse_airflow.missing_pools import pool_facts
from lakehouse_airflow.pools import DAGS_KEY, DOCTOR, POOLS_KEY


def give_facts(dag_run: Any) -> None:
    """Store the pools and the states of lakehouse DAGs in a run of `lakehouse.doctor`."""
    if dag_run.dag_id != DOCTOR:
        return
    session = settings.Session.object_session(dag_run)
    states = dag_states(session, timezone.utcnow(), lakehouse_dag_ids(session))
    facts = {POOLS_KEY: pool_facts(session).to_mapping(), DAGS_KEY: states.to_mapping()}
    dag_run.conf = {**(dag_run.conf or {}), **facts}
