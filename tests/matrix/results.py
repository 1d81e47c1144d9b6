"""The results of the matrix: one JSON file per cell of a run, and the committed file that the documentation shows."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tests.matrix.cells import FOLDER, ROOT, Cell

RUNS = ROOT / "build" / "matrix"
PUBLISHED = FOLDER / "results.json"
PASSED, FAILED, UNSUPPORTED, NOT_RUN = "passed", "failed", "unsupported", "not run"
#: The packages whose versions the result has.
SHOWN = (
    "apache-airflow",
    "apache-airflow-providers-apache-spark",
    "fastavro",
    "numpy",
    "obstore",
    "pandas",
    "pyarrow",
    "pyspark",
    "python",
    "sqlalchemy",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """The outcome of one cell.

    Attributes:
        name: The name of the cell.
        outcome: `passed`, `failed`, `unsupported` or `not run`.
        reason: Why the cell did not pass: the first error, or the reason of a combination that cannot work.
        date: The day of the run, as YYYY-MM-DD.
        seconds: The elapsed time with the environment.
        counts: The number of tests by outcome, such as passed and skipped.
        versions: The exact versions of `SHOWN`, as far as they are installed.
        failures: The ids of the failed tests.
        sources: The hash of the sources that were tested.
    """

    name: str
    outcome: str
    reason: str = ""
    date: str = ""
    seconds: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)
    failures: tuple[str, ...] = ()
    sources: str = ""

    @classmethod
    def from_json(cls, document: dict[str, Any]) -> CellResult:
        """Return the result of a JSON document."""
        return cls(**{**document, "failures": tuple(document.get("failures", ()))})


def store(result: CellResult) -> None:
    """Write the result of a cell of this run."""
    RUNS.mkdir(parents=True, exist_ok=True)
    path = RUNS / f"{result.name}.json"
    path.write_text(json.dumps(asdict(result), indent=2) + "\n", encoding="utf-8")


def stored(cell: Cell) -> CellResult | None:
    """Return the result of an earlier run on this machine, or None."""
    path = RUNS / f"{cell.name}.json"
    if not path.is_file():
        return None
    return CellResult.from_json(json.loads(path.read_text(encoding="utf-8")))


def published(path: Path = PUBLISHED) -> dict[str, CellResult]:
    """Return the committed results by the name of the cell."""
    if not path.is_file():
        return {}
    documents = json.loads(path.read_text(encoding="utf-8"))["cells"]
    return {document["name"]: CellResult.from_json(document) for document in documents}


def publish(results: Iterable[CellResult], cells: Sequence[Cell], path: Path = PUBLISHED) -> None:
    """Write the committed results: new ones replace those of the same cell; cells that no longer exist are removed."""
    merged = published(path) | {result.name: result for result in results}
    documents = []
    for cell in cells:
        if cell.unsupported:
            merged[cell.name] = CellResult(name=cell.name, outcome=UNSUPPORTED, reason=cell.unsupported)
        if cell.name in merged:
            document = asdict(merged[cell.name])
            # They say nothing to a reader and would change with each run.
            documents.append({key: value for key, value in document.items() if key not in ("sources", "seconds")})
    path.write_text(json.dumps({"version": 1, "cells": documents}, indent=2) + "\n", encoding="utf-8")
