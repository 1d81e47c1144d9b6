"""Metrics of tables and runs for OpenTelemetry. The standard OTEL_ environment variables configure the export.

OTEL_EXPORTER_OTLP_ENDPOINT=http://collector:4318      unset: no metric is measured or sent

`METRICS` declares every metric; a name that is not declared cannot be recorded.
"""

from __future__ import annotations

import logging
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lakehouse.core.operations.read.health import TableHealth
from lakehouse.errors import UserError
from lakehouse.platform.services.choose import Choice
from lakehouse.spec.contracts.fleet import Severity, TableState
from lakehouse.spec.contracts.job import IngestReport, JobStatus, ServiceReport

logger = logging.getLogger(__name__)

_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_METRICS_ENDPOINT")
_NAME = "lakehouse"
_MB = 1024 * 1024
_SIZES = tuple(float(size * _MB) for size in (1, 4, 16, 32, 64, 96, 128, 256, 512, 1024))
_SECONDS = (1.0, 5.0, 15.0, 30.0, 60.0, 300.0, 900.0, 3600.0, 14400.0)
_PROMETHEUS_UNITS = {"s": "seconds", "By": "bytes"}
_TABLE, _SERVICE, _RUN = ("table",), ("table", "service"), ("table", "service", "state")
_SOURCE = ("table", "source", "unit")


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """A declared metric, described by the sentence `text`.

    Attributes:
        name: The name after `lakehouse.`.
        kind: `gauge`, `counter` or `histogram`.
        attributes: Its attributes.
        unit: Unit in UCUM; for a count an annotation in braces, which collectors omit from names.
        bounds: Bucket bounds of a histogram.
    """

    name: str
    kind: str
    text: str
    attributes: tuple[str, ...]
    unit: str = "{count}"
    bounds: tuple[float, ...] = ()

    @property
    def full_name(self) -> str:
        """The name that a collector receives."""
        return f"{_NAME}.{self.name}"

    @property
    def prometheus_names(self) -> tuple[str, ...]:
        """The names of its Prometheus time series, as the OpenTelemetry collector exports them.

        Words are separated by `_`, the unit is appended unless it is a part of the name, and counters end in `_total`.
        """
        words = re.split(r"[^A-Za-z0-9]+", self.full_name)
        unit = _PROMETHEUS_UNITS.get(self.unit, "")
        words += [unit] if unit and unit not in words else []
        words += ["total"] if self.kind == "counter" else []
        name = "_".join(words)
        return tuple(f"{name}_{part}" for part in ("bucket", "sum", "count")) if self.kind == "histogram" else (name,)


