"""Alert rules and the dashboard name metrics that runs emit, and every declared metric is emitted."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pytest
import yaml

from lakehouse import Table, load_catalog
from lakehouse.cli.main import main
from lakehouse.platform.services.metrics import METRICS, Metric, metrics
from lakehouse.spec.contracts.fleet import TableNumbers, TableState
from lakehouse.spec.contracts.job import IngestReport, JobStatus, ServiceReport, SourceLag
from lakehouse.spec.contracts.lineage import JobLineage, LineageColumn, LineageDataset
from tests.unit.platform.services.test_metrics import Collector, collector

__all__ = ["collector"]

ROOT = Path(__file__).resolve().parents[4]
FOLDER = ROOT / "plugins" / "lakehouse_airflow" / "monitoring"
NAMES = {name: metric for metric in METRICS for name in metric.prometheus_names}
_USED = re.compile(r"\b(lakehouse_[a-z_]+)(\{[^}]*\})?")
_LABEL = re.compile(r"(\w+)\s*(?:=~|!=|!~|=)")


def expressions() -> Iterator[tuple[str, str]]:
    """Yield (place, expression) of the alert rules and the dashboard."""
    rules = yaml.safe_load((FOLDER / "alert-rules.yaml").read_text(encoding="utf-8"))
    for group in rules["groups"]:
        for rule in group["rules"]:
            yield rule["alert"], rule["expr"]
    dashboard = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
    for panel in dashboard["panels"]:
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]
    for variable in dashboard["templating"]["list"]:
        yield variable["name"], variable["query"]["query"]


def test_every_metric_of_rules_and_dashboard_is_declared_with_its_labels() -> None:
    used = [(place, *match) for place, text in expressions() for match in _USED.findall(text)]
    assert len(used) > 30
    assert [(place, name) for place, name, _ in used if name not in NAMES] == []
    for place, name, labels in used:
        extra = {"le"} if name.endswith("_bucket") else set()
        assert set(_LABEL.findall(labels)) <= set(NAMES[name].attributes) | extra, place


def test_every_declared_metric_is_on_the_dashboard_or_in_a_rule() -> None:
    used = {NAMES[name].full_name for _, text in expressions() for name, _ in _USED.findall(text)}
    assert {metric.full_name for metric in METRICS} - used == set()


@pytest.mark.parametrize(
    ("metric", "names"),
    [
        (Metric(name="a.lag", kind="gauge", text="", attributes=(), unit="s"), ("lakehouse_a_lag_seconds",)),
        (Metric(name="log_bytes", kind="gauge", text="", attributes=(), unit="By"), ("lakehouse_log_bytes",)),
        (Metric(name="files", kind="gauge", text="", attributes=()), ("lakehouse_files",)),
        (Metric(name="rows", kind="counter", text="", attributes=()), ("lakehouse_rows_total",)),
        (
            Metric(name="run", kind="histogram", text="", attributes=(), unit="s"),
            ("lakehouse_run_seconds_bucket", "lakehouse_run_seconds_sum", "lakehouse_run_seconds_count"),
        ),
    ],
)
def test_names_in_prometheus_are_those_of_the_collector(metric: Metric, names: tuple[str, ...]) -> None:
    assert metric.prometheus_names == names


def test_every_declared_metric_is_emitted(
    collector: Collector, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    table = Table.create(str(tmp_path / "t"), name="t", record_key=["id"], table_type="MERGE_ON_READ")
    for value in range(6):
        table.upsert(pa.table({"id": ["a"], "v": [value]}))
    with load_catalog() as catalog:
        catalog.register_table("sales.t", str(tmp_path / "t"))
        numbers = TableNumbers(last_commit_ms=1, files=2, base_bytes=3, metadata_bytes=4, failed_plans=0)
        catalog.states.record({catalog.entry("sales.t").id: TableState(numbers=numbers, looked_ms=1)})
    for words in ("services health", "services due", "compaction run --table sales.t", "alarms check"):
        assert main(words.split()) == 0, capsys.readouterr().err
    lag = (SourceLag(source="kafka:orders", unit="offsets", left=7, seconds=2.5),)
    column = LineageColumn(name="v", type="int", unknown="the transform is a Python function")
    traced = JobLineage(outputs=(LineageDataset(namespace="file", name="/t", columns=(column,)),))
    report = IngestReport(status=JobStatus.COMMITTED, table="t", lag=lag, conflicts=1, lineage=traced)
    with metrics() as measures:
        measures.run("ingest", report)
        measures.run("compaction", ServiceReport(status=JobStatus.COMMITTED, table="t", plans_dropped=1))
    found = collector.found()
    assert {metric.full_name for metric in METRICS} - found.keys() == set()
    for metric in METRICS:
        for labels in found[metric.full_name]:
            assert {label.partition("=")[0] for label in labels} == set(metric.attributes), metric.name


@pytest.fixture
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        pytest.skip("missing: promtool; on Debian: apt-get install prometheus")
    return found


@pytest.mark.parametrize(
    "words", [("check", "rules", "alert-rules.yaml"), ("test", "rules", "alert-rules-test.yaml")], ids=" ".join
)
def test_promtool_accepts_the_alert_rules_and_their_tests(promtool: str, words: tuple[str, ...]) -> None:
    done = subprocess.run([promtool, *words], cwd=FOLDER, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "SUCCESS" in done.stdout


def test_every_alert_has_a_test_and_two_texts() -> None:
    tests = (FOLDER / "alert-rules-test.yaml").read_text(encoding="utf-8")
    (group,) = yaml.safe_load((FOLDER / "alert-rules.yaml").read_text(encoding="utf-8"))["groups"]
    for rule in group["rules"]:
        assert rule["alert"] in tests
        assert {"summary", "description"} == set(rule["annotations"]) and rule["labels"]["severity"]


def test_panels_do_not_overlap_and_use_the_provisioned_data_source() -> None:
    dashboard = json.loads((FOLDER / "dashboard.json").read_text(encoding="utf-8"))
    (source,) = yaml.safe_load((FOLDER / "datasources.yaml").read_text(encoding="utf-8"))["datasources"]
    places = [(x, y) for p in dashboard["panels"] for x, y in _cells(p["gridPos"])]
    assert len(places) == len(set(places))
    assert len({panel["id"] for panel in dashboard["panels"]}) == len(dashboard["panels"])
    assert {p["datasource"]["uid"] for p in dashboard["panels"] if "datasource" in p} == {source["uid"]}


def _cells(place: dict[str, int]) -> list[tuple[int, int]]:
    columns, rows = range(place["x"], place["x"] + place["w"]), range(place["y"], place["y"] + place["h"])
    return [(x, y) for x in columns for y in rows]
