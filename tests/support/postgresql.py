"""A PostgreSQL server on a free port of 127.0.0.1, from the binaries of the machine."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

HOST = "127.0.0.1"
USER = "lakehouse"
# The server refuses to run as root; Debian's package makes this user.
SYSTEM_USER = "postgres"


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody uses."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def binaries() -> Path:
    """Return the directory of initdb and postgres; skip the test where there is none."""
    found = shutil.which("initdb")
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found is None and not installed:
        pytest.skip("missing: PostgreSQL (initdb); on Debian: apt-get install postgresql")
    return Path(found).parent if found is not None else installed[-1].parent


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """A server with an empty database, and its SQLAlchemy URL."""
    programs = binaries()
    place = Path(tempfile.mkdtemp(prefix="lakehouse-postgresql-"))
    user = SYSTEM_USER if os.geteuid() == 0 else None
    if user is not None:
        shutil.chown(place, user)
    data, port = place / "data", free_port()
    made = subprocess.run(
        [programs / "initdb", "-D", data, "-U", USER, "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"],
        user=user,
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
    )
    assert made.returncode == 0, made.stderr
    settings = {"listen_addresses": HOST, "port": port, "unix_socket_directories": place, "fsync": "off"}
    flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    with open(place / "log", "wb") as log:
        server = subprocess.Popen([programs / "postgres", "-D", data, *flags], user=user, cwd=place, stderr=log)
    try:
        wait_for_port(server, port, place / "log")
        yield f"postgresql+psycopg://{USER}@{HOST}:{port}/postgres"
    finally:
        server.terminate()
        server.wait(timeout=30)
        shutil.rmtree(place, ignore_errors=True)


def wait_for_port(server: subprocess.Popen[bytes], port: int, log: Path, seconds: float = 60) -> None:
    """Return when the server answers; fail with its log if it ends or takes too long."""
    deadline = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"the server did not come up: {log.read_text(errors='replace')[-2000:]}")
