"""The demo on small files: a complete Airflow with its own database, its report, and refused backfills on SQLite."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

import pytest

from demo.place import NO_BACKFILL
from demo.processes import PROCESS_OF, environment_of
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SPARK = ROOT / ".venv" / "bin" / "python"
AIRFLOW_VENV = Path(sys.executable).parents[1]
WAIT_S = 300.0

SPEC = """\
table: trips
location: lake/trips
record_key: [id]
ordering: at
schema: {id: string, at: long}
ingest:
  path: replaced by --data
  format: json
  schedule: "@hourly"
  start_date: 2026-01-01
"""

pytestmark = pytest.mark.slow


@pytest.fixture
def home() -> Iterator[Path]:
    if not SPARK.exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    # PostgreSQL does not run as root, and its user cannot enter the folders of pytest.
    place = Path(tempfile.mkdtemp(prefix="lakehouse-demo-"))
    place.chmod(0o755)
    yield place / "demo"
    shutil.rmtree(place, ignore_errors=True)


def demo(verb: str, home: Path, *words: str) -> list[str]:
    place = ["--home", str(home), "--airflow-venv", str(AIRFLOW_VENV)]
    return [str(SPARK), "-m", "demo", verb, *place, *words]


def own_environment() -> dict[str, str]:
    """Return the environment of a shell; that of these tests configures another Airflow."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "LAKEHOUSE"))}
    return {**kept, "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "plugins")))}


def processes_of(home: Path) -> list[int]:
    """Return the running processes of the demo's Airflow and of its database."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            place = environment_of(int(entry.name)).get("AIRFLOW_HOME", "")
            try:
                command = (entry / "cmdline").read_bytes()
            except OSError:
                continue
            if place == str(home / "airflow") or os.fsencode(home / "postgresql" / "data") in command:
                found.append(int(entry.name))
    return found


def run(words: list[str]) -> str:
    done = subprocess.run(words, cwd=ROOT, env=own_environment(), capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"
    return done.stdout


def test_demo_ingests_own_files_by_scheduled_and_triggered_runs(home: Path, tmp_path: Path) -> None:
    (tmp_path / "trips.yaml").write_text(SPEC, encoding="utf-8")
    data = tmp_path / "files"
    data.mkdir()
    (data / "1.json").write_text('{"id": "a", "at": 1}\n{"id": "b", "at": 1}\n', encoding="utf-8")
    words = demo("run", home, "--data", str(data), "--table", str(tmp_path / "trips.yaml"))
    first = run(words)
    assert "ingest.trips, scheduled run in" in first
    assert "2 inserted, 0 updated, 1 files" in first
    assert processes_of(home) == []
    assert "trips" in (home / "report.html").read_text(encoding="utf-8")

    (data / "2.json").write_text('{"id": "b", "at": 2}\n{"id": "c", "at": 2}\n', encoding="utf-8")
    second = run(words)
    assert "ingest.trips, " in second
    assert "1 inserted, 1 updated" in second
    # The runs of the first demo are still there: the database was kept.
    assert second.count("scheduled") >= 1
    assert processes_of(home) == []


def test_demo_ends_with_the_log_of_a_failed_task(home: Path, tmp_path: Path) -> None:
    (tmp_path / "trips.yaml").write_text(SPEC, encoding="utf-8")
    data = tmp_path / "files"
    data.mkdir()
    (data / "1.json").write_text('{"id": "a", "at": 1}\n', encoding="utf-8")
    # A file where the folder of the tables would be.
    home.mkdir()
    (home / "lake").write_text("", encoding="utf-8")
    words = demo("run", home, "--data", str(data), "--table", str(tmp_path / "trips.yaml"))
    done = subprocess.run(words, cwd=ROOT, env=own_environment(), capture_output=True, text=True, check=False)
    assert done.returncode != 0
    assert "the task ingest of ingest.trips failed in the run scheduled__" in done.stderr
    assert str(home / "lake") in done.stderr
    assert processes_of(home) == []


@contextmanager
def pages(home: Path, *words: str, stop: signal.Signals = signal.SIGINT) -> Iterator[Path]:
    """Run `demo ui` and yield its output when Airflow is ready; a signal, sent twice, ends it."""
    home.mkdir(parents=True, exist_ok=True)
    output = home.parent / "ui.out"
    with output.open("w", encoding="utf-8") as stream:
        process = subprocess.Popen(
            demo("ui", home, *words), cwd=ROOT, env=own_environment(), stdout=stream, stderr=subprocess.STDOUT
        )
    try:
        assert until(
            lambda: "Airflow's pages" in output.read_text(encoding="utf-8") or process.poll() is not None,
            limit_s=WAIT_S,
        )
        assert process.poll() is None, output.read_text(encoding="utf-8")
        yield output
    finally:
        process.send_signal(stop)
        # An impatient user presses Ctrl-C again while Airflow stops.
        time.sleep(1)
        process.send_signal(stop)
        process.wait(timeout=WAIT_S)
    assert process.returncode == 0, output.read_text(encoding="utf-8")
    assert "Traceback" not in output.read_text(encoding="utf-8")


def shell(home: Path, command: str) -> subprocess.CompletedProcess[str]:
    """Run a command in a shell that has sourced the file with the environment of the demo."""
    script = f". {home / 'env'} && {command}"
    return subprocess.run(["sh", "-c", script], env=own_environment(), capture_output=True, text=True, check=False)


def test_backfill_on_sqlite_is_refused_with_the_reason_and_airflow_runs_on(home: Path) -> None:
    with pages(home, "--database", "sqlite", stop=signal.SIGTERM) as output:
        # A job of a stream has a session of its own, and continues when its task ends.
        left = subprocess.Popen(["sleep", "600"], env={**os.environ, PROCESS_OF: str(home)}, start_new_session=True)
        assert "are refused, because SQLite was chosen" in output.read_text(encoding="utf-8")
        command = "airflow backfill create --dag-id ingest.ride_trips --from-date 2026-02-01 --to-date 2026-02-03"
        # The DAG is there as soon as Airflow has parsed it.
        assert until(lambda: "ingest.ride_trips" in shell(home, "airflow dags list").stdout, limit_s=WAIT_S)
        refused = shell(home, command)
        assert refused.returncode != 0
        assert "has SQLite as its database: SQLite was chosen" in refused.stdout + refused.stderr
        assert "apt-get install postgresql" in refused.stdout + refused.stderr

        url = shell(home, 'printf %s "$AIRFLOW__API__BASE_URL"').stdout
        token = call(f"{url}/auth/token", None, "")["access_token"]
        body = {"dag_id": "ingest.ride_trips", "from_date": "2026-02-01T00:00:00Z", "to_date": "2026-02-03T00:00:00Z"}
        with pytest.raises(HTTPError) as error:
            call(f"{url}/api/v2/backfills", body, token)
        answer = error.value.read().decode()
        assert error.value.code == 400
        assert "apt-get install postgresql" in answer

        assert call(f"{url}/api/v2/backfills?dag_id=ingest.ride_trips", None, token)["backfills"] == []
        assert call(f"{url}/api/v2/dags/ingest.ride_trips/dagRuns", None, token)["dag_runs"] == []
        health = call(f"{url}/api/v2/monitor/health", None, token)
        assert {health[part]["status"] for part in ("scheduler", "dag_processor", "metadatabase")} == {"healthy"}
    assert processes_of(home) == []
    assert left.wait(timeout=WAIT_S) != 0


def call(url: str, body: dict[str, Any] | None, token: str) -> Any:
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    data = None if body is None else json.dumps(body).encode()
    with urlopen(Request(url, data=data, headers=headers), timeout=60) as answer:
        return json.load(answer)


def test_refusal_is_read_from_the_variable_of_the_demo() -> None:
    text = (ROOT / "demo" / "refuse_backfills.py").read_text(encoding="utf-8")
    assert f'REASON = "{NO_BACKFILL}"' in text
