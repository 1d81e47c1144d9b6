"""Endpoints of actions: the log, the preview, and the request of an action.

A request of an action records it with the user's name first. It then writes a request or a policy to the catalog, or
starts a run of the DAG `lakehouse.actions` as the user; the web server never does the work.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from airflow.api.common.trigger_dag import trigger_dag
from airflow.exceptions import DagNotFound, DagRunAlreadyExists
from airflow.utils.types import DagRunTriggeredByType
from fastapi import APIRouter, Body, HTTPException, Query, Request
from fastapi.responses import JSONResponse

from lakehouse.errors import LakehouseError
from lakehouse.platform.fleet_views.actions import (
    ActionState,
    NewAction,
    actions_page,
    dag_run_id,
    end_action,
    read_action,
    record_action,
    request_service,
)
from lakehouse.platform.fleet_views.names import table_row
from lakehouse.platform.fleet_views.paging import MOST_ROWS, Paging
from lakehouse.platform.fleet_views.policies import policy_change
from lakehouse.platform.fleet_views.table import why_page
from lakehouse.spec.actions import ActionSpec, action_spec, check_parameters, command_words
from lakehouse.spec.contracts.pages import ActionPreview, ActionResult, ActionsPage
from lakehouse_airflow.api.access import ACTIONS_DAG, READS, ActingUser, require_edit, service_dag
from lakehouse_airflow.api.catalog import CLOCK, answer, database, reading
from lakehouse_airflow.api.effects import effects_of
from lakehouse_airflow.api.reads import run_json

router = APIRouter(tags=["actions"])
Parameters = Annotated[dict[str, Any], Body(embed=True, description="Parameters of the action.")]
Action = Annotated[str, Body(embed=True, description="Kind of the action, such as `request_service`.")]
Offset = Annotated[int, Query(ge=0, description="Number of rows to skip.")]
Limit = Annotated[int, Query(ge=1, le=MOST_ROWS, description="Number of rows of the page.")]


@router.get("/actions", dependencies=[READS], responses={200: {"model": ActionsPage}}, summary="List actions of users")
def list_actions(request: Request, table: str = "", offset: Offset = 0, limit: Limit = 50) -> Any:
    """Return one page of the actions on a table, or on all tables, the newest first."""
    paging = Paging(offset=offset, limit=limit)
    return answer(request, lambda session, now_ms: actions_page(session, paging, now_ms, table))


@router.post(
    "/tables/{table}/actions/preview",
    responses={200: {"model": ActionPreview}},
    summary="Show what an action would do",
)
def preview(table: str, action: Action, user: ActingUser, parameters: Parameters) -> Any:
    """Return the effects of an action without doing it."""
    spec = _allowed(user, action, parameters)
    effects, facts = _preview(spec, table, parameters)
    return JSONResponse(ActionPreview(table=table, action=spec.name, effects=effects, facts=facts).to_mapping())


@router.post("/tables/{table}/actions", responses={200: {"model": ActionResult}}, summary="Request an action")
def act(table: str, action: Action, user: ActingUser, parameters: Parameters) -> Any:
    """Record an action with the user's name, and request it."""
    spec = _allowed(user, action, parameters)
    author = user.get_name()
    dag = ACTIONS_DAG if spec.by_dag else ""
    new = NewAction(table=table, action=spec.name, parameters=parameters, author=author, dag=dag)
    with database().session() as session:
        number = record_action(session, new, CLOCK.now_ms())
        if spec.name == "request_service":
            request_service(session, number, CLOCK.now_ms())
    if spec.by_dag:
        _start(number, author)
    elif spec.command:
        _change_policy(spec, table, parameters, number, author)
    with reading() as session:
        return JSONResponse(ActionResult(action=read_action(session, number)).to_mapping())


def _allowed(user: Any, action: str, parameters: Mapping[str, Any]) -> ActionSpec:
    """Return the spec of an action that the user may request; check its parameters."""
    spec = action_spec(action)
    service = str(parameters.get("service", ""))
    require_edit(user, service_dag(service) if spec.is_of_service else ACTIONS_DAG)
    check_parameters(spec, parameters)
    return spec


def _preview(spec: ActionSpec, table: str, parameters: Mapping[str, Any]) -> tuple[tuple[str, ...], dict[str, Any]]:
    if spec.is_of_service:
        with reading() as session:
            if spec.name != "request_service":
                changed = {"pause_service": {"enabled": False}, "resume_service": {"enabled": True}}
                settings = changed.get(spec.name) or parameters["settings"]
                service, pattern = str(parameters["service"]), str(parameters.get("pattern", ""))
                return policy_change(session, table, service, settings, pattern), {}
            page = why_page(session, table, str(parameters["service"]), CLOCK.now_ms())
        newest = page.decisions[0] if page.decisions else None
        facts = {"decision": None if newest is None else newest.reason, "predicted": newest and dict(newest.predicted)}
        return effects_of(spec.name, facts, parameters), facts
    with reading() as session:
        table_row(session, table)
    found = run_json(command_words(spec.preview, table, parameters))
    return effects_of(spec.name, found, parameters), found


def _start(number: int, author: str) -> None:
    """Start the DAG run of an action as the user. The id of the run is that of the action, so it starts once."""
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
        with database().session() as session:
            end_action(session, number, ActionState.FAILED, {"error": text})
        raise HTTPException(409, text) from None


# parameters: the action, where it is recorded, and its author
def _change_policy(spec: ActionSpec, table: str, parameters: Mapping[str, Any], number: int, author: str) -> None:
    try:
        result = run_json(command_words(spec.command, table, parameters), author=author)
    except LakehouseError as error:
        with database().session() as session:
            end_action(session, number, ActionState.FAILED, {"error": str(error)})
        raise
    with database().session() as session:
        end_action(session, number, ActionState.DONE, result)
