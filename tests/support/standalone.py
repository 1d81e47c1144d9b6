"""Run `airflow standalone` on free ports with a separate home directory, and call its REST API."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.request import Request, urlopen

import psutil
import pytest

from tests.support.postgresql import server

#: The longest wait for a state. A busy machine takes several times as long as a quiet one.
WAIT_S = 400
_PATIENCE_S = 30
#: The programs of this environment.
PROGRAMS = Path(sys.executable).parent
Answer = TypeVar("Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Standalone:
    """A running Airflow in which all users are administrators."""

    port: int
    environment: Mapping[str, str]
    log: Path
    programs: Path = PROGRAMS

    def call(self, path: str, body: Mapping[str, Any] | None = None, *, method: str | None = None) -> Any:
        """Call the API and return its JSON; the default method is POST with a body and GET without one."""
        verb = method or ("GET" if body is None else "POST")
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            try:
                return self._fetch(f"/api/v2/{path}", body, self.token(), verb)
            except HTTPError as error:
                # Airflow cannot return an event while a run started by it is queued or while SQLite is locked. The same
                # request succeeds later.
                if verb != "GET" or error.code != 500 or time.monotonic() > deadline:
                    raise
            except TimeoutError:
                # A busy machine.
                if verb != "GET" or time.monotonic() > deadline + _PATIENCE_S:
                    raise
            time.sleep(1)

    def token(self) -> str:
        """Return a token of an administrator."""
        return str(self._fetch("/auth/token", None, None, "GET")["access_token"])

    def backfill(self, dag_id: str, first: str, last: str, *words: str) -> None:
        """Create a backfill; if a locked SQLite database interrupts the creation, cancel it and create it again."""
        command = ["backfill", "create", "--dag-id", dag_id, "--from-date", first, "--to-date", last]
        try:
            self.command(*command, *words)
        except AssertionError as error:
            if "database is locked" not in str(error):
                raise
            for begun in self.call(f"backfills?dag_id={dag_id}")["backfills"]:
                if not begun["completed_at"]:
                    self.call(f"backfills/{begun['id']}/cancel", {}, method="PUT")
            # Runs of the cancelled backfill remain, so the new one has to reprocess them.
            self.command(*command, "--reprocess-behavior", "completed" if "completed" in words else "failed")

    def command(self, *words: str) -> str:
        """Run an `airflow` command with the same configuration and return its output."""
        done = subprocess.run(
            [self.programs / "airflow", *words], env=self.environment, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, f"airflow {' '.join(words)}: {done.stdout}\n{done.stderr}"
        return done.stdout

    def until(
        self, question: Callable[[], Answer | None], what: str | Callable[[], str], *, timeout_s: int = WAIT_S
    ) -> Answer:
        """Call `question` once a second until its answer is true, and return the answer.

        After `timeout_s` fail with the end of Airflow's log.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            answer = question()
            if answer:
                return answer
            time.sleep(1)
        tail = "\n".join(self.log.read_text(errors="replace").splitlines()[-40:])
        condition = what if isinstance(what, str) else what()
        raise AssertionError(f"{condition}: not within {timeout_s} s\n{tail}")

    def _fetch(self, path: str, body: Mapping[str, Any] | None, token: str | None, method: str) -> Any:
        headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
        data = None if body is None else json.dumps(body).encode()
        request = Request(f"http://localhost:{self.port}{path}", data=data, headers=headers, method=method)
        with urlopen(request, timeout=30) as answer:
            return json.load(answer)

    def is_up(self) -> bool:
        """Return whether the API answers."""
        try:
            return bool(self.call("version"))
        except (URLError, OSError):
            return False


@contextmanager
def standalone(home: Path, environment: Mapping[str, str]) -> Iterator[Standalone]:
    """Run Airflow in `home` and stop it with all its processes.

    `environment` is added to the environment of the current process.
    """
    home.mkdir(parents=True, exist_ok=True)
    with _database(home) as url, running(home, {"AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": url, **environment}) as airflow:
        yield airflow


@contextmanager
def _database(home: Path) -> Iterator[str]:
    """Yield the URL of an empty database: PostgreSQL as in docker-compose.yml, or SQLite if PostgreSQL is missing.

    With SQLite the scheduler may end, because the rollback of a locked backfill removes a run that it processes.
    """
    with ExitStack() as stack:
        try:
            running = stack.enter_context(server())
        except pytest.skip.Exception:
            if os.environ.get("CI") == "true":
                raise
            # SQLite's default timeout of 5 s is too short for the concurrent writes of Airflow's processes.
            yield f"sqlite:///{home}/airflow.db?timeout=60"
        else:
            yield running.url.replace("+psycopg:", "+psycopg2:")


@contextmanager
def running(home: Path, environment: Mapping[str, str], programs: Path = PROGRAMS) -> Iterator[Standalone]:
    """Run Airflow as `standalone` does, with the database that `environment` names and programs of an environment."""
    port, tasks, triggers = free_ports(3)
    whole = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API__WORKERS": "1",
        "AIRFLOW__CORE__EXECUTION_API_SERVER_URL": f"http://localhost:{port}/execution/",
        "AIRFLOW__CORE__PARALLELISM": "2",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "True",
        "AIRFLOW__LOGGING__LOGGING_LEVEL": "INFO",
        "AIRFLOW__LOGGING__WORKER_LOG_SERVER_PORT": str(tasks),
        "AIRFLOW__LOGGING__TRIGGER_LOG_SERVER_PORT": str(triggers),
        # The default of 5 s fails tasks on a busy machine.
        "AIRFLOW__WORKERS__EXECUTION_API_TIMEOUT": "60",
        **environment,
    }
    airflow = Standalone(port=port, environment=whole, log=home / "standalone.log", programs=programs)
    with airflow.log.open("w") as log:
        process = subprocess.Popen(
            [programs / "airflow", "standalone"],
            env=whole,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        airflow.until(airflow.is_up, "Airflow's API answers", timeout_s=WAIT_S)
        yield airflow
    finally:
        stop(process)


def stop(process: subprocess.Popen[bytes]) -> None:
    """End all processes of the session.

    A signal to the parent only would not end its children, and tasks have process groups of their own.
    """
    for number in (signal.SIGTERM, signal.SIGKILL):
        for member in _session(process.pid):
            with suppress(ProcessLookupError):
                os.kill(member, number)
        deadline = time.monotonic() + 30
        while _session(process.pid) and time.monotonic() < deadline:
            process.poll()
            time.sleep(0.2)
    process.wait()


def _session(leader: int) -> list[int]:
    """Return the running processes of a session."""
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error, ProcessLookupError):
            if os.getsid(process.pid) == leader and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process.pid)
    return found


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1 that no process listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    try:
        return [opened.getsockname()[1] for opened in sockets]
    finally:
        for opened in sockets:
            opened.close()
