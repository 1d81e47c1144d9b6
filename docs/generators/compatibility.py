"""The table of docs/compatibility.md: which versions were tried together, from the committed result of the matrix."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

from docs.generators.markdown import table
from tests.matrix.cells import AIRFLOWS, CELLS, LOWEST, PYTHONS, SPARKS, Cell
from tests.matrix.results import PASSED, UNSUPPORTED, CellResult, published

PAGE = Path(__file__).resolve().parents[1] / "compatibility.md"
_BLOCK = re.compile(r"(?P<start><!-- matrix -->\n).*?(?P<end><!-- end of matrix -->\n)", re.DOTALL)
_NAMES = {"apache-airflow": "Airflow", "pyspark": "pyspark", "pyarrow": "pyarrow", "numpy": "NumPy", "pandas": "pandas"}
_NAMES |= {"python": "Python", "sqlalchemy": "SQLAlchemy", "fastavro": "fastavro", "obstore": "obstore"}


def compatibility_files() -> dict[Path, str]:
    """Return the page with the current table, by its path."""
    text = PAGE.read_text(encoding="utf-8")
    block = matrix_block(published())
    return {PAGE: _BLOCK.sub(lambda match: match["start"] + block + match["end"], text)}


def matrix_block(results: Mapping[str, CellResult]) -> str:
    """Return the tables and the reasons of combinations that did not pass."""
    sparks = [
        [f"Spark {spark}", *(_outcome(results.get(f"spark-{spark}-python-{python}")) for python in PYTHONS)]
        for spark in SPARKS
    ]
    airflows = [[f"Airflow {one}", _outcome(results.get(f"airflow-{one}-python-3.11"))] for one in AIRFLOWS]
    lowest = [[f"lowest versions, Spark {LOWEST.version}", _outcome(results.get(LOWEST.name))]]
    parts = [
        table(["", *(f"Python {python}" for python in PYTHONS)], sparks),
        table(["", "Python 3.11"], airflows + lowest),
    ]
    parts += [f"* {_reason(cell, results.get(cell.name))}\n" for cell in CELLS if _needs_reason(results.get(cell.name))]
    return "\n" + "\n".join(part.rstrip("\n") + "\n" for part in parts) + "\n"


def _outcome(result: CellResult | None) -> str:
    if result is None:
        return "not run"
    if result.outcome != PASSED:
        return result.outcome
    shown = ", ".join(f"{_NAMES[name]} {version}" for name, version in result.versions.items() if name in _NAMES)
    return f"passed on {result.date}: {shown}"


def _needs_reason(result: CellResult | None) -> bool:
    return result is not None and result.outcome != PASSED


def _reason(cell: Cell, result: CellResult | None) -> str:
    reason = result.reason if result is not None else ""
    verb = "cannot work" if result is not None and result.outcome == UNSUPPORTED else "did not pass"
    return f"`{cell.name}` {verb}: {reason or 'no reason was stored'}"
