"""The short representations of a table, its scans and its services; they send no request."""

from __future__ import annotations

from lakehouse.core.operations.load.schema import known_schema
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.queries import (
    SNAPSHOT,
    Changes,
    CompletedUpTo,
    EventTimeTravel,
    Incremental,
    Query,
    ReadOptimized,
    ScanRequest,
    TimeTravel,
    Version,
)
from lakehouse.model.display import Shown, count_text, sentence, some


def shown_table(table: LoadedTable) -> Shown:
    """Return name, type and location of a table, and its columns if its schema is already loaded."""
    config, schema = table.config, known_schema(table)
    columns = "" if schema is None else count_text(len(schema), "column")
    line = sentence(config.table_type.lower(), columns, f"at {table.env.storage.root}")
    newest = table.timeline.writes().by_completion()[-1:]
    facts = {
        "type": config.table_type.lower(),
        "table_version": config.version,
        "location": table.env.storage.root,
        "record_key": some(config.keys.record_key_fields, 10),
        "partitioned_by": some(config.keys.partition_fields, 10) or None,
        "newest_loaded_commit": newest[0].requested if newest else None,
    }
    rows = [] if schema is None else [{"column": field.name, "type": str(field.type)} for field in schema]
    return Shown(f"Table {config.name} ({line})", facts, rows)


def shown_scan(table: LoadedTable, request: ScanRequest) -> Shown:
    """Return the kind of a scan, its version, columns and condition."""
    columns = "" if request.columns is None else f"columns {some(request.columns, 5)}"
    where = "" if request.where is None else f"where {request.where}"
    kind, version = _query_text(request.query)
    line = sentence(f"{kind} of {table.config.name}", version, columns, where)
    facts = {"location": table.env.storage.root, "columns": columns.removeprefix("columns ") or "all"}
    return Shown(line, {**facts, "version": version or None, "where": where.removeprefix("where ") or None})


def shown_service(table: LoadedTable, name: str, verbs: tuple[str, ...]) -> Shown:
    """Return the name of a service, its table and its verbs."""
    facts = {"location": table.env.storage.root, "verbs": ", ".join(verbs)}
    return Shown(f"{name} of {table.config.name}: {', '.join(verbs)}", facts)


def _query_text(query: Query) -> tuple[str, str]:
    """Return the kind of a query, and its version or range."""
    if isinstance(query, Incremental | Changes):
        kind = "incremental scan" if isinstance(query, Incremental) else "change scan"
        if query.begin is None:
            return kind, "the last commit"
        return kind, f"commits after {query.begin}{f' up to {query.end}' if query.end else ''}"
    if isinstance(query, ReadOptimized):
        return "scan", sentence("base files only", _version_text(query.version))
    return "scan", _version_text(query)


def _version_text(version: Version) -> str:
    if isinstance(version, TimeTravel):
        return f"as of {version.instant}"
    if isinstance(version, CompletedUpTo):
        return f"writes completed up to {version.completion}"
    if isinstance(version, EventTimeTravel):
        return f"as of event time {version.event_time}"
    assert version == SNAPSHOT
    return ""
