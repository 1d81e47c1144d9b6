"""Fill a catalog with tables, states, decisions, runs and alarms by its ORM classes, without any table files."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy.orm import Session

from lakehouse.platform.catalog.models import NamespaceRow, SpecRow, TablePointRow, TableRow, TableStateRow

HOUR_MS = 3_600_000


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetTable:
    """A table with its state. `growth` are its bytes in the last hours, the newest last."""

    name: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    severity: int = 0
    problems: tuple[Mapping[str, Any], ...] = ()
    error: str | None = None
    looked: bool = True
    growth: tuple[int, ...] = ()
    location: str = ""
    spec: Mapping[str, Any] = field(default_factory=dict)


def add_table(session: Session, table: FleetTable, now_ms: int) -> int:
    """Add a table with its namespace, spec and state; return its id."""
    namespace, _, name = table.name.rpartition(".")
    if session.get(NamespaceRow, namespace) is None:
        session.add(NamespaceRow(name=namespace, properties={}, created_ms=now_ms))
        session.flush()
    location = table.location or f"/lake/{namespace}/{name}"
    row = TableRow(namespace=namespace, name=name, location=location, spec_version=1, created_ms=now_ms)
    session.add(row)
    session.flush()
    document = {"table": table.name, "location": location, "type": "MERGE_ON_READ", "record_key": "id", **table.spec}
    session.add(SpecRow(table_id=row.id, version=1, document=document, author="ada", source="", created_ms=now_ms))
    session.add(
        TableStateRow(
            table_id=row.id,
            changed_ms=now_ms,
            looked_ms=now_ms if table.looked else 0,
            severity=table.severity,
            numbers=dict(table.numbers),
            problems=[dict(problem) for problem in table.problems],
            error=table.error,
        )
    )
    hour = now_ms // HOUR_MS * HOUR_MS
    for age, size in enumerate(reversed(table.growth)):
        session.add(TablePointRow(table_id=row.id, hour_ms=hour - age * HOUR_MS, numbers={"base_bytes": size}))
    return row.id


def numbers(now_ms: int, **changed: Any) -> dict[str, Any]:
    """Return the numbers of a usual table, with changes."""
    usual = {
        "last_commit_ms": now_ms - 120_000,
        "file_groups": 64,
        "files": 128,
        "base_bytes": 3_100_000_000,
        "log_bytes": 38_000_000,
        "small_files": 5,
        "partitions": 12,
        "pending_plans": 0,
        "failed_plans": 0,
        "pending_writes": 0,
        "instants": 40,
    }
    return {**usual, **changed}
