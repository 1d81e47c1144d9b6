"""Folders and environment variables of the demo."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from demo.database import HOW_TO_INSTALL, Database
from demo.jvm import short_job_flags
from demo.processes import HOST, PROCESS_OF
from lakehouse.errors import UserError

ROOT = Path(__file__).resolve().parents[1]
SPECS = ROOT / "dags" / "tables"
#: The variable with the reason of a refused backfill; see `refuse_backfills`, which only Airflow can import.
NO_BACKFILL = "LAKEHOUSE_DEMO_NO_BACKFILL"


@dataclass(frozen=True, slots=True, kw_only=True)
class Ports:
    """The ports of Airflow's pages and API, and of its servers of logs."""

    api: int
    worker_log: int
    trigger_log: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoPlace:
    """The folder of the demo, with its Airflow, database, landing zone and tables; and what it uses outside."""

    home: Path
    airflow_venv: Path
    specs: Path = SPECS

    @property
    def airflow_home(self) -> Path:
        """AIRFLOW_HOME of the demo."""
        return self.home / "airflow"

    @property
    def landing(self) -> Path:
        """The folder that ingestion reads."""
        return self.home / "landing"

    @property
    def airflow_log(self) -> Path:
        """The output of Airflow's processes."""
        return self.home / "logs" / "airflow.log"

    def check(self) -> None:
        """Check what the demo needs.

        Raises:
            UserError: The DAGs or Airflow are missing.
        """
        if not (ROOT / "dags").is_dir():
            raise UserError(f"the demo needs the project's folder `dags`, and {ROOT} has none; run it in a clone")
        if not (self.airflow_venv / "bin" / "airflow").exists():
            raise UserError(f"{self.airflow_venv} has no airflow; run `make venvs` to create both environments")

    def variables(self, database: Database, ports: Ports) -> dict[str, str]:
        """Return the variables that Airflow's processes and its command line need, without those of the caller."""
        url = f"http://{HOST}:{ports.api}"
        settings = {
            "AIRFLOW_HOME": str(self.airflow_home),
            "AIRFLOW__API__BASE_URL": url,
            "AIRFLOW__API__HOST": HOST,
            "AIRFLOW__API__PORT": str(ports.api),
            "AIRFLOW__API__WORKERS": "1",
            "AIRFLOW__CORE__DAGS_FOLDER": str(ROOT / "dags"),
            "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"{url}/execution/",
            "AIRFLOW__CORE__LOAD_EXAMPLES": "False",
            "AIRFLOW__CORE__PARALLELISM": "2",
            "AIRFLOW__CORE__PLUGINS_FOLDER": str(ROOT / "plugins"),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
            "AIRFLOW__DAG_PROCESSOR__REFRESH_INTERVAL": "15",
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database.url,
            # The API server builds its routes at the first request of a task, which takes long on a busy machine.
            "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
            "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(ports.trigger_log),
            "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(ports.worker_log),
            "AIRFLOW_CONN_SPARK_DEFAULT": json.dumps({"conn_type": "spark", "host": "local[*]"}),
            "JDK_JAVA_OPTIONS": short_job_flags(Path(sys.prefix)),
            "LAKEHOUSE_DAGS_PAUSED": "!services.schedule",
            "LAKEHOUSE_HOME": str(self.home),
            "LAKEHOUSE_SPARK_HOME": sys.prefix,
            "LAKEHOUSE_SPECS": str(self.specs),
            # Processes of Airflow find the project of this folder, also if another one is installed.
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "plugins"))),
            "PYTHONWARNINGS": "ignore",
        }
        if database.refusal is not None:
            settings[NO_BACKFILL] = (
                f"The demo's Airflow has SQLite as its database: {database.refusal}. A backfill would end its "
                f"scheduler. For backfills, {HOW_TO_INSTALL}."
            )
        return settings

    def environment(self, database: Database, ports: Ports) -> dict[str, str]:
        """Return the complete environment of Airflow's processes."""
        path = f"{self.airflow_venv / 'bin'}{os.pathsep}{os.environ.get('PATH', '')}"
        return {**os.environ, **self.variables(database, ports), PROCESS_OF: str(self.home), "PATH": path}

    def write_settings(self, database: Database) -> None:
        """Write Airflow's local settings: on SQLite they refuse backfills."""
        target = self.airflow_home / "config" / "airflow_local_settings.py"
        target.parent.mkdir(parents=True, exist_ok=True)
        if database.refusal is None:
            target.unlink(missing_ok=True)
        else:
            shutil.copyfile(Path(__file__).with_name("refuse_backfills.py"), target)

    def write_env(self, database: Database, ports: Ports) -> Path:
        """Write the file that a shell sources to use `airflow` against the demo; it contains a password."""
        path = self.home / "env"
        path.unlink(missing_ok=True)
        path.touch(mode=0o600)
        lines = [f"export {name}={shlex.quote(value)}" for name, value in self.variables(database, ports).items()]
        lines.append(f'export PATH={shlex.quote(str(self.airflow_venv / "bin"))}:"$PATH"')
        text = f"# Source this file to use `airflow` against the running demo: . {shlex.quote(str(path))}\n"
        path.write_text(text + "\n".join(lines) + "\n", encoding="utf-8")
        return path
