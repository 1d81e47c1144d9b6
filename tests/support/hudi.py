"""Run Apache Hudi in tests: one process with Spark and Hudi's bundle serves a whole test session."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = ROOT / ".venv-hudi" / "bin" / "python"
JARS = "hudi-spark*-bundle_*.jar"
_INCREMENTAL = {"hoodie.datasource.query.type": "incremental"}


class HudiError(AssertionError):
    """Raised if a request to Apache Hudi fails; the message is Hudi's."""


class Hudi:
    """Client of a process that runs Apache Hudi on Spark."""

    def __init__(self, jar: Path, home: Path, settings: Mapping[str, str] | None = None) -> None:
        self._home, self._numbers = home, itertools.count(1)
        spark_settings = [f"{key}={value}" for key, value in (settings or {}).items()]
        inherited = {k: v for k, v in os.environ.items() if k not in ("SPARK_HOME", "PYTHONPATH", "VIRTUAL_ENV")}
        python = {"PYSPARK_PYTHON": str(PYTHON), "PYSPARK_DRIVER_PYTHON": str(PYTHON), "SPARK_LOCAL_IP": "127.0.0.1"}
        self._log = home / "hudi.log"
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                [PYTHON, Path(__file__).with_name("hudi_worker.py"), jar, home, *spark_settings],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**inherited, **python, "TZ": "UTC"},
                cwd=home,
            )
        self.spark_version = self._answer()["spark"]

    def close(self) -> None:
        """Close the process's stdin, which ends it; kill the process if it does not end within 30 seconds."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._process.stdin.close()
        self._process.stdout.close()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def read(self, location: str, **options: str) -> pa.Table:
        """Return the latest snapshot; `__` in the name of an option stands for a dot."""
        dotted = {key.replace("__", "."): value for key, value in options.items()}
        return self._rows({"verb": "read", "location": location, "options": dotted})

    def collect(self, location: str, columns: Sequence[str], options: Mapping[str, str]) -> pa.Table:
        """Return columns of few rows, whose values are JSON's; faster than `read`, which writes a file."""
        request = {"verb": "collect", "location": location, "columns": list(columns), "options": dict(options)}
        rows = self._ask(request)["rows"]
        return pa.table({name: [row[name] for row in rows] for name in columns})

    def read_as_of(self, location: str, time: str) -> pa.Table:
        """Return the snapshot as of the instant `time`."""
        return self._rows({"verb": "read", "location": location, "options": {"as.of.instant": time}})

    def read_incremental(self, location: str, start: str, end: str) -> pa.Table:
        """Return the rows written by the commits with a completion time in (start, end]."""
        bounds = {"hoodie.datasource.read.begin.instanttime": start, "hoodie.datasource.read.end.instanttime": end}
        return self._rows({"verb": "read", "location": location, "options": {**_INCREMENTAL, **bounds}})

    def write(self, location: str, rows: pa.Table, options: Mapping[str, str], *, mode: str = "append") -> None:
        """Write rows with Hudi's Spark data source."""
        request = {"verb": "write", "location": location, "options": dict(options), "mode": mode}
        self._ask({**request, "input": self._parquet(rows)})

    def sql(self, text: str, *, table: str = "", rows: pa.Table | None = None, **settings: str) -> None:
        """Run a SQL statement.

        `{table}` in the text stands for the table at the location `table`, `incoming` for a view of `rows`.
        """
        self._ask(self._statement(text, table, rows, settings, ""))

    def query(self, text: str, *, table: str = "", **settings: str) -> pa.Table:
        """Run a SQL query; `{table}` in the text stands for the table at the location `table`."""
        return self._rows(self._statement(text, table, None, settings, ""))

    def lock(self, provider: str, options: Mapping[str, str], *, wait_ms: int) -> bool:
        """Try to acquire a lock with a class of Hudi, named with its package; return whether it succeeds in `wait_ms`.

        Release it with `unlock`.
        """
        request = {"verb": "lock", "provider": provider, "options": dict(options), "wait_ms": wait_ms}
        return bool(self._ask(request)["held"])

    def load_classes(self, directory: Path) -> None:
        """Add the compiled classes of `directory` to Hudi's class path."""
        self._ask({"verb": "classes", "directory": directory.as_uri() + "/"})

    def call(self, function: str, argument: str) -> str:
        """Return the result of a Java class that implements Function<String, String>; see `load_classes`."""
        return str(self._ask({"verb": "call", "function": function, "argument": argument})["result"])

    def unlock(self) -> None:
        """Release the lock."""
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
            raise HudiError(f"the Hudi process ended; its log:\n{self._log.read_text(errors='replace')[-4000:]}")
        answer: dict[str, Any] = json.loads(line)
        if "error" in answer:
            raise HudiError(_message(answer["error"]))
        return answer


def _message(error: str) -> str:
    """Return the first six lines of a Java stack trace and the line of each cause."""
    lines = error.splitlines()
    return "\n".join([*lines[:6], *(line for line in lines[6:] if line.startswith("Caused by:"))])


def find_jar() -> Path:
    """Return the path of Hudi's jar; skip the test if the jar or its Spark environment is missing."""
    jars = sorted((ROOT / ".jars").glob(JARS))
    if not PYTHON.exists() or not jars:
        pytest.skip("missing: Apache Hudi's jar or its Spark; run `make interop`")
    return jars[-1]


def find_older_jar(version: str) -> Path:
    """Return the path of the bundle of an older release; skip the test if it or its Spark environment is missing."""
    jars = sorted((ROOT / ".jars" / "older").glob(JARS.replace(".jar", f"-{version}.jar")))
    if not PYTHON.exists() or not jars:
        pytest.skip(f"missing: the bundle of Apache Hudi {version} or its Spark; run `make hudi-releases`")
    return jars[-1]


@pytest.fixture(scope="session")
def hudi(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hudi]:
    """Yield Apache Hudi on Spark; tests that use it have the marker `jvm`."""
    process = Hudi(find_jar(), tmp_path_factory.mktemp("hudi"))
    yield process
    process.close()
