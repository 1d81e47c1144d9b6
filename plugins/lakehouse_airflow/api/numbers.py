"""Endpoint for table numbers such as size, for tables that no scheduler pass has inspected yet.

One process reads all tables of a request, without Spark; see `lakehouse_airflow.api.reads` for its limits.
"""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse

from lakehouse.platform.fleet_views.names import table_row
from lakehouse.spec.contracts.decisions import TablesHealth
from lakehouse.spec.contracts.read_numbers import ReadTables
from lakehouse_airflow.api.access import READS, User
from lakehouse_airflow.api.catalog import reading
from lakehouse_airflow.api.reads import read_command

router = APIRouter(tags=["tables"], dependencies=[READS])
#: Maximum number of tables per request. The process must end within the time limit of a read.
MOST_TABLES = 10
Tables = Annotated[
    list[str], Query(min_length=1, max_length=MOST_TABLES, description="Table as namespace.name; repeatable.")
]


@router.get("/numbers", responses={200: {"model": ReadTables}}, summary="Read numbers from tables")
async def numbers(user: User, table: Tables) -> JSONResponse:
    """Read files, bytes, small files and newest commit of up to 10 tables from storage instead of the catalog."""
    names = sorted(set(table))

    def check() -> None:
        # Names are checked, because a path instead of a name would read other storage.
        with reading() as session:
            for name in names:
                table_row(session, name)

    words = ["services", "health", *(f"--table={name}" for name in names), "--output=json"]
    document: dict[str, Any] = await read_command(user.get_name(), "numbers of tables", words, check)
    as_of_ms = int(document.pop("as_of_ms"))
    return JSONResponse(ReadTables.of(TablesHealth.from_mapping(document), as_of_ms).to_mapping())
