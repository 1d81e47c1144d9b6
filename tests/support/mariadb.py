"""A MariaDB server on a free port of 127.0.0.1, from the programs installed on this machine."""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.mysql import DatabaseServer, require_client, temporary_place, user_flag

#: Debian installs the server outside of the search path of ordinary users.
_FOLDERS = "/usr/sbin:/usr/local/sbin:/usr/libexec"


def _program(name: str) -> Path:
    """Return the path of a program of MariaDB; skip the test if it is not installed."""
    found = shutil.which(name) or shutil.which(name, path=_FOLDERS)
    if found is None:
        pytest.skip(f"missing: MariaDB ({name}); on Debian: apt-get install mariadb-server-core mariadb-client-core")
    return Path(found)


@contextmanager
def mariadb_server(**settings: str) -> Iterator[DatabaseServer]:
    """Run MariaDB with an empty database; `settings` replace options of the server."""
    require_client()
    program, install = _program("mariadbd"), _program("mariadb-install-db")
    with temporary_place("mariadb") as place:
        flags = ["--no-defaults", *user_flag(), "--auth-root-authentication-method=normal", "--skip-test-db"]
        command = [install, *flags, f"--datadir={place / 'data'}"]
        made = subprocess.run(command, cwd=place, capture_output=True, text=True, check=False)
        assert made.returncode == 0, made.stderr
        server = DatabaseServer(place, program, {k.replace("_", "-"): v for k, v in settings.items()}, "mariadb")
        try:
            yield server
        finally:
            server.stop(signal.SIGKILL)


@pytest.fixture(scope="session")
def mariadb() -> Iterator[DatabaseServer]:
    """A MariaDB server for all tests of a process."""
    with mariadb_server() as server:
        yield server
