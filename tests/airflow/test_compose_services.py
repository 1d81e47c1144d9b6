"""The services of docker-compose.yml run here without containers: their commands and settings, with real programs.

PostgreSQL, the Hive Metastore on it, Spark's master and worker, Prometheus, and the commands of Airflow are run. The
OpenTelemetry collector, Grafana and MinIO have no package of a registry that is used here: their settings are checked.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import stat
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.hive import spark_jars
from tests.support.postgresql import HOST, USER, binaries, free_port, wait_for_port
from tests.support.postgresql import server as postgresql_server

ROOT = Path(__file__).resolve().parents[2]
COMPOSE = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, Any] = COMPOSE["services"]
MONITORING = ROOT / "plugins" / "lakehouse_airflow" / "monitoring"
JDBC = Path("/usr/share/java/postgresql.jar")
_VARIABLE = re.compile(r"\$\{(\w+)(?::?[-?]([^}]*))?\}")

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Return the passwords that `make env` writes."""
    place = tmp_path_factory.mktemp("env")
    shutil.copy(ROOT / ".env.example", place)
    make_env(place)
    return dict(line.split("=", 1) for line in (place / ".env").read_text(encoding="utf-8").splitlines())


def make_env(place: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / ".ci" / "env.py"), str(place)], capture_output=True, text=True, check=True
    )
    return done.stdout


def filled(text: str, values: Mapping[str, str]) -> str:
    """Return a text of the file as docker compose interpolates it."""

    def value(match: re.Match[str]) -> str:
        found = values.get(match[1]) or (match[2] if ":-" in match[0] else "")
        assert found, f"{match[1]} has no value"
        return found

    return _VARIABLE.sub(value, text).replace("$$", "$")


def answer(url: str) -> bytes:
    with urllib.request.urlopen(url, timeout=5) as response:
        return bytes(response.read())


def until(check: Callable[[], Any], what: str, *, seconds: int = 90) -> Any:
    """Return the first true result of a check."""
    for _ in range(seconds * 4):
        try:
            found = check()
        except OSError:
            found = None
        if found:
            return found
        time.sleep(0.25)
    raise AssertionError(f"{what} did not happen")


@contextmanager
def program(arguments: Sequence[str | Path], log: Path, **environ: str) -> Iterator[subprocess.Popen[bytes]]:
    with open(log, "wb") as output:
        started = subprocess.Popen(
            [str(word) for word in arguments],
            stdout=output,
            stderr=output,
            env={**os.environ, **environ},
            cwd=log.parent,
        )
    try:
        yield started
    finally:
        started.terminate()
        started.wait(timeout=60)


@pytest.fixture(scope="module")
def server(secrets: dict[str, str]) -> Iterator[dict[str, str]]:
    """Run the SQL of the container in a server of PostgreSQL; yield its host, port and user."""
    sql = filled(COMPOSE["configs"]["databases.sql"]["content"], secrets)
    with postgresql_server() as running:
        place = [str(binaries() / "psql"), "-v", "ON_ERROR_STOP=1", "-h", HOST, "-p", str(running.port)]
        subprocess.run([*place, "-U", USER, "-d", "postgres", "-f", "-"], input=sql, text=True, check=True)
        yield {"host": HOST, "port": str(running.port), "user": USER}


def test_make_env_writes_secrets_once_and_keeps_those_that_exist(tmp_path: Path) -> None:
    shutil.copy(ROOT / ".env.example", tmp_path)
    (tmp_path / ".env").write_text("LAKEHOUSE_DB_PASSWORD=mine\nLAKEHOUSE_PORT=9999\nLAKEHOUSE_PASSWORD=\n")
    assert "LAKEHOUSE_PASSWORD" in make_env(tmp_path)
    path = tmp_path / ".env"
    first = path.read_text(encoding="utf-8")
    values = dict(line.split("=", 1) for line in first.splitlines())
    assert values["LAKEHOUSE_DB_PASSWORD"] == "mine" and values["LAKEHOUSE_PORT"] == "9999"
    assert set(re.findall(r"\$\{(\w+):\?", (ROOT / "docker-compose.yml").read_text(encoding="utf-8"))) <= set(values)
    generated = [value for name, value in values.items() if name not in ("LAKEHOUSE_DB_PASSWORD", "LAKEHOUSE_PORT")]
    assert len(set(generated)) == len(generated) and all(len(value) >= 44 for value in generated)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert "nothing was changed" in make_env(tmp_path)
    assert path.read_text(encoding="utf-8") == first


