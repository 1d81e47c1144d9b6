"""Endpoints for actions that do not concern a single table: namespace policies and alarm silences."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from lakehouse.errors import UserError
from lakehouse.platform.fleet_views.actions import ActionState, NewAction, end_action, read_action, record_action
from lakehouse.platform.fleet_views.policies import PolicyScope, namespace_policy_change, policy_removal
from lakehouse.platform.fleet_views.silences import apply_silence, silence_change
from lakehouse.spec.actions import ActionSpec, Effects, action_on, check_parameters, command_words
from lakehouse.spec.contracts.pages import ActionPreview, ActionResult
from lakehouse.spec.table.scheduling import ALL_SERVICES
from lakehouse_airflow.api.access import ACTIONS_DAG, ActingUser, require_edit, service_dag
from lakehouse_airflow.api.actions import Action, Parameters, changed_settings, shown_effects
from lakehouse_airflow.api.catalog import CLOCK, database, reading
from lakehouse_airflow.api.pools import CHANGES, in_pool
from lakehouse_airflow.api.requests import change_policy, recorded_failure

router = APIRouter(tags=["actions"])
_PREVIEW: dict[int | str, dict[str, Any]] = {200: {"model": ActionPreview}}
_RESULT: dict[int | str, dict[str, Any]] = {200: {"model": ActionResult}}


@router.post(
    "/namespaces/{namespace}/actions/preview",
    responses=_PREVIEW,
    summary="Preview an action on a namespace",
)
@in_pool(CHANGES)
def preview_of_namespace(namespace: str, action: Action, user: ActingUser, parameters: Parameters) -> Any:
    """Return the effects of a change to a namespace's policy, without making it."""
    spec = _allowed(user, "namespace", action, parameters)
    effects = _policy_effects(spec, namespace, parameters)
    return JSONResponse(shown_effects(namespace, spec, effects).to_mapping())


@router.post(
    "/namespaces/{namespace}/actions", responses=_RESULT, summary="Request an action on the policy of a namespace"
)
@in_pool(CHANGES)
def act_on_namespace(namespace: str, action: Action, user: ActingUser, parameters: Parameters) -> Any:
    """Record a change to a namespace's policy with the user's name, and make it."""
    spec = _allowed(user, "namespace", action, parameters)
    _policy_effects(spec, namespace, parameters)
    author = user.get_name()
    with database().session() as session:
        new = NewAction(scope=namespace, action=spec.name, parameters=parameters, author=author)
        number = record_action(session, new, CLOCK.now_ms())
    with recorded_failure(number):
        change_policy(number, command_words(spec.command, "", parameters, namespace=namespace), author)
    return _recorded(number)


@router.post("/alarms/actions/preview", responses=_PREVIEW, summary="Preview an action on alarms")
@in_pool(CHANGES)
def preview_of_alarms(action: Action, user: ActingUser, parameters: Parameters) -> Any:
    """Return the alarms that a silence covers, or the alarms that are sent again after its end. Nothing is changed."""
    spec = _allowed(user, "alarms", action, parameters)
    with reading() as session:
        change = silence_change(session, spec.name, parameters, user.get_name(), CLOCK.now_ms())
    return JSONResponse(shown_effects(change.scope, spec, Effects(sentences=change.effects)).to_mapping())


@router.post("/alarms/actions", responses=_RESULT, summary="Silence alarms, or end a silence")
@in_pool(CHANGES)
def act_on_alarms(action: Action, user: ActingUser, parameters: Parameters) -> Any:
    """Record an action on alarms with the user's name, and run it in the same transaction."""
    spec = _allowed(user, "alarms", action, parameters)
    author, now_ms = user.get_name(), CLOCK.now_ms()
    with database().session() as session:
        change = silence_change(session, spec.name, parameters, author, now_ms)
        new = NewAction(scope=change.scope, action=spec.name, parameters=parameters, author=author)
        number = record_action(session, new, now_ms)
        end_action(session, number, ActionState.DONE, apply_silence(session, change, now_ms))
    return _recorded(number)


def _allowed(user: Any, subject: str, action: str, parameters: Mapping[str, Any]) -> ActionSpec:
    """Return the spec of an action. Raise an error if the user may not request it or its parameters are wrong."""
    spec = action_on(subject, action)
    check_parameters(spec, parameters)
    service = str(parameters.get("service", ""))
    is_of_one = spec.is_of_service and service != ALL_SERVICES
    require_edit(user, service_dag(service) if is_of_one else ACTIONS_DAG)
    return spec


def _policy_effects(spec: ActionSpec, namespace: str, parameters: Mapping[str, Any]) -> Effects:
    service = str(parameters["service"])
    if parameters.get("pattern"):
        raise UserError(f"a pattern needs a table; leave it out, or change the policy of a table of {namespace}")
    with reading() as session:
        if spec.name == "remove_policy":
            return policy_removal(session, PolicyScope(namespace=namespace), service)
        return namespace_policy_change(session, namespace, service, changed_settings(spec.name, parameters))


def _recorded(number: int) -> JSONResponse:
    with reading() as session:
        return JSONResponse(ActionResult(action=read_action(session, number)).to_mapping())
