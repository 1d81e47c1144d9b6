"""The scan of a reference: version, changes or timeline, with the columns and conditions that a query needs."""

from __future__ import annotations

from dataclasses import replace

import pyarrow as pa

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.operations.read.bounded_query import query_schema
from lakehouse.core.operations.read.cdc import CDC
from lakehouse.core.operations.read.queries import Changes
from lakehouse.core.planning.predicate import check_columns, parse_predicate
from lakehouse.core.table.scan import TableScan
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.sql.engine import QueryEngine
from lakehouse.sql.pushdown import where_text
from lakehouse.sql.references import CHANGES, TIMELINE, QueryReferences, Reference

_MODES = ("latest_state", CDC)


def scan_of(table: Table, reference: Reference) -> TableScan | pa.Table:
    """Return the rows of a reference; raise UserError for wrong arguments of a table function."""
    if reference.function == TIMELINE:
        return timeline_rows(table)
    if reference.function == CHANGES:
        return _changes(table, reference.arguments)
    if reference.version is None:
        return table.scan()
    return table.scan(as_of=reference.version.value)


def timeline_rows(table: Table) -> pa.Table:
    """Return the active timeline, oldest instant first."""
    instants = list(table.timeline)
    return pa.table(
        {
            "instant_time": pa.array([instant.requested for instant in instants], pa.string()),
            "action": pa.array([str(instant.action) for instant in instants], pa.string()),
            "state": pa.array([instant.state.name for instant in instants], pa.string()),
            "completion_time": pa.array([instant.completed for instant in instants], pa.string()),
        }
    )


def narrowed(scan: TableScan, reference: Reference, query: QueryReferences, engine: QueryEngine) -> TableScan:
    """Return a scan with the columns that a statement names, and the conditions that exclude files.

    Without a star the result contains the columns whose names occur anywhere in the statement. `SELECT *` returns the
    data columns; meta columns are part of the result if the statement names them.
    """
    request = scan.request
    if isinstance(request.query, Changes):
        return scan
    # An earlier version has the columns of its time.
    schema = query_schema(scan.table, request.query)
    if schema is None:
        return scan
    named = [name for name in META_COLUMNS if name in query.words]
    data = [name for name in schema.names if query.has_star or engine.prunes or name.lower() in query.words]
    if not named and not data:
        # Generated record keys have no column of their own.
        data = [(*scan.table.config.keys.record_key_fields, META_COLUMNS[2])[0].partition(".")[0]]
    request = replace(request, columns=(*named, *data))
    where = None if engine.prunes else where_text(reference.conditions, schema, is_utc=engine.is_utc)
    if where is not None and _is_valid(where, schema):
        request = replace(request, where=where)
    return replace(scan, request=request)


def _is_valid(where: str, schema: pa.Schema) -> bool:
    """Return whether a scan accepts a condition. It is only for pruning: the engine reports errors of the query."""
    try:
        check_columns(parse_predicate(where), schema)
    except UserError:
        return False
    return True


def _changes(table: Table, arguments: tuple[str, ...]) -> TableScan:
    mode, begin, *end = arguments if len(arguments) in (2, 3) else ("", "")
    if mode not in _MODES:
        raise UserError(
            "hudi_table_changes takes the table, 'latest_state' or 'cdc', the time after which the changes begin or "
            "'earliest', and optionally the last time"
        )
    return table.incremental(begin, end[0] if end else None, format=mode)
