"""The first serviced night of the page "Take over an existing Hudi lake": Airflow services tables that Hudi wrote."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path
from textwrap import dedent
from typing import Any
from zipfile import ZipFile

import pytest
from airflow.dag_processing.dagbag import DagBag

from tests.support.shared import fixtures

ROOT = Path(__file__).resolve().parents[2]
SPARK_HOME = ROOT / ".venv"
PAGE = ROOT / "docs/how-to/take-over-a-hudi-lake.md"
#: Archives of tables and the folders of the lake into which they are extracted; `h015` is of Hudi 0.15, the others 1.2.
TABLES = {
    "sales.mor_15_nomdt": ("hudi_v6/mor_v6_h015_pending_compaction", "sales"),
    "sales.cow_15_mdt": ("hudi_v6/cow_v6_h015_mdt_services", "sales"),
    "ops.arch_15_M": ("hudi_v6/mor_v6_h015_archived", "ops"),
    "ops.v9_txns_cow_simple_nometa": ("hudi_tables/cow_v9_state_clustering_inflight", "ops"),
}
#: Policies of the first evening. The scan leaves services disabled that Hudi runs; the retentions are those of the
#: owners, without which the short histories of these tables give nothing to do.
POLICIES = [
    ("sales.mor_15_nomdt", "compaction", {"enabled": True}),
    ("sales.cow_15_mdt", "clustering", {"enabled": True}),
    ("sales.cow_15_mdt", "sync", {"hoodie.datasource.hive_sync.enable": True}),
    ("ops.arch_15_M", "archive", {"enabled": True, "min_commits": 2, "max_commits": 3}),
    ("ops.v9_txns_cow_simple_nometa", "clustering", {"enabled": True}),
    ("ops.v9_txns_cow_simple_nometa", "clean", {"enabled": True, "commits_retained": 1}),
]
SET = """
import json, sys
from lakehouse import load_catalog

with load_catalog() as catalog:
    for table, service, settings in json.loads(sys.argv[1]):
        catalog.set_policy(table, service, settings)
"""
STATE = """
import json, sys
from lakehouse import load_catalog
from lakehouse.spec.table.services import SERVICES

with load_catalog() as catalog:
    tables = {}
    for name in sys.argv[1:]:
        table, number = catalog.load_table(name), catalog.entry(name).id
        rows = table.scan().to_arrow()
        columns = sorted(column for column in rows.column_names if not column.startswith("_hoodie"))
        runs = {service: catalog.history.runs(number, service, limit=1) for service in SERVICES}
        tables[name] = {
            "rows": sorted(json.dumps(row, default=str, sort_keys=True) for row in rows.select(columns).to_pylist()),
            "corrupt": [str(finding) for finding in table.validate(deep=True).corrupt],
            "runs": {service: str(last[0].state) for service, last in runs.items() if last},
            "errors": [last[0].error for last in runs.values() if last and last[0].error],
        }
print(json.dumps(tables))
"""


class Night:
    """The lake, the environment of its commands, and Airflow's runs."""

    def __init__(self, place: Path, metastore: str) -> None:
        self.lake = place / "lake"
        self.environment = {
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[2]"}),
            "LAKEHOUSE_HOME": str(place / "platform"),
            "LAKEHOUSE_METASTORE": metastore,
            "LAKEHOUSE_REPORTS": str(place / "reports"),
            "LAKEHOUSE_SPARK_HOME": str(SPARK_HOME),
        }
        for archive, folder in TABLES.values():
            with ZipFile(fixtures(f"{archive}.zip")) as packed:
                packed.extractall(self.lake / folder)

    def shell(self, script: str) -> str:
        """Run a script of commands of lakehouse, and return its output."""
        command = f'lakehouse() {{ "{SPARK_HOME}/bin/python" -m lakehouse "$@"; }}'
        return self._output("bash", "-c", f"set -euo pipefail\n{command}\n{script}")

    def block(self, start: str) -> str:
        """Run the block of the page that starts with a command, on this lake and in this home."""
        blocks = re.findall(r"^```sh\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
        (script,) = (block for block in blocks if block.startswith(start))
        return self.shell(script.replace("/tmp/lake", str(self.lake)).replace("sales.carts", "sales.mor_15_nomdt"))

    def set_policies(self) -> None:
        """Set POLICIES, as `lakehouse policy set` does one by one."""
        self._output(str(SPARK_HOME / "bin" / "python"), "-c", dedent(SET), json.dumps(POLICIES))

    def state(self) -> dict[str, dict[str, Any]]:
        """Return of each table its rows, the findings of its validation, and the newest run of each service."""
        lines = self._output(str(SPARK_HOME / "bin" / "python"), "-c", dedent(STATE), *TABLES).splitlines()
        states: dict[str, dict[str, Any]] = json.loads(lines[-1])
        return states

    def _output(self, *words: str) -> str:
        environ = {"PATH": os.environ["PATH"], "PYTHONPATH": str(ROOT), **self.environment}
        done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
        assert done.returncode == 0, f"{words[-1]}\n{done.stdout}\n{done.stderr}"
        return done.stdout


@pytest.mark.slow
def test_first_night_services_the_tables_of_hudi_and_changes_no_row(
    tmp_path: Path, hive_uri: str, database: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not (SPARK_HOME / "bin" / "spark-submit").exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    night = Night(tmp_path, hive_uri)
    for name, value in night.environment.items():
        monkeypatch.setenv(name, value)
    night.block("lakehouse fleet scan /tmp/lake --register")
    before = night.state()
    assert all(table["rows"] and not table["corrupt"] for table in before.values())
    rows = {name: table["rows"] for name, table in before.items()}
    files = len(list(night.lake.rglob("*.parquet")))
    night.set_policies()
    night.block("lakehouse policy set --namespace sales --service all")

    # A pass of the DAG that the page unpauses. Its jobs are submitted to Spark.
    run = DagBag(ROOT / "dags").dags["services.schedule"].test()
    assert {str(task.state) for task in run.get_task_instances()} == {"success"}
    after = night.state()
    assert {name: table["rows"] for name, table in after.items()} == rows
    assert [table["corrupt"] + table["errors"] for table in after.values()] == [[]] * len(TABLES)
    assert {name: table["runs"] for name, table in after.items()} == {
        "sales.mor_15_nomdt": {"compaction": "committed"},
        "sales.cow_15_mdt": {"sync": "committed"},
        "ops.arch_15_M": {"archive": "committed"},
        "ops.v9_txns_cow_simple_nometa": {"clustering": "committed", "clean": "committed"},
    }
    assert len(list(night.lake.rglob("*.parquet"))) < files
    morning = night.block("lakehouse services status")
    assert "sales.mor_15_nomdt" in morning and "committed" in morning
    night.block("lakehouse policy set --table sales.carts --service compaction --set enabled=false")
    assert "sales.mor_15_nomdt" not in night.shell("lakehouse table list")
