from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from demo import database
from demo.database import find_programs, open_database
from lakehouse.core.system.clock import SystemClock
from lakehouse.core.system.ids import RandomIds
from lakehouse.errors import UserError
from tests.support.postgresql import binaries
from tests.support.waiting import until

CLOCK, IDS = SystemClock(), RandomIds()


def value_of(url: str, statement: str) -> Any:
    """Run one statement and return its first value; None for a statement without rows."""
    with psycopg.connect(url.replace("+psycopg2:", ":")) as connection:
        cursor = connection.execute(statement)
        row = None if cursor.description is None else cursor.fetchone()
        return None if row is None else row[0]


@pytest.fixture
def home() -> Iterator[Path]:
    binaries()
    # PostgreSQL does not run as root, and its user cannot enter the folders of pytest.
    place = Path(tempfile.mkdtemp(prefix="lakehouse-demo-"))
    place.chmod(0o755)
    yield place
    shutil.rmtree(place, ignore_errors=True)


def test_open_database_keeps_rows_of_an_earlier_start(home: Path) -> None:
    with open_database(home, "postgresql", CLOCK, IDS) as first:
        assert first.refusal is None
        value_of(first.url, "create table runs (number int)")
        value_of(first.url, "insert into runs values (7)")
    with open_database(home, "auto", CLOCK, IDS) as second:
        assert value_of(second.url, "select number from runs") == 7
        assert value_of(second.url, "show listen_addresses") == "127.0.0.1"
        assert value_of(second.url, "show unix_socket_directories") == ""
    assert not (home / "postgresql" / "data" / "postmaster.pid").exists()


def test_open_database_stops_a_server_that_an_ended_demo_left(home: Path) -> None:
    script = (
        "import sys, os, signal; from pathlib import Path\n"
        "from lakehouse.core.system.clock import SystemClock; from lakehouse.core.system.ids import RandomIds\n"
        "from demo.database import open_database\n"
        "with open_database(Path(sys.argv[1]), 'postgresql', SystemClock(), RandomIds()):\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = subprocess.run([sys.executable, "-c", script, str(home)], check=False)
    assert done.returncode == -signal.SIGKILL
    left = int((home / "postgresql" / "data" / "postmaster.pid").read_text().splitlines()[0])
    os.kill(left, 0)
    with open_database(home, "postgresql", CLOCK, IDS) as again:
        assert value_of(again.url, "select 1") == 1
    assert until(lambda: not Path(f"/proc/{left}").exists())


def test_open_database_needs_the_password_of_the_file(home: Path) -> None:
    with open_database(home, "postgresql", CLOCK, IDS) as found:
        password = (home / "postgresql" / "password").read_text().strip()
        with pytest.raises(psycopg.OperationalError, match="password authentication failed"):
            value_of(found.url.replace(password, "other"), "select 1")
    assert (home / "postgresql").stat().st_mode & 0o077 == 0


def test_open_database_is_sqlite_with_a_reason_without_postgresql(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(database, "find_programs", lambda: [])
    with open_database(tmp_path, "auto", CLOCK, IDS) as found:
        assert found.url.startswith("sqlite:///")
        assert found.refusal == "PostgreSQL is not installed (no initdb on PATH or in /usr/lib/postgresql)"
    with (
        pytest.raises(UserError, match=r"is not installed.*apt-get install postgresql"),
        open_database(tmp_path, "postgresql", CLOCK, IDS),
    ):
        pass


@pytest.mark.skipif(os.geteuid() != 0, reason="only root runs the server as another user")
def test_open_database_is_sqlite_with_a_reason_in_a_closed_folder(home: Path) -> None:
    closed = home / "closed"
    closed.mkdir(mode=0o700)
    with open_database(closed, "auto", CLOCK, IDS) as found:
        assert found.refusal is not None
        assert "which has no access to" in found.refusal


def test_open_database_names_the_missing_version_of_existing_data(home: Path) -> None:
    with open_database(home, "postgresql", CLOCK, IDS):
        pass
    (home / "postgresql" / "data" / "PG_VERSION").write_text("3\n")
    with (
        pytest.raises(UserError, match="written by PostgreSQL 3, which is not installed any more"),
        open_database(home, "auto", CLOCK, IDS),
    ):
        pass


def test_find_programs_returns_directories_with_a_server() -> None:
    binaries()
    found = find_programs()
    assert found
    assert all((path / "postgres").exists() for path in found)
