"""Database servers on free ports of 127.0.0.1: MySQL 8.0 of `make mysql`, and what MariaDB has in common with it."""

from __future__ import annotations

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from tests.support.postgresql import HOST, free_port, wait_for_port
from tests.support.waiting import until

PROGRAMS = Path(__file__).resolve().parents[2] / ".jars" / "mysql"
#: The account that tests change tables with; it may do everything.
ADMIN, ADMIN_PASSWORD = "tests", "tests-password"
#: The account of an ingestion, with the rights that the how-to names.
READER, READER_PASSWORD = "reader", "reader-password"
#: Rows carry whole images, names and signs. The time zone is not UTC, so that a session that does not set one fails.
_SETTINGS = {
    "bind-address": HOST,
    "server-id": "1",
    "log-bin": "binlog",
    "binlog-format": "ROW",
    "binlog-row-image": "FULL",
    "binlog-row-metadata": "FULL",
    "default-time-zone": "-03:30",
    "character-set-server": "utf8mb4",
    "innodb-buffer-pool-size": "64M",
    "innodb-flush-log-at-trx-commit": "2",
    "sync-binlog": "0",
    "performance-schema": "OFF",
    "max-connections": "100",
}
_GRANTS = (
    f"CREATE USER IF NOT EXISTS '{ADMIN}'@'%' IDENTIFIED BY '{ADMIN_PASSWORD}'",
    f"GRANT ALL ON *.* TO '{ADMIN}'@'%' WITH GRANT OPTION",
    f"CREATE USER IF NOT EXISTS '{READER}'@'%' IDENTIFIED BY '{READER_PASSWORD}'",
    f"GRANT SELECT, REPLICATION SLAVE, REPLICATION CLIENT ON *.* TO '{READER}'@'%'",
)
_names = count(1)


class DatabaseServer:
    """A server that can be stopped and started again; its data stay in the directory `place`."""

    def __init__(self, place: Path, program: Path, settings: dict[str, str], kind: str) -> None:
        self.place, self.program, self.kind = place, program, kind
        self.port = free_port()
        grants = place / "grants.sql"
        # The statements of this file are not in the binlog.
        grants.write_text("".join(f"{statement};\n" for statement in _GRANTS))
        self._settings = {**_SETTINGS, "init-file": str(grants), **settings}
        self.process = self._started()

    def connect(self, database: str | None = None, **settings: Any) -> Any:
        """Return a PyMySQL connection of the account that may do everything, with autocommit and in UTC."""
        import pymysql

        account = {"user": ADMIN, "password": ADMIN_PASSWORD}
        given = {"autocommit": True, "init_command": "set time_zone = '+00:00'", "charset": "utf8mb4"}
        return pymysql.connect(host=HOST, port=self.port, database=database, **{**account, **given, **settings})

    def run(self, *statements: str, database: str | None = None) -> None:
        """Run statements in one session; each one commits."""
        with closing(self.connect(database)) as connection, connection.cursor() as cursor:
            for statement in statements:
                cursor.execute(statement)

    def query(self, statement: str, parameters: Sequence[object] | None = None) -> list[tuple[Any, ...]]:
        """Return the rows of a query."""
        with closing(self.connect()) as connection, connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return list(cursor.fetchall())

    def database(self) -> str:
        """Create a database and return its name; each call has another name."""
        name = f"shop_{next(_names)}"
        self.run(f"create database {name}")
        return name

    @property
    def connection(self) -> dict[str, str]:
        """The environment variable of the Airflow connection `mysql_default`, with the account of an ingestion."""
        value = {
            "conn_type": "mysql",
            "host": HOST,
            "port": self.port,
            "login": READER,
            "password": READER_PASSWORD,
        }
        return {"AIRFLOW_CONN_MYSQL_DEFAULT": json.dumps(value)}

    def start(self) -> None:
        """Start the server again on the same port."""
        self.process = self._started()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stop the server: SIGTERM stops it orderly, SIGKILL ends it at once."""
        self.process.send_signal(number)
        self.process.wait(timeout=60)

    def _started(self) -> subprocess.Popen[bytes]:
        settings = {
            **self._settings,
            "port": str(self.port),
            "datadir": str(self.place / "data"),
            "socket": str(self.place / "socket"),
            "pid-file": str(self.place / "pid"),
        }
        command = [
            self.program,
            "--no-defaults",
            *user_flag(),
            *(f"--{name}={text}" for name, text in settings.items()),
        ]
        with open(self.place / "log", "ab") as log:
            process = subprocess.Popen(command, cwd=self.place, stdout=log, stderr=log)
        wait_for_port(process, self.port, self.place / "log")
        assert until(lambda: process.poll() is not None or self._answers()), (self.place / "log").read_text()
        return process

    def _answers(self) -> bool:
        import pymysql

        try:
            self.query("select 1")
        except pymysql.err.OperationalError:
            return False
        return True


def user_flag() -> list[str]:
    """Return the flag without which a server refuses to run as root."""
    return ["--user=root"] if os.geteuid() == 0 else []


@contextmanager
def temporary_place(kind: str) -> Iterator[Path]:
    """Yield a directory with a short path, as sockets need it; it is deleted at the end."""
    place = Path(tempfile.mkdtemp(prefix=f"lakehouse-{kind}-"))
    try:
        yield place
    finally:
        shutil.rmtree(place, ignore_errors=True)


def require_client() -> None:
    """Skip the test if PyMySQL is not installed."""
    if find_spec("pymysql") is None:
        pytest.skip("missing: PyMySQL; install lakehouse-tables[mysql]")


@contextmanager
def mysql_server(**settings: str) -> Iterator[DatabaseServer]:
    """Run MySQL with an empty database; `settings` replace options of the server."""
    require_client()
    program = PROGRAMS / "bin" / "mysqld"
    if not program.exists():
        pytest.skip("missing: MySQL; `make mysql` fetches it with mvn")
    if sys.platform != "linux" or platform.machine() != "x86_64":
        pytest.skip("MySQL of Maven runs on Linux with x86_64 only")
    if (
        not shutil.which("ldd")
        or "not found" in subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    ):
        pytest.skip("missing: a library of MySQL (libaio); on Debian: apt-get install libaio1")
    with temporary_place("mysql") as place:
        flags = ["--no-defaults", *user_flag(), "--initialize-insecure", f"--datadir={place / 'data'}"]
        made = subprocess.run([program, *flags], cwd=place, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        options = {"gtid-mode": "ON", "enforce-gtid-consistency": "ON", "mysqlx": "OFF"}
        server = DatabaseServer(
            place, program, {**options, **{k.replace("_", "-"): v for k, v in settings.items()}}, "mysql"
        )
        try:
            yield server
        finally:
            server.stop(signal.SIGKILL)


@pytest.fixture(scope="session")
def mysql() -> Iterator[DatabaseServer]:
    """A MySQL server for all tests of a process."""
    with mysql_server() as server:
        yield server


@pytest.fixture(params=["mariadb", "mysql"])
def database_server(request: pytest.FixtureRequest) -> DatabaseServer:
    """MariaDB in the first run of a test, and MySQL in the second."""
    server: DatabaseServer = request.getfixturevalue(request.param)
    return server
