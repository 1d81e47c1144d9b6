"""The path of a new user: the page airflow/add-to-your-airflow.md followed literally, in fresh environments.

The wheel is built in a copy of the sources. Airflow's and Spark's environments are made by pip, PostgreSQL and the Hive
Metastore run on free ports. All code blocks of the page run as they stand. Each test follows the page to its section.
"""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from tests.adoption.page_reader import NOT_INHERITED, PAGE, Reader, new_user
from tests.support.doc_blocks import ROOT, read_page
from tests.support.postgresql import Server, server
from tests.support.standalone import Standalone, running

pytestmark = [pytest.mark.adoption, pytest.mark.slow]

ORDERS, VISITS, NIGHTLY, REPORT = (
    "ingest.shop.orders",
    "ingest.shop.visits",
    "nightly.shop.orders",
    "report.shop.orders",
)
WAIT_S = 600
PLUGINS = """
import json
from airflow import plugins_manager
plugins, errors = plugins_manager._get_plugins()
print(json.dumps([[plugin.name for plugin in plugins if plugin.name == 'lakehouse'], errors]))
"""


@dataclass(frozen=True, slots=True)
class Deployment:
    """A running Airflow to which the page was applied, and the reader of the page."""

    airflow: Standalone
    reader: Reader

    def runs(self, dag_id: str) -> dict[str, str]:
        """Return the states of the runs of 2026-03, by their logical dates."""
        found = self.airflow.call(f"dags/{dag_id}/dagRuns?limit=100")["dag_runs"]
        return {r["logical_date"]: r["state"] for r in found if str(r["logical_date"]).startswith("2026-03")}

    def task(self, dag_id: str, day: str, task_id: str) -> dict[str, Any]:
        """Return the task instance of the run of a logical date."""
        found = self.airflow.call(f"dags/{dag_id}/dagRuns?limit=100")["dag_runs"]
        (run_id,) = [run["dag_run_id"] for run in found if str(run["logical_date"]).startswith(day)]
        instance: dict[str, Any] = self.airflow.call(f"dags/{dag_id}/dagRuns/{quote(run_id)}/taskInstances/{task_id}")
        return instance

    def returned(self, dag_id: str, day: str, task_id: str) -> Any:
        """Return the XCom value of a task."""
        run_id = quote(self.task(dag_id, day, task_id)["dag_run_id"])
        entry = f"dags/{dag_id}/dagRuns/{run_id}/taskInstances/{task_id}/xcomEntries/return_value?deserialize=true"
        value = self.airflow.call(entry)["value"]
        return json.loads(value) if isinstance(value, str) and value.startswith("{") else value

    def wait(self, dag_id: str, count: int) -> None:
        """Wait until `count` runs of 2026-03 have ended; fail unless all of them succeeded."""
        ended = ("success", "failed")
        self.airflow.until(
            lambda: sum(state in ended for state in self.runs(dag_id).values()) >= count,
            lambda: f"{count} runs of {dag_id} end: {self.runs(dag_id)}",
            timeout_s=WAIT_S,
        )
        assert list(self.runs(dag_id).values()) == ["success"] * count


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Server]:
    """A PostgreSQL server for Airflow's database and the catalog."""
    with server() as started:
        yield started


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory, postgresql: Server, hive_uri: str) -> Reader:
    """A user in a checkout of the project, with an Airflow of their own that has never seen lakehouse."""
    constraints = ROOT / "constraints-airflow.txt"
    version = next(line for line in constraints.read_text().splitlines() if line.startswith("apache-airflow=="))
    airflow = ("-c", str(constraints), version, "psycopg2-binary", "asyncpg")
    return new_user(tmp_path_factory.mktemp("home"), postgresql, {"LAKEHOUSE_METASTORE": hive_uri}, airflow)


@pytest.fixture(scope="module")
def deployment(reader: Reader) -> Iterator[Deployment]:
    """Follow the page to the restart of Airflow, and start it."""
    reader.follow(4)
    home, programs = Path(reader.environ["AIRFLOW_HOME"]), Path(reader.environ["HOME"]) / "airflow-environment" / "bin"
    empty = dict.fromkeys(NOT_INHERITED, "")
    with running(home, {**empty, **reader.environ, "AIRFLOW__CORE__PARALLELISM": "3"}, programs) as airflow:
        yield Deployment(airflow, reader)


