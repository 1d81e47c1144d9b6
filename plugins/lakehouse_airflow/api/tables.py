"""Endpoints for tables: the page Fleet, and a table with its decisions, policies, timeline and files."""

from __future__ import annotations

import os
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query, Request
from fastapi.responses import JSONResponse

from lakehouse.errors import UserError
from lakehouse.model.timeline_service import TimelineService
from lakehouse.platform.fleet_views.fleet import FleetQuery, fleet_page
from lakehouse.platform.fleet_views.lineage import table_lineage
from lakehouse.platform.fleet_views.names import table_row
from lakehouse.platform.fleet_views.paging import LARGEST_OFFSET, MOST_ROWS, Paging
from lakehouse.platform.fleet_views.policies import table_policy_page
from lakehouse.platform.fleet_views.summary import fleet_summary
from lakehouse.platform.fleet_views.table import table_page, table_runs, why_page
from lakehouse.spec.contracts.catalog import TimelineInstants
from lakehouse.spec.contracts.inspection import InstantDetail, TableFiles, TimelineBars
from lakehouse.spec.contracts.pages import (
    FleetHealth,
    FleetOrder,
    FleetPage,
    FleetSummary,
    TablePage,
    TableRuns,
    WhyPage,
)
from lakehouse.spec.contracts.policies import TablePolicies
from lakehouse.spec.contracts.publication import PublicationStatus
from lakehouse.spec.contracts.table_lineage import TableLineage
from lakehouse.spec.contracts.tables import TableSummary
from lakehouse_airflow.api.access import ACTIONS_DAG, READS, User, may_edit, service_dag
from lakehouse_airflow.api.catalog import answer, reading
from lakehouse_airflow.api.pools import CATALOG, in_pool
from lakehouse_airflow.api.reads import read_command

router = APIRouter(tags=["tables"], dependencies=[READS])
Offset = Annotated[int, Query(ge=0, le=LARGEST_OFFSET, description="Number of rows to skip.")]
InstantState = Literal["requested", "inflight", "completed"]
Limit = Annotated[int, Query(ge=1, le=MOST_ROWS, description="Number of rows of the page.")]


# parameters: the query parameters of the endpoint
@router.get("/tables", responses={200: {"model": FleetPage}}, summary="List tables with their health")
@in_pool(CATALOG)
def list_tables(
    request: Request,
    user: User,
    search: str = "",
    namespace: str = "",
    health: FleetHealth | None = None,
    order: FleetOrder = FleetOrder.ATTENTION,
    ascending: bool = False,
    offset: Offset = 0,
    limit: Limit = 50,
) -> Any:
    """Return one page of the tables that match the filters."""
    del user
    query = FleetQuery(
        search=search,
        namespace=namespace,
        health=health,
        order=order,
        ascending=ascending,
        paging=Paging(offset=offset, limit=limit),
    )
    return answer(request, lambda session, now_ms: fleet_page(session, query, now_ms))


@router.get("/summary", responses={200: {"model": FleetSummary}}, summary="Return totals over all tables")
@in_pool(CATALOG)
def summary(request: Request, user: User) -> JSONResponse:
    """Return the number of tables, problems, runs and due services."""
    del user
    return answer(request, fleet_summary)


@router.get("/tables/{table}", responses={200: {"model": TablePage}}, summary="Return one table")
@in_pool(CATALOG)
def one_table(request: Request, table: str, user: User) -> JSONResponse:
    """Return state, services, spec versions and growth of a table."""
    del user
    return answer(request, lambda session, now_ms: table_page(session, table, now_ms))


@router.get("/permissions", summary="Return the permissions of the user")
@in_pool(CATALOG)
def permissions(user: User) -> JSONResponse:
    """Return whether the user may act on tables and alarms, and on services."""
    return JSONResponse(_permissions(user))


@router.get("/tables/{table}/permissions", summary="Return the permissions of the user on a table")
@in_pool(CATALOG)
def table_permissions(table: str, user: User) -> JSONResponse:
    """Return whether the user may act on the table, and on its services."""
    del table
    return JSONResponse(_permissions(user))


def _permissions(user: User) -> dict[str, bool]:
    dags = {"table": ACTIONS_DAG, "services": service_dag("compaction")}
    return {name: may_edit(user, dag) for name, dag in dags.items()}


@router.get("/tables/{table}/runs", responses={200: {"model": TableRuns}}, summary="Return the runs on a table")
@in_pool(CATALOG)
def runs(request: Request, table: str, user: User) -> JSONResponse:
    """Return the newest runs of all services on a table."""
    del user
    return answer(request, lambda session, now_ms: table_runs(session, table, now_ms))


@router.get(
    "/tables/{table}/lineage",
    responses={200: {"model": TableLineage}},
    summary="Return sources, derived tables and publications of a table",
)
@in_pool(CATALOG)
def lineage(request: Request, table: str, user: User) -> JSONResponse:
    """Return the lineage that the catalog's specs declare: the sources of a table, and the tables derived from it."""
    del user
    return answer(request, lambda session, now_ms: table_lineage(session, table, now_ms, os.environ))


