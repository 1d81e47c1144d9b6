"""OpenLineage events of an ingestion, a service and a publication, received from a real run of a DAG."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pytest

from lakehouse.spec.contracts.job import IngestReport, JobStatus, parse_report, without_lineage
from lakehouse.spec.contracts.lineage import (
    LINEAGE,
    JobLineage,
    LineageColumn,
    LineageDataset,
    LineageField,
    LineageKind,
)
from lakehouse_airflow import lineage
from tests.airflow.publishing import Shop

SPEC = """
table: sales.orders
location: {place}/orders
record_key: id
ordering: at
partition_by: day
options: {{hoodie.payload.event.time.field: at}}
ingest:
  source: files
  path: {place}/landing/orders
  select: [id, day, "cast(at as timestamp) as at", "cast(v as int) as v"]
services:
  publish: {{database: traced, ready: signal}}
"""
DAG = """
from datetime import datetime
from airflow.sdk import DAG
from lakehouse_airflow.operators import LakehouseOperator
from lakehouse_airflow.publish import PublishPartitionsOperator
from lakehouse_airflow.services import ServiceOperator

SPEC = "{spec}"
with DAG("lineage", schedule=None, start_date=datetime(2026, 1, 1)):
    ingest = LakehouseOperator(task_id="ingest", verb="ingest", action="run", table=SPEC)
    sorted_by = {{"hoodie.clustering.plan.strategy.sort.columns": "v"}}
    service = ServiceOperator(
        task_id="clustering", service="clustering", table="sales.orders", force=True, options=sorted_by
    )
    publish = PublishPartitionsOperator(task_id="publish", table=SPEC, partitions=["day=1"], force=True)
    ingest >> service >> publish
"""


class Receiver:
    """Stores the events that the OpenLineage client posts."""

    def __init__(self) -> None:
        self.events: list[dict[str, Any]] = []
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                receiver.events.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
                self.send_response(200)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                return None

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.server.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server.server_address[1]}"


@pytest.fixture(scope="module")
def completed(shop: Shop, database: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Any]]:
    """Run the DAG in a process with the provider's transport; return the COMPLETE event of each task."""
    place, receiver = shop.place, Receiver()
    (place / "landing" / "orders").mkdir(parents=True)
    rows = [{"id": f"k{n}", "day": "1", "at": f"2026-01-01T00:00:0{n}", "v": n} for n in range(3)]
    (place / "landing" / "orders" / "a.json").write_text("\n".join(map(json.dumps, rows)))
    spec = place / "specs" / "orders.yaml"
    spec.write_text(SPEC.format(place=place), encoding="utf-8")
    dags = tmp_path_factory.mktemp("dags")
    (dags / "lineage.py").write_text(DAG.format(spec=spec), encoding="utf-8")
    environ = {
        **os.environ,
        **shop.environment(),
        "AIRFLOW__CORE__DAGS_FOLDER": str(dags),
        "AIRFLOW__OPENLINEAGE__TRANSPORT": json.dumps({"type": "http", "url": receiver.url}),
        "AIRFLOW__OPENLINEAGE__NAMESPACE": "test",
    }
    command = [sys.executable, "-m", "airflow", "dags", "test", "lineage"]
    done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False, timeout=400)
    receiver.server.shutdown()
    receiver.server.server_close()
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-5000:]
    ended = [event for event in receiver.events if event["eventType"] == "COMPLETE"]
    found = {event["job"]["name"]: event for event in ended}
    assert {"lineage.ingest", "lineage.clustering", "lineage.publish"} <= found.keys(), done.stdout[-5000:]
    yield {name.removeprefix("lineage."): event for name, event in found.items()}


