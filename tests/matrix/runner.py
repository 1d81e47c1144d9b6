"""Run cells: build the environment, run the suites with pytest, show progress, and store a result per cell."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from pathlib import Path

from tests.matrix import environments, results
from tests.matrix.cells import ROOT, Cell, missing_files
from tests.matrix.results import FAILED, NOT_RUN, PASSED, SHOWN, UNSUPPORTED, CellResult
from tests.stages import PROGRESS, closing_line, duration

_REPEAT_S = 15.0
#: An outer environment names another Python and another Spark. Without bytecode each process compiles all modules.
_NOT_INHERITED = ("PYTHONDONTWRITEBYTECODE", "PYTHONHOME", "SPARK_HOME", "VIRTUAL_ENV")
_LIMIT_S = 3_600
_TAIL_LINES = 60
_FAILURE = re.compile(r"^(?:FAILED|ERROR) (\S+)(?: - (.*))?$", re.MULTILINE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How the cells are run.

    Attributes:
        jobs: The number of cells that run at a time.
        again: True runs cells that passed before with the same sources.
        whole: True runs the tests of `Cell.more` too.
        strict: True counts a missing Python as a failure of a cell that CI runs.
        suites: Tests that run instead of those of the cells. Their results are not stored.
    """

    jobs: int = 2
    again: bool = False
    whole: bool = True
    strict: bool = False
    suites: tuple[str, ...] = ()


@dataclass(slots=True)
class _Shown:
    """The cells that run now, for the line with the progress."""

    lock: threading.Lock = field(default_factory=threading.Lock)
    states: dict[str, str] = field(default_factory=dict)

    def set(self, name: str, state: str) -> None:
        with self.lock:
            self.states[name] = state

    def end(self, name: str) -> None:
        with self.lock:
            self.states.pop(name, None)

    def text(self) -> str:
        with self.lock:
            return "; ".join(f"{name}: {_tests(name) or state}" for name, state in self.states.items())


def run_cells(cells: Sequence[Cell], options: Options) -> list[CellResult]:
    """Run the cells, print a line when each ends and the progress now and then, and return the results in order."""
    wheel = environments.build_wheel()
    shown, started, outcomes = _Shown(), time.monotonic(), dict[str, CellResult]()
    # A worker takes the next cell when it ends one, so the longest cells come first.
    with ThreadPoolExecutor(max_workers=options.jobs) as pool:
        waiting = {pool.submit(_run_cell, cell, wheel, options, shown) for cell in cells}
        printed = started
        while waiting:
            time.sleep(0.5)
            for future in [future for future in waiting if future.done()]:
                waiting.discard(future)
                result = future.result()
                outcomes[result.name] = result
                print(_line(result, f"[{len(outcomes)} of {len(cells)}]"), flush=True)
            if waiting and time.monotonic() - printed > _REPEAT_S:
                printed = time.monotonic()
                print(f"    {duration(printed - started)}  {shown.text()}", flush=True)
    return [outcomes[cell.name] for cell in cells]


def summary(outcomes: Sequence[CellResult], seconds: float) -> str:
    """Return the counts of all tests in the words of pytest's last line, so that a stage shows them."""
    totals = {word: sum(result.counts.get(word, 0) for result in outcomes) for word in ("passed", "failed", "skipped")}
    # A cell whose environment could not be built has no failed test.
    totals["failed"] = max(totals["failed"], sum(result.outcome == FAILED for result in outcomes))
    counts = ", ".join(f"{number} {word}" for word, number in totals.items() if number)
    return f"{counts or '0 passed'} in {seconds:.1f}s"


def _run_cell(cell: Cell, wheel: Path, options: Options, shown: _Shown) -> CellResult:
    started = time.monotonic()
    result = replace(
        _outcome(cell, wheel, options, shown),
        date=datetime.now(UTC).date().isoformat(),
        seconds=round(time.monotonic() - started),
    )
    shown.end(cell.name)
    if not options.suites:
        results.store(result)
    return result


