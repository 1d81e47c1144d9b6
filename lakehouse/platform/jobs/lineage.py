"""Lineage of jobs: datasets of sources, tables and publications, and which columns have the values of which.

Column lineage is stated where it is known: a service and a publication copy columns, and so does an ingestion without
`select` and `transform`. Names follow the naming of OpenLineage.
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
from lakehouse.spec.contracts.job import JobReport, JobStatus
from lakehouse.spec.contracts.lineage import LINEAGE, JobLineage, LineageColumn, LineageDataset, LineageField
from lakehouse.spec.ingest import IngestSpec
from lakehouse.spec.location import resolve
from lakehouse.spec.secrets import connection_fields
from lakehouse.spec.table import TableSpec

logger = logging.getLogger(__name__)

#: A report is an XCom value, so it names at most so many columns.
_MOST_COLUMNS = 1000
_NAME = re.compile(r"[A-Za-z_]\w*")
_PATTERN = re.compile(r"[{*?\[]")


def is_wanted(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether jobs add their lineage to the report."""
    return environ.get(LINEAGE, "").lower() == "true"


def with_lineage(report: JobReport, lineage: Callable[[], JobLineage]) -> JobReport:
    """Return the report of a commit with its lineage; a failure to find the lineage never fails the job."""
    if not is_wanted() or report.status is not JobStatus.COMMITTED:
        return report
    try:
        return replace(report, lineage=lineage())
    except LakehouseError as error:
        logger.warning("%s: the lineage cannot be determined: %s", report.table, error)
        return report


def ingest_lineage(spec: TableSpec, table: Table, environ: Mapping[str, str]) -> JobLineage:
    """Return the lineage of an ingestion into a table."""
    assert spec.ingest is not None, "an ingestion has a section `ingest`"
    inputs = source_datasets(spec.ingest, environ)
    copied = _copied_columns(spec.ingest)

    def sources(column: str) -> tuple[LineageField, ...]:
        is_copied = copied is None or column in copied
        return tuple(_field(one, column) for one in inputs) if is_copied else ()

    return JobLineage(inputs=inputs, outputs=(table_dataset(table, spec.table, sources),))


def service_lineage(table: Table, name: str) -> JobLineage:
    """Return the lineage of a service: it writes the rows of the table again."""
    plain = table_dataset(table, name)
    written = table_dataset(table, name, lambda column: (_field(plain, column),))
    return JobLineage(inputs=(plain,), outputs=(written,))


def named(report: JobReport, table: str) -> JobReport:
    """Return a report whose lineage has the full name of the table in the catalog."""
    if report.lineage is None:
        return report
    inputs, outputs = report.lineage.inputs, report.lineage.outputs
    renamed = [tuple(replace(one, table=table) if one.table else one for one in some) for some in (inputs, outputs)]
    return replace(report, lineage=JobLineage(inputs=renamed[0], outputs=renamed[1]))


def publication_lineage(table: Table, name: str, metastore: str, target: str) -> JobLineage:
    """Return the lineage of a publication in the metastore `metastore` as `target`, `database.table`."""
    plain = table_dataset(table, name)
    columns = tuple(replace(column, sources=(_field(plain, column.name),)) for column in plain.columns)
    uri = metastore.replace("thrift://", "hive://")
    return JobLineage(
        inputs=(plain,), outputs=(LineageDataset(namespace=uri, name=target, table=name, columns=columns),)
    )


def table_dataset(
    table: Table, name: str, sources: Callable[[str], tuple[LineageField, ...]] = lambda column: ()
) -> LineageDataset:
    """Return the dataset of a table; `sources` returns the columns whose values a column has."""
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
    """Return the datasets of a source; those of a kind without naming are its description."""
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
    del environ
    return (("lakehouse", name) if "://" not in name else dataset_name(name) for name in source.tables.values())


_NAMED: Mapping[str, Callable[[Any, Mapping[str, str]], Iterable[tuple[str, str]]]] = MappingProxyType(
    {"files": _files, "kafka": _kafka, "mysql": _database, "postgres": _database, "table": _tables}
)


def _address(connection_id: str, environ: Mapping[str, str]) -> str:
    """Return host and port of a connection; its id if the connection names no host."""
    try:
        fields = connection_fields(connection_id, environ, name="connection")
    except LakehouseError:
        return connection_id
    servers = str(fields.extra.get("bootstrap.servers", "")).partition(",")[0]
    port = f":{fields.port}" if fields.port else ""
    return servers or (f"{fields.host}{port}" if fields.host else connection_id)


def _copied_columns(ingest: IngestSpec) -> Sequence[str] | None:
    """Return the columns that an ingestion copies from its source; None for all."""
    if ingest.transform is not None:
        return ()
    if not ingest.select or "*" in ingest.select:
        return None
    return [text for text in map(str.strip, ingest.select) if _NAME.fullmatch(text)]


def _field(dataset: LineageDataset, column: str) -> LineageField:
    return LineageField(namespace=dataset.namespace, name=dataset.name, field=column)
