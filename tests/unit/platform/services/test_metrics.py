"""Metrics that a collector receives over OTLP."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest

from lakehouse import Table, load_catalog
from lakehouse.cli.main import main
from lakehouse.platform.services.metrics import metrics
from lakehouse.spec.contracts.job import IngestReport, JobStatus, SourceLag


class Collector:
    """Stores the requests of OTLP exporters."""

    def __init__(self) -> None:
        self.bodies: list[bytes] = []
        collector = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                collector.bodies.append(self.rfile.read(int(self.headers["Content-Length"])))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                return None

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    def found(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Return the values by metric name and labels; the value of a histogram is its sum."""
        named: dict[str, dict[tuple[str, ...], float]] = {}
        requests = [ExportMetricsServiceRequest.FromString(body) for body in self.bodies]
        scopes = [scope for request in requests for found in request.resource_metrics for scope in found.scope_metrics]
        for metric in (metric for scope in scopes for metric in scope.metrics):
            kind = metric.WhichOneof("data")
            for point in getattr(metric, kind).data_points:
                labels = tuple(sorted(f"{label.key}={label.value.string_value}" for label in point.attributes))
                value = point.sum if kind == "histogram" else point.as_int or point.as_double
                named.setdefault(metric.name, {})[labels] = value
        return named


@pytest.fixture
def collector(monkeypatch: pytest.MonkeyPatch) -> Iterator[Collector]:
    running = Collector()
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", f"http://127.0.0.1:{running.server.server_address[1]}")
    yield running
    running.server.shutdown()
    running.server.server_close()


def test_metrics_contain_tables_decisions_and_runs(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    table = Table.create(str(tmp_path / "t"), name="t", record_key=["id"], table_type="MERGE_ON_READ")
    for value in range(6):
        table.upsert(pa.table({"id": ["a"], "v": [value]}))
    table.services.create_index("v")
    logs = sum(path.stat().st_size for path in (tmp_path / "t").glob(".*.log.*"))
    with load_catalog() as catalog:
        catalog.register_table("sales.t", str(tmp_path / "t"))
    for words in (
        "services health",
        "services due --service compaction",
        "compaction run --table sales.t",
        "index run --table sales.t",
    ):
        assert main(words.split()) == 0, capsys.readouterr().err
    found = collector.found()
    mine = ("table=sales.t",)
    assert found["lakehouse.table.log_bytes"][mine] == logs > 0
    assert found["lakehouse.table.small_files"][mine] == 1
    assert found["lakehouse.table.pending_plans"][mine] == 0
    assert 0 <= found["lakehouse.table.freshness_lag"][mine] < 600
    assert found["lakehouse.service.due"][("service=compaction", *mine)] == 1
    ran = ("service=compaction", "state=committed", *mine)
    assert found["lakehouse.service.runs"][ran] == 1
    assert found["lakehouse.service.run_seconds"][ran] > 0
    assert found["lakehouse.service.predicted_seconds"][("service=compaction", *mine)] >= 10
    assert found["lakehouse.commits"][("service=compaction", *mine)] == 1
    assert found["lakehouse.service.runs"][("service=index", "state=committed", *mine)] == 1
    assert found["lakehouse.commits"][("service=index", *mine)] == 1
    assert found["lakehouse.rows"][("service=index", *mine)] == 2, "a location, and an entry of the secondary index"


def test_metrics_count_conflicts(collector: Collector) -> None:
    with metrics() as measures:
        measures.run("ingest", IngestReport(status=JobStatus.COMMITTED, table="t", conflicts=3))
    assert collector.found()["lakehouse.conflicts"][("service=ingest", "table=t")] == 3


def test_metrics_contain_the_lag_of_each_source(collector: Collector) -> None:
    lag = (
        SourceLag(source="kafka:orders", unit="offsets", left=7, seconds=2.5),
        SourceLag(source="files:landing", unit="files", left=3),
    )
    with metrics() as measures:
        measures.run("ingest", IngestReport(status=JobStatus.COMMITTED, table="t", lag=lag))
    found = collector.found()
    topic, landing = (
        ("source=kafka:orders", "table=t", "unit=offsets"),
        ("source=files:landing", "table=t", "unit=files"),
    )
    assert found["lakehouse.source.lag"] == {topic: 7, landing: 3}
    assert found["lakehouse.source.lag_seconds"] == {topic: 2.5}


def test_unreachable_collector_does_not_stop_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "1")
    with metrics() as measures:
        measures.run("ingest", IngestReport(status=JobStatus.COMMITTED, table="t"))


def test_no_metrics_are_sent_without_an_endpoint(collector: Collector) -> None:
    with metrics({}) as measures:
        measures.run("ingest", IngestReport(status=JobStatus.COMMITTED, table="t"))
    assert collector.bodies == []
