"""Errors of single tables in the tasks of a run. The run goes on with its other tables, and each error has a way past.

A table whose log has an event that cannot be applied keeps its position, so every run reads the event again. A new
snapshot of the table begins at the end of the log, behind the event.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from lakehouse import errors
from lakehouse.errors import CorruptLogError, LakehouseError, UserError


def tables_of(error: LakehouseError, names: Collection[str]) -> tuple[str, ...]:
    """Return the tables that an error concerns, of these names; empty if it concerns the run as a whole."""
    if not isinstance(error, UserError | CorruptLogError):
        return ()
    return tuple(name for name in error.facts.get("tables", ()) if name in names)


def failure_report(error: LakehouseError, table: str, *, is_of_log: bool) -> dict[str, str]:
    """Return the error of a table as a task reports it; one of the log says how the table gets past the event."""
    message = error.message.rstrip(". ")
    if is_of_log:
        places = "; ".join(getattr(error, "__notes__", ()))
        message = (
            f"{message}{f' ({places})' if places else ''}. Then read the table again with --resnapshot {table}, which "
            "begins at the end of the log, behind this event"
        )
    return {"table": table, "kind": type(error).__name__, "message": message}


def reported_failure(report: dict[str, Any]) -> LakehouseError:
    """Return the error that a task reported."""
    kind = getattr(errors, str(report["kind"]))
    error: LakehouseError = kind(str(report["message"]), table=str(report["table"]))
    return error