@router.get(
    "/tables/{table}/services/{service}/decisions",
    responses={200: {"model": WhyPage}},
    summary="Return the decisions and runs of a service of a table",
)
@in_pool(CATALOG)
def decisions(request: Request, table: str, service: str, user: User) -> JSONResponse:
    """Return the decisions on a service of a table with their reasons, the newest first."""
    del user
    return answer(request, lambda session, now_ms: why_page(session, table, service, now_ms))


@router.get(
    "/tables/{table}/policies",
    responses={200: {"model": TablePolicies}},
    summary="Return the settings of services and the place that declares each",
)
@in_pool(CATALOG)
def policies(request: Request, table: str, user: User, partition: str | None = None) -> JSONResponse:
    """Return each setting of each service, and the default, namespace, spec, table or pattern that sets it."""
    del user
    return answer(request, lambda session, _: table_policy_page(session, table, partition))


@router.get(
    "/tables/{table}/description",
    responses={200: {"model": TableSummary}},
    summary="Return schema, partitions, plans, savepoints and commits of a table",
)
async def description(table: str, user: User) -> JSONResponse:
    """Read the table from storage; the answer contains the time of the read."""
    return await _read(user, table, "table", "describe")


@router.get(
    "/tables/{table}/timeline", responses={200: {"model": TimelineBars}}, summary="Return the timeline of a table"
)
async def timeline(table: str, user: User, archived: bool = False) -> JSONResponse:
    """Return the instants of the active timeline or of the archive, as columns."""
    return await _read(user, table, "timeline", "bars", *(["--archived"] if archived else []))


# parameters: the query parameters of the endpoint
@router.get(
    "/tables/{table}/instants",
    responses={200: {"model": TimelineInstants}},
    summary="Return the newest instants of a table that match, with rows, files, bytes and writer of each",
)
async def instants(
    table: str,
    user: User,
    service: Annotated[list[TimelineService] | None, Query(description="Services, or `write`.")] = None,
    state: Annotated[list[InstantState] | None, Query(description="States.")] = None,
    since_ms: Annotated[int | None, Query(ge=0, description="First requested time in UTC milliseconds.")] = None,
    until_ms: Annotated[int | None, Query(ge=0, description="Last requested time in UTC milliseconds.")] = None,
    partition: Annotated[str | None, Query(description="Only writes to this partition.")] = None,
    archived: bool = False,
    limit: Limit = 50,
) -> JSONResponse:
    """Read the newest instants of the active timeline or of the archive, oldest first."""
    words = [f"--service={name}" for name in service or ()] + [f"--state={name}" for name in state or ()]
    words += [f"--{name}={_time(ms)}" for name, ms in (("since", since_ms), ("until", until_ms)) if ms is not None]
    words += [] if partition is None else [f"--partition={partition}"]
    return await _read(
        user, table, "timeline", "show", *words, *(["--archived"] if archived else []), f"--limit={limit}"
    )


def _time(ms: int) -> str:
    """Format a time as the value of a flag. Times outside of the calendar are refused, as by the command."""
    try:
        return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%dT%H:%M:%S.") + f"{ms % 1000:03d}"
    except (OverflowError, ValueError, OSError):
        raise UserError(f"{ms} is not a time in UTC milliseconds; give one between 1970 and 9999") from None


@router.get(
    "/tables/{table}/timeline/{instant}",
    responses={200: {"model": InstantDetail}},
    summary="Return one instant with its decoded plan or commit",
)
async def one_instant(table: str, instant: str, user: User) -> JSONResponse:
    """Read one instant of the active timeline."""
    return await _read(user, table, "timeline", "instant", f"--instant={instant}")


@router.get("/tables/{table}/files", responses={200: {"model": TableFiles}}, summary="Return file groups of a table")
async def files(
    table: str, user: User, partition: str | None = None, offset: Offset = 0, limit: Limit = 100
) -> JSONResponse:
    """Return one page of the file groups, the largest first, and a histogram of base-file sizes."""
    only = [] if partition is None else [f"--partition={partition}"]
    return await _read(user, table, "table", "files", *only, f"--offset={offset}", f"--limit={limit}")


@router.get(
    "/tables/{table}/publication",
    responses={200: {"model": PublicationStatus}},
    summary="Return the state of the published partitions of a table",
)
async def publication(table: str, user: User) -> JSONResponse:
    """Return version, lag and visibility of each partition of the publication."""
    # This read waits for the metastore, so it must not delay reads of the table itself.
    return await _read(user, table, "publish", "status", process="publication")


async def _read(user: Any, table: str, *words: str, process: str = "") -> JSONResponse:
    """Run a command on a table of the catalog. A path is refused, because it could read other storage.

    Commands on one table with the same `process` run in the same reader process.
    """

    def check() -> None:
        with reading() as session:
            table_row(session, table)

    words = (*words, f"--table={table}", "--output=json")
    return JSONResponse(await read_command(user.get_name(), f"{table} {process}".strip(), words, check))
