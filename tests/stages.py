"""Run the tests of the project in stages: `make test`.

A person gets a sample of at most 12 minutes on two cores, and one line per stage: count, percent and the current file.
Ctrl-C stops the processes of the stage. With --all, all tests run; with CI=true all but those with
the mark `extended`, and fewer random histories. The output of a
stage is in `build/tests/<stage>.log`, and with CI=true also on standard output. The script imports the standard library
only, because it runs before the environments exist.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "build" / "tests"
#: Set in some containers. Each of the hundreds of processes of a stage would then compile the modules again.
_NO_BYTECODE = "PYTHONDONTWRITEBYTECODE"
_REPEAT_S, _POLL_S = 15.0, 0.5
_TAIL_LINES, _WIDTH = 60, 100
#: The variable of `tests.stage_progress`, which the environments of the stages import.
PROGRESS = "LAKEHOUSE_STAGE_PROGRESS"
#: The exit code of a shell after Ctrl-C, and the time that a process gets for each signal.
_INTERRUPTED, _STOP_S = 130, 20.0
#: The last line of pytest, such as `=== 3 passed, 1 skipped in 2.1s ===` or `3 passed in 2.1s`.
_CLOSING = re.compile(r"^=* ?(?P<counts>(?:\d+ [a-z]+, )*\d+ [a-z]+) in [\d.:s() ]+=*$")
_PERCENT = re.compile(r"\[ *(\d+)%\]\s*$")

#: The sample of property tests: codecs and planners, which are pure, and one history of writes per table type, which
#: compares a table with a dict after each operation. They find most mistakes in seconds.
PROPERTY_SAMPLE = (
    "test_avro_schema.py",
    "test_clean.py",
    "test_compaction_plans.py",
    "test_deduplicate.py",
    "test_json_rows.py",
    "test_keys.py",
    "test_mor_histories.py",
    "test_scan_plan.py",
    "test_schema_evolution.py",
    "test_write_histories.py",
    "test_write_planner.py",
)
#: It starts Airflow with its scheduler and database, and two runs of its DAG submit Spark jobs.
AIRFLOW_SAMPLE = "tests/airflow/test_demo.py::test_demo_ingests_own_files_by_scheduled_and_triggered_runs"
#: hudi-rs reads what lakehouse writes, and Apache Hudi reads and continues tables of lakehouse.
HUDI_RS_SAMPLE = ("tests/interop/test_tables_read_by_hudi_rs.py", "tests/interop/test_log_files_read_by_hudi_rs.py")
HUDI_SAMPLE = ("tests/interop/test_tables_read_by_hudi.py",)
_STORES = ("property", "contract", "simulation", "reliability", "s3", "hadoop")
_SERVERS = ("spark", "clusters", "kafka", "databases", "interop", "reports")
#: Folders whose tests need another environment than Spark's already when pytest collects them.
OTHER_ENVIRONMENTS = ("adoption", "airflow", "matrix")
HUDI_JARS = ".jars/hudi-spark*-bundle*.jar"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Some tests with one purpose.

    Attributes:
        name: The name in the table and of the log.
        text: What the stage runs.
        command: The command, run in the root of the project.
        variables: Variables added to the environment.
        skip: The reason why the stage cannot run here; empty if it can.
    """

    name: str
    text: str
    command: tuple[str, ...]
    variables: Mapping[str, str] = field(default_factory=dict)
    skip: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The outcome of a stage: `passed`, `failed` or `skipped`."""

    stage: Stage
    outcome: str
    seconds: float
    detail: str


def make(*targets: str) -> tuple[str, ...]:
    """Return a make command."""
    return (os.environ.get("MAKE", "make"), "--no-print-directory", *targets)


def pytest(*arguments: str, venv: str = ".venv", workers: int = 2) -> tuple[str, ...]:
    """Return a pytest command with two worker processes."""
    # conftest.py orders the modules, the longest first; xdist would start those with few tests last.
    order = ("--dist", "loadfile", "--no-loadscope-reorder")
    progress = ("-p", "tests.stage_progress")
    return (f"{venv}/bin/python", "-m", "pytest", "-q", *progress, "-n", str(workers), *order, *arguments)


def sample_stages(root: Path) -> list[Stage]:
    """Return the stages for a person."""
    jar = any(root.glob(HUDI_JARS))
    return [
        Stage(name="environments", text="virtual environments", command=make("venvs")),
        Stage(name="checks", text="lint, types, import rules, documentation", command=make("check")),
        Stage(
            name="unit",
            text="unit tests and rules of the code",
            command=pytest("-m", "not jvm", "tests/unit", "tests/architecture"),
        ),
        Stage(
            name="property",
            text="a sample of the property tests",
            command=pytest(*(f"tests/property/{name}" for name in PROPERTY_SAMPLE)),
            variables={"LAKEHOUSE_SHARE": "0.2"},
        ),
        Stage(
            name="airflow",
            text="DAGs, operators, and one ingestion through a real Airflow and Spark",
            command=pytest(AIRFLOW_SAMPLE, "tests/airflow/test_dags.py", venv=".venv-airflow"),
        ),
        Stage(
            name="hudi-rs", text="hudi-rs reads tables of lakehouse", command=pytest("-m", "not jvm", *HUDI_RS_SAMPLE)
        ),
        Stage(
            name="hudi",
            text="Apache Hudi reads tables of lakehouse",
            command=pytest("-m", "jvm", *HUDI_SAMPLE, workers=1),
            skip="" if jar else "Apache Hudi's jar is not here; `make interop` fetches it with mvn",
        ),
    ]


def all_stages(*, in_ci: bool = False) -> list[Stage]:
    """Return stages for all tests, each in one stage; `in_ci` leaves out the tests with the mark `extended`."""
    less = " and not extended" if in_ci else ""
    ordinary = ("-m", f"not jvm{less}")
    histories = {"LAKEHOUSE_SHARE": "0.2", "LAKEHOUSE_SEEDS": "40", "LAKEHOUSE_KILLS": "40"} if in_ci else {}
    adoption = Stage(
        name="adoption",
        text="the path of a new user: wheel, pip, Airflow, documentation",
        command=(".venv/bin/python", "-m", "pytest", "-q", "-p", "tests.stage_progress", "tests/adoption"),
    )
    hudi = ("hudi",) if in_ci else ("hudi-releases", "hudi-s3a")
    return [
        Stage(
            name="environments",
            text="virtual environments and jars",
            command=make("venvs", "classes", *hudi, "s3a", "kafka", "mysql", "hadoop"),
        ),
        Stage(name="checks", text="lint, types, import rules, documentation", command=make("check")),
        Stage(
            name="unit",
            text="unit tests, golden tables, rules of the code",
            command=pytest(*ordinary, "tests/unit", "tests/golden", "tests/architecture"),
        ),
        Stage(
            name="property",
            text="property tests, contracts, simulation, S3, HDFS",
            command=pytest(*ordinary, *(f"tests/{name}" for name in _STORES)),
            variables=histories,
        ),
        Stage(
            name="spark",
            text="Spark, clusters, Kafka, databases, hudi-rs, public bug reports",
            command=pytest(*ordinary, *(f"tests/{name}" for name in _SERVERS)),
        ),
        Stage(
            name="airflow",
            text="Airflow",
            command=pytest(*ordinary, "tests/airflow", venv=".venv-airflow"),
        ),
        Stage(
            name="hudi",
            text="interoperability with Apache Hudi",
            command=pytest("-m", f"jvm{less}", *(f"--ignore=tests/{name}" for name in OTHER_ENVIRONMENTS)),
        ),
        Stage(
            name="matrix",
            text="corners of the matrix of versions",
            command=(".venv/bin/python", "-m", "tests.matrix", *(["--ci"] if in_ci else [])),
        ),
        *([] if in_ci else [adoption]),
    ]


def main(words: Sequence[str]) -> int:
    """Run the stages, print a table of the results, and return the exit code."""
    parser = argparse.ArgumentParser(prog="make test", description="Run the tests of the project in stages.")
    parser.add_argument("--all", action="store_true", help="all tests, as with CI=true")
    parser.add_argument("--only", action="append", default=[], metavar="STAGE", help="run this stage; may be repeated")
    given = parser.parse_args(words)
    in_ci = os.environ.get("CI") == "true"
    stages = all_stages(in_ci=not given.all) if in_ci or given.all else sample_stages(ROOT)
    unknown = set(given.only) - {stage.name for stage in stages}
    if unknown:
        parser.error(f"unknown stage {sorted(unknown)[0]}; stages are {', '.join(stage.name for stage in stages)}")
    stages = [stage for stage in stages if not given.only or stage.name in given.only]
    results: list[Result] = []
    for number, stage in enumerate(stages, start=1):
        try:
            results.append(run(stage, f"[{number} of {len(stages)}]", echo=in_ci))
        except KeyboardInterrupt:
            log = _log_of(stage).relative_to(ROOT)
            print(f"\nstopped: {stage.name} was interrupted; its output: {log}", flush=True)
            return _INTERRUPTED
        # Without environments, every later stage would fail for the same reason.
        if stage.name == "environments" and results[-1].outcome == "failed":
            break
    print(summary(results))
    if not (in_ci or given.all):
        print("\nThis was a sample. `make test-all` runs everything and takes several times as long.")
        print("One part of it: make unit | airflow-tests | interop; more than CI runs: make reliability")
    return int(any(result.outcome == "failed" for result in results))


def run(stage: Stage, label: str, *, echo: bool) -> Result:
    """Run one stage; show its progress, or with `echo` its output. Ctrl-C stops its processes."""
    if stage.skip:
        print(f"{label} {stage.name}: skipped: {stage.skip}", flush=True)
        return Result(stage=stage, outcome="skipped", seconds=0.0, detail=stage.skip)
    LOGS.mkdir(parents=True, exist_ok=True)
    log, counts = _log_of(stage), LOGS / f"{stage.name}.progress"
    counts.unlink(missing_ok=True)
    started = time.monotonic()
    inherited = {name: value for name, value in os.environ.items() if name != _NO_BYTECODE}
    with log.open("w", encoding="utf-8") as output:
        process = subprocess.Popen(
            stage.command,
            cwd=ROOT,
            env={**inherited, PROGRESS: str(counts), **stage.variables},
            stdout=output,
            stderr=subprocess.STDOUT,
            # Ctrl-C of the terminal reaches this script only, which then stops the whole group.
            start_new_session=True,
        )
        try:
            _watch(process, _Line(f"{label} {stage.name}", started, counts), log, echo=echo)
        except BaseException:
            _stop(process)
            raise
    counts.unlink(missing_ok=True)
    seconds = time.monotonic() - started
    text = log.read_text(encoding="utf-8", errors="replace")
    detail = closing_line(text)
    if process.returncode == 0:
        print(f"{label} {stage.name}: passed in {duration(seconds)}{': ' + detail if detail else ''}", flush=True)
        return Result(stage=stage, outcome="passed", seconds=seconds, detail=detail)
    if not echo:
        print("\n".join(text.splitlines()[-_TAIL_LINES:]))
    print(f"{label} {stage.name}: FAILED in {duration(seconds)}; the whole output: {log.relative_to(ROOT)}", flush=True)
    return Result(stage=stage, outcome="failed", seconds=seconds, detail=detail or f"exit code {process.returncode}")


def _log_of(stage: Stage) -> Path:
    return LOGS / f"{stage.name}.log"


def _stop(process: subprocess.Popen[bytes]) -> None:
    """End the process and its children: Ctrl-C first, so that tests stop what they started, and SIGKILL at last."""
    for number, patience in ((signal.SIGINT, _STOP_S), (signal.SIGTERM, _STOP_S), (signal.SIGKILL, _STOP_S)):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, number)
        with suppress(subprocess.TimeoutExpired, KeyboardInterrupt):
            process.wait(timeout=patience)
            break
    # The group may have more processes than its leader.
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)


@dataclass(frozen=True, slots=True)
class _Line:
    """The line of a running stage: its label, the number of tests, percent, the current file and the elapsed time."""

    label: str
    started: float
    counts: Path

    def text(self, state: str) -> str:
        """Return the line; `state` is the last line of a stage that runs no tests."""
        elapsed = duration(time.monotonic() - self.started)
        try:
            found = json.loads(self.counts.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return f"{self.label}: {elapsed}  {state}".rstrip()
        percent = 100 * found["done"] // max(found["total"], 1)
        return f"{self.label}: {found['done']} of {found['total']} tests, {percent} %, {elapsed}  {found['file']}"


def _watch(process: subprocess.Popen[bytes], line: _Line, log: Path, *, echo: bool) -> None:
    """Wait for the process. Show its output, or one line with its progress."""
    state, printed, terminal = "", line.started, sys.stdout.isatty()
    width = shutil.get_terminal_size((_WIDTH, 24)).columns - 1
    with log.open(encoding="utf-8", errors="replace") as reader:
        while True:
            ended = process.poll() is not None
            text = reader.read()
            state = last_state(text) or state
            now = time.monotonic()
            if echo:
                sys.stdout.write(text)
            elif terminal:
                sys.stdout.write("\r" + line.text(state)[:width].ljust(width))
            elif now - printed > _REPEAT_S:
                print(line.text(state))
                printed = now
            sys.stdout.flush()
            if ended:
                break
            time.sleep(_POLL_S)
    if terminal and not echo:
        sys.stdout.write("\r" + " " * width + "\r")


def last_state(text: str) -> str:
    """Return the share of the tests that pytest has run, or else the last line; empty without output."""
    lines = [line.strip() for line in re.split(r"[\r\n]+", text) if line.strip()]
    if not lines:
        return ""
    percent = _PERCENT.search(lines[-1])
    return f"{percent[1]} % of the tests" if percent else lines[-1]


def closing_line(text: str) -> str:
    """Return the counts of pytest's last line, such as `3 passed, 1 skipped`; empty if there is none."""
    found = [match["counts"] for match in (_CLOSING.match(line.strip()) for line in text.splitlines()) if match]
    return found[-1] if found else ""


