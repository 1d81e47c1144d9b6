"""Lineage of jobs: datasets of sources, tables and publications, and column lineage.

A service and a publication copy columns, and so does an ingestion without `select` and `transform`. For a
transform or `select`, the sources follow from the query (`lakehouse.platform.ingest.lineage`). A column with unknown
sources contains the reason. Dataset names follow OpenLineage.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError
from lakehouse.model.publication import PublishedPartition
from lakehouse.spec.contracts.job import JobStatus, ReportT, ServiceReport
from lakehouse.spec.contracts.lineage import (
    JobLineage,
    LineageColumn,
    LineageDataset,
    LineageField,
    LineageStatistics,
    is_lineage_wanted,
)
from lakehouse.spec.secrets import connection_fields
from lakehouse.spec.sources.ingest import IngestSpec
from lakehouse.spec.sources.transform import BATCH
from lakehouse.spec.table.location import resolve
from lakehouse.spec.table.table_spec import TableSpec

logger = logging.getLogger(__name__)

#: Maximum number of columns in a report, because it is an XCom value.
_MOST_COLUMNS = 1000
_NAME = re.compile(r"[A-Za-z_]\w*")
_PATTERN = re.compile(r"[{*?\[]")


def with_lineage(report: ReportT, lineage: Callable[[], JobLineage]) -> ReportT:
    """Return the report of a commit with its lineage; a failure to find the lineage never fails the job."""
    if not is_lineage_wanted() or report.status is not JobStatus.COMMITTED:
        return report
    try:
        return replace(report, lineage=lineage())
    except Exception as error:
        # The commit is complete; an error here must not fail the job.
        logger.warning("%s: the lineage cannot be determined: %s: %s", report.table, type(error).__name__, error)
        return replace(report, lineage=None)


def ingest_lineage(
    spec: TableSpec, table: Table, environ: Mapping[str, str], made: JobLineage | None = None
) -> JobLineage:
    """Return the lineage of an ingestion into a table.

    Args:
        spec: The spec of the table.
        table: The table after the commit.
        environ: Environment variables, for locations and connections.
        made: The columns that the transform or `select` derived from views; None if unknown, or without either.
    """
    assert spec.ingest is not None, "an ingestion has a section `ingest`"
    inputs = source_datasets(spec.ingest, environ)
    if made is None:
        return JobLineage(inputs=inputs, outputs=(_copied(spec.ingest, table_dataset(table, spec.table), inputs),))
    views = _view_datasets(spec.ingest, inputs, environ)
    (query,) = made.outputs
    plain = table_dataset(table, spec.table)
    made_columns = {column.name.lower(): column for column in query.columns}
    columns = tuple(_made(column, made_columns, views) for column in plain.columns)
    influences = _at_datasets(query.influences, views) or ()
    inputs = tuple({(one.namespace, one.name): one for some in (inputs, *views.values()) for one in some}.values())
    return JobLineage(inputs=inputs, outputs=(replace(plain, columns=columns, influences=influences),))


def _copied(ingest: IngestSpec, plain: LineageDataset, inputs: Iterable[LineageDataset]) -> LineageDataset:
    """Return the table with the sources of the columns that an ingestion copies; others are unknown."""
    copied = _copied_columns(ingest)
    columns = tuple(
        replace(column, sources=tuple(_field(one, column.name) for one in inputs))
        if copied is None or column.name in copied
        else replace(column, unknown="the expression was not analysed")
        for column in plain.columns
    )
    return replace(plain, columns=columns)


def _made(
    column: LineageColumn, made_columns: Mapping[str, LineageColumn], views: Mapping[str, Sequence[LineageDataset]]
) -> LineageColumn:
    """Return a table column with its sources in the query; `*` contains the reason for all columns."""
    made = made_columns.get("*") or made_columns.get(column.name.lower())
    if made is None:
        return replace(column, unknown="the run did not write the column")
    sources = _at_datasets(made.sources, views)
    if sources is None:
        return replace(column, unknown="a view of the query has no dataset")
    return replace(column, sources=sources, unknown=made.unknown)


def _at_datasets(
    fields: Iterable[LineageField], views: Mapping[str, Sequence[LineageDataset]]
) -> tuple[LineageField, ...] | None:
    """Map fields of views to the datasets that the views read; return None if a view has no dataset."""
    fields = tuple(fields)
    if any(not views.get(field.name) for field in fields):
        return None
    return tuple(
        replace(field, namespace=one.namespace, name=one.name) for field in fields for one in views[field.name]
    )


def _view_datasets(
    ingest: IngestSpec, inputs: Sequence[LineageDataset], environ: Mapping[str, str]
) -> Mapping[str, Sequence[LineageDataset]]:
    """Return the datasets of each view that a transform can use."""
    source: Any = ingest.source
    if source.KIND != "table":
        return {BATCH: inputs}
    return {
        view: (LineageDataset(namespace=namespace, name=name),)
        for view, (namespace, name) in _table_names(source, environ).items()
    }


def service_lineage(table: Table, name: str) -> JobLineage:
    """Return the lineage of a service: it writes the rows of the table again."""
    plain = table_dataset(table, name)
    written = table_dataset(table, name, lambda column: (_field(plain, column),))
    return JobLineage(inputs=(plain,), outputs=(written,))


def named(report: ServiceReport, table: str) -> ServiceReport:
    """Return a report whose lineage contains the full name of the table in the catalog."""
    if report.lineage is None:
        return report
    inputs, outputs = report.lineage.inputs, report.lineage.outputs
    renamed = [tuple(replace(one, table=table) if one.table else one for one in some) for some in (inputs, outputs)]
    return replace(report, lineage=JobLineage(inputs=renamed[0], outputs=renamed[1]))


def publication_lineage(
    table: Table, name: str, metastore: str, target: str, published: Iterable[PublishedPartition]
) -> JobLineage:
    """Return the lineage of a publication in the metastore `metastore` as `target`, `database.table`.

    `published` are the partitions that the run changed. A publication usually refers to existing files of the table, so
    the statistics describe these files; their rows are not counted.
    """
    plain = table_dataset(table, name)
    partitions = tuple(published)
    statistics = LineageStatistics(
        files=sum(one.files for one in partitions), bytes=sum(one.size_bytes for one in partitions)
    )
    columns = tuple(replace(column, sources=(_field(plain, column.name),)) for column in plain.columns)
    uri = metastore.replace("thrift://", "hive://")
    return JobLineage(
        inputs=(plain,),
        outputs=(LineageDataset(namespace=uri, name=target, table=name, columns=columns, statistics=statistics),),
    )


def table_dataset(
    table: Table, name: str, sources: Callable[[str], tuple[LineageField, ...]] = lambda column: ()
) -> LineageDataset:
    """Return the dataset of a table; `sources` returns the source fields of a column."""
    namespace, path = dataset_name(table.location)
    fields = list(table.schema)[:_MOST_COLUMNS]
    columns = tuple(LineageColumn(name=f.name, type=str(f.type), sources=sources(f.name)) for f in fields)
    return LineageDataset(namespace=namespace, name=path, table=name, columns=columns)


def dataset_name(location: str) -> tuple[str, str]:
    """Return the namespace and the name of a location: `s3://lake` and `sales/orders`, or `file` and a path."""
    url = urlsplit(location)
    if url.scheme in ("", "file"):
        return "file", url.path if url.scheme else os.path.abspath(location)
    return f"{url.scheme}://{url.netloc}", url.path.strip("/")


def source_datasets(ingest: IngestSpec, environ: Mapping[str, str]) -> tuple[LineageDataset, ...]:
    """Return the datasets of a source; for a kind without a naming, the description is the name."""
    source: Any = ingest.source
    named = _NAMED.get(source.KIND)
    if named is None:
        return (LineageDataset(namespace=source.KIND, name=source.description),)
    return tuple(LineageDataset(namespace=namespace, name=name) for namespace, name in named(source, environ))


def _files(source: Any, environ: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    # The folder before the first pattern or the first field of the interval.
    parts = source.path.split("/")
    folder = next((parts[:number] for number, part in enumerate(parts) if _PATTERN.search(part)), parts)
    yield dataset_name(resolve("/".join(folder), environ, name="path").rstrip("/"))


def _kafka(source: Any, environ: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    yield f"kafka://{_address(source.connection, environ)}", source.topic


def _database(source: Any, environ: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    namespace = f"{source.KIND}://{_address(source.connection, environ)}"
    return ((namespace, table) for table in source.database.tables)


def _tables(source: Any, environ: Mapping[str, str]) -> Iterable[tuple[str, str]]:
    return _table_names(source, environ).values()


def _table_names(source: Any, environ: Mapping[str, str]) -> Mapping[str, tuple[str, str]]:
    """Return the dataset of each view with its name from `table_dataset`, so that chains of tables are connected."""
    locations = {**source.tables, **source.join}
    return {view: dataset_name(resolve(text, environ, name=view)) for view, text in locations.items()}


_NAMED: Mapping[str, Callable[[Any, Mapping[str, str]], Iterable[tuple[str, str]]]] = MappingProxyType(
    {"files": _files, "kafka": _kafka, "mysql": _database, "postgres": _database, "table": _tables}
)


def _address(connection_id: str, environ: Mapping[str, str]) -> str:
    """Return host and port of a connection; its id if it has no host."""
    try:
        fields = connection_fields(connection_id, environ, name="connection")
    except LakehouseError:
        return connection_id
    servers = str(fields.extra.get("bootstrap.servers", "")).partition(",")[0]
    port = f":{fields.port}" if fields.port else ""
    return servers or (f"{fields.host}{port}" if fields.host else connection_id)


def _copied_columns(ingest: IngestSpec) -> Sequence[str] | None:
    """Return the columns that an ingestion copies from its source; None means all columns."""
    if ingest.transform is not None:
        return ()
    if not ingest.select or "*" in ingest.select:
        return None
    return [text for text in map(str.strip, ingest.select) if _NAME.fullmatch(text)]


def _field(dataset: LineageDataset, column: str) -> LineageField:
    return LineageField(namespace=dataset.namespace, name=dataset.name, field=column)
