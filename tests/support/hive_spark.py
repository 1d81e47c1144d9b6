"""Run Spark SQL with Hive's catalog as a consumer of the metastore: one process serves a whole test session."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


class HiveSpark:
    """Client of a process that runs Spark SQL on a metastore."""

    def __init__(self, uri: str, home: Path) -> None:
        self._log = home / "consumer.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.hive_spark_worker", uri, str(home)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env={**os.environ, "SPARK_LOCAL_IP": "127.0.0.1", "TZ": "UTC"},
            )
        self.version = self._answer()

    def rows(self, text: str, *, view: str = "") -> list[list[Any]]:
        """Return the rows of a query; `view` names a published table `database.table`, queried by its table name."""
        return list(self._ask({"verb": "sql", "text": text, "view": view}))

    def source(self, text: str, published: str, *, where: str = "") -> list[list[Any]]:
        """Return the rows of a query over `source`: the published table, read through lakehouse's data source.

        Another query filtered the same relation before. `where` is the option of the data source.
        """
        return list(self._ask({"verb": "source", "text": text, "view": published, "where": where}))

    def explain(self, text: str, *, view: str = "") -> str:
        """Return the optimised plan of a query."""
        return str(self._ask({"verb": "explain", "text": text, "view": view}))

    def splits(self, location: str, format: str) -> list[str]:
        """Return the files that an input format of Hive lists at a location."""
        return list(self._ask({"verb": "splits", "location": location, "format": format}))

    def close(self) -> None:
        """Close the process's stdin, which ends the process."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def _ask(self, request: dict[str, Any]) -> Any:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> Any:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        assert line, f"the Spark process ended; its log: {self._log.read_text()[-3000:]}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["value"]


@pytest.fixture(scope="session")
def hive_spark(hive_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveSpark]:
    """Run Spark SQL on the metastore for the test session."""
    consumer = HiveSpark(hive_uri, tmp_path_factory.mktemp("consumer"))
    yield consumer
    consumer.close()
