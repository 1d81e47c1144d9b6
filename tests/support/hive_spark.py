"""A consumer of the metastore: Spark SQL with Hive's catalog, in a process of its own, for a whole test session."""

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
    """Spark SQL in the hands of a test."""

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
        """Return the rows of a query; `view` is a published table `database.table`, made a view of its last name."""
        return list(self._ask({"verb": "sql", "text": text, "view": view}))

    def source(self, text: str, published: str) -> list[list[Any]]:
        """Return the rows of a query over `source`, which is a published table through our data source."""
        return list(self._ask({"verb": "source", "text": text, "view": published}))

    def explain(self, text: str, *, view: str = "") -> str:
        """Return the optimised plan of a query."""
        return str(self._ask({"verb": "explain", "text": text, "view": view}))

    def splits(self, location: str, format: str) -> list[str]:
        """Return the files that an input format of Hive finds at a location."""
        return list(self._ask({"verb": "splits", "location": location, "format": format}))

    def close(self) -> None:
        """End the session: the process stops by itself when nothing more can be asked."""
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
        assert line, f"the consumer ended: {self._log.read_text()[-3000:]}"
        told = json.loads(line)
        assert "error" not in told, told["error"]
        return told["value"]


@pytest.fixture(scope="session")
def hive_spark(hive_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[HiveSpark]:
    """Spark SQL on the metastore."""
    consumer = HiveSpark(hive_uri, tmp_path_factory.mktemp("consumer"))
    yield consumer
    consumer.close()
