"""Short suite for one environment of Airflow: plugin, DAG files, one ingestion, one service, doctor, and pages.

It runs with the Python of any supported Airflow: `python -m pytest tests/matrix/test_airflow_matrix.py`. Jobs run in
the environment `LAKEHOUSE_SPARK_HOME`, by default `.venv`.
"""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

if find_spec("airflow") is None:
    pytest.skip("missing: Airflow", allow_module_level=True)

ROOT = Path(__file__).resolve().parents[2]
HOME = Path(tempfile.mkdtemp(prefix="lakehouse-matrix-"))
SPARK_HOME = Path(os.environ.get("LAKEHOUSE_SPARK_HOME") or ROOT / ".venv")
SPEC = """
table: shop.orders
location: orders
record_key: [order_id]
ordering: updated_at
schema: {order_id: string, fare: double, updated_at: timestamp}
ingest:
  path: landing
  format: csv
  schedule: "@daily"
  start_date: 2026-03-01
  pool: default_pool
"""
CSV = "order_id,fare,updated_at\na,10.5,2026-03-01T00:10:00Z\nb,20.0,2026-03-01T00:20:00Z\n"
INGEST, SERVICE = "ingest.shop.orders", "services.clean"
#: Entry points of an installed distribution, because the environments do not have the package itself.
ENTRY_POINTS = """[airflow.plugins]
lakehouse = lakehouse_airflow.plugin:LakehousePlugin

[apache_airflow_provider]
provider_info = lakehouse_airflow.provider:get_provider_info
"""


def prepare() -> None:
    """Create the files of a deployment, and set its variables. Airflow reads them when it is imported."""
    metadata = HOME / "packages" / "lakehouse_tables-0.dist-info"
    for folder in (metadata, HOME / "tables", HOME / "lake" / "landing"):
        folder.mkdir(parents=True)
    (metadata / "entry_points.txt").write_text(ENTRY_POINTS)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: lakehouse-tables\nVersion: 0\n")
    (HOME / "tables" / "orders.yaml").write_text(SPEC)
    (HOME / "lake" / "landing" / "part-0.csv").write_text(CSV)
    paths = [str(HOME / "packages"), str(ROOT), str(ROOT / "plugins")]
    os.environ |= {
        "AIRFLOW_HOME": str(HOME),
        "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
        "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
        # Without it, `dags test` of Airflow 3.2 has no Execution API.
        "AIRFLOW__API_AUTH__JWT_SECRET": "matrix",
        "AIRFLOW_CONN_SPARK_DEFAULT": '{"conn_type": "spark", "host": "local[1]"}',
        "LAKEHOUSE_SPARK_HOME": str(SPARK_HOME),
        "LAKEHOUSE_SPECS": str(HOME / "tables"),
        "LAKEHOUSE_HOME": str(HOME / "lake"),
        "LAKEHOUSE_CATALOG": f"sqlite:///{HOME}/catalog.db",
        "LAKEHOUSE_REPORTS": str(HOME / "reports"),
        "PYTHONPATH": os.pathsep.join(paths),
    }
    sys.path[:0] = paths


prepare()

from lakehouse_airflow import compat  # noqa: E402
from lakehouse_airflow.compat.features import FEATURES  # noqa: E402
from lakehouse_airflow.compat.names import NAMES  # noqa: E402
from lakehouse_airflow.compat.versions import LINES, airflow_version, has, installed_line  # noqa: E402
from tests.support.api_server import ApiServer, api_server  # noqa: E402

pytestmark = [
    pytest.mark.airflow,
    # Warnings of old versions of Airflow and of their dependencies.
    pytest.mark.filterwarnings("default"),
]


