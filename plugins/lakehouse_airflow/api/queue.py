"""Endpoints for the pages Queue, Alarms and Fleet scan."""

from __future__ import annotations

import os
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from lakehouse.platform.alarms.describe import rules_page
from lakehouse.platform.alarms.parse import load_rules
from lakehouse.platform.fleet_views.alarms import AlarmQuery, alarms_page
from lakehouse.platform.fleet_views.paging import LARGEST_OFFSET, MOST_ROWS, Paging
from lakehouse.platform.fleet_views.queue import QueueQuery, queue_page
from lakehouse.platform.fleet_views.scans import ScanQuery, scan_page
from lakehouse.spec.contracts.fleet_scan import ScanPage, TableKind
from lakehouse.spec.contracts.pages import AlarmsPage, QueuePage, QueueSection, RulesPage
from lakehouse.spec.table.alarm_file import alarm_file
from lakehouse_airflow.api.access import READS, User
from lakehouse_airflow.api.catalog import answer
from lakehouse_airflow.api.pools import CATALOG, in_pool

router = APIRouter(tags=["queue"], dependencies=[READS])
Offset = Annotated[int, Query(ge=0, le=LARGEST_OFFSET, description="Number of rows to skip.")]
Limit = Annotated[int, Query(ge=1, le=MOST_ROWS, description="Number of rows of the page.")]


# parameters: the query parameters of the endpoint
@router.get("/queue", responses={200: {"model": QueuePage}}, summary="List due services, active runs or ended runs")
@in_pool(CATALOG)
def queue(
    request: Request,
    user: User,
    section: QueueSection = QueueSection.DUE,
    search: str = "",
    service: str = "",
    offset: Offset = 0,
    limit: Limit = 50,
) -> Any:
    """Return one page of a section of the queue."""
    del user
    query = QueueQuery(section=section, search=search, service=service, paging=Paging(offset=offset, limit=limit))
    return answer(request, lambda session, now_ms: queue_page(session, query, now_ms))


# parameters: the query parameters of the endpoint
@router.get("/scans", responses={200: {"model": ScanPage}}, summary="List scans of places and the tables of one scan")
@in_pool(CATALOG)
def scans(
    request: Request,
    user: User,
    place: str = "",
    search: str = "",
    kind: TableKind | None = None,
    offset: Offset = 0,
    limit: Limit = 50,
) -> Any:
    """Return one page of the tables that `lakehouse fleet scan` found below a place, by default the newest one."""
    del user
    query = ScanQuery(place=place, search=search, kind=kind, paging=Paging(offset=offset, limit=limit))
    return answer(request, lambda session, now_ms: scan_page(session, query, now_ms))


@router.get("/alarms/rules", responses={200: {"model": RulesPage}}, summary="List the rules of alarms and health")
@in_pool(CATALOG)
def alarm_rules(user: User) -> JSONResponse:
    """Return the effective rules with their limits, as declared in the API server's environment."""
    del user
    path = alarm_file(os.environ)
    return JSONResponse(rules_page(load_rules(os.environ), "" if path is None else str(path)).to_mapping())


# parameters: the query parameters of the endpoint
@router.get("/alarms", responses={200: {"model": AlarmsPage}}, summary="List alarms")
@in_pool(CATALOG)
def alarms(
    request: Request, user: User, resolved: bool = False, search: str = "", offset: Offset = 0, limit: Limit = 50
) -> JSONResponse:
    """Return one page of open or resolved alarms, and the active silences."""
    del user
    query = AlarmQuery(resolved=resolved, search=search, paging=Paging(offset=offset, limit=limit))
    return answer(request, lambda session, now_ms: alarms_page(session, query, now_ms))