#: All metrics, in the order of the documentation.
METRICS = (
    Metric(
        name="table.freshness_lag",
        kind="gauge",
        text="Time since the newest commit.",
        attributes=_TABLE,
        unit="s",
    ),
    Metric(
        name="table.log_bytes",
        kind="gauge",
        text="Size of the log files that wait for compaction.",
        attributes=_TABLE,
        unit="By",
    ),
    Metric(
        name="table.small_files",
        kind="gauge",
        text="Number of base files below the small-file limit.",
        attributes=_TABLE,
    ),
    Metric(
        name="table.file_size",
        kind="histogram",
        text="Sizes of the newest base files.",
        attributes=_TABLE,
        unit="By",
        bounds=_SIZES,
    ),
    Metric(
        name="table.pending_plans",
        kind="gauge",
        text="Pending plans of compaction, clustering, clean and index builds.",
        attributes=_TABLE,
    ),
    Metric(name="table.failed_plans", kind="gauge", text="Pending plans whose executor has ended.", attributes=_TABLE),
    Metric(name="table.files", kind="gauge", text="Newest base files and their log files.", attributes=_TABLE),
    Metric(name="table.base_bytes", kind="gauge", text="Size of the newest base files.", attributes=_TABLE, unit="By"),
    Metric(name="table.metadata_bytes", kind="gauge", text="Size of the metadata table.", attributes=_TABLE, unit="By"),
    Metric(
        name="table.severity",
        kind="gauge",
        text="Severity of the worst problem: 0 none, 1 info, 2 warning, 3 critical.",
        attributes=_TABLE,
    ),
    Metric(name="table.pending_writes", kind="gauge", text="Pending and failed writes.", attributes=_TABLE),
    Metric(name="table.instants", kind="gauge", text="Instants on the active timeline.", attributes=_TABLE),
    Metric(name="table.rollbacks", kind="gauge", text="Rollbacks on the active timeline.", attributes=_TABLE),
    Metric(
        name="source.lag",
        kind="gauge",
        text="Number of units of a source, such as offsets or files, that are not in a commit after a run.",
        attributes=_SOURCE,
    ),
    Metric(
        name="source.lag_seconds",
        kind="gauge",
        text="Age of the newest record that was read, if units are left.",
        attributes=_SOURCE,
        unit="s",
    ),
    Metric(
        name="service.due",
        kind="gauge",
        text="Decision of the scheduler: 1 if the service is due, else 0.",
        attributes=_SERVICE,
    ),
    Metric(
        name="alarms.open",
        kind="gauge",
        text="Open alarms by rule and severity: info, warning or critical.",
        attributes=("rule", "severity"),
    ),
    Metric(name="service.runs", kind="counter", text="Runs by their outcome.", attributes=_RUN),
    Metric(
        name="service.run_seconds",
        kind="histogram",
        text="Durations of runs.",
        attributes=_RUN,
        unit="s",
        bounds=_SECONDS,
    ),
    Metric(
        name="service.predicted_seconds",
        kind="histogram",
        text="Durations that the scheduler predicted for the same runs.",
        attributes=_SERVICE,
        unit="s",
        bounds=_SECONDS,
    ),
    Metric(name="commits", kind="counter", text="Commits of runs.", attributes=_SERVICE),
    Metric(name="rows", kind="counter", text="Rows that these commits wrote.", attributes=_SERVICE),
    Metric(name="bytes", kind="counter", text="Bytes that these commits wrote.", attributes=_SERVICE),
    Metric(
        name="conflicts",
        kind="counter",
        text="Retries of runs after a conflict with another writer.",
        attributes=_SERVICE,
    ),
    Metric(
        name="plans_dropped",
        kind="counter",
        text="Plans that a service dropped, for example because a write changed their file groups.",
        attributes=_SERVICE,
    ),
    Metric(
        name="lineage_unknown",
        kind="counter",
        text="Columns of commits whose source columns are unknown, if lineage is reported.",
        attributes=_SERVICE,
    ),
)
_BY_NAME = {metric.name: metric for metric in METRICS}


