"""`python -m tests.reliability.source_kills`: kill ingestions again and again; each table then equals its source.

worker   SIGKILL of a Python worker of Spark while a run works: Spark repeats its task, or the run fails
driver   SIGKILL of the process of a run that the command line started
server   the database server or the broker is killed and started again while a run works
cut      all connections between a run and the server are cut

Two runs of the same table work at once while workers are killed and servers fail. The sources take turns. After each
turn a run without faults must leave the table equal to the source.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

import pytest
from pyspark.sql import SparkSession

from lakehouse.spec.contracts.job import JobStatus
from tests.reliability.sources import SOURCES, Source, opened

#: Kills of a turn, and the longest pause between two of them.
_OF_TURN, _PAUSE_S = 20, 1.5
#: A driver is killed after a time up to this one, in which a run starts Spark, reads and commits.
_DRIVER_S = 14.0
#: Runs of one table at once.
_AT_ONCE = 2
#: Runs after a turn until nothing is left.
_MOST_RUNS = 10
#: The other fault of a turn, after the kills of workers: all sources get the first one, then all get the second one.
_OTHERS = ("driver", "server", "cut", "driver")


@dataclass
class Found:
    """What happened: faults by source and kind, ends of runs by source and kind, and violations."""

    faults: Counter[tuple[str, str]] = field(default_factory=Counter)
    ends: Counter[tuple[str, str]] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def kills(self) -> int:
        """Return the number of processes that were killed."""
        return sum(count for (_, kind), count in self.faults.items() if kind != "cut")


class Workers:
    """The Python workers of the Spark session of this process."""

    def __init__(self, session: SparkSession) -> None:
        self._jvm = session.sparkContext._gateway.proc.pid

    def pids(self) -> list[int]:
        """Return the processes of workers: the children of Spark's daemons."""
        children: dict[int, list[int]] = {}
        for entry in Path("/proc").iterdir():
            if entry.name.isdigit():
                try:
                    parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
                except OSError:
                    continue
                children.setdefault(parent, []).append(int(entry.name))
        daemons = [pid for pid in children.get(self._jvm, []) if _is_daemon(pid)]
        return [worker for daemon in daemons for worker in children.get(daemon, [])]


def _is_daemon(pid: int) -> bool:
    try:
        return b"pyspark.daemon" in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False


@contextmanager
def running(source: Source, session: SparkSession, found: Found, stop: threading.Event) -> Iterator[None]:
    """Change the source and ingest it in two threads, again and again, until the block ends."""
    # A Spark session for each thread: runs set its time zone and name views in it.
    sessions = [session.newSession() for _ in range(_AT_ONCE)]
    seed = sum(found.ends.values())

    def work(number: int) -> None:
        random = Random(f"{source.name}-{seed}-{number}")
        while not stop.is_set():
            try:
                # One thread changes the source, so that the expected rows are those of one history.
                if number == 0:
                    source.change(random)
                end = str(source.run(sessions[number]).status)
            except Exception as error:
                end = type(error).__name__
            with lock:
                found.ends[source.name, end] += 1

    lock = threading.Lock()
    threads = [threading.Thread(target=work, args=(number,)) for number in range(_AT_ONCE)]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def kill_workers(source: Source, session: SparkSession, found: Found, random: Random, most: int) -> None:
    """Kill Python workers while runs follow one another."""
    workers, stop = Workers(session), threading.Event()
    with running(source, session, found, stop):
        left = most
        while left > 0:
            time.sleep(random.uniform(0.02, _PAUSE_S))
            pids = workers.pids()
            if pids:
                try:
                    os.kill(random.choice(pids), signal.SIGKILL)
                except ProcessLookupError:
                    continue
                found.faults[source.name, "worker"] += 1
                left -= 1


