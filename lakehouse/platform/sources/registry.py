"""The source kinds. To add a source, add its reader here and its settings in `lakehouse.spec.sources.ingest`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from lakehouse.platform.sources.custom import check_custom_source, open_custom_source
from lakehouse.platform.sources.databases.check import check_database_source
from lakehouse.platform.sources.files.file_check import check_files_source
from lakehouse.platform.sources.files.file_source import open_files_source
from lakehouse.platform.sources.kafka.kafka_source import check_kafka_source, open_kafka_source
from lakehouse.platform.sources.source import Interval, Source
from lakehouse.platform.sources.source_context import SourceContext, ingest_of
from lakehouse.platform.sources.tables.table_source import check_tables_source, open_tables_source
from lakehouse.spec.sources.custom_source import CustomSourceSpec
from lakehouse.spec.sources.file_source import FileSourceSpec
from lakehouse.spec.sources.kafka_source import KafkaSourceSpec
from lakehouse.spec.sources.mysql_source import MysqlSourceSpec
from lakehouse.spec.sources.postgres_source import PostgresSourceSpec
from lakehouse.spec.sources.table_source import TableSourceSpec
from lakehouse.spec.table.table_spec import TableSpec

#: Functions that open a source, by the `KIND` of its settings. Databases are not included: a spec may contain many
#: database tables, whose log is read once (`lakehouse.platform.ingest.databases`).
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
