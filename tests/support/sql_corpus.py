"""The statements of the SQL corpus, and their comparison with the rows of a session."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from lakehouse.errors import LakehouseError
from lakehouse.sql.session import SqlSession

CORPUS = Path(__file__).resolve().parents[1] / "unit" / "sql" / "corpus"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A statement, and its rows or the pattern of its refusal. Without both, it has to succeed."""

    line: int
    text: str
    rows: list[Any] | None = None
    refusal: str = ""
    only: str = ""


def statements(file: Path) -> list[Case]:
    """Return the statements of a file; a blank line separates them."""
    cases, line = [], 1
    for block in file.read_text(encoding="utf-8").split("\n\n"):
        lines = block.strip("\n").split("\n")
        text = [one for one in lines if not re.match(r"-- (>|!|only:) ", one)]
        marks = {one[3:].partition(" ")[0]: one[3:].partition(" ")[2] for one in lines if one not in text}
        statement = "\n".join(text).rstrip()
        if statement.endswith(";"):
            rows = json.loads(marks[">"]) if ">" in marks else None
            refusal, only = marks.get("!", ""), marks.get("only:", "")
            cases.append(Case(line=line, text=statement[:-1], rows=rows, refusal=refusal, only=only))
        line += block.count("\n") + 2
    return cases


def problems(session: SqlSession, file: Path, engine: str) -> Iterator[str]:
    """Run the statements of a file, and yield a line for each one that does not return its rows or its refusal."""
    for case in statements(file):
        if case.only in ("", engine):
            problem = _problem(session, case)
            if problem:
                yield f"{file.name}:{case.line}: {case.text[:120]}: {problem}"


def _problem(session: SqlSession, case: Case) -> str:
    try:
        frame = session.execute(case.text)
        table = frame.read_all() if isinstance(frame, pa.RecordBatchReader) else None
        rows = _spark_rows(frame) if table is None else [list(row.values()) for row in _named(table).to_pylist()]
    except Exception as error:
        expected = isinstance(error, LakehouseError) or type(error).__module__.startswith("pyspark")
        if not expected or not case.refusal or not re.search(case.refusal, str(error)):
            return f"{type(error).__name__}: {error}"
        return ""
    if case.refusal:
        return f"not refused, returned {rows}"
    if case.rows is None:
        return ""
    actual, wanted = [_plain(row) for row in rows], case.rows
    if "ORDER BY" not in case.text:
        actual, wanted = sorted(actual, key=repr), sorted(wanted, key=repr)
    return "" if actual == wanted else f"returned {actual}"


def _named(table: pa.Table) -> pa.Table:
    # Two columns of a query may have one name.
    return table.rename_columns([str(number) for number in range(table.num_columns)])


def _spark_rows(frame: Any) -> list[list[Any]]:
    return [list(row) for row in frame.collect()]


def _plain(row: list[Any]) -> list[Any]:
    return [value if value is None or isinstance(value, bool | int | float | str) else _text(value) for value in row]


def _text(value: Any) -> Any:
    return float(value) if type(value).__name__ == "Decimal" else str(value)