def kill_driver(source: Source, found: Found, random: Random) -> None:
    """Kill the process of one run."""
    source.change(random)
    words = [sys.executable, "-m", "lakehouse", "ingest", "run", "--table", str(source.spec)]
    environ = {**os.environ, **source.environ, "SPARK_LOCAL_IP": "127.0.0.1"}
    process = subprocess.Popen(words, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(random.uniform(1.0, _DRIVER_S))
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        found.faults[source.name, "driver"] += 1


def disturb(source: Source, session: SparkSession, found: Found, random: Random, kind: str) -> None:
    """Restart the server, or cut connections, while runs follow one another."""
    assert source.restart is not None and source.proxy is not None, f"{source.name} has no server"
    with running(source, session, found, threading.Event()):
        time.sleep(random.uniform(0.1, 2.0))
        if kind == "server":
            source.restart()
        else:
            source.proxy.cut_all()
    found.faults[source.name, kind] += 1


def check(source: Source, session: SparkSession, found: Found) -> None:
    """Ingest without faults until nothing is left, and compare the table with the source."""
    last = "it committed"
    if source.settle is not None:
        source.settle()
    for _ in range(_MOST_RUNS):
        try:
            if source.run(session).status is JobStatus.NOTHING_TO_DO:
                break
        except Exception as error:
            found.ends[source.name, f"after faults: {type(error).__name__}"] += 1
            last = f"{type(error).__name__}: {error}"
    else:
        found.violations.append(f"{source.name}: {_MOST_RUNS} runs without faults left something; the last: {last}")
        return
    stored, expected = source.stored(), source.expected()
    if stored != expected:
        missing, more = sorted(set(expected) - set(stored)), sorted(set(stored) - set(expected))
        repeated = len(stored) - len(set(stored))
        found.violations.append(
            f"{source.name}: {len(stored)} rows instead of {len(expected)}; {repeated} twice; missing {missing[:3]}, "
            f"not expected {more[:3]}"
        )


def kill_sources(names: list[str], kills: int, seed: int, session: SparkSession, home: Path) -> Found:
    """Kill until so many processes were killed, or a violation is found."""
    found, random, turn = Found(), Random(seed), 0
    with opened(names, session, home) as sources:
        for source in sources:
            source.change(random)
            check(source, session, found)
        while found.kills() < kills and not found.violations:
            source = sources[turn % len(sources)]
            kind = _OTHERS[turn // len(sources) % len(_OTHERS)]
            kill_workers(source, session, found, random, min(_OF_TURN, kills - found.kills()))
            if kind == "driver":
                kill_driver(source, found, random)
            elif source.proxy is not None:
                disturb(source, session, found, random, kind)
            check(source, session, found)
            turn += 1
            print(f"   {found.kills():,} of {kills:,} processes killed, {turn} turns", flush=True)
    return found


def show(found: Found) -> None:
    """Print what happened."""
    for name in dict.fromkeys(name for name, _ in found.faults):
        faults = "   ".join(f"{kind} {count}" for (own, kind), count in sorted(found.faults.items()) if own == name)
        ends = "   ".join(f"{kind} {count}" for (own, kind), count in sorted(found.ends.items()) if own == name)
        print(f"{name:10}{faults}\n{'':10}runs: {ends}")
    print(f"violations: {len(found.violations)}")
    for text in found.violations:
        print(f"   {text}")


def main(words: Sequence[str] | None = None) -> int:
    """Kill ingestions of all sources whose servers are installed, and print a report."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability.source_kills", description=__doc__)
    parser.add_argument("--kills", type=int, default=1_000, help="processes to kill (default: 1000)")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random choices (default: 1)")
    parser.add_argument("--only", action="append", choices=sorted(SOURCES), help="kill this source; may be repeated")
    chosen = parser.parse_args(words)
    os.environ["PYSPARK_PYTHON"] = sys.executable
    # Spark repeats a task twice.
    builder = SparkSession.builder.master("local[2,3]").config("spark.ui.enabled", "false")
    builder = builder.config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.sql.session.timeZone", "UTC").config("spark.sql.shuffle.partitions", "2")
    session = builder.config("spark.driver.bindAddress", "127.0.0.1").getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    with tempfile.TemporaryDirectory(prefix="lakehouse-source-kills-") as home:
        try:
            found = kill_sources(chosen.only or list(SOURCES), chosen.kills, chosen.seed, session, Path(home))
        except pytest.skip.Exception as missing:
            print(f"{missing}; choose other sources with --only")
            return 2
    show(found)
    return 1 if found.violations else 0


if __name__ == "__main__":
    sys.exit(main())
