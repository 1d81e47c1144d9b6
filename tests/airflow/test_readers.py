"""Processes that read tables for the pages: how many there are, which one reads a table, crashes, hangs and limits."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from lakehouse.core.system.clock import SystemClock
from lakehouse.errors import LakehouseError, RetryableError
from lakehouse_airflow.api.readers import ReaderCommand, ReaderLimits, Readers, reader_command
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SPARK_PYTHON = ROOT / ".venv" / "bin" / "python"
TABLE, OTHER = "sales.orders", "sales.returns"
#: Modules are not taken from the working directory.
SAFE = {"PYTHONSAFEPATH": "1"}
pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A catalog with two tables of six commits each."""
    if not SPARK_PYTHON.exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    place = tmp_path_factory.mktemp("lake")
    for name in (TABLE, OTHER):
        folder = place / name
        folder.mkdir()
        environ = {**os.environ, "LAKEHOUSE_CATALOG": f"sqlite:///{place}/catalog.db"}
        command = [SPARK_PYTHON, "-m", "tests.support.lake", folder, name]
        subprocess.run(command, cwd=ROOT, check=True, env=environ)
    return place


@pytest.fixture
def command(place: Path) -> ReaderCommand:
    environ = {**os.environ, "LAKEHOUSE_CATALOG": f"sqlite:///{place}/catalog.db", "PYTHONPATH": str(ROOT)}
    environ |= SAFE
    return reader_command([str(SPARK_PYTHON), str(ROOT / "lakehouse" / "__main__.py")], environ)


@pytest.fixture
def readers(command: ReaderCommand) -> Iterator[Readers]:
    made = Readers(command=lambda: command, clock=SystemClock())
    yield made
    made.end()


def read(readers: Readers, table: str = TABLE, *words: str) -> Any:
    """Run a command with JSON output in a reader, and return its result."""
    verb = words or ("timeline", "bars")
    done = readers.read(table, [*verb, f"--table={table}", "--output=json"])
    assert done.exit_code == 0, done.errors
    return json.loads(done.output)


def pid(readers: Readers) -> int:
    (number,) = readers.pids()
    return number


def test_reads_of_several_tables_share_one_process(readers: Readers) -> None:
    assert len(read(readers)["instants"]) == 7
    first = pid(readers)
    assert read(readers, TABLE, "table", "describe")["commits"] and read(readers, OTHER)["table"] == OTHER
    assert pid(readers) == first


def test_two_tabs_of_one_table_wait_for_one_process_and_other_tables_do_not(readers: Readers) -> None:
    read(readers)
    first = pid(readers)
    os.kill(first, signal.SIGSTOP)
    with ThreadPoolExecutor(3) as pool:
        tabs = [pool.submit(read, readers), pool.submit(read, readers, TABLE, "table", "files")]
        assert until(lambda: len(readers._busy) == 1)
        # The process of the first table does not answer; the other table has its own.
        assert read(readers, OTHER)["table"] == OTHER
        assert len(readers.pids()) == 2
        os.kill(first, signal.SIGCONT)
        assert [len(tab.result()) > 1 for tab in tabs] == [True, True]
    assert len(readers.pids()) == 2


def test_processes_are_bounded_and_a_read_waits_for_a_free_one(command: ReaderCommand) -> None:
    readers = Readers(command=lambda: command, clock=SystemClock(), limits=ReaderLimits(processes=1))
    read(readers)
    first = pid(readers)
    os.kill(first, signal.SIGSTOP)
    with ThreadPoolExecutor(2) as pool:
        held = pool.submit(read, readers)
        assert until(lambda: len(readers._busy) == 1)
        waiting = pool.submit(read, readers, OTHER)
        assert readers.pids() == [first] and not waiting.done()
        os.kill(first, signal.SIGCONT)
        assert held.result()["table"] == TABLE and waiting.result()["table"] == OTHER
    assert readers.pids() == [first]
    readers.end()


