"""Describe stages of work on a table for observers of progress."""

from __future__ import annotations

from collections.abc import Sequence

from lakehouse.core.engine.progress import Stage
from lakehouse.core.operations.load.table import LoadedTable


def stage_of(
    table: LoadedTable, name: str, unit: str, sizes: Sequence[int], *, units: Sequence[int] | None = None
) -> Stage:
    """Return the stage of tasks with these sizes in bytes; each task has one unit, or as many as `units` says."""
    total = len(sizes) if units is None else sum(units)
    return Stage(name=name, table=table.config.name, unit=unit, total=total, total_bytes=sum(sizes))
