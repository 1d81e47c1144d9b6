"""The path of a new user on older versions of Airflow and Spark: the page with the words that it has for them.

Each Airflow runs as separate processes: scheduler, triggerer and, since Airflow 3, DAG processor and API server.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psycopg
import pytest

from tests.adoption.page_reader import NOT_INHERITED, Reader, new_user, words_of_version
from tests.support.doc_blocks import ROOT
from tests.support.postgresql import Server, server
from tests.support.standalone import free_ports, stop

pytestmark = [pytest.mark.adoption, pytest.mark.slow]

ORDERS, VISITS, NIGHTLY, REPORT = (
    "ingest.shop.orders",
    "ingest.shop.visits",
    "nightly.shop.orders",
    "report.shop.orders",
)
WAIT_S = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """Versions of a user, and the headings of their columns on the page."""

    airflow: str
    spark: str
    airflow_heading: str
    spark_heading: str

    @property
    def programs(self) -> tuple[str, ...]:
        """The processes of Airflow."""
        return ("scheduler", "triggerer", *(() if self.airflow == "2.11" else ("dag-processor", "api-server")))


VERSIONS = (
    Versions(airflow="3.1", spark="3.5", airflow_heading="Airflow 3.0 and 3.1", spark_heading="Spark 3.5"),
    Versions(airflow="2.11", spark="3.5", airflow_heading="Airflow 2.11", spark_heading="Spark 3.5"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Deployment:
    """A running Airflow to which the page was applied, and the reader of the page."""

    versions: Versions
    reader: Reader
    postgresql: Server
    logs: Path

    def query(self, statement: str, *values: str) -> list[tuple[str, ...]]:
        """Return the rows of Airflow's database, which have the same names in all versions but one."""
        date = "execution_date" if self.versions.airflow == "2.11" else "logical_date"
        url = self.postgresql.url.replace("+psycopg:", ":").replace("/postgres", "/airflow")
        with psycopg.connect(url) as connection:
            return connection.execute(statement.replace("DATE", date).encode(), values).fetchall()

    def runs(self, dag_id: str) -> dict[str, str]:
        """Return the states of the runs of 2026-03, by their logical dates."""
        rows = self.query(
            "SELECT to_char(DATE AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI'), state FROM dag_run WHERE dag_id = %s",
            dag_id,
        )
        return {day: state for day, state in rows if day.startswith("2026-03")}

    def tasks(self, dag_id: str) -> dict[tuple[str, str], str]:
        """Return the states of the tasks of 2026-03, by the logical date and the task."""
        rows = self.query(
            "SELECT to_char(r.DATE AT TIME ZONE 'UTC', 'YYYY-MM-DD HH24:MI'), t.task_id, t.state FROM task_instance t"
            " JOIN dag_run r ON r.dag_id = t.dag_id AND r.run_id = t.run_id WHERE t.dag_id = %s",
            dag_id,
        )
        return {(day, task): state for day, task, state in rows if day.startswith("2026-03")}

    def until(self, question: Callable[[], bool], text: Callable[[], str]) -> None:
        """Wait until the answer is true; fail with the ends of the logs after `WAIT_S`."""
        deadline = time.monotonic() + WAIT_S
        while not question():
            if time.monotonic() > deadline:
                tails = [f"== {log}\n{log.read_text(errors='replace')[-2500:]}" for log in self.logs.glob("*.log")]
                raise AssertionError("\n".join([text(), *tails]))
            time.sleep(1)

    def wait(self, dag_id: str, count: int) -> None:
        """Wait until `count` runs of 2026-03 have ended; fail unless all of them succeeded."""
        self.until(
            lambda: sum(state in ("success", "failed") for state in self.runs(dag_id).values()) >= count,
            lambda: f"{count} runs of {dag_id} end: {self.runs(dag_id)} {self.tasks(dag_id)}",
        )
        assert list(self.runs(dag_id).values()) == ["success"] * count, self.tasks(dag_id)


@pytest.fixture(scope="module", params=VERSIONS, ids=lambda one: f"airflow-{one.airflow}-spark-{one.spark}")
def versions(request: pytest.FixtureRequest) -> Versions:
    """The versions of the user."""
    chosen: Versions = request.param
    return chosen


@pytest.fixture(scope="module")
def postgresql(versions: Versions) -> Iterator[Server]:
    """A PostgreSQL server for Airflow's database and the catalog."""
    with server() as started:
        yield started


@pytest.fixture(scope="module")
def reader(versions: Versions, tmp_path_factory: pytest.TempPathFactory, postgresql: Server, hive_uri: str) -> Reader:
    """A user with an Airflow of this version that has never seen lakehouse."""
    pins = ROOT / "tests/matrix" / f"airflow-{versions.airflow}.txt"
    version = next(line for line in pins.read_text().splitlines() if line.startswith("apache-airflow=="))
    settings = {
        "LAKEHOUSE_METASTORE": hive_uri,
        "AIRFLOW__CORE__EXECUTOR": "LocalExecutor",
        "AIRFLOW__CORE__PARALLELISM": "3",
        "AIRFLOW__SCHEDULER__DAG_DIR_LIST_INTERVAL": "10",
    }
    return new_user(
        tmp_path_factory.mktemp(f"airflow-{versions.airflow}"),
        postgresql,
        settings,
        ("-c", str(pins), version, "psycopg2-binary", "asyncpg"),
        (*words_of_version(versions.airflow_heading), *words_of_version(versions.spark_heading)),
    )


