"""Checks the permissions of the Airflow user for the endpoints of the REST API."""

from __future__ import annotations

from typing import Annotated, Any
from urllib.parse import urlsplit

from airflow.api_fastapi.app import get_auth_manager
from airflow.api_fastapi.auth.managers.models.resource_details import DagDetails
from airflow.api_fastapi.core_api.security import GetUserDep, requires_access_dag
from airflow.configuration import conf
from airflow.models import DagModel
from fastapi import Depends, HTTPException, Request

from lakehouse.spec.table.services import VERSION_CHANGES
from lakehouse_airflow.dags_actions import DAG_ID

#: The DAG that runs user actions. Permission to edit this DAG is the permission to act on tables.
ACTIONS_DAG = DAG_ID
_PORTS = {"http": 80, "https": 443}

#: FastAPI dependency of endpoints that only read: requires permission to read DAGs.
READS = Depends(requires_access_dag(method="GET"))
User = GetUserDep


def service_dag(service: str) -> str:
    """Return the id of the DAG that a user must be allowed to edit for an action on a service."""
    return ACTIONS_DAG if service in VERSION_CHANGES else f"services.{service}"


def require_edit(user: Any, dag_id: str) -> None:
    """Raise HTTPException 403 if the user may not edit a DAG."""
    if not may_edit(user, dag_id):
        raise HTTPException(403, f"this needs the permission to edit the DAG {dag_id}; ask an administrator")


def may_edit(user: Any, dag_id: str) -> bool:
    """Return whether the user may edit a DAG."""
    return _may(user, "PUT", dag_id)


def may_read(user: Any, dag_id: str) -> bool:
    """Return whether the user may read a DAG."""
    return _may(user, "GET", dag_id)


def _may(user: Any, method: Any, dag_id: str) -> bool:
    details = DagDetails(id=dag_id, team_name=DagModel.get_team_name(dag_id))
    return bool(get_auth_manager().is_authorized_dag(method=method, details=details, user=user))


def acting_user(request: Request, user: GetUserDep) -> Any:
    """Return the user of a request that changes state. Raise HTTPException 403 if another site sent the request.

    A browser also sends the session cookie with requests from other sites. Such a request has a foreign `Origin`.
    """
    by_header = request.headers.get("authorization", "").lower().startswith("bearer ")
    if not by_header and not _is_own(request):
        raise HTTPException(403, "a change needs the header Authorization, or an Origin of this site")
    return user


ActingUser = Annotated[Any, Depends(acting_user)]


def _is_own(request: Request) -> bool:
    """Return whether a page of this site sent the request.

    Pages cannot set `Sec-Fetch-Site`, which browsers send over HTTPS. Without it the origin is compared with the host
    that the browser requested. A proxy forwards it as `Host` or `X-Forwarded-Host`, usually without a default port; a
    page of another site cannot set the latter, because the server would have to allow it first.
    """
    site = request.headers.get("sec-fetch-site", "")
    if site in ("same-origin", "same-site", "cross-site"):
        return bool(site == "same-origin")
    origin = request.headers.get("origin", "")
    scheme, base_url = origin.partition("://")[0], conf.get("api", "base_url", fallback="")
    hosts = [request.headers.get("host", ""), request.headers.get("x-forwarded-host", "").partition(",")[0].strip()]
    own = {_place(f"{scheme}://{host}") for host in hosts if host} | {_place(base_url)}
    return _place(origin) is not None and _place(origin) in own


def _place(url: str) -> tuple[str, int | None] | None:
    """Return host and port of a URL. Return None if the host is missing or the port is invalid."""
    try:
        parts = urlsplit(url)
        return None if not parts.hostname else (parts.hostname, parts.port or _PORTS.get(parts.scheme))
    except ValueError:
        return None
