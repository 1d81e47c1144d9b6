"""A PostgreSQL server on a free port of 127.0.0.1, from the binaries installed on this machine."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.waiting import until

HOST = "127.0.0.1"
USER = "lakehouse"
# The server refuses to run as root. Debian's package creates this user.
SYSTEM_USER = "postgres"


def free_port() -> int:
    """Return a free port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def binaries() -> Path:
    """Return the directory of initdb and postgres; skip the test if PostgreSQL is not installed."""
    found = shutil.which("initdb")
    installed = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if found is None and not installed:
        pytest.skip("missing: PostgreSQL (initdb); on Debian: apt-get install postgresql")
    return Path(found).resolve().parent if found is not None else installed[-1].parent


class Server:
    """A server that can be stopped and started again. Its data stay in the directory `place`."""

    def __init__(self, place: Path, settings: Mapping[str, str] | None = None) -> None:
        self.place, self.programs, self._settings = place, binaries(), {**(settings or {})}
        self.user = SYSTEM_USER if os.geteuid() == 0 else None
        if self.user is not None:
            shutil.chown(place, self.user)
        self.port = free_port()
        self.url = f"postgresql+psycopg://{USER}@{HOST}:{self.port}/postgres"
        flags = ["-U", USER, "-A", "trust", "--no-sync", "-E", "UTF8", "--locale=C"]
        made = subprocess.run(
            [self.programs / "initdb", "-D", place / "data", *flags],
            user=self.user,
            cwd=place,
            capture_output=True,
            text=True,
            check=False,
        )
        assert made.returncode == 0, made.stderr
        self.process = self._started()

    def start(self) -> None:
        """Start the server again."""
        self.process = self._started()

    def stop(self, number: int = signal.SIGTERM) -> None:
        """Stop the server: SIGTERM waits for clients, SIGINT disconnects them, SIGQUIT aborts at once."""
        self.process.send_signal(number)
        self.process.wait(timeout=30)

    def _started(self) -> subprocess.Popen[bytes]:
        settings = {
            "listen_addresses": HOST,
            "port": self.port,
            "unix_socket_directories": self.place,
            "fsync": "off",
            **self._settings,
        }
        flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [self.programs / "postgres", "-D", self.place / "data", *flags]
        with open(self.place / "log", "ab") as log:
            process = subprocess.Popen(command, user=self.user, cwd=self.place, stderr=log)
        wait_for_port(process, self.port, self.place / "log")
        # A server that was killed recovers first and refuses connections until then.
        command = [self.programs / "pg_isready", "-q", "-h", HOST, "-p", str(self.port)]
        finished = until(lambda: process.poll() is not None or subprocess.run(command, check=False).returncode == 0)
        assert finished and process.poll() is None, (self.place / "log").read_text()
        return process


@contextmanager
def server(**settings: str) -> Iterator[Server]:
    """Run a server with an empty database; it is stopped and its data are deleted at the end of the block.

    `settings` are parameters of the server.
    """
    place = Path(tempfile.mkdtemp(prefix="lakehouse-postgresql-"))
    try:
        running = Server(place, settings)
        try:
            yield running
        finally:
            running.stop(signal.SIGINT)
    finally:
        shutil.rmtree(place, ignore_errors=True)


@pytest.fixture(scope="session")
def postgresql_url() -> Iterator[str]:
    """The SQLAlchemy URL of an empty database."""
    with server() as running:
        yield running.url


def wait_for_port(server: subprocess.Popen[bytes], port: int, log: Path, seconds: float = 60) -> None:
    """Wait until the server accepts connections; fail with its log if it ends or takes too long."""
    deadline = time.monotonic() + seconds
    while server.poll() is None and time.monotonic() < deadline:
        with socket.socket() as probe:
            probe.settimeout(1)
            if probe.connect_ex((HOST, port)) == 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"the server did not start: {log.read_text(errors='replace')[-2000:]}")