@contextmanager
def running(reader: Reader, versions: Versions, logs: Path) -> Iterator[None]:
    """Run the processes of Airflow and end them."""
    api, tasks, triggers = free_ports(3)
    ports = {
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(api),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{api}",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__API_AUTH__JWT_SECRET": "a secret of the processes of this deployment",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://127.0.0.1:{api}/execution/",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(tasks),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(triggers),
        # The default of 5 s fails tasks on a busy machine.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
    }
    reader.environ |= ports
    started = []
    try:
        for name in versions.programs:
            with (logs / f"{name}.log").open("w") as log:
                started.append(
                    subprocess.Popen(
                        ["airflow", name],
                        env={name: text for name, text in reader.environ.items() if name not in NOT_INHERITED},
                        stdout=log,
                        stderr=subprocess.STDOUT,
                        start_new_session=True,
                    )
                )
        yield
    finally:
        for process in started:
            stop(process)


@pytest.fixture(scope="module")
def deployment(
    versions: Versions, reader: Reader, postgresql: Server, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployment]:
    """Follow the page to the restart of Airflow, and start it."""
    reader.follow(4)
    logs = tmp_path_factory.mktemp("logs")
    with running(reader, versions, logs):
        yield Deployment(versions=versions, reader=reader, postgresql=postgresql, logs=logs)


def test_page_installs_the_versions_of_the_user(versions: Versions, reader: Reader) -> None:
    reader.follow(2)
    assert _version(reader, "python", "apache-airflow").startswith(f"{versions.airflow}.")
    assert _version(reader, "$LAKEHOUSE_SPARK_HOME/bin/python", "pyspark").startswith(f"{versions.spark}.")


def _version(reader: Reader, python: str, package: str) -> str:
    return reader.shell(f'"{python}" -c \'from importlib.metadata import version; print(version("{package}"))\'')


def test_doctor_finds_no_failure_and_shows_both_versions(deployment: Deployment) -> None:
    # The first heartbeats of scheduler and triggerer, which doctor reads.
    deployment.until(
        lambda: len(deployment.query("SELECT DISTINCT job_type FROM job WHERE state = 'running'")) >= 2,
        lambda: "scheduler and triggerer run",
    )
    deployment.reader.follow(5)


def test_hourly_csv_with_a_new_column_and_a_late_hour_is_ingested(deployment: Deployment) -> None:
    reader = deployment.reader
    blocks = reader.sections[6]
    # The late file is the last block of the section.
    reader.sections[6] = blocks[:-1]
    reader.follow(6)
    third = ("2026-03-01 02:00", "ingest")
    deployment.until(
        lambda: (
            deployment.tasks(ORDERS).get(third) == "up_for_reschedule"
            and list(deployment.runs(ORDERS).values()).count("success") == 2
        ),
        lambda: f"the third hour waits: {deployment.tasks(ORDERS)}",
    )
    assert sorted((row["order_id"], row["fare"], row["tip"]) for row in reader.rows("shop.orders")) == [
        ("a", 10.5, None),
        ("b", 25.0, 2.5),
        ("c", 30.0, 0.0),
    ]
    reader.run(blocks[-1])
    deployment.wait(ORDERS, 3)
    # The run of the current hour would wait, and check for its folder, until the end of the tests.
    reader.shell(f"airflow dags pause -y {ORDERS}")
    reader.follow(7)
    assert sorted(row["order_id"] for row in reader.rows("shop.orders")) == [*"abcd"]


def test_backfill_of_three_days_skips_missing_hours(deployment: Deployment) -> None:
    deployment.reader.follow(8)
    deployment.wait(VISITS, 3)
    rows = {(row["visit_id"], row["day"]) for row in deployment.reader.rows("shop.visits")}
    assert rows == {(f"v{day}{hour}", f"2026-03-{day}") for day in ("01", "02", "03") for hour in ("08", "20")}


def test_sensor_in_the_triggerer_continues_after_the_publication_of_the_other_dag(deployment: Deployment) -> None:
    reader = deployment.reader
    reader.follow(9)
    deployment.wait(NIGHTLY, 1)
    deployment.wait(REPORT, 1)
    assert set(deployment.tasks(NIGHTLY).values()) | set(deployment.tasks(REPORT).values()) == {"success"}
    published = "SELECT min(start_date) FROM task_instance WHERE dag_id = %s AND task_id = 'publish'"
    ready = "SELECT max(end_date) FROM task_instance WHERE dag_id = %s AND task_id = 'ready'"
    assert deployment.query(ready, REPORT) > deployment.query(published, NIGHTLY)
    partitions = reader.shell('"$LAKEHOUSE_SPARK_HOME/bin/lakehouse" publish status --table shop.orders --output json')
    assert "day=2026-03-01" in partitions
    assert len(reader.rows("shop.orders")) == 4