def _outcome(cell: Cell, wheel: Path, options: Options, shown: _Shown) -> CellResult:
    if cell.unsupported:
        return CellResult(name=cell.name, outcome=UNSUPPORTED, reason=cell.unsupported)
    if missing := missing_files(cell):
        return CellResult(name=cell.name, outcome=FAILED, reason=f"missing: {', '.join(missing)}")
    sources, earlier = environments.sources_print(cell), results.stored(cell)
    is_same = earlier is not None and earlier.outcome == PASSED and earlier.sources == sources
    if earlier is not None and is_same and not options.again and not options.suites:
        return earlier
    shown.set(cell.name, "environment")
    log = results.RUNS / f"{cell.name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_text("", encoding="utf-8")
    try:
        python = environments.prepare(cell, wheel, log)
    except environments.MissingPythonError as error:
        return CellResult(
            name=cell.name, outcome=FAILED if options.strict and cell.in_ci else NOT_RUN, reason=str(error)
        )
    except subprocess.CalledProcessError as error:
        return CellResult(name=cell.name, outcome=FAILED, reason=f"{Path(error.cmd[0]).name} failed, see {log.name}")
    shown.set(cell.name, "tests")
    suites = options.suites or (*cell.suites, *(cell.more if options.whole else ()))
    code = _run_tests(cell, python, log, suites)
    versions = environments.installed_versions(python)
    text = log.read_text(encoding="utf-8", errors="replace")
    failures = _FAILURE.findall(text)
    counts = {word: int(number) for number, word in re.findall(r"(\d+) ([a-z]+)", closing_line(text))}
    reason = "" if code == 0 else next((why for _, why in failures if why), f"pytest ended with {code}")
    return CellResult(
        name=cell.name,
        outcome=PASSED if code == 0 and counts.get("passed") else FAILED,
        reason=reason[:300],
        counts=counts,
        versions={name: versions[name] for name in SHOWN if name in versions},
        failures=tuple(test for test, _ in failures),
        sources=sources,
    )


def _run_tests(cell: Cell, python: Path, log: Path, suites: Sequence[str]) -> int:
    marks = ("-m", "not jvm and not extended") if cell.part == "lowest" else ()
    command = [str(python), "-m", "pytest", "-q", "-p", "tests.stage_progress", "-p", "no:cacheprovider"]
    paths = [str(ROOT), str(ROOT / "plugins")] if cell.part == "airflow" else [str(ROOT)]
    variables = {
        "PYTHONPATH": os.pathsep.join(paths),
        "PATH": os.pathsep.join([str(python.parent), os.environ.get("PATH", "")]),
        "LAKEHOUSE_SHARE": os.environ.get("LAKEHOUSE_SHARE", "0.2"),
        PROGRESS: str(_counts_file(cell.name)),
    }
    inherited = {name: value for name, value in os.environ.items() if name not in _NOT_INHERITED}
    with log.open("a", encoding="utf-8") as output:
        try:
            done = subprocess.run(
                [*command, *marks, *suites],
                cwd=ROOT,
                env={**inherited, **variables},
                stdout=output,
                stderr=subprocess.STDOUT,
                check=False,
                timeout=_LIMIT_S,
            )
        except subprocess.TimeoutExpired:
            output.write(f"\nERROR pytest - stopped after {_LIMIT_S} s\n")
            return 1
        finally:
            _counts_file(cell.name).unlink(missing_ok=True)
    return done.returncode


def _counts_file(name: str) -> Path:
    return results.RUNS / f"{name}.progress"


def _tests(name: str) -> str:
    try:
        counts = json.loads(_counts_file(name).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return ""
    return f"{counts['done']} of {counts['total']} tests"


def _line(result: CellResult, label: str) -> str:
    versions = " ".join(f"{name} {version}" for name, version in result.versions.items() if name in _IN_LINE)
    counts = ", ".join(f"{number} {word}" for word, number in result.counts.items())
    details = "; ".join(part for part in (counts, versions, result.reason) if part)
    text = f"{label} {result.name}: {result.outcome} in {duration(result.seconds)}{': ' + details if details else ''}"
    if result.outcome != FAILED:
        return text
    log = results.RUNS / f"{result.name}.log"
    lines = log.read_text(encoding="utf-8", errors="replace").splitlines() if log.is_file() else []
    return "\n".join([text, *lines[-_TAIL_LINES:], f"(the whole output: {log.relative_to(ROOT)})"])


_IN_LINE = ("apache-airflow", "numpy", "pandas", "pyarrow", "pyspark", "python")

if __name__ == "__main__":
    sys.exit("run `python -m tests.matrix`")
