"""Apache Hudi itself as referee: one Spark with Hudi's bundle, in a process of its own, for a whole test session."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-hudi" / "bin" / "python"
JARS = "hudi-spark*-bundle_*.jar"
_INCREMENTAL = {"hoodie.datasource.query.type": "incremental"}


class RefereeError(AssertionError):
    """Hudi did not do what it was asked; the message is its own."""


class Referee:
    """Hudi in the hands of a test."""

    def __init__(self, jar: Path, home: Path, settings: Mapping[str, str] | None = None) -> None:
        self._home, self._numbers = home, itertools.count(1)
        told = [f"{key}={value}" for key, value in (settings or {}).items()]
        kept = {k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "PYTHONPATH", "VIRTUAL_ENV")}
        python = {"PYSPARK_PYTHON": str(PYTHON), "PYSPARK_DRIVER_PYTHON": str(PYTHON), "SPARK_LOCAL_IP": "127.0.0.1"}
        self._log = home / "referee.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [PYTHON, Path(__file__).with_name("referee_worker.py"), jar, home, *told],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**kept, **python, "TZ": "UTC"},
                cwd=home,
            )
        self.spark_version = self._answer()["spark"]

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

    def read(self, location: str, **options: str) -> pa.Table:
        """Return the newest snapshot."""
        dotted = {key.replace("__", "."): value for key, value in options.items()}
        return self._rows({"verb": "read", "location": location, "options": dotted})

    def read_as_of(self, location: str, time: str) -> pa.Table:
        """Return the table as it was at the instant `time`."""
        return self._rows({"verb": "read", "location": location, "options": {"as.of.instant": time}})

    def read_incremental(self, location: str, start: str, end: str) -> pa.Table:
        """Return the rows that commits completed in (start, end] wrote."""
        bounds = {"hoodie.datasource.read.begin.instanttime": start, "hoodie.datasource.read.end.instanttime": end}
        return self._rows({"verb": "read", "location": location, "options": {**_INCREMENTAL, **bounds}})

    def write(self, location: str, rows: pa.Table, options: Mapping[str, str], *, mode: str = "append") -> None:
        """Write rows through Hudi's data source."""
        request = {"verb": "write", "location": location, "options": dict(options), "mode": mode}
        self._ask({**request, "input": self._parquet(rows)})

    def sql(self, text: str, *, table: str = "", rows: pa.Table | None = None, **settings: str) -> None:
        """Run a statement in which {table} is the table at location `table` and `incoming` a view of `rows`."""
        self._ask(self._statement(text, table, rows, settings, ""))

    def query(self, text: str, *, table: str = "", **settings: str) -> pa.Table:
        """Run a query in which {table} is the table at location `table`."""
        return self._rows(self._statement(text, table, None, settings, ""))

    def lock(self, provider: str, options: Mapping[str, str], *, wait_ms: int) -> bool:
        """Take a lock as Hudi's class `provider` does, within the time; return whether it was got, to be unlocked."""
        request = {"verb": "lock", "provider": provider, "options": dict(options), "wait_ms": wait_ms}
        return bool(self._ask(request)["held"])

    def load_classes(self, directory: Path) -> None:
        """Let Hudi find the compiled classes of `directory` as if they were in its jar."""
        self._ask({"verb": "classes", "directory": directory.as_uri() + "/"})

    def unlock(self) -> None:
        """Give the lock back."""
        self._ask({"verb": "unlock"})

    def _statement(
        self, text: str, table: str, rows: pa.Table | None, settings: Mapping[str, str], output: str
    ) -> dict[str, Any]:
        dotted = {key.replace("__", "."): value for key, value in settings.items()}
        view = "" if rows is None else self._parquet(rows)
        return {"verb": "sql", "text": text, "location": table, "rows": view, "settings": dotted, "output": output}

    def _parquet(self, rows: pa.Table) -> str:
        path = self._home / f"in-{next(self._numbers)}.parquet"
        pq.write_table(rows, path)
        return str(path)

    def _rows(self, request: dict[str, Any]) -> pa.Table:
        output = self._home / f"out-{next(self._numbers)}"
        self._ask({**request, "output": str(output)})
        return pq.read_table(output)

    def _ask(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RefereeError(f"the referee died:\n{self._log.read_text(errors='replace')[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise RefereeError(_message(answer["error"]))
        return answer


def _message(error: str) -> str:
    """Return the part of a Java stack that tells something: its first lines and every cause."""
    lines = error.splitlines()
    return "\n".join([*lines[:6], *(line for line in lines[6:] if line.startswith("Caused by:"))])


def find_jar() -> Path:
    """Return Hudi's jar; skip the test if it, or its Spark, is missing."""
    jars = sorted((ROOT / ".jars").glob(JARS))
    if not PYTHON.exists() or not jars:
        pytest.skip("missing: Apache Hudi's jar or its Spark; run `make referee`")
    return jars[-1]


@pytest.fixture(scope="session")
def referee(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Referee]:
    """Apache Hudi on Spark; mark tests that use it `jvm`."""
    found = Referee(find_jar(), tmp_path_factory.mktemp("referee"))
    yield found
    found.close()
