"""Endpoints of the pages Queue and Alarms."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from lakehouse.platform.fleet_views.alarms import AlarmQuery, alarms_page
from lakehouse.platform.fleet_views.paging import MOST_ROWS, Paging
from lakehouse.platform.fleet_views.queue import QueueQuery, queue_page
from lakehouse.spec.contracts.pages import AlarmsPage, QueuePage, QueueSection
from lakehouse_airflow.api.access import READS
from lakehouse_airflow.api.catalog import answer

router = APIRouter(tags=["queue"], dependencies=[READS])
Offset = Annotated[int, Query(ge=0, description="Number of rows to skip.")]
Limit = Annotated[int, Query(ge=1, le=MOST_ROWS, description="Number of rows of the page.")]


# parameters: the query parameters of the endpoint
@router.get("/queue", responses={200: {"model": QueuePage}}, summary="List due services, active runs or ended runs")
def queue(
    request: Request,
    section: QueueSection = QueueSection.DUE,
    search: str = "",
    service: str = "",
    offset: Offset = 0,
    limit: Limit = 50,
) -> Any:
    """Return one page of a section of the queue."""
    query = QueueQuery(section=section, search=search, service=service, paging=Paging(offset=offset, limit=limit))
    return answer(request, lambda session, now_ms: queue_page(session, query, now_ms))


@router.get("/alarms", responses={200: {"model": AlarmsPage}}, summary="List alarms")
def alarms(
    request: Request, resolved: bool = False, search: str = "", offset: Offset = 0, limit: Limit = 50
) -> JSONResponse:
    """Return one page of open or resolved alarms, and the silences in force."""
    query = AlarmQuery(resolved=resolved, search=search, paging=Paging(offset=offset, limit=limit))
    return answer(request, lambda session, now_ms: alarms_page(session, query, now_ms))
