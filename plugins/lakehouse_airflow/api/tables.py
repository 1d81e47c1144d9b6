"""Endpoints of the tables: the page Fleet and its summary."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from lakehouse.platform.fleet_views.fleet import FleetQuery, fleet_page
from lakehouse.platform.fleet_views.paging import MOST_ROWS, Paging
from lakehouse.platform.fleet_views.summary import fleet_summary
from lakehouse.spec.contracts.pages import FleetHealth, FleetOrder, FleetPage, FleetSummary
from lakehouse_airflow.api.access import READS
from lakehouse_airflow.api.catalog import answer

router = APIRouter(tags=["tables"], dependencies=[READS])
Offset = Annotated[int, Query(ge=0, description="Number of rows to skip.")]
Limit = Annotated[int, Query(ge=1, le=MOST_ROWS, description="Number of rows of the page.")]


# parameters: the query parameters of the endpoint
@router.get("/tables", responses={200: {"model": FleetPage}}, summary="List tables with their health")
def list_tables(
    request: Request,
    search: str = "",
    namespace: str = "",
    health: FleetHealth | None = None,
    order: FleetOrder = FleetOrder.ATTENTION,
    ascending: bool = False,
    offset: Offset = 0,
    limit: Limit = 50,
) -> Any:
    """Return one page of the tables that match."""
    query = FleetQuery(
        search=search,
        namespace=namespace,
        health=health,
        order=order,
        ascending=ascending,
        paging=Paging(offset=offset, limit=limit),
    )
    return answer(request, lambda session, now_ms: fleet_page(session, query, now_ms))


@router.get("/summary", responses={200: {"model": FleetSummary}}, summary="Return numbers over all tables")
def summary(request: Request) -> JSONResponse:
    """Return the number of tables, problems, runs and due services."""
    return answer(request, fleet_summary)
