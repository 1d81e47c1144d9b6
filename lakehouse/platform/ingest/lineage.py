"""Column lineage from an ingestion's views to its rows, for the commit report.

The lineage refers to views; `lakehouse.platform.jobs.lineage` resolves them to datasets. It is computed after the
commit, once per run and only if requested. It never fails an ingestion: a column with unknown sources contains the
reason.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from lakehouse.platform.sources.source import Batch
from lakehouse.spark.plan_lineage import NotUnderstoodError, Origin, PlanLineage
from lakehouse.spark.query_lineage import query_lineage, select_lineage
from lakehouse.spark.sources import Schema
from lakehouse.spec.contracts.lineage import VIEWS, JobLineage, LineageColumn, LineageDataset, LineageField
from lakehouse.spec.sources.ingest import IngestSpec
from lakehouse.spec.sources.table_source import CDC, CHANGE_TYPE, COMMIT_TIME, TableSourceSpec
from lakehouse.spec.sources.transform import BATCH

logger = logging.getLogger(__name__)


def view_lineage(section: IngestSpec, batch: Batch) -> JobLineage | None:
    """Return the columns that a transform or `select` derives from views; None if the ingestion has neither.

    Args:
        section: The section `ingest` of the spec.
        batch: The batch that the source read, before the transform.
    """
    if section.transform is None and not section.select:
        return None
    try:
        return _named(_analysed(section, batch), _marks(section))
    except NotUnderstoodError as error:
        return unknown_lineage(str(error))
    except Exception as error:
        # The rows are committed. Spark and py4j raise many exception classes, and none of them may fail the run.
        logger.warning("the column lineage cannot be determined: %s: %s", type(error).__name__, error)
        return unknown_lineage(f"the analysis failed: {type(error).__name__}")


def unknown_lineage(reason: str) -> JobLineage:
    """Return the lineage of a transform whose columns have unknown sources."""
    column = LineageColumn(name="*", type="", unknown=reason)
    return JobLineage(outputs=(LineageDataset(namespace=VIEWS, name="", columns=(column,)),))


def _analysed(section: IngestSpec, batch: Batch) -> PlanLineage:
    session = batch.frame.sparkSession
    if section.transform is None:
        view, schema = _selected_view(batch)
        return select_lineage(session, section.select, view, schema)
    if section.transform.function:
        raise NotUnderstoodError("the transform is a Python function")
    views = {BATCH: batch.frame} if batch.views is None else batch.views.rows
    return query_lineage(session, section.transform.sql, {name: frame.schema for name, frame in views.items()})


def _selected_view(batch: Batch) -> tuple[str, Schema]:
    """Return the view that `select` reads, and its columns."""
    if batch.views is not None:
        name, frame = next(iter(batch.views.rows.items()))
        return name, frame.schema
    if batch.selected_from is None:
        raise NotUnderstoodError("the columns before 'select' are not known")
    return BATCH, batch.selected_from


def _marks(section: IngestSpec) -> frozenset[str]:
    """Return the view columns that are facts about changes instead of table columns."""
    source = section.source
    is_cdc = isinstance(source, TableSourceSpec) and source.changes == CDC
    return frozenset({CHANGE_TYPE, COMMIT_TIME} if is_cdc else ())


def _named(plan: PlanLineage, marks: frozenset[str]) -> JobLineage:
    columns = tuple(
        LineageColumn(name=column.name, type="", sources=_fields(column.origins, marks), unknown=column.unknown)
        for column in plan.columns
    )
    made = LineageDataset(namespace=VIEWS, name="", columns=columns, influences=_fields(plan.influences, marks))
    return JobLineage(outputs=(made,))


def _fields(origins: Iterable[Origin], marks: frozenset[str]) -> tuple[LineageField, ...]:
    """Return origins in a stable order, so that equal runs have equal reports."""
    return tuple(
        LineageField(namespace=VIEWS, name=view, field=column, kind=kind)
        for view, column, kind in sorted(origins)
        if column not in marks
    )
