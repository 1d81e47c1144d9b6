"""The page of metrics."""

from __future__ import annotations

from docs.generators.markdown import code, page, table
from lakehouse.platform.services.metrics import METRICS

_INTRO = """\
Jobs and `lakehouse services` send metrics to an OpenTelemetry collector if `OTEL_EXPORTER_OTLP_ENDPOINT` is set, and
`lakehouse-tables[metrics]` is installed. Without it nothing is measured. A collector that is not available is a
warning in the log and never fails a run."""


def metrics_page() -> str:
    """Return the page with all metrics."""
    rows = [
        (
            code(metric.full_name),
            metric.kind,
            code(metric.unit),
            ", ".join(map(code, metric.attributes)),
            metric.text,
            ", ".join(map(code, metric.prometheus_names)),
        )
        for metric in METRICS
    ]
    return page(
        "Metrics",
        "lakehouse/platform/services/metrics.py",
        _INTRO,
        table(("metric", "kind", "unit", "attributes", "meaning", "in Prometheus"), rows),
    )
