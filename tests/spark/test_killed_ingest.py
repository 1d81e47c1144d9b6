"""`lakehouse ingest run` in a process that is killed at certain steps: no record is lost or duplicated.

LAKEHOUSE_KILLS=all pytest tests/spark/test_killed_ingest.py     every kind of step, instead of three

The number of steps differs from run to run, so a step is identified by its name. Each killed run is followed by another
run on the same table; the last run is not killed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

import pytest

from lakehouse.core.table.table import Table
from lakehouse.platform.ingest.run import DEAD_LETTERS

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# The operation insert does not look keys up, so rows that are ingested twice are duplicates.
SPEC = """
table: t
location: ${LAKEHOUSE_HOME}/table
record_key: id
schema: {id: bigint, name: string}
ingest: {path: landing, operation: insert, max_bad_records: 9}
"""
RUN = """
import re, sys
from lakehouse.cli.main import main
from lakehouse.platform.ingest import run
from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.local import LocalStorage

mode, since, pattern, spec = sys.argv[1:]

class OfDriver(FaultyStorage):
    is_near = not since

    def __reduce__(self):
        return LocalStorage, (self.root,)

    def step(self, name, call):
        if self.is_near and re.fullmatch(pattern, name):
            self.fail_at = self.steps + 1
        self.is_near = self.is_near or bool(re.fullmatch(since, name))
        return super().step(name, call)

opened = run.open_storage
run.open_storage = lambda place, options: OfDriver(opened(place, options), mode=mode)
sys.exit(main(["ingest", "run", "--table", spec, "--output", "json"]))
"""
# The JVM only has to start fast; its code runs for a short time.
SOON = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
COMMIT = r"create .*/\d+_\d+\.commit"
BEGIN = r"create .*/\d+\.inflight"


@dataclass(frozen=True, slots=True)
class Kill:
    """The first step with a name, optionally after another step, at which a run is killed.

    The run has committed if the other step is the commit. Deletions before the commit clean up after earlier kills.
    """

    mode: str
    step: str
    since: str = ""

    @property
    def has_committed(self) -> bool:
        """Whether the run has committed its rows at this step."""
        return self.since == COMMIT or (self.mode, self.step) == ("kill_after", COMMIT)


#: The first three are tested by default.
KILLS = (
    Kill("kill_before", COMMIT),
    Kill("kill_after", COMMIT),
    Kill("kill_after", BEGIN),
    # Workers write dead letters; only the listing of old ones is a step of the driver.
    Kill("kill_before", r"list_dir run-\w+"),
    Kill("kill_after", r"put .*\.heartbeat/\d+"),
    Kill("kill_after", r"create .*\.commit\.requested"),
    Kill("kill_after", r"replace_if .*/MARKERS0"),
    Kill("kill_after", r"list \.hoodie/\.temp/\d+", since=BEGIN),
    Kill("kill_before", r"delete \.hoodie/\.staging/.*"),
    Kill("kill_before", r"delete \.hoodie/\.staging/.*", since=COMMIT),
    Kill("kill_before", r"delete \.hoodie/\.heartbeat/.*", since=COMMIT),
)


class Home:
    """A landing folder and the table into which commands ingest it."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "landing").mkdir()
        (root / "spec.yaml").write_text(SPEC)

    def land(self, number: int) -> None:
        """Write a file with a record and a bad line."""
        lines = [json.dumps({"id": number, "name": "a"}), f"nonsense {number}", ""]
        (self.root / f"landing/{number}.json").write_text("\n".join(lines))

    def run(self, kill: Kill) -> subprocess.CompletedProcess[bytes]:
        """Run the ingest command, which is killed if it reaches the step."""
        return subprocess.run(
            [sys.executable, "-c", RUN, kill.mode, kill.since, kill.step, str(self.root / "spec.yaml")],
            env={
                **os.environ,
                "LAKEHOUSE_HOME": str(self.root),
                "JAVA_TOOL_OPTIONS": SOON,
                "SPARK_LOCAL_IP": "127.0.0.1",
            },
            capture_output=True,
            timeout=300,
            check=False,
        )

    @property
    def table(self) -> Table:
        """Return the table."""
        return Table.open(str(self.root / "table"))

    def rows(self) -> Counter[int]:
        """Return the number of rows of each record."""
        columns = self.table.schema.names
        return Counter(self.table.scan(columns=["id"]).to_arrow().column("id").to_pylist() if columns else ())

    def letters(self) -> Counter[str]:
        """Return the bad lines of dead letters that commits name."""
        boxes = [Path(box) for _, metadata in self.table.commits() if (box := metadata.extra.get(DEAD_LETTERS))]
        lines = [line for box in boxes for file in box.iterdir() for line in file.read_text().splitlines()]
        return Counter(json.loads(line)["record"] for line in lines)


def test_killed_ingest_commands_lose_and_duplicate_no_records(tmp_path: Path) -> None:
    home = Home(tmp_path)
    landed: list[int] = []
    committed: list[int] = []
    for number, kill in enumerate(KILLS if os.environ.get("LAKEHOUSE_KILLS") == "all" else KILLS[:3]):
        home.land(number)
        landed.append(number)
        done = home.run(kill)
        assert done.returncode == -signal.SIGKILL, f"{kill}: {done.returncode} {done.stderr.decode()[-2000:]}"
        if kill.has_committed:
            committed = list(landed)
        assert home.rows() == Counter(committed), kill
    home.land(len(landed))
    landed.append(len(landed))
    done = home.run(Kill("kill_before", "never"))
    assert done.returncode == 0, done.stderr.decode()[-2000:]
    assert json.loads(done.stdout)["inserts"] == len(landed) - len(committed)
    assert home.rows() == Counter(landed)
    assert home.letters() == Counter(f"nonsense {number}" for number in landed)
    assert not home.table.timeline.where(pending=True)
    assert not any([*(tmp_path / "table/.hoodie" / name).rglob("*")] for name in (".staging", ".temp", ".heartbeat"))
