"""`lakehouse sql`: run statements by DuckDB, and print or store their rows."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any, TextIO

import pyarrow as pa

from lakehouse.cli.group import Given
from lakehouse.cli.output import show
from lakehouse.cli.table import note_of_more, rows_of_batch
from lakehouse.errors import UserError
from lakehouse.platform.catalog.catalog import load_catalog

_PARQUET = "parquet"
_ROWS_PER_GROUP = 1 << 20
#: A column of outcomes. Their `reason` is shown as a sentence.
_OUTCOME = "num_affected_rows"


def run(given: Given) -> int:
    """Run statements from the command line, a file or standard input, or an interactive shell."""
    _check(given)
    text = _statements(given)
    sql = sql_modules()
    with load_catalog(given.catalog) as catalog:
        engine = sql.engine()
        try:
            session = sql.session(catalog=catalog, engine=engine, warehouse=given.warehouse, options=dict(given.option))
            if text is None:
                shell = import_module("lakehouse.cli.sql_shell")
                shell.run_shell(session, catalog, given)
                return 0
            run_script(session, text, given)
        finally:
            engine.close()
    return 0


def run_script(session: Any, text: str, given: Given) -> None:
    """Run a script: print the rows of each statement, or store the rows of the last statement."""
    statements = import_module("lakehouse.sql.tokens").split_statements(text, session.engine.dialect)
    if not statements:
        raise UserError("there is no statement; write SQL, such as SHOW TABLES")
    for number, statement in enumerate(statements, 1):
        rows = session.execute(statement)
        if given.output and number < len(statements):
            for _ in rows:
                pass
        elif given.output:
            with _stored(Path(given.output)) as path:
                _write(rows, path, given.format)
        else:
            print_rows(rows, given.format, given.limit)


def print_rows(rows: pa.RecordBatchReader, format: str, limit: int | None) -> None:
    """Print the rows of a statement."""
    if format == "csv":
        _write_csv(rows, sys.stdout)
    elif format == "json":
        _write_json(rows, sys.stdout)
    else:
        _print_table(rows, limit)


class SqlModules:
    """The classes of `lakehouse.sql`, which need packages of the extra `sql`."""

    def __init__(self, engine: Any, session: Any) -> None:
        self.engine, self.session = engine, session


def sql_modules() -> SqlModules:
    """Import `lakehouse.sql`; raise UserError with the command that installs a missing package."""
    try:
        engine = import_module("lakehouse.sql.duckdb_engine").DuckDbEngine
        return SqlModules(engine, import_module("lakehouse.sql.session").SqlSession)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("sqlglot", "duckdb"):
            raise
        raise UserError(f"SQL needs {error.name}: pip install 'lakehouse-tables[sql]'") from None


def _check(given: Given) -> None:
    if given.statement and given.file:
        raise UserError("a statement and --file are given; give one of them")
    if given.format == _PARQUET and not given.output:
        raise UserError("--format parquet needs --output FILE")


def _statements(given: Given) -> str | None:
    """Return the script to run; None for the interactive shell."""
    if given.statement is not None:
        return str(given.statement)
    if given.file:
        try:
            return Path(given.file).read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"cannot read {given.file}: {getattr(error, 'strerror', None) or error}") from error
    if sys.stdin.isatty():
        if given.output or given.format not in ("table", "csv", "json"):
            raise UserError("the interactive shell prints rows: give a statement for --output")
        return None
    return sys.stdin.read()


def _print_table(rows: pa.RecordBatchReader, limit: int | None) -> None:
    if not rows.schema.names:
        print("(done)")
        return
    values = (row for batch in rows for row in rows_of_batch(batch))
    # One additional row is read to determine whether the output is complete.
    first_rows = list(itertools.islice(values, None if limit is None else limit + 1))
    shown = first_rows[:limit]
    if len(shown) == 1 and _OUTCOME in shown[0]:
        _print_outcome(shown[0])
        return
    show(shown, "text")
    if len(first_rows) > len(shown):
        note_of_more(len(shown), "rows", "--limit N shows more, --limit all shows every row")


def _print_outcome(row: dict[str, Any]) -> None:
    if row["instant"] is None:
        print(row["reason"])
        return
    changes = {"inserted": "num_inserted_rows", "updated": "num_updated_rows", "deleted": "num_deleted_rows"}
    counts = ", ".join(f"{row[name]:,} {verb}" for verb, name in changes.items() if row[name])
    # A change of columns has no rows, and whole partitions are removed without counting their rows.
    rows = f"{row[_OUTCOME]:,} rows: {counts}" if counts else "done"
    note = f"; {row['reason']}" if row["reason"] else ""
    print(f"{rows} in {row['instant']}{note}")


@contextmanager
def _stored(path: Path) -> Iterator[Path]:
    """Yield a temporary path that becomes the file if no error occurs."""
    part = path.with_name(f"{path.name}.part")
    try:
        yield part
        os.replace(part, path)
    finally:
        part.unlink(missing_ok=True)


def _write(rows: pa.RecordBatchReader, path: Path, format: str) -> None:
    if format == _PARQUET:
        _write_parquet(rows, path)
        return
    with path.open("w", encoding="utf-8", newline="") as file:
        if format == "csv":
            _write_csv(rows, file)
        elif format == "json":
            _write_json(rows, file)
        else:
            raise UserError("--output needs --format csv, json or parquet")


def _write_parquet(rows: pa.RecordBatchReader, path: Path) -> None:
    parquet = import_module("pyarrow.parquet")
    with parquet.ParquetWriter(path, rows.schema) as writer:
        for batch in rows:
            writer.write_batch(batch, row_group_size=_ROWS_PER_GROUP)


def _write_csv(rows: pa.RecordBatchReader, file: TextIO) -> None:
    csv = import_module("pyarrow.csv")
    nested = next((field.name for field in rows.schema if pa.types.is_nested(field.type)), None)
    if nested is not None:
        raise UserError(f"column {nested} is nested, which CSV cannot store: use --format json or parquet")
    header = csv.WriteOptions(include_header=True)
    plain = csv.WriteOptions(include_header=False)
    sink = pa.BufferOutputStream()
    csv.write_csv(rows.schema.empty_table(), sink, header)
    file.write(sink.getvalue().to_pybytes().decode())
    for batch in rows:
        sink = pa.BufferOutputStream()
        csv.write_csv(batch, sink, plain)
        file.write(sink.getvalue().to_pybytes().decode())


def _write_json(rows: pa.RecordBatchReader, file: TextIO) -> None:
    separator = "["
    for batch in rows:
        for row in rows_of_batch(batch):
            file.write(f"{separator}\n  {json.dumps(_finite(row), ensure_ascii=False, default=str)}")
            separator = ","
    file.write("\n]\n" if separator == "," else "[]\n")


def _finite(value: Any) -> Any:
    """Return a value with NaN and infinities as strings, because JSON has no numbers for them."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, dict):
        return {name: _finite(part) for name, part in value.items()}
    if isinstance(value, list | tuple):
        return [_finite(part) for part in value]
    return value
