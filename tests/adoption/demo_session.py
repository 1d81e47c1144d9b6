"""A clone of the project in which `make demo` and `make ui` run as a new user starts them."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from lakehouse.demo.processes import processes_of

ROOT = Path(__file__).resolve().parents[2]
#: Environments that a clone shares with this checkout; make does not build them again.
ENVIRONMENTS = (".venv", ".venv-airflow")
_URL = re.compile(r"Airflow's pages +(http://127\.0\.0\.1:\d+)")
_START_S, _STOP_S = 300.0, 120.0


@dataclass(frozen=True, slots=True)
class Clone:
    """A clone of the project, and the home of its demo."""

    folder: Path

    @property
    def home(self) -> Path:
        """The home of the demo."""
        return self.folder / ".demo"

    def make(self, *targets: str) -> list[str]:
        """Return the command of make; environments that exist are not built again."""
        targets_done = [word for name in ENVIRONMENTS for word in ("-o", f"{name}/.ready")]
        return ["make", "--no-print-directory", *targets_done, *targets]

    def run(self, target: str, log: Path) -> float:
        """Run a target to its end, with its output in a file, and return its seconds."""
        started = time.monotonic()
        with log.open("w", encoding="utf-8") as output:
            done = subprocess.run(
                self.make(target),
                cwd=self.folder,
                env=environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
            )
        if done.returncode:
            raise SystemExit(
                f"make {target} ended with {done.returncode}; the end of {log}:\n{log.read_text()[-3000:]}"
            )
        return time.monotonic() - started

    @contextmanager
    def pages(self, log: Path) -> Iterator[str]:
        """Run `make ui` and yield the address of the pages; end it by Ctrl-C, and check that no process is left."""
        with log.open("w", encoding="utf-8") as output:
            process = subprocess.Popen(
                self.make("ui"),
                cwd=self.folder,
                env=environment(),
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        try:
            yield _address(process, log)
        finally:
            # A terminal sends Ctrl-C to all processes of the foreground: make and the demo.
            os.killpg(process.pid, signal.SIGINT)
            process.wait(timeout=_STOP_S)
        left = processes_of(self.home)
        if left:
            raise SystemExit(f"make ui left processes behind: {left}")
        if "Traceback" in log.read_text(encoding="utf-8"):
            raise SystemExit(f"make ui ended with a traceback: {log}")


def clone(folder: Path) -> Clone:
    """Clone the project into a folder, with the environments of this checkout."""
    if not (folder / "Makefile").exists():
        subprocess.run(["git", "clone", "--quiet", "--shared", str(ROOT), str(folder)], check=True)
    for name in ENVIRONMENTS:
        target = ROOT / name
        if not (target / "bin").exists():
            raise SystemExit(f"{target} is missing; run 'make venvs'")
        if not (folder / name).exists():
            (folder / name).symlink_to(target.resolve())
    # PostgreSQL does not run as root, and its user has to enter the folder.
    folder.chmod(0o755)
    return Clone(folder)


def environment() -> dict[str, str]:
    """Return the environment of a new user's shell."""
    private = ("AIRFLOW", "LAKEHOUSE", "MAKE", "MFLAGS", "PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV")
    return {name: value for name, value in os.environ.items() if not name.startswith(private)}


def token(url: str) -> str:
    """Return the token of the administrator."""
    with urlopen(f"{url}/auth/token", timeout=60) as answer:
        return str(json.load(answer)["access_token"])


def call(url: str, path: str) -> Any:
    """Return the JSON of a request to the REST API of lakehouse."""
    request = Request(f"{url}/lakehouse/api/v1/{path}", headers={"Authorization": f"Bearer {token(url)}"})
    with urlopen(request, timeout=120) as answer:
        return json.load(answer)


def _address(process: subprocess.Popen[bytes], log: Path) -> str:
    deadline = time.monotonic() + _START_S
    while time.monotonic() < deadline and process.poll() is None:
        address = _URL.search(log.read_text(encoding="utf-8"))
        if address:
            return address[1]
        time.sleep(0.5)
    raise SystemExit(f"make ui showed no address; its output:\n{log.read_text(encoding='utf-8')[-3000:]}")
