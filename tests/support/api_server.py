"""Run Airflow's API server with three users and a catalog, and call it as one of them."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tests.support.standalone import PROGRAMS, free_ports, stop
from tests.support.waiting import until

START_S = 180
#: User names by role. Passwords are the names.
USERS = {"viewer": "vera", "op": "oleg", "admin": "ada"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiServer:
    """A running API server."""

    port: int
    environment: Mapping[str, str]
    log: Path
    programs: Path = PROGRAMS
    _tokens: dict[str, str] = field(default_factory=dict)

    @property
    def url(self) -> str:
        """The base URL."""
        return f"http://127.0.0.1:{self.port}"

    def token(self, role: str) -> str:
        """Return the token of the user with a role."""
        if role not in self._tokens:
            login = {"username": USERS[role], "password": USERS[role]}
            self._tokens[role] = self.fetch("/auth/token", body=login)[1]["access_token"]
        return self._tokens[role]

    # parameters: the parts of a request
    def fetch(
        self,
        path: str,
        *,
        role: str | None = None,
        body: Any = None,
        method: str | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        """Return the status and the JSON of a request as a user, or without login; the text if it is no JSON."""
        sent = {"Content-Type": "application/json", **(headers or {})}
        if role is not None:
            sent["Authorization"] = f"Bearer {self.token(role)}"
        data = None if body is None else json.dumps(body).encode()
        verb = method or ("GET" if body is None else "POST")
        try:
            with urlopen(Request(f"{self.url}{path}", data=data, headers=sent, method=verb), timeout=60) as answer:
                status, content = answer.status, answer.read()
        except HTTPError as error:
            status, content = error.code, error.read()
        try:
            return status, json.loads(content)
        except ValueError:
            return status, content.decode(errors="replace")

    def api(self, path: str, **request: Any) -> Any:
        """Return the JSON of a request to the lakehouse API that succeeds, as an operator unless a role is given."""
        status, content = self.fetch(f"/lakehouse/api/v1/{path}", **{"role": "op", **request})
        assert status == 200, f"{path}: {status} {content}"
        return content


@contextmanager
def api_server(home: Path, environment: Mapping[str, str], *, programs: Path = PROGRAMS) -> Iterator[ApiServer]:
    """Run the API server in `home` with an SQLite database, and stop it; `programs` has the program `airflow`."""
    home.mkdir(parents=True, exist_ok=True)
    passwords = home / "passwords.json"
    passwords.write_text(json.dumps({name: name for name in USERS.values()}), encoding="utf-8")
    (port,) = free_ports(1)
    settings = {
        "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": f"sqlite:///{home}/airflow.db?timeout=60",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_ALL_ADMINS": "False",
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{name}:{role}" for role, name in USERS.items()),
        "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
        **environment,
    }
    whole = {
        **os.environ,
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "AIRFLOW_HOME": str(home),
        "AIRFLOW__API__HOST": "127.0.0.1",
        "AIRFLOW__API__PORT": str(port),
        "AIRFLOW__API__BASE_URL": f"http://127.0.0.1:{port}",
        "AIRFLOW__API__WORKERS": "1",
        **settings,
    }
    server = ApiServer(port=port, environment=whole, log=home / "api-server.log", programs=programs)
    airflow_command(server, "db", "migrate")
    with server.log.open("w") as log:
        process = subprocess.Popen(
            [programs / "airflow", "api-server"],
            env=whole,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    try:
        assert until(lambda: is_up(server), START_S), server.log.read_text(errors="replace")[-4000:]
        yield server
    finally:
        stop(process)


def is_up(server: ApiServer) -> bool:
    """Return whether the server answers."""
    try:
        return server.fetch("/api/v2/version")[0] == 200
    except OSError:
        return False


def airflow_command(server: ApiServer, *words: str) -> str:
    """Run an `airflow` command with the configuration of the server and return its output."""
    done = subprocess.run(
        [server.programs / "airflow", *words], env=server.environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, f"airflow {' '.join(words)}: {done.stdout}\n{done.stderr}"
    return done.stdout
