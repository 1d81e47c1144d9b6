"""`lakehouse ingest stream` as a process: it commits what arrives, ends at a request, and continues after SIGKILL."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lakehouse.core.table.table import Table
from lakehouse.spec.contracts.stream import StreamState, StreamStatus
from tests.support.waiting import until

pytestmark = [pytest.mark.spark, pytest.mark.slow]

# The operation insert does not look keys up, so rows that are ingested twice are duplicates.
SPEC = """
table: t
location: ${LAKEHOUSE_HOME}/table
record_key: id
schema: {id: bigint, name: string}
ingest: {path: landing, operation: insert, stream: {every: 1s, run_for: 1h}}
"""
LIMIT_S = 180.0


class Home:
    """A landing folder, and the table that a stream fills."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "landing").mkdir()
        (root / "spec.yaml").write_text(SPEC)

    def land(self, number: int) -> None:
        """Write a file with a record in one step."""
        temporary = self.root / f"{number}.tmp"
        temporary.write_text(json.dumps({"id": number, "name": "a"}))
        temporary.rename(self.root / f"landing/{number}.json")

    @contextmanager
    def stream(self) -> Iterator[subprocess.Popen[str]]:
        """Run the stream for the time of a block."""
        process = subprocess.Popen(
            [sys.executable, "-m", "lakehouse", "ingest", "stream", "--table", str(self.root / "spec.yaml")],
            env={**os.environ, "LAKEHOUSE_HOME": str(self.root), "SPARK_LOCAL_IP": "127.0.0.1"},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        try:
            yield process
        finally:
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
            process.communicate()

    def command(self, verb: str) -> StreamState:
        """Run `lakehouse ingest status` or `stop`."""
        words = [sys.executable, "-m", "lakehouse", "ingest", verb, "--table", str(self.root / "spec.yaml")]
        environ = {**os.environ, "LAKEHOUSE_HOME": str(self.root)}
        return StreamState.from_json(subprocess.check_output([*words, "--output", "json"], env=environ))

    def status(self) -> StreamStatus:
        """Return the status that the stream wrote last."""
        status = self.command("status").status
        assert status is not None
        return status

    def rows(self) -> Counter[int]:
        """Return the number of rows of each record."""
        if not (self.root / "table/.hoodie/hoodie.properties").exists():
            return Counter()
        table = Table.open(str(self.root / "table"))
        columns = table.schema.names
        return Counter(table.scan(columns=["id"]).to_arrow().column("id").to_pylist() if columns else ())


def test_stream_commits_what_arrives_and_continues_after_sigkill(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.land(1)
    with home.stream() as killed:
        assert until(lambda: home.rows() == {1: 1}, LIMIT_S)
        home.land(2)
        os.killpg(killed.pid, signal.SIGKILL)
    home.land(3)
    with home.stream() as process:
        assert until(lambda: home.rows() == {1: 1, 2: 1, 3: 1}, LIMIT_S)
        home.land(4)
        assert until(lambda: home.rows() == {1: 1, 2: 1, 3: 1, 4: 1}, LIMIT_S)
        assert until(lambda: home.status().report.rows == 3, LIMIT_S), "the rows that this process committed"
        home.command("stop")
        output, _ = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, output
    assert "commits in" in output, output
    assert home.rows() == {1: 1, 2: 1, 3: 1, 4: 1}
    assert home.status().ended and not home.command("status").alive
