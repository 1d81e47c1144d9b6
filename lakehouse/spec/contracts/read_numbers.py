"""Numbers of tables that a page requests because no scheduler pass has polled these tables."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakehouse.spec.contracts.decisions import TableHealth, TablesHealth
from lakehouse.spec.contracts.document import Document

_SAME = ("file_groups", "base_bytes", "log_bytes", "small_files", "pending_plans", "pending_writes", "instants")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadNumbers:
    """The numbers of one table, with the names of the page Fleet.

    They are empty if `error` is set or the table has no commit.
    """

    table: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    error: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadTables(Document):
    """The numbers of some tables, and when they were read."""

    as_of_ms: int
    tables: tuple[ReadNumbers, ...] = ()

    @classmethod
    def of(cls, health: TablesHealth, as_of_ms: int) -> ReadTables:
        """Extract the numbers from the output of `lakehouse services health`."""
        return cls(as_of_ms=as_of_ms, tables=tuple(_numbers(table, as_of_ms) for table in health.tables))


def _numbers(table: TableHealth, as_of_ms: int) -> ReadNumbers:
    if table.error is not None:
        return ReadNumbers(table=table.table, error=table.error)
    lag_s = table.freshness_lag_s
    if lag_s is None and not table.instants:
        return ReadNumbers(table=table.table)
    last = None if lag_s is None else as_of_ms - round(lag_s * 1000)
    return ReadNumbers(table=table.table, numbers={"last_commit_ms": last, **{n: getattr(table, n) for n in _SAME}})
