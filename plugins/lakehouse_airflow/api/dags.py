"""Endpoint for DAG states: paused, newest run, interval. To unpause a DAG, the pages use Airflow's own API."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any

from airflow.utils.session import create_session
from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from lakehouse.spec.contracts.dag_states import DagStates
from lakehouse.spec.table.services import service_spec
from lakehouse_airflow.api.access import READS, User, may_edit, may_read
from lakehouse_airflow.api.pools import CATALOG, in_pool
from lakehouse_airflow.compat import timezone
from lakehouse_airflow.dag_states import dag_states, deciding_dag

router = APIRouter(tags=["dags"], dependencies=[READS])
_MOST_IDS = 20
Ids = Annotated[list[str], Query(max_length=_MOST_IDS, description="Id of a DAG; repeatable.")]
Services = Annotated[
    list[str], Query(max_length=_MOST_IDS, description="Service; the DAG that decides about it is added; repeatable.")
]


@router.get("/dag-states", responses={200: {"model": DagStates}}, summary="Return which DAGs are paused or overdue")
@in_pool(CATALOG)
def states_of_dags(user: User, dag: Ids = [], service: Services = []) -> JSONResponse:  # noqa: B006 -- FastAPI copies it
    """Return the states of the DAGs that the user may read. `missing` lists ids that this Airflow does not have."""
    return JSONResponse(_states(user, dag, service).to_mapping())


def _states(user: Any, dag_ids: list[str], services: list[str]) -> DagStates:
    for name in services:
        service_spec(name)
    with create_session() as session:
        deciding = {name: deciding_dag(session, name) for name in services}
        readable = [dag_id for dag_id in (*dag_ids, *deciding.values()) if may_read(user, dag_id)]
        states = dag_states(session, timezone.utcnow(), readable)
    dags = tuple(replace(state, may_edit=may_edit(user, state.dag_id)) for state in states.dags)
    return replace(states, dags=dags, deciding=deciding)


def deciding_facts(service: str) -> dict[str, Any]:
    """Return the id of the DAG that decides about a service, and whether it is paused or missing."""
    with create_session() as session:
        dag_id = deciding_dag(session, service)
        states = dag_states(session, timezone.utcnow(), [dag_id])
    is_paused = any(state.is_paused for state in states.dags)
    return {"dag_id": dag_id, "is_paused": is_paused, "is_missing": bool(states.missing)}
