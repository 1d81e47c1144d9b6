"""Reports datasets, columns and statistics of jobs to OpenLineage, through Airflow's OpenLineage provider.

The provider is optional. If it is missing or has no transport, jobs report no lineage. After a task, the provider's
listener calls the operator's `get_openlineage_facets_on_complete` and adds the facets of the DAG run.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from importlib import import_module
from importlib.util import find_spec
from typing import Any

from lakehouse.spec.contracts.job import JobReport, PublicationReport
from lakehouse.spec.contracts.lineage import (
    LINEAGE,
    LineageColumn,
    LineageDataset,
    LineageField,
    LineageKind,
    LineageStatistics,
)

_FACETS = "openlineage.client.generated"
_NOTHING = LineageStatistics(files=0, bytes=0, rows=0)


class LineageMixin:
    """Mixin that adds the OpenLineage method to an operator with the attribute `job_reports`."""

    job_reports: tuple[JobReport, ...] = ()

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the lineage of the task's jobs for the provider's listener."""
        del task_instance
        return operator_lineage(self.job_reports)


def lineage_variables(environ: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return the variable that makes jobs report lineage.

    The result is empty if the provider is missing or disabled.
    """
    if environ.get(LINEAGE) or find_spec("airflow.providers.openlineage") is None:
        return {}
    # The provider is an optional extra.
    return {} if import_module("airflow.providers.openlineage.conf").is_disabled() else {LINEAGE: "true"}


def operator_lineage(reports: Iterable[JobReport]) -> Any:
    """Build the provider's `OperatorLineage` from job reports; several jobs are merged.

    It is empty if no job has lineage.
    """
    of_operator = import_module("airflow.providers.openlineage.extractors").OperatorLineage
    parts = [part for report in reports for part in (report.parts or (report,)) if part.lineage is not None]
    if not parts:
        return of_operator()
    inputs = {_key(one): one for part in parts for one in _lineage(part).inputs}
    return of_operator(
        inputs=[_dataset(one, _client().InputDataset) for one in inputs.values()],
        outputs=[_output(one, part) for part in parts for one in _lineage(part).outputs],
        job_facets={
            "jobType": _facet("job_type_job", "JobTypeJobFacet")(
                processingType="BATCH", integration="LAKEHOUSE", jobType="JOB"
            )
        },
    )


def _lineage(report: JobReport) -> Any:
    return report.lineage


def _key(dataset: LineageDataset) -> tuple[str, str]:
    return dataset.namespace, dataset.name


def _client() -> Any:
    return import_module("openlineage.client.event_v2")


def _facet(module: str, name: str) -> Any:
    return getattr(import_module(f"{_FACETS}.{module}"), name)


def _dataset(dataset: LineageDataset, kind: Any, **more: Any) -> Any:
    facets = dict(more.pop("facets", {}))
    if dataset.columns:
        field = _facet("schema_dataset", "SchemaDatasetFacetFields")
        fields = [field(name=column.name, type=column.type) for column in dataset.columns]
        facets["schema"] = _facet("schema_dataset", "SchemaDatasetFacet")(fields=fields)
    if dataset.table:
        identifier = _facet("symlinks_dataset", "Identifier")(namespace="lakehouse", name=dataset.table, type="TABLE")
        facets["symlinks"] = _facet("symlinks_dataset", "SymlinksDatasetFacet")(identifiers=[identifier])
    return kind(namespace=dataset.namespace, name=dataset.name, facets=facets, **more)


def _output(dataset: LineageDataset, report: JobReport) -> Any:
    facets: dict[str, Any] = {}
    # A column without an entry has unknown sources. A constant column has an entry with no input fields.
    sources = {column.name: _sources(column) for column in dataset.columns if not column.unknown}
    if sources or dataset.influences:
        facets["columnLineage"] = _facet("column_lineage_dataset", "ColumnLineageDatasetFacet")(
            fields=sources, dataset=_input_fields(dataset.influences)
        )
    if report.instant is not None:
        version = _facet("dataset_version_dataset", "DatasetVersionDatasetFacet")
        facets["version"] = version(datasetVersion=report.instant)
    statistics = _facet("output_statistics_output_dataset", "OutputStatisticsOutputDatasetFacet")
    numbers = dataset.statistics or (_NOTHING if isinstance(report, PublicationReport) else report)
    facet = statistics(rowCount=numbers.rows, size=numbers.bytes, fileCount=numbers.files)
    # The OpenLineage client uses this name for output facets.
    return _dataset(dataset, _client().OutputDataset, facets=facets, outputFacets={"outputStatistics": facet})


def _sources(column: LineageColumn) -> Any:
    fields = _input_fields(column.sources)
    is_copied = bool(column.sources) and all(one.kind is LineageKind.IDENTITY for one in column.sources)
    if not is_copied:
        return _facet("column_lineage_dataset", "Fields")(inputFields=fields)
    return _facet("column_lineage_dataset", "Fields")(
        inputFields=fields, transformationType="IDENTITY", transformationDescription="the value is copied"
    )


def _input_fields(sources: Iterable[LineageField]) -> list[Any]:
    """Return one input field per source column, with all kinds of its use."""
    kinds: dict[tuple[str, str, str], list[LineageKind]] = {}
    for one in sources:
        kinds.setdefault((one.namespace, one.name, one.field), []).append(one.kind)
    field = _facet("column_lineage_dataset", "InputField")
    return [
        field(namespace=namespace, name=name, field=column, transformations=[_transformation(kind) for kind in some])
        for (namespace, name, column), some in kinds.items()
    ]


def _transformation(kind: LineageKind) -> Any:
    made = _facet("column_lineage_dataset", "Transformation")
    return made(type="DIRECT" if kind.is_direct else "INDIRECT", subtype=kind.value)
