"""End an ingestion that has nothing to read before a Spark session starts.

A session costs 10 seconds and the memory of a JVM. A source's plan needs no session: it lists files, loads timelines or
looks up offsets. The report is the same as from a complete run, so its asset events, its catalog record and its data
interval do not depend on where the run ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import cast

from lakehouse.core.system.clock import SystemClock
from lakehouse.platform.ingest.run import idle_report, ingest_context
from lakehouse.platform.sources.custom import plans_without_spark
from lakehouse.platform.sources.registry import SOURCES
from lakehouse.platform.sources.source_context import SourceContext, ingest_of
from lakehouse.spark.sources import Session
from lakehouse.spec.contracts.job import IngestReport
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.sources.custom_source import CustomSourceSpec
from lakehouse.spec.table.location import location_of
from lakehouse.spec.table.table_spec import TableSpec

#: Sources use the session in `read`, which is not called here.
_NO_SESSION = cast(Session, None)


def end_if_idle(
    spec: TableSpec, command: IngestCommand, *, environ: Mapping[str, str], storage_options: Mapping[str, str]
) -> IngestReport | None:
    """Return the report if an ingestion has nothing to read, or None if it has to start Spark.

    An ingestion from a database always starts Spark: None. So does a custom source, unless its class sets
    `plans_without_spark`.

    Args:
        spec: The spec of the table.
        command: The command with the data interval and the run id.
        environ: Environment variables: values of `${VAR}` in the spec, and connections.
        storage_options: Options of the storage, such as `spark.hadoop.fs.*`.

    Raises:
        UserError: The source does not fit its settings or the data interval.
        SourceMissingError: Expected data has not arrived, and the setting is to wait.
        RetryableError: The storage or the source does not answer.
    """
    placed = replace(spec, location=location_of(spec, environ))
    if ingest_of(placed).source.KIND not in SOURCES:
        return None
    if ingest_of(placed).source.KIND == CustomSourceSpec.KIND and not plans_without_spark(placed, environ):
        return None
    clock = SystemClock()
    started_ms = clock.now_ms()
    context = SourceContext(session=_NO_SESSION, spec=placed, environ=environ, storage_options=storage_options)
    run = ingest_context(context, command, SOURCES[ingest_of(placed).source.KIND](context))
    report = idle_report(run)
    if report is None:
        return None
    return replace(report, interval=command.interval_name, seconds=(clock.now_ms() - started_ms) / 1000)