def columns_of(dataset: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    fields = dataset["facets"]["columnLineage"]["fields"]
    return {name: [(one["name"], one["field"]) for one in f["inputFields"]] for name, f in fields.items()}


def kinds_of(dataset: dict[str, Any]) -> dict[str, list[tuple[str, str]]]:
    fields = dataset["facets"]["columnLineage"]["fields"]
    return {
        name: [(one["type"], one["subtype"]) for source in f["inputFields"] for one in source["transformations"]]
        for name, f in fields.items()
    }


@pytest.mark.parametrize("job", ["ingest", "clustering", "publish"])
def test_each_event_has_an_output_dataset_with_schema_and_statistics(job: str, completed: dict[str, Any]) -> None:
    (output,) = completed[job]["outputs"]
    assert output["namespace"] and output["name"]
    assert [(field["name"], bool(field["type"])) for field in output["facets"]["schema"]["fields"]] == [
        (name, True) for name in ("id", "day", "at", "v")
    ]
    statistics = output["outputFacets"]["outputStatistics"]
    assert min(statistics["size"], statistics["fileCount"]) > 0, statistics
    # A publication names files and counts no rows.
    assert ("rowCount" in statistics) is (job != "publish") and statistics.get("rowCount", 3) == 3


def test_event_of_an_ingestion_has_datasets_columns_and_statistics(completed: dict[str, Any], shop: Shop) -> None:
    event = completed["ingest"]
    (source,), (table,) = event["inputs"], event["outputs"]
    assert (source["namespace"], source["name"]) == ("file", f"{shop.place}/landing/orders")
    assert (table["namespace"], table["name"]) == ("file", f"{shop.place}/orders")
    assert [field["name"] for field in table["facets"]["schema"]["fields"]] == ["id", "day", "at", "v"]
    assert table["facets"]["symlinks"]["identifiers"][0]["name"] == "sales.orders"
    assert columns_of(table) == {name: [(source["name"], name)] for name in ("id", "day", "at", "v")}
    subtypes = {"id": "IDENTITY", "day": "IDENTITY", "at": "TRANSFORMATION", "v": "TRANSFORMATION"}
    assert kinds_of(table) == {name: [("DIRECT", subtype)] for name, subtype in subtypes.items()}
    statistics = table["outputFacets"]["outputStatistics"]
    assert statistics["rowCount"] == 3 and statistics["fileCount"] == 1 and statistics["size"] > 0
    assert table["facets"]["version"]["datasetVersion"]
    assert event["job"]["namespace"] == "test" and event["job"]["facets"]["jobType"]["integration"]
    assert event["run"]["facets"]["parent"]["job"]["name"] == "lineage"


def test_event_of_a_service_has_the_table_as_input_and_output(completed: dict[str, Any], shop: Shop) -> None:
    event = completed["clustering"]
    (before,), (after,) = event["inputs"], event["outputs"]
    assert before["name"] == after["name"] == f"{shop.place}/orders"
    assert columns_of(after)["id"] == [(before["name"], "id")]
    assert after["outputFacets"]["outputStatistics"]["fileCount"] == 1
    assert after["facets"]["symlinks"]["identifiers"][0]["name"] == "sales.orders"


def test_event_of_a_publication_has_the_table_of_the_metastore_as_output(completed: dict[str, Any], shop: Shop) -> None:
    event = completed["publish"]
    (table,), (published,) = event["inputs"], event["outputs"]
    assert table["name"] == f"{shop.place}/orders"
    assert (published["namespace"], published["name"]) == (shop.uri.replace("thrift", "hive"), "traced.orders")
    assert columns_of(published)["v"] == [(table["name"], "v")]


def reported() -> IngestReport:
    source = LineageDataset(namespace="kafka://broker:9092", name="orders")
    field = LineageField(namespace=source.namespace, name=source.name, field="id")
    column = LineageColumn(name="id", type="string", sources=(field,))
    table = LineageDataset(namespace="s3://lake", name="sales/orders", table="sales.orders", columns=(column,))
    found = JobLineage(inputs=(source,), outputs=(table,))
    return IngestReport(status=JobStatus.COMMITTED, table="sales.orders", rows=3, lineage=found)


def test_report_with_lineage_survives_its_json_and_the_value_of_the_task_has_none() -> None:
    report = reported()
    assert parse_report(report.to_json()) == report
    assert without_lineage(report).lineage is None


def test_facet_has_the_kinds_of_sources_and_leaves_out_unknown_columns() -> None:
    def source(column: str, kind: LineageKind) -> LineageField:
        return LineageField(namespace="s3://lake", name="raw", field=column, kind=kind)

    columns = (
        LineageColumn(name="id", type="string", sources=(source("id", LineageKind.IDENTITY),)),
        LineageColumn(
            name="total",
            type="int",
            sources=(source("v", LineageKind.AGGREGATION), source("v", LineageKind.CONDITIONAL)),
        ),
        LineageColumn(name="one", type="int"),
        LineageColumn(name="made", type="int", unknown="the transform is a Python function"),
    )
    influences = (source("at", LineageKind.FILTER),)
    table = LineageDataset(namespace="s3://lake", name="t", table="t", columns=columns, influences=influences)
    report = IngestReport(status=JobStatus.COMMITTED, lineage=JobLineage(outputs=(table,)))
    assert parse_report(report.to_json()) == report
    (output,) = lineage.operator_lineage([report]).outputs
    facet = output.facets["columnLineage"]

    def kinds(fields: list[Any]) -> list[tuple[str, list[tuple[str, str]]]]:
        return [(one.field, [(kind.type, kind.subtype) for kind in one.transformations]) for one in fields]

    assert {name: kinds(one.inputFields) for name, one in facet.fields.items()} == {
        "id": [("id", [("DIRECT", "IDENTITY")])],
        "total": [("v", [("DIRECT", "AGGREGATION"), ("INDIRECT", "CONDITIONAL")])],
        "one": [],
    }
    assert kinds(facet.dataset) == [("at", [("INDIRECT", "FILTER")])]
    assert [field.name for field in output.facets["schema"].fields] == ["id", "total", "one", "made"]


def test_batch_of_tables_has_the_datasets_of_all_parts() -> None:
    batch = IngestReport(
        status=JobStatus.COMMITTED, parts=(reported(), reported(), IngestReport(status=JobStatus.COMMITTED))
    )
    found = lineage.operator_lineage([batch])
    assert (len(found.inputs), len(found.outputs)) == (1, 2)


def test_jobs_report_no_lineage_without_the_provider_or_without_a_transport(monkeypatch: pytest.MonkeyPatch) -> None:
    assert lineage.lineage_variables({}) == {}, "the provider has no transport here"
    monkeypatch.setattr("airflow.providers.openlineage.conf.is_disabled", lambda: False)
    assert lineage.lineage_variables({}) == {LINEAGE: "true"}
    monkeypatch.setattr(lineage, "find_spec", lambda name: None)
    assert lineage.lineage_variables({}) == {}
    assert lineage.operator_lineage([IngestReport(status=JobStatus.COMMITTED)]).outputs == []