def test_metastore_runs_on_postgresql_and_keeps_its_databases(
    server: dict[str, str], secrets: dict[str, str], tmp_path: Path
) -> None:
    jars = spark_jars()
    if shutil.which("java") is None or jars is None or not JDBC.exists():
        pytest.skip("missing: java, pyspark, or the JDBC driver (apt-get install libpostgresql-jdbc-java)")
    site = filled(COMPOSE["configs"]["hive-site.xml"]["content"], secrets)
    site = site.replace("//postgres/", f"//{server['host']}:{server['port']}/").replace(
        "/var/lib/lakehouse", str(tmp_path)
    )
    (tmp_path / "hive-site.xml").write_text(site, encoding="utf-8")
    (command,) = SERVICES["hive-metastore"]["command"]
    assert SERVICES["hive-metastore"]["entrypoint"] == ["bash", "-c"]
    command = filled(command, {}).replace("/etc/hive", str(tmp_path))
    command = command.replace("/opt/spark-env/bin/python", str(ROOT / ".venv" / "bin" / "python"))
    client = """
import sys
from lakehouse.platform.metastore.hive import HiveMetastore
print(HiveMetastore(sys.argv[1]).create_database("sales"))
"""
    created = []
    for number in range(2):
        port, log = free_port(), tmp_path / f"log{number}"
        with program(["bash", "-c", command.replace("9083", str(port))], log) as started:
            wait_for_port(started, port, log, seconds=180)
            words = [ROOT / ".venv" / "bin" / "python", "-c", client, f"thrift://{HOST}:{port}"]
            done = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr + log.read_text(errors="replace")[-3000:]
            created.append(done.stdout.strip())
    assert created == ["True", "False"], "the second server finds the database of the first"
    assert not list(tmp_path.glob("**/derby.log"))


def test_spark_master_and_worker_start_with_their_commands(tmp_path: Path) -> None:
    spark_class = ROOT / ".venv" / "bin" / "spark-class"
    if not spark_class.exists() or shutil.which("java") is None:
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    assert SERVICES["spark-master"]["entrypoint"] == ["/opt/spark-env/bin/spark-class"]
    port, pages, worker_pages = free_port(), free_port(), free_port()
    ports = {"7077": str(port), "8081": str(pages), "8082": str(worker_pages), "spark-master": HOST}

    def words(service: str) -> list[str]:
        given = [filled(word, {"LAKEHOUSE_WORKER_MEMORY": "512m"}) for word in SERVICES[service]["command"]]
        return [ports.get(word, word.replace("spark-master:7077", f"{HOST}:{port}")) for word in given]

    python = SERVICES["spark-master"]["environment"]["PYSPARK_PYTHON"].replace("/opt/spark-env", str(ROOT / ".venv"))
    environ = {"SPARK_LOCAL_IP": HOST, "SPARK_WORKER_DIR": str(tmp_path), "PYSPARK_PYTHON": python}
    environ["PYSPARK_DRIVER_PYTHON"] = ""
    with program([spark_class, *words("spark-master")], tmp_path / "master.log", **environ):
        until(lambda: answer(f"http://{HOST}:{pages}/json/"), "the master answers")
        with program([spark_class, *words("spark-worker"), "--host", HOST], tmp_path / "worker.log", **environ):

            def workers() -> list[dict[str, Any]]:
                found = json.loads(answer(f"http://{HOST}:{pages}/json/"))["workers"]
                return [worker for worker in found if worker["state"] == "ALIVE"]

            (worker,) = until(workers, "the worker registers")
            assert (worker["cores"], worker["memory"]) == (2, 512)
            assert answer(f"http://{HOST}:{worker_pages}/json/")


def test_prometheus_starts_with_its_command_and_loads_the_alert_rules(tmp_path: Path) -> None:
    binary = shutil.which("prometheus")
    if binary is None:
        pytest.skip("missing: prometheus; on Debian: apt-get install prometheus")
    mounted = {config["target"]: config["source"] for config in SERVICES["prometheus"]["configs"]}
    for target, source in mounted.items():
        text = (ROOT / COMPOSE["configs"][source]["file"]).read_text(encoding="utf-8")
        (tmp_path / Path(target).name).write_text(text.replace("/etc/prometheus", str(tmp_path)), encoding="utf-8")
    port = free_port()
    places = {"/prometheus": str(tmp_path / "data")}
    command = [places.get(w, w.replace("/etc/prometheus", str(tmp_path))) for w in SERVICES["prometheus"]["command"]]
    listen = ["--web.listen-address", f"{HOST}:{port}"]
    with program([binary, *(re.sub(r"^--(\w)", r"--\1", word) for word in command), *listen], tmp_path / "log"):
        health = SERVICES["prometheus"]["healthcheck"]["test"][-1].replace("localhost:9090", f"{HOST}:{port}")
        until(lambda: answer(health), "Prometheus is ready")
        groups = json.loads(answer(f"http://{HOST}:{port}/api/v1/rules"))["data"]["groups"]
        assert [len(group["rules"]) for group in groups] == [9]

        def targets() -> list[dict[str, Any]]:
            found: list[dict[str, Any]] = json.loads(answer(f"http://{HOST}:{port}/api/v1/targets"))["data"][
                "activeTargets"
            ]
            return found

        (target,) = until(targets, "the target is known")
        assert target["labels"]["instance"] == "otel-collector:9464"


