"""A fake spark-submit: it starts no Spark, records its call and behaves as the test planned.

`install` creates a Spark environment that contains it. As a script it does this:

1. read `plan.json` in its directory;
2. write its arguments and environment to `call.json`;
3. write the planned report and start the planned processes;
4. exit with the planned exit code.

The Python of the environment is this file, too. It has two commands. A check of a job, `--check`, writes its arguments
and environment to `check.json`, writes the planned report of a failed check, and exits as planned. `ingest commits`
writes its arguments to `commits_call.json`, prints the planned commits, and fails without a plan.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIRECTORY = "FAKE_SUBMIT"
# Like the driver of a real job, it can outlive the JVM that started it, and it ignores SIGTERM.
DRIVER = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(120)"


@dataclass(frozen=True, slots=True, kw_only=True)
class FakeSubmit:
    """Control of an installed fake spark-submit by a test."""

    home: Path
    directory: Path

    def plan(
        self,
        *,
        exit_code: int = 0,
        report: str | None = None,
        output: str = "",
        hang: bool = False,
        orphan: bool = False,
    ) -> None:
        """Set what the next call does.

        With `hang` the call and a driver process keep running; with `orphan` only the driver process does.
        """
        plan = {"exit_code": exit_code, "report": report, "output": output, "hang": hang, "orphan": orphan}
        (self.directory / "plan.json").write_text(json.dumps(plan), encoding="utf-8")

    def plan_check(self, *, exit_code: int, report: str | None = None, output: str = "") -> None:
        """Set the result of the checks of later calls; without a plan they succeed."""
        plan = {"exit_code": exit_code, "report": report, "output": output}
        (self.directory / "plan_check.json").write_text(json.dumps(plan), encoding="utf-8")

    def plan_commits(self, commits: str) -> None:
        """Set the document that later calls of `ingest commits` print."""
        (self.directory / "commits.json").write_text(commits, encoding="utf-8")
        (self.directory / "commits_call.json").unlink(missing_ok=True)

    @property
    def commits_argv(self) -> list[str] | None:
        """The arguments of the last call of `ingest commits` after its plan; None without a call."""
        path = self.directory / "commits_call.json"
        return list(json.loads(path.read_text(encoding="utf-8"))) if path.exists() else None

    @property
    def was_started(self) -> bool:
        """Whether spark-submit was called."""
        return (self.directory / "call.json").exists()

    @property
    def check(self) -> Any:
        """The arguments and the environment of the last check; None without a check."""
        path = self.directory / "check.json"
        return json.loads(path.read_text(encoding="utf-8")) if path.exists() else None

    @property
    def argv(self) -> list[str]:
        """The arguments of the last call."""
        return list(self._call["argv"])

    @property
    def environment(self) -> dict[str, str]:
        """The environment of the last call."""
        return dict(self._call["environment"])

    @property
    def driver_pid(self) -> int | None:
        """The process id of the driver that the last call started; None until the driver runs."""
        path = self.directory / "driver.pid"
        return int(path.read_text(encoding="utf-8")) if path.exists() else None

    @property
    def _call(self) -> Any:
        return json.loads((self.directory / "call.json").read_text(encoding="utf-8"))


def install(root: Path) -> FakeSubmit:
    """Create a Spark environment below `root` with this file as its spark-submit.

    Until a test plans something else, a call succeeds and writes no report.
    """
    home, directory = root / "spark", root / "fake"
    (home / "bin").mkdir(parents=True)
    directory.mkdir()
    script = Path(__file__).resolve()
    for name in ("spark-submit", "python"):
        program = home / "bin" / name
        program.write_text(f'#!/bin/sh\n{DIRECTORY}="{directory}" exec "{sys.executable}" "{script}" {name} "$@"\n')
        program.chmod(0o755)
    fake = FakeSubmit(home=home, directory=directory)
    fake.plan()
    return fake


def main(program: str, argv: list[str]) -> int:
    """Execute the plan and return its exit code."""
    directory = Path(os.environ[DIRECTORY])
    if program == "python" and argv[1:3] == ["ingest", "commits"]:
        (directory / "commits_call.json").write_text(json.dumps(argv[1:]), encoding="utf-8")
        sys.stdout.write((directory / "commits.json").read_text(encoding="utf-8"))
        return 0
    if program == "python":
        return _check(directory, argv)
    plan = json.loads((directory / "plan.json").read_text(encoding="utf-8"))
    call = {"argv": argv, "environment": dict(os.environ)}
    (directory / "call.json").write_text(json.dumps(call), encoding="utf-8")
    if plan["report"] is not None:
        Path(argv[argv.index("--report") + 1]).write_text(plan["report"], encoding="utf-8")
    if plan["output"]:
        sys.stdout.write(plan["output"] + "\n")
    if plan["hang"] or plan["orphan"]:
        _start_driver(directory)
    if plan["hang"]:
        time.sleep(120)
    return int(plan["exit_code"])


def _check(directory: Path, argv: list[str]) -> int:
    assert "--check" in argv, f"the fake Python only checks jobs, not {argv}"
    call = {"argv": argv, "environment": dict(os.environ)}
    (directory / "check.json").write_text(json.dumps(call), encoding="utf-8")
    path = directory / "plan_check.json"
    if not path.exists():
        return 0
    plan = json.loads(path.read_text(encoding="utf-8"))
    if plan["report"] is not None:
        Path(argv[argv.index("--report") + 1]).write_text(plan["report"], encoding="utf-8")
    sys.stdout.write(plan["output"])
    return int(plan["exit_code"])


def _start_driver(directory: Path) -> None:
    """Start the driver process and write its process id to a file after it has started to ignore SIGTERM."""
    # A real driver writes to a pipe of the JVM, so it does not keep the JVM's output open.
    driver = subprocess.Popen([sys.executable, "-c", DRIVER], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
    assert driver.stdout is not None, "stdout is a pipe"
    driver.stdout.readline()
    partial = directory / "driver.pid.tmp"
    partial.write_text(str(driver.pid), encoding="utf-8")
    partial.rename(directory / "driver.pid")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], sys.argv[2:]))
