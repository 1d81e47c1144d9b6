"""Endpoints for user actions on tables: list actions, preview an action, request an action.

Each request is first recorded with the user's name. Depending on the action, the endpoint then writes a request or a
policy to the catalog, starts a run of the DAG `lakehouse.actions` as the user, or marks an Airflow task failed. The web
server never works on a table.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Body, Query, Request
from fastapi.responses import JSONResponse
from sqlalchemy.orm import Session

from lakehouse.platform.fleet_views.actions import (
    ActionState,
    NewAction,
    actions_page,
    end_action,
    follow_run,
    read_action,
    record_action,
    request_service,
)
from lakehouse.platform.fleet_views.names import table_row
from lakehouse.platform.fleet_views.paging import LARGEST_OFFSET, MOST_ROWS, Paging
from lakehouse.platform.fleet_views.policies import PolicyScope, policy_change, policy_removal
from lakehouse.platform.fleet_views.stopping import ActiveRun, active_run, stop_effects
from lakehouse.platform.fleet_views.table import why_page
from lakehouse.spec.actions import ActionSpec, Effects, action_on, check_parameters, command_words
from lakehouse.spec.contracts.pages import ActionPreview, ActionResult, ActionsPage
from lakehouse_airflow.api.access import ACTIONS_DAG, READS, ActingUser, User, require_edit, service_dag
from lakehouse_airflow.api.catalog import CLOCK, answer, database, reading
from lakehouse_airflow.api.dags import deciding_facts
from lakehouse_airflow.api.effects import effects_of
from lakehouse_airflow.api.pools import CATALOG, CHANGES, in_pool
from lakehouse_airflow.api.reads import run_json
from lakehouse_airflow.api.requests import change_policy, is_finished, recorded_failure, start_run, stop_task

router = APIRouter(tags=["actions"])
Parameters = Annotated[dict[str, Any], Body(embed=True, description="Parameters of the action.")]
Action = Annotated[str, Body(embed=True, description="Kind of the action, such as `request_service`.")]
Offset = Annotated[int, Query(ge=0, le=LARGEST_OFFSET, description="Number of rows to skip.")]
Limit = Annotated[int, Query(ge=1, le=MOST_ROWS, description="Number of rows of the page.")]


@router.get("/actions", dependencies=[READS], responses={200: {"model": ActionsPage}}, summary="List actions of users")
@in_pool(CATALOG)
def list_actions(request: Request, user: User, table: str = "", offset: Offset = 0, limit: Limit = 50) -> Any:
    """Return one page of the actions on a table, or on all tables, the newest first."""
    del user
    paging = Paging(offset=offset, limit=limit)
    return answer(request, lambda session, now_ms: actions_page(session, paging, now_ms, table))


@router.post(
    "/tables/{table}/actions/preview",
    responses={200: {"model": ActionPreview}},
    summary="Preview an action",
)
@in_pool(CHANGES)
def preview(table: str, action: Action, user: ActingUser, parameters: Parameters) -> Any:
    """Return the effects of an action without running it."""
    spec = _allowed(user, action, parameters)
    effects, facts = _preview(user, spec, table, parameters)
    return JSONResponse(shown_effects(table, spec, effects, facts).to_mapping())


@router.post("/tables/{table}/actions", responses={200: {"model": ActionResult}}, summary="Request an action")
@in_pool(CHANGES)
def act(table: str, action: Action, user: ActingUser, parameters: Parameters) -> Any:
    """Record an action with the user's name, and start it."""
    spec = _allowed(user, action, parameters)
    author = user.get_name()
    stopped = _stopped(user, table, parameters) if spec.name == "stop_run" else None
    dag = ACTIONS_DAG if spec.by_dag else ""
    new = NewAction(table=table, action=spec.name, parameters=parameters, author=author, dag=dag)
    with database().session() as session:
        number = record_action(session, new, CLOCK.now_ms())
        if spec.name == "request_service":
            request_service(session, number, CLOCK.now_ms())
        if stopped is not None:
            follow_run(session, number, stopped.task.dag, stopped.task.run)
    with recorded_failure(number):
        if spec.by_dag:
            start_run(number, author)
        elif spec.command:
            change_policy(number, command_words(spec.command, table, parameters), author)
        elif stopped is not None:
            result = stop_task(stopped.task)
            with database().session() as session:
                end_action(session, number, ActionState.DONE, result)
    with reading() as session:
        return JSONResponse(ActionResult(action=read_action(session, number)).to_mapping())


def shown_effects(
    subject: str, spec: ActionSpec, effects: Effects, facts: Mapping[str, Any] | None = None
) -> ActionPreview:
    """Build the preview of an action on a table, a namespace or alarms."""
    return ActionPreview(
        table=subject,
        action=spec.name,
        effects=effects.sentences,
        nothing_to_do=effects.nothing_to_do,
        facts=facts or {},
    )


def _allowed(user: Any, action: str, parameters: Mapping[str, Any]) -> ActionSpec:
    """Return the spec of an action. Raise an error if the user may not request it or its parameters are wrong."""
    spec = action_on("table", action)
    check_parameters(spec, parameters)
    service = str(parameters.get("service", ""))
    require_edit(user, service_dag(service) if spec.is_of_service else ACTIONS_DAG)
    return spec


def _stopped(user: Any, table: str, parameters: Mapping[str, Any]) -> ActiveRun:
    """Return the active run to stop. Its DAG may differ from the DAG of the service."""
    with reading() as session:
        run = active_run(session, table, str(parameters["service"]), str(parameters["run"]))
    require_edit(user, run.task.dag)
    return run


def _preview(user: Any, spec: ActionSpec, table: str, parameters: Mapping[str, Any]) -> tuple[Effects, dict[str, Any]]:
    if spec.name == "stop_run":
        run = _stopped(user, table, parameters)
        return stop_effects(run, table, is_finished(run.task)), {"tables": list(run.tables)}
    if spec.is_of_service:
        with reading() as session:
            if spec.command:
                return _policy_effects(session, spec, table, parameters), {}
            page = why_page(session, table, str(parameters["service"]), CLOCK.now_ms())
        newest = page.decisions[0] if page.decisions else None
        facts: dict[str, Any] = {
            "decision": None if newest is None else newest.reason,
            "predicted": newest and dict(newest.predicted),
        }
        facts["dag"] = deciding_facts(str(parameters["service"]))
        return effects_of(spec.name, facts, parameters), facts
    with reading() as session:
        table_row(session, table)
    shown = run_json(command_words(spec.preview, table, parameters))
    return effects_of(spec.name, shown, parameters), shown


def _policy_effects(session: Session, spec: ActionSpec, table: str, parameters: Mapping[str, Any]) -> Effects:
    service, pattern = str(parameters["service"]), str(parameters.get("pattern", ""))
    if spec.name == "remove_policy":
        row = table_row(session, table)
        return policy_removal(session, PolicyScope(namespace=row.namespace, name=row.name, pattern=pattern), service)
    return policy_change(session, table, service, changed_settings(spec.name, parameters), pattern)


def changed_settings(action: str, parameters: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the service settings that a policy action changes."""
    switched = {"pause_service": {"enabled": False}, "resume_service": {"enabled": True}}
    return switched.get(action) or parameters["settings"]
