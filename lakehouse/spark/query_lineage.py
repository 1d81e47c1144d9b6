"""Column lineage of the query or the expressions of an ingestion, without rows.

The query is analysed again over empty views with the columns of the real ones. The plan then contains only the query,
whatever the source reads, and its leaves are the views. Spark returns it as one JSON string; no job runs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from lakehouse.spark.plan_lineage import PlanLineage, plan_lineage
from lakehouse.spark.sources import Frame, Schema, Session
from lakehouse.spark.transforms import run_query, selected_columns


def query_lineage(session: Session, sql: str, views: Mapping[str, Schema]) -> PlanLineage:
    """Return the lineage of a query over views with these columns; raise NotUnderstoodError if it is unknown."""
    return _lineage(session, views, lambda frames: run_query(sql, frames))


def select_lineage(session: Session, select: Sequence[str], view: str, schema: Schema) -> PlanLineage:
    """Return the lineage of SQL expressions over a view; raise NotUnderstoodError if it is unknown."""
    # The view is read by its name, so that the plan contains it.
    whole = f"SELECT * FROM {view}"
    return _lineage(session, {view: schema}, lambda frames: selected_columns(run_query(whole, frames), select))


def _lineage(
    session: Session, views: Mapping[str, Schema], make: Callable[[Mapping[str, Frame]], Frame]
) -> PlanLineage:
    frames = {name: session.createDataFrame([], schema) for name, schema in views.items()}
    return plan_lineage(make(frames)._jdf.queryExecution().analyzed().toJSON(), tuple(views))
