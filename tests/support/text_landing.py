"""A landing zone of text files, and the table that ingests them with Spark."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.ingest.replay import run_replay
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.spec.contracts.job import IngestReport
from lakehouse.spec.job_command import command_of
from lakehouse.spec.table.table_spec import TableSpec
from tests.support.file_ingest import file_ingest

COLUMNS = {"id": "string", "n": "string"}


class TextLanding:
    """A folder `landing`, and a table with the columns `id` and `n` unless a test declares others."""

    def __init__(self, spark: SparkSession, root: Path) -> None:
        self.spark, self.root = spark, root
        self.folder = root / "landing"
        self.folder.mkdir()

    def put(self, name: str, data: bytes) -> None:
        """Write a file."""
        (self.folder / name).write_bytes(data)

    def spec(self, schema: dict[str, str] | None = None, **ingest: Any) -> TableSpec:
        """Return the spec of the table; without other settings a run allows no bad record."""
        return TableSpec(
            table="t",
            location=str(self.root / "table"),
            record_key=("id",),
            schema=COLUMNS if schema is None else schema,
            delete_field="_change_operation_type" if ingest.get("format") == "debezium" else "",
            delete_marker="d" if ingest.get("format") == "debezium" else "",
            ingest=file_ingest(path=f"{self.folder}/", **ingest),
        )

    def ingest(self, schema: dict[str, str] | None = None, *, action: str = "run", **ingest: Any) -> IngestReport:
        """Run the ingestion, or the replay of its dead letters."""
        command = command_of("ingest", action, table="t.yaml")
        run = run_replay if action == "replay" else run_ingest
        return run(self.spark, self.spec(schema, **ingest), command, environ={})

    def refusal(self, schema: dict[str, str] | None = None, **ingest: Any) -> str:
        """Return the message of a run that is refused."""
        try:
            report = self.ingest(schema, **ingest)
        except UserError as error:
            return str(error)
        raise AssertionError(f"the run was not refused: {report}")

    def rows(self, *names: str) -> list[tuple[Any, ...]]:
        """Return the values of each row of the table, `id` and `n` by default, sorted."""
        columns = list(names or COLUMNS)
        found = Table.open(str(self.root / "table")).scan(columns=columns).to_arrow().to_pylist()
        return sorted(tuple(row[name] for name in columns) for row in found)

    def letters(self) -> list[str]:
        """Return the records of all dead letters, sorted."""
        files = (self.root / "table_dead_letters").rglob("*.json")
        lines = [line for file in files for line in file.read_text().splitlines()]
        return sorted(json.loads(line)["record"] for line in lines)