class Metrics:
    """Records metrics with an OpenTelemetry meter; without a meter it does nothing."""

    def __init__(self, meter: Any = None) -> None:
        self._meter = meter
        self._known: dict[str, Any] = {}

    @property
    def is_active(self) -> bool:
        """Whether metrics are sent."""
        return self._meter is not None

    def table(self, name: str, health: TableHealth) -> None:
        """Record the numbers of a table that was just read."""
        for what in ("log_bytes", "small_files", "pending_plans", "pending_writes", "instants", "rollbacks"):
            self._record(f"table.{what}", getattr(health, what), table=name)
        if health.freshness_lag_s is not None:
            self._record("table.freshness_lag", health.freshness_lag_s, table=name)
        self.file_sizes(name, health)

    def file_sizes(self, name: str, health: TableHealth) -> None:
        """Record the sizes of the newest base files in a table that was just read."""
        for size in health.file_bytes:
            self._record("table.file_size", size, table=name)

    def states(self, states: Mapping[str, TableState], now_ms: int) -> None:
        """Record the stored numbers and the worst problem of tables, by full name."""
        for name, state in states.items():
            numbers = state.numbers
            for what in (
                "log_bytes",
                "small_files",
                "pending_plans",
                "failed_plans",
                "files",
                "base_bytes",
                "metadata_bytes",
                "pending_writes",
                "instants",
                "rollbacks",
            ):
                value = getattr(numbers, what)
                if value is not None:
                    self._record(f"table.{what}", value, table=name)
            if numbers.last_commit_ms is not None:
                self._record("table.freshness_lag", max(0, now_ms - numbers.last_commit_ms) / 1000, table=name)
            self._record("table.severity", state.severity, table=name)

    def alarms(self, counts: Mapping[tuple[str, Severity], int], rules: Iterable[str]) -> None:
        """Record the open alarms by rule and severity; `rules` without alarms are recorded as zero."""
        for rule in sorted({*rules, *(rule for rule, _ in counts)}):
            for severity in Severity:
                self._record("alarms.open", counts.get((rule, severity), 0), rule=rule, severity=severity.name.lower())

    def decisions(self, choices: Iterable[Choice]) -> None:
        """Record the decisions of the scheduler."""
        for choice in choices:
            assessed = choice.assessed
            self._record("service.due", int(assessed.assessment.due), table=assessed.table, service=assessed.service)

    def run(self, service: str, report: IngestReport | ServiceReport, *, predicted_s: float | None = None) -> None:
        """Record a run of a service, or of ingestion, from its report."""
        labels = {"table": report.table, "service": service}
        state = "waiting" if report.error is not None and report.error.is_wait else str(report.status)
        self._record("service.runs", 1, **labels, state=state)
        self._record("service.run_seconds", report.seconds, **labels, state=state)
        if predicted_s is not None:
            self._record("service.predicted_seconds", predicted_s, **labels)
        if isinstance(report, IngestReport) and report.conflicts:
            self._record("conflicts", report.conflicts, **labels)
        if isinstance(report, ServiceReport) and report.plans_dropped:
            self._record("plans_dropped", report.plans_dropped, **labels)
        unknown = 0 if report.lineage is None else report.lineage.unknown_columns
        if unknown:
            self._record("lineage_unknown", unknown, **labels)
        for lag in report.lag if isinstance(report, IngestReport) else ():
            of_source = {"table": report.table, "source": lag.source, "unit": lag.unit}
            self._record("source.lag", lag.left, **of_source)
            if lag.seconds is not None:
                self._record("source.lag_seconds", lag.seconds, **of_source)
        if report.status is JobStatus.COMMITTED:
            for what, number in (("commits", 1), ("rows", report.rows), ("bytes", report.bytes)):
                self._record(what, number, **labels)

    def _record(self, name: str, value: float, **attributes: str) -> None:
        metric = _BY_NAME[name]
        assert set(attributes) == set(metric.attributes), f"{name} has the attributes {metric.attributes}"
        if self._meter is None:
            return
        if name not in self._known:
            self._known[name] = _instrument(self._meter, metric)
        verb = {"gauge": "set", "counter": "add", "histogram": "record"}[metric.kind]
        getattr(self._known[name], verb)(value, attributes)


def _instrument(meter: Any, metric: Metric) -> Any:
    if metric.kind == "histogram":
        return meter.create_histogram(
            metric.full_name,
            unit=metric.unit,
            description=metric.text,
            explicit_bucket_boundaries_advisory=metric.bounds,
        )
    create = meter.create_gauge if metric.kind == "gauge" else meter.create_counter
    return create(metric.full_name, unit=metric.unit, description=metric.text)


@contextmanager
def metrics(environ: Mapping[str, str] = os.environ) -> Iterator[Metrics]:
    """Yield the metrics of this process, and send them at the end.

    An unavailable collector is logged. Raises UserError if an endpoint is configured but OpenTelemetry is not
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
    # A process sends its metrics when it ends, and a long process also periodically.
    return MeterProvider(metric_readers=[PeriodicExportingMetricReader(OTLPMetricExporter())])