def duration(seconds: float) -> str:
    """Return a duration as 12 s or 3 min 05 s."""
    return f"{seconds:.0f} s" if seconds < 60 else f"{int(seconds) // 60} min {int(seconds) % 60:02d} s"


def summary(results: Sequence[Result]) -> str:
    """Return a table of the results, and the counts of all tests in the last line."""
    rows = [("stage", "result", "time", "tests")]
    rows += [(item.stage.name, item.outcome, duration(item.seconds), item.detail) for item in results]
    rows.append(("all", "", duration(sum(item.seconds for item in results)), ""))
    widths = [max(len(row[column]) for row in rows) for column in range(4)]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    counts = [dict((word, int(n)) for n, word in re.findall(r"(\d+) ([a-z]+)", item.detail)) for item in results]
    passed, failed, skipped = (sum(count.get(word, 0) for count in counts) for word in ("passed", "failed", "skipped"))
    rule = "-" * max(len(line) for line in lines)
    body = [lines[0], rule, *lines[1:-1], rule, lines[-1]]
    return "\n".join(["", *body, "", f"{passed} passed, {failed} failed, {skipped} skipped"])


if __name__ == "__main__":
    if shutil.which("make") is None:
        sys.exit("make test needs make")
    sys.exit(main(sys.argv[1:]))