def command(*words: str) -> str:
    """Run a module of this environment as a command and return its standard output."""
    arguments = [sys.executable, "-m", *words]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{words}: {done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def database() -> None:
    """Migrate the database, store the DAGs, create the pools and the catalog."""
    command("airflow", "db", "migrate")
    printed = command("airflow", "lakehouse", "setup") if has((3, 2)) else command("lakehouse_airflow", "setup")
    assert "pool lakehouse_services: created with 2 slots" in printed
    # Events of assets are only stored if Airflow knows the DAGs of the assets.
    command("airflow", "dags", "reserialize")
    lakehouse = [SPARK_HOME / "bin" / "python", "-m", "lakehouse", "catalog", "upgrade"]
    subprocess.run(lakehouse, cwd=ROOT, check=True, capture_output=True, timeout=300)


@pytest.fixture(scope="module")
def bag(database: None) -> Any:
    """Parse the DAG files of the project."""
    return compat.DagBag(str(ROOT / "dags"))


def loaded_plugins() -> tuple[list[Any], dict[str, str]]:
    """Return the plugins that Airflow loaded, and the errors of the others."""
    manager: Any = import_module("airflow.plugins_manager")
    if hasattr(manager, "_get_plugins"):
        plugins, errors = manager._get_plugins()
    else:
        manager.ensure_plugins_loaded()
        plugins, errors = manager.plugins, manager.import_errors
    return list(plugins), dict(errors)


def test_every_name_of_the_interface_is_imported_or_declared_missing() -> None:
    paths = NAMES[installed_line()]
    assert set(paths) | {"module_of"} == set(compat.__all__)
    for name, path in paths.items():
        if path:
            getattr(compat, name)
            continue
        with pytest.raises(ImportError, match=f"has no {name}"):
            getattr(compat, name)


def test_installed_version_is_supported() -> None:
    assert installed_line() in LINES
    assert str(airflow_version()).startswith(".".join(map(str, installed_line())))


def test_plugin_is_loaded_by_its_entry_point_and_names_missing_features() -> None:
    plugins, errors = loaded_plugins()
    assert errors == {}
    (plugin,) = [one for one in plugins if str(one.name).startswith("lakehouse")]
    assert plugin.name == ("lakehouse" if has((3, 1)) else "lakehouse without pages")
    assert plugin.missing == tuple(feature.name for feature in FEATURES if not has(feature.since))
    assert bool(plugin.fastapi_apps) is bool(plugin.react_apps) is has((3, 1))


def test_plugin_logs_missing_features_and_refuses_an_unsupported_version(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    module = import_module("lakehouse_airflow.plugin")
    with caplog.at_level(logging.INFO, logger="lakehouse_airflow.plugin"):
        module.LakehousePlugin.on_load()
    lines = [record.getMessage() for record in caplog.records if record.name == "lakehouse_airflow.plugin"]
    assert len(lines) == (0 if has((3, 3)) else 1)
    assert all("lacks: " in line for line in lines)
    monkeypatch.setattr(module, "airflow_version", lambda: "2.10.5")
    with pytest.raises(ImportError, match=r"Airflow 2\.10\.5 is not supported; supported are the versions 2\.11"):
        module.LakehousePlugin.on_load()


def test_every_dag_file_is_parsed_and_serialised(bag: Any) -> None:
    assert bag.import_errors == {}
    expected = {INGEST, SERVICE, "services.schedule", "lakehouse.actions", "lakehouse.doctor", "nightly.ride_trips"}
    assert expected < set(bag.dags)
    assert ("report.partitions" in bag.dags) is has((3, 3))
    objects: Any = import_module("airflow.serialization.serialized_objects")
    form = getattr(objects, "DagSerialization", None) or objects.SerializedDAG
    for dag in bag.dags.values():
        stored = form.from_dict(form.to_dict(dag))
        assert stored.dag_id == dag.dag_id
        assert {one.task_id for one in stored.tasks} == {one.task_id for one in dag.tasks}


def states(dag: Any, **arguments: Any) -> dict[str, str]:
    """Run a DAG in this process and return the states of its tasks."""
    run = dag.test(**arguments)
    return {f"{one.task_id}[{one.map_index}]": str(one.state) for one in run.get_task_instances()}


def test_ingestion_and_service_run_through_spark_submit(bag: Any) -> None:
    if not (SPARK_HOME / "bin" / "spark-submit").exists():
        pytest.skip("missing: the environment of Spark; run 'make venvs'")
    assert states(bag.dags[INGEST]) == {"ingest[-1]": "success"}
    assert list((HOME / "lake" / "orders").glob("*.parquet"))
    assert emitted() == 1
    # A second run has no new file: it emits no event.
    assert states(bag.dags[INGEST]) == {"ingest[-1]": "success"}
    assert emitted() == 1
    requested = {"tables": ["shop.orders"], "force": True}
    assert states(bag.dags[SERVICE], run_conf=requested) == {"due[-1]": "success", "run[0]": "success"}
    reports = sorted(HOME.glob("reports/**/report.json"))
    assert {json.loads(path.read_text())["status"] for path in reports} <= {"committed", "nothing_to_do"}


def emitted() -> int:
    """Return the number of asset events in Airflow's database."""
    session = import_module("airflow.utils.session").create_session
    model = "airflow.models.asset:AssetEvent" if has((3, 0)) else "airflow.models.dataset:DatasetEvent"
    module, _, name = model.partition(":")
    with session() as opened:
        return int(opened.query(getattr(import_module(module), name)).count())


def test_doctor_shows_the_version_and_missing_features(database: None) -> None:
    doctor = import_module("lakehouse_airflow.doctor")
    facts = doctor.AirflowFacts(environ=os.environ)
    state, text = doctor.check_airflow(facts)
    assert (str(state), f"Airflow {airflow_version()}, " in text) == ("ok", True)
    assert ("lacks: " in text) is not has((3, 3))
    state, text = doctor.check_plugin(facts)
    assert (str(state), text) == ("ok", "plugin and provider are registered as entry points")


@pytest.fixture(scope="module")
def server(database: None) -> Iterator[ApiServer]:
    """The API server with the pages."""
    if not has((3, 1)):
        pytest.skip("this version of Airflow has no pages")
    with api_server(HOME / "server", {}, programs=Path(sys.executable).parent) as running:
        yield running


def test_pages_are_listed_and_their_modules_are_served(server: ApiServer) -> None:
    plugins = server.fetch("/api/v2/plugins", role="admin")[1]["plugins"]
    (plugin,) = [one for one in plugins if one["name"] == "lakehouse"]
    names = ["Lakehouse", "Lakehouse report", *(["Lakehouse asset"] if has((3, 2)) else [])]
    assert [page["name"] for page in plugin["react_apps"]] == names
    for page in plugin["react_apps"]:
        # Before Airflow 3.3 browsers resolve only absolute URLs.
        assert has((3, 3)) or page["bundle_url"].startswith("/")
        status, text = server.fetch(f"/{page['bundle_url'].lstrip('/')}", role="viewer")
        assert (status, "globalThis" in text) == (200, True), page


def test_endpoints_check_permissions(server: ApiServer) -> None:
    table = "tables/shop.orders"
    for path in (
        "tables",
        "summary",
        table,
        f"{table}/timeline",
        "queue",
        "alarms",
        "dag-states?dag=lakehouse.actions",
    ):
        assert server.fetch(f"/lakehouse/api/v1/{path}")[0] == 401, path
        assert server.fetch(f"/lakehouse/api/v1/{path}", role="viewer")[0] in (200, 404), path
    body = {"action": "request_service", "parameters": {"service": "compaction"}}
    assert server.fetch(f"/lakehouse/api/v1/{table}/actions", body=body)[0] == 401
    assert server.fetch(f"/lakehouse/api/v1/{table}/actions", role="viewer", body=body)[0] in (403, 404)
    assert server.api("permissions", role="op") != server.api("permissions", role="viewer")
    fleet = server.api("tables", role="viewer")
    assert fleet["total"] == len(fleet["rows"])