def test_wheel_has_all_files_of_both_packages(reader: Reader) -> None:
    reader.follow(1)
    with zipfile.ZipFile(reader.environ["WHEEL"]) as wheel:
        packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    assert packed == {
        path.relative_to(base).as_posix()
        for base, package in ((ROOT, "lakehouse"), (ROOT / "plugins", "lakehouse_airflow"))
        for path in (base / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def test_plugins_folder_beside_the_installed_package_registers_nothing_twice(reader: Reader) -> None:
    reader.follow(2)
    shown = reader.shell(f'AIRFLOW__CORE__PLUGINS_FOLDER={ROOT / "plugins"} python -c "{PLUGINS}"')
    assert json.loads(shown.splitlines()[-1]) == [["lakehouse"], {}]


def test_installed_package_registers_plugin_connection_type_and_dags(deployment: Deployment) -> None:
    deployment.reader.follow(5)
    airflow = deployment.airflow
    assert "lakehouse" in {plugin["name"] for plugin in airflow.call("plugins")["plugins"]}
    assert airflow.call("plugins/importErrors")["import_errors"] == []
    assert airflow.call("importErrors")["import_errors"] == []
    hooks = airflow.command("providers", "hooks", "--output", "json")
    assert "lakehouse_catalog" in hooks
    wanted = {ORDERS, "publish.shop.orders", "services.clean", "services.compaction"}
    airflow.until(lambda: wanted <= {d["dag_id"] for d in airflow.call("dags")["dags"]}, "DAGs", timeout_s=WAIT_S)
    # The environment of Airflow has no pyspark of its own, and no path of the sources.
    search = deployment.reader.shell(
        'python -c "import lakehouse, lakehouse_airflow; print(lakehouse_airflow.__file__)"'
    )
    assert f"{airflow.programs.parent}/lib" in search
    assert str(ROOT) not in search


def test_hourly_csv_with_a_new_column_and_a_late_hour_is_ingested(deployment: Deployment) -> None:
    reader, airflow = deployment.reader, deployment.airflow
    blocks = reader.sections[6]
    # The late file is the last block of the section.
    reader.sections[6] = blocks[:-1]
    reader.follow(6)

    def third_waits() -> bool:
        states = deployment.runs(ORDERS)
        if sorted(states.values()) != ["running", "success", "success"]:
            assert "failed" not in states.values()
            return False
        return deployment.task(ORDERS, "2026-03-01T02", "ingest")["state"] == "up_for_reschedule"

    airflow.until(third_waits, lambda: f"the third hour waits: {deployment.runs(ORDERS)}", timeout_s=WAIT_S)
    assert sorted((row["order_id"], row["fare"], row["tip"]) for row in reader.rows("shop.orders")) == [
        ("a", 10.5, None),
        ("b", 25.0, 2.5),
        ("c", 30.0, 0.0),
    ]
    reader.run(blocks[-1])
    reader.executed.append(blocks[-1].code)
    deployment.wait(ORDERS, 3)
    # The run of the current hour would wait, and check for its folder, until the end of the tests.
    airflow.command("dags", "pause", "-y", ORDERS)
    assert deployment.returned(ORDERS, "2026-03-01T02", "ingest")["rows"] == 1
    reader.follow(7)
    assert [row["order_id"] for row in sorted(reader.rows("shop.orders"), key=lambda row: row["order_id"])] == [*"abcd"]


def test_backfill_of_three_days_skips_and_reports_missing_hours(deployment: Deployment) -> None:
    deployment.reader.follow(8)
    deployment.wait(VISITS, 3)
    rows = {(row["visit_id"], row["day"]) for row in deployment.reader.rows("shop.visits")}
    assert rows == {(f"v{day}{hour}", f"2026-03-{day}") for day in ("01", "02", "03") for hour in ("08", "20")}
    report = deployment.returned(VISITS, "2026-03-02", "ingest")
    assert (report["status"], len(report["folders"]), len(report["missing"])) == ("committed", 2, 22)


def test_own_dag_clusters_cleans_and_publishes_before_the_downstream_dag_ends(deployment: Deployment) -> None:
    reader = deployment.reader
    reader.follow(9)
    deployment.wait(NIGHTLY, 1)
    deployment.wait(REPORT, 1)
    clustered = deployment.returned(NIGHTLY, "2026-03-01", "cluster")
    assert clustered["status"] == "committed"
    seen = deployment.returned(REPORT, "2026-03-01", "report")
    assert re.fullmatch(r"day=2026-03-01 at \d{17}", seen)
    published = deployment.task(NIGHTLY, "2026-03-01", "publish")
    assert deployment.task(REPORT, "2026-03-01", "report")["start_date"] > published["start_date"]
    assert len(reader.rows("shop.orders")) == 4


def test_all_blocks_of_the_page_were_executed(deployment: Deployment) -> None:
    deployment.reader.follow(max(deployment.reader.sections))
    page = read_page(PAGE.name, PAGE.read_text(encoding="utf-8"))
    assert all(block.not_run is None for block in page.blocks)
    assert sorted(deployment.reader.executed) == sorted(block.code for block in page.blocks)
