"""The kinds of sources. To add a source, add its reader here and its settings in `lakehouse.spec.ingest`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lakehouse.platform.sources.custom import check_custom_source, open_custom_source
from lakehouse.platform.sources.databases.check import check_database_source
from lakehouse.platform.sources.file_check import check_files_source
from lakehouse.platform.sources.files import open_files_source
from lakehouse.platform.sources.kafka import check_kafka_source, open_kafka_source
from lakehouse.platform.sources.source import Interval, Source
from lakehouse.platform.sources.source_context import SourceContext, ingest_of
from lakehouse.platform.sources.tables import check_tables_source, open_tables_source
from lakehouse.spec.custom_source import CustomSourceSpec
from lakehouse.spec.file_source import FileSourceSpec
from lakehouse.spec.kafka_source import KafkaSourceSpec
from lakehouse.spec.mysql_source import MysqlSourceSpec
from lakehouse.spec.postgres_source import PostgresSourceSpec
from lakehouse.spec.table import TableSpec
from lakehouse.spec.table_source import TableSourceSpec

#: Functions that open a source, by the `KIND` of its settings. Databases are not among them: a spec may have many of
#: their tables, whose log is read once (`lakehouse.platform.ingest.databases`).
SOURCES: dict[str, Callable[[SourceContext], Source[Any]]] = {
    FileSourceSpec.KIND: open_files_source,
    TableSourceSpec.KIND: open_tables_source,
    KafkaSourceSpec.KIND: open_kafka_source,
    CustomSourceSpec.KIND: open_custom_source,
}
#: Functions that check a source before there is a Spark session, by the `KIND` of its settings. The arguments are the
#: spec, the data interval, the environment variables and the storage options.
CHECKS: dict[str, Callable[[TableSpec, Interval | None, Mapping[str, str], Mapping[str, str]], None]] = {
    FileSourceSpec.KIND: check_files_source,
    TableSourceSpec.KIND: check_tables_source,
    KafkaSourceSpec.KIND: check_kafka_source,
    MysqlSourceSpec.KIND: check_database_source,
    PostgresSourceSpec.KIND: check_database_source,
    CustomSourceSpec.KIND: check_custom_source,
}


def open_source(context: SourceContext) -> Source[Any]:
    """Open the source that a spec declares; raise UserError if the spec declares none."""
    return SOURCES[ingest_of(context.spec).source.KIND](context)