def test_read_is_repeated_once_in_a_new_process_after_a_crash(readers: Readers) -> None:
    read(readers)
    first = pid(readers)
    os.kill(first, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        pending = pool.submit(read, readers)
        assert until(lambda: len(readers._busy) == 1)
        os.kill(first, signal.SIGKILL)
        assert len(pending.result()["instants"]) == 7
    assert pid(readers) != first


def test_process_that_ends_before_every_answer_is_an_error_with_its_signal(readers: Readers, tmp_path: Path) -> None:
    package = tmp_path / "lakehouse" / "cli"
    package.mkdir(parents=True)
    (package / "reader.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n", encoding="utf-8")
    for file in ("__main__.py", "__init__.py", "cli/__init__.py"):
        (tmp_path / "lakehouse" / file).write_text("", encoding="utf-8")
    broken = replace(readers.command(), environ={**os.environ, "PYTHONPATH": str(tmp_path), **SAFE})
    readers.command = lambda: broken
    with pytest.raises(RetryableError, match="lakehouse timeline bars: its reader process was killed by signal 9"):
        read(readers)
    assert readers.pids() == []


def test_process_that_does_not_answer_is_killed(command: ReaderCommand) -> None:
    readers = Readers(command=lambda: command, clock=SystemClock())
    read(readers)
    first = pid(readers)
    readers._idle[0]._limits = ReaderLimits(answer_s=1)
    os.kill(first, signal.SIGSTOP)
    with pytest.raises(RetryableError, match="took longer than 1 s and was ended"):
        read(readers)
    assert readers.pids() == [] and not psutil.pid_exists(first)
    assert len(read(readers)["instants"]) == 7
    readers.end()


def test_process_that_grows_too_large_is_ended(command: ReaderCommand) -> None:
    readers = Readers(command=lambda: command, clock=SystemClock(), limits=ReaderLimits(memory_bytes=1 << 20))
    with pytest.raises(LakehouseError, match="GB of memory and was ended"):
        read(readers)
    assert readers.pids() == []


def test_idle_process_ends_by_itself_and_the_next_read_starts_one(command: ReaderCommand) -> None:
    readers = Readers(command=lambda: command, clock=SystemClock(), limits=ReaderLimits(idle_s=1))
    read(readers)
    assert until(lambda: readers.pids() == [])
    assert len(read(readers)["instants"]) == 7
    readers.end()


def test_process_is_replaced_if_code_or_environment_changed(readers: Readers, tmp_path: Path) -> None:
    readers.version_s = 0
    read(readers)
    first, usual = pid(readers), readers.command()
    readers.command = lambda: replace(usual, environ={**usual.environ, "LAKEHOUSE_AUTHOR": "ada"})
    read(readers)
    second = pid(readers)
    assert second != first and not psutil.pid_exists(first)
    (tmp_path / "module.py").write_text("", encoding="utf-8")
    readers.command = lambda: replace(usual, package=str(tmp_path))
    read(readers)
    third = pid(readers)
    read(readers)
    assert third != second and pid(readers) == third
    (tmp_path / "module.py").write_text("changed = True\n", encoding="utf-8")
    read(readers)
    assert pid(readers) != third


def test_opened_table_shows_commits_and_another_table_at_its_place(readers: Readers, place: Path) -> None:
    before = read(readers)["instants"]
    environ = {**os.environ, "LAKEHOUSE_CATALOG": f"sqlite:///{place}/catalog.db"}
    words = ["savepoint", "create", "--table", TABLE, "--instant", before[0]]
    subprocess.run([SPARK_PYTHON, "-m", "lakehouse", *words], cwd=ROOT, check=True, env=environ, capture_output=True)
    after = read(readers)["instants"]
    assert len(after) == len(before) + 1
    orders = place / TABLE / "orders"
    orders.rename(place / "moved")
    done = readers.read(TABLE, ["timeline", "bars", f"--table={TABLE}", "--output=json"])
    assert done.exit_code == 64 and str(orders) in done.errors
    (place / "moved").rename(orders)
    assert read(readers)["instants"] == after


def test_error_of_a_command_is_an_answer_and_keeps_the_process(readers: Readers) -> None:
    read(readers)
    first = pid(readers)
    done = readers.read(TABLE, ["timeline", "instant", f"--table={TABLE}", "--instant=2020"])
    assert (done.exit_code, done.output) == (64, "")
    assert done.errors.startswith("UserError: 2020 is not on the active timeline")
    assert pid(readers) == first


def test_processes_end_with_the_process_that_started_them(command: ReaderCommand, tmp_path: Path) -> None:
    script = tmp_path / "parent.py"
    script.write_text(
        "import os, sys\n"
        "from lakehouse.core.system.clock import SystemClock\n"
        "from lakehouse_airflow.api.readers import Readers, reader_command\n"
        "made = reader_command(sys.argv[1:3], dict(os.environ))\n"
        "readers = Readers(command=lambda: made, clock=SystemClock())\n"
        f"readers.read({TABLE!r}, ['timeline', 'bars', '--table={TABLE}', '--output=json'])\n"
        "print(readers.pids()[0], flush=True)\n"
        "os.kill(os.getpid(), 9)\n",
        encoding="utf-8",
    )
    environ = {**command.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'plugins'}"}
    words = [SPARK_PYTHON, script, command.python, f"{command.package}/__main__.py"]
    done = subprocess.run(words, env=environ, capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    assert until(lambda: not psutil.pid_exists(int(done.stdout)))