def test_init_prepares_the_databases_of_airflow_and_of_the_catalog(
    server: dict[str, str], secrets: dict[str, str], tmp_path: Path
) -> None:
    spark = ROOT / ".venv" / "bin"
    if not (spark / "lakehouse").exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    place = f"{server['user']}@{server['host']}:{server['port']}"
    psql = [
        str(binaries() / "psql"),
        "-h",
        server["host"],
        "-p",
        server["port"],
        "-U",
        server["user"],
        "-d",
        "postgres",
    ]
    subprocess.run([*psql, "-c", "CREATE DATABASE airflow"], check=True)
    environment = {
        name: filled(str(value), secrets)
        for name, value in SERVICES["init"]["environment"].items()
        # The image has the FAB provider.
        if name.startswith(("AIRFLOW__", "LAKEHOUSE_")) and "AUTH_MANAGER" not in name
    }
    user = f"airflow:{secrets['LAKEHOUSE_DB_PASSWORD']}@postgres"
    environment = {name: value.replace(user, place) for name, value in environment.items()}
    assert environment["LAKEHOUSE_CATALOG"] == f"postgresql+psycopg://{place}/lakehouse"
    environment |= {"AIRFLOW_HOME": str(tmp_path), "AIRFLOW__METRICS__OTEL_ON": "false"}
    # The entry point of the image migrates the database before the command (_AIRFLOW_DB_MIGRATE).
    command = SERVICES["init"]["command"][2].replace("/opt/spark-env/bin", str(spark))
    airflow = f"{sys.executable} -m airflow"
    script = f"{airflow} db migrate && {command.replace('airflow lakehouse', f'{airflow} lakehouse')}"
    for _ in range(2):
        done = subprocess.run(
            ["bash", "-c", script],
            env={**os.environ, **environment},
            capture_output=True,
            text=True,
            check=False,
            cwd=ROOT,
        )
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    pools = subprocess.run(
        [sys.executable, "-m", "airflow", "pools", "list", "--output", "json"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=True,
    )
    assert {"lakehouse_ingest", "lakehouse_services"} <= {
        pool["pool"] for pool in json.loads(pools.stdout.splitlines()[-1])
    }


@pytest.mark.parametrize("service", ["api-server", "scheduler", "dag-processor", "triggerer"])
def test_command_of_an_airflow_component_exists(service: str) -> None:
    words = [sys.executable, "-m", "airflow", SERVICES[service]["command"], "--help"]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "usage: airflow" in done.stdout.lower()


def test_collector_receives_what_jobs_send_and_offers_what_prometheus_reads() -> None:
    settings = yaml.safe_load((MONITORING / "otel-collector.yaml").read_text(encoding="utf-8"))
    (pipeline,) = settings["service"]["pipelines"].values()
    for kind in ("receivers", "processors", "exporters"):
        assert set(pipeline[kind]) == set(settings[kind])
    receiver = settings["receivers"]["otlp"]["protocols"]["http"]["endpoint"]
    sent = SERVICES["scheduler"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"]
    assert receiver.rpartition(":")[2] == sent.rpartition(":")[2]
    offered = settings["exporters"]["prometheus"]["endpoint"].rpartition(":")[2]
    (job,) = yaml.safe_load((MONITORING / "prometheus.yaml").read_text(encoding="utf-8"))["scrape_configs"]
    assert job["static_configs"][0]["targets"] == [f"otel-collector:{offered}"]
    assert SERVICES["otel-collector"]["command"] == ["--config", SERVICES["otel-collector"]["configs"][0]["target"]]


def test_grafana_gets_its_data_source_and_dashboard() -> None:
    mounted = {config["source"]: config["target"] for config in SERVICES["grafana"]["configs"]}
    for source in mounted:
        assert (ROOT / COMPOSE["configs"][source]["file"]).is_file()
    (provider,) = yaml.safe_load((MONITORING / "dashboards.yaml").read_text(encoding="utf-8"))["providers"]
    assert str(Path(mounted["dashboard.json"]).parent) == provider["options"]["path"]
    assert mounted["dashboard.json"] == SERVICES["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    (source,) = yaml.safe_load((MONITORING / "datasources.yaml").read_text(encoding="utf-8"))["datasources"]
    assert source["url"] == "http://prometheus:9090"
