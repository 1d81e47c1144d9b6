"""The demo's Airflow: `airflow standalone` as a session of processes, and its REST API."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

from demo.database import Database
from demo.place import DemoPlace, Ports
from demo.processes import HOST, end_processes_of, end_session, environment_of, session_members
from lakehouse.core.system.clock import WaitClock
from lakehouse.errors import LakehouseError

_START_S, _PATIENCE_S, _POLL_S, _REQUEST_S = 240.0, 180.0, 0.5, 60.0
_TAIL_LINES = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class AirflowApi:
    """The REST API of an Airflow in which all users are administrators."""

    url: str
    clock: WaitClock
    token: dict[str, str] = field(default_factory=dict, compare=False)

    def get(self, path: str) -> Any:
        """Return the JSON of a GET request. An internal error, or no answer, is retried for three minutes.

        Raises:
            LakehouseError: Airflow refuses the request, or does not answer.
        """
        deadline = self.clock.monotonic_s() + _PATIENCE_S
        while True:
            try:
                return self._call("GET", path, None)
            except HTTPError as error:
                # Airflow answers 500 while SQLite is locked. The same request succeeds later.
                if error.code != 500 or self.clock.monotonic_s() > deadline:
                    raise self._failed("GET", path, error) from error
            except OSError as error:
                # A busy machine answers late.
                if self.clock.monotonic_s() > deadline:
                    raise LakehouseError(f"Airflow does not answer GET {path}: {error}") from error
            self.clock.sleep(1)

    def send(self, method: str, path: str, body: Mapping[str, Any]) -> Any:
        """Send a body and return the JSON of the answer.

        Raises:
            LakehouseError: Airflow refuses the request.
        """
        try:
            return self._call(method, path, body)
        except HTTPError as error:
            raise self._failed(method, path, error) from error

    def is_up(self) -> bool:
        """Return whether the API answers and the scheduler and the DAG processor are healthy."""
        try:
            health = self._call("GET", "monitor/health", None)
        except (HTTPError, URLError, OSError):
            return False
        return all(health[part]["status"] == "healthy" for part in ("scheduler", "dag_processor"))

    def _call(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        if "token" not in self.token:
            self.token["token"] = self._fetch("GET", "/auth/token", None)["access_token"]
        return self._fetch(method, f"/api/v2/{path}", body)

    def _fetch(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        headers = {"Content-Type": "application/json"}
        if "token" in self.token:
            headers["Authorization"] = f"Bearer {self.token['token']}"
        data = None if body is None else json.dumps(body).encode()
        with urlopen(Request(self.url + path, data=data, headers=headers, method=method), timeout=_REQUEST_S) as answer:
            return json.load(answer)

    def _failed(self, method: str, path: str, error: HTTPError) -> LakehouseError:
        return LakehouseError(f"Airflow answered {error.code} to {method} {path}: {error.read().decode()[:500]}")


@contextmanager
def running_airflow(
    place: DemoPlace, database: Database, ports: Ports, clock: WaitClock
) -> Iterator[tuple[AirflowApi, subprocess.Popen[bytes]]]:
    """Start Airflow, wait until it answers, and end all its processes at the end of the block.

    Raises:
        LakehouseError: Airflow ended or did not answer; the message has the end of its log.
    """
    session = _session(place)
    place.airflow_home.mkdir(parents=True, exist_ok=True)
    place.airflow_log.parent.mkdir(parents=True, exist_ok=True)
    place.write_settings(database)
    with place.airflow_log.open("wb") as log:
        process = subprocess.Popen(
            [str(place.airflow_venv / "bin" / "airflow"), "standalone"],
            env=place.environment(database, ports),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    session.write_text(str(process.pid), encoding="utf-8")
    try:
        api = AirflowApi(url=f"http://{HOST}:{ports.api}", clock=clock)
        deadline = clock.monotonic_s() + _START_S
        while not api.is_up():
            if process.poll() is not None:
                raise LakehouseError(f"Airflow ended with exit code {process.returncode}\n{log_tail(place)}")
            if clock.monotonic_s() > deadline:
                raise LakehouseError(f"Airflow did not answer within {_START_S:.0f} s\n{log_tail(place)}")
            clock.sleep(_POLL_S)
        yield api, process
    finally:
        end_session(process.pid, clock)
        process.wait()
        end_processes_of(place.home, clock)
        session.unlink(missing_ok=True)


def set_up(place: DemoPlace, database: Database, ports: Ports) -> None:
    """Create the pools of the DAGs with the command that a deployment uses, too.

    Raises:
        LakehouseError: The command failed.
    """
    done = subprocess.run(
        [str(place.airflow_venv / "bin" / "airflow"), "lakehouse", "setup"],
        env=place.environment(database, ports),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        lines = (done.stderr or done.stdout).splitlines()[-_TAIL_LINES:]
        raise LakehouseError("`airflow lakehouse setup` failed\n" + "\n".join(lines))


def log_tail(place: DemoPlace) -> str:
    """Return the end of the output of Airflow's processes, and where all of it is."""
    lines = place.airflow_log.read_text(encoding="utf-8", errors="replace").splitlines()[-_TAIL_LINES:]
    return "\n".join([*lines, f"(the whole log: {os.path.relpath(place.airflow_log)})"])


def end_leftover(place: DemoPlace, clock: WaitClock) -> None:
    """End the Airflow of a demo that was killed. The lock of the demo's home excludes a running demo."""
    end_processes_of(place.home, clock)
    try:
        leader = int(_session(place).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    # The operating system may have given the id to another process since.
    home = str(place.airflow_home)
    if any(environment_of(pid).get("AIRFLOW_HOME") == home for pid in session_members(leader)):
        end_session(leader, clock)
    _session(place).unlink(missing_ok=True)


def _session(place: DemoPlace) -> Path:
    """Return the file with the id of the session of Airflow's processes."""
    return place.airflow_home / "session"
