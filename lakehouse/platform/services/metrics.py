"""Metrics of tables and runs for OpenTelemetry. The standard OTEL_ environment variables configure the export.

OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318      unset: no metric is measured or sent

lakehouse.table.freshness_lag      s       since the newest commit            table
lakehouse.table.log_bytes          By      waiting for compaction             table
lakehouse.table.small_files        {file}  below the small-file limit         table
lakehouse.table.file_size          By      histogram of newest base files     table
lakehouse.table.pending_plans      {plan}  compactions, clusterings, cleans   table
lakehouse.table.pending_writes     {write} pending or failed                  table
lakehouse.table.instants           {instant} on the active timeline           table
lakehouse.table.rollbacks          {rollback} on the active timeline          table
lakehouse.service.due              1 or 0  the scheduler's decision           table, service
lakehouse.service.runs             {run}   counter                            table, service, state
lakehouse.service.run_seconds      s       histogram                          table, service, state
lakehouse.service.predicted_seconds s      histogram, of the same runs        table, service
lakehouse.commits, .rows, .bytes           counters of what runs committed    table, service
lakehouse.conflicts                {conflict} counter: lost to another writer table, service
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from lakehouse.core.operations.read.health import TableHealth
from lakehouse.errors import UserError
from lakehouse.platform.services.choose import Choice
from lakehouse.spec.contracts.job import JobReport, JobStatus

logger = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
_NAME = "lakehouse"
_MB = 1024 * 1024
_SIZES = tuple(float(size * _MB) for size in (1, 4, 16, 32, 64, 96, 128, 256, 512, 1024))
_SECONDS = (1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
_UNITS = {"freshness_lag": "s", "log_bytes": "By"}


class Metrics:
    """Records metrics with an OpenTelemetry meter; without a meter it does nothing."""

    def __init__(self, meter: Any = None) -> None:
        self._meter = meter
        self._known: dict[str, Any] = {}

    def table(self, name: str, health: TableHealth) -> None:
        """Record the state of a table."""
        labels = {"table": name}
        for what in ("log_bytes", "small_files", "pending_plans", "pending_writes", "instants", "rollbacks"):
            self._gauge(f"table.{what}", getattr(health, what), labels)
        if health.freshness_lag_s is not None:
            self._gauge("table.freshness_lag", health.freshness_lag_s, labels)
        for size in health.file_bytes:
            self._histogram("table.file_size", size, labels, unit="By", bounds=_SIZES)

    def decisions(self, choices: Iterable[Choice]) -> None:
        """Record the decisions of the scheduler."""
        for choice in choices:
            labels = {"table": choice.assessed.table, "service": choice.assessed.service}
            self._gauge("service.due", int(choice.assessed.assessment.due), labels)

    def run(self, service: str, report: JobReport, *, predicted_s: float | None = None) -> None:
        """Record a run of a service, or of ingestion, from its report."""
        labels = {"table": report.table, "service": service}
        self._count("service.runs", 1, {**labels, "state": str(report.status)})
        self._histogram(
            "service.run_seconds", report.seconds, {**labels, "state": str(report.status)}, unit="s", bounds=_SECONDS
        )
        if predicted_s is not None:
            self._histogram("service.predicted_seconds", predicted_s, labels, unit="s", bounds=_SECONDS)
        if report.conflicts:
            self._count("conflicts", report.conflicts, labels)
        if report.status is JobStatus.COMMITTED:
            for what, number in (("commits", 1), ("rows", report.rows), ("bytes", report.bytes)):
                self._count(what, number, labels)

    def _gauge(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        if self._meter is not None:
            unit = _UNITS.get(name.rpartition(".")[2], "1")
            self._instrument(name, lambda full: self._meter.create_gauge(full, unit=unit)).set(value, dict(labels))

    def _count(self, name: str, value: float, labels: Mapping[str, str]) -> None:
        if self._meter is not None:
            self._instrument(name, lambda full: self._meter.create_counter(full, unit="1")).add(value, dict(labels))

    def _histogram(
        self, name: str, value: float, labels: Mapping[str, str], *, unit: str, bounds: tuple[float, ...]
    ) -> None:
        if self._meter is not None:
            self._instrument(
                name,
                lambda full: self._meter.create_histogram(full, unit=unit, explicit_bucket_boundaries_advisory=bounds),
            ).record(value, dict(labels))

    def _instrument(self, name: str, make: Any) -> Any:
        full = f"{_NAME}.{name}"
        if full not in self._known:
            self._known[full] = make(full)
        return self._known[full]


@contextmanager
def metrics(environ: Mapping[str, str] = os.environ) -> Iterator[Metrics]:
    """Yield the metrics of this process, and send them at the end.

    A collector that is not available is logged. Raises UserError if an endpoint is configured but OpenTelemetry is not
    installed.
    """
    if not any(environ.get(name) for name in _ENDPOINTS):
        yield Metrics()
        return
    provider = _provider()
    try:
        yield Metrics(provider.get_meter(_NAME))
    finally:
        provider.shutdown()


def _provider() -> Any:
    # The packages are an optional extra: jobs that send no metrics do not need them.
    try:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter  # noqa: PLC0415
        from opentelemetry.sdk.metrics import MeterProvider  # noqa: PLC0415
        from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader  # noqa: PLC0415
    except ModuleNotFoundError as error:
        raise UserError(
            f"{_ENDPOINTS[0]} asks for metrics, which need the package {error.name!r}: pip install "
            "'lakehouse-tables[metrics]'"
        ) from error
    # A process sends its metrics when it ends. A long process also sends them periodically.
    return MeterProvider(metric_readers=[PeriodicExportingMetricReader(OTLPMetricExporter())])
