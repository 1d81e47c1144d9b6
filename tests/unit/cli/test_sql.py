"""`lakehouse sql`: formats, files, scripts, exit codes and the interactive shell."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from lakehouse.cli import sql_shell
from lakehouse.cli.main import main
from lakehouse.platform.catalog.catalog import load_catalog


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return the folder of a catalog with the table shop.items."""
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
    monkeypatch.delenv("LAKEHOUSE_CATALOG", raising=False)
    create = "CREATE TABLE shop.items (id INT, name STRING) USING lakehouse TBLPROPERTIES (primaryKey = 'id')"
    assert main(["sql", f"{create}; INSERT INTO shop.items VALUES (1, 'pen'), (2, 'ink')"]) == 0
    return tmp_path


def test_rows_are_printed_and_stored_in_each_format(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    query = "SELECT id, name FROM shop.items ORDER BY id"
    capsys.readouterr()
    assert main(["sql", query]) == 0
    assert capsys.readouterr().out == "id  name\n--  ----\n1   pen\n2   ink\n"
    assert main(["sql", query, "--format", "csv"]) == 0
    assert capsys.readouterr().out == '"id","name"\n1,"pen"\n2,"ink"\n'
    assert main(["sql", query, "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == [{"id": 1, "name": "pen"}, {"id": 2, "name": "ink"}]
    assert main(["sql", "SELECT 1 WHERE false", "--format", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == []
    assert main(["sql", query, "--format", "parquet", "--output", str(home / "rows.parquet")]) == 0
    assert pq.read_table(home / "rows.parquet").to_pydict() == {"id": [1, 2], "name": ["pen", "ink"]}
    assert main(["sql", query, "--limit", "1"]) == 0
    assert "1 of at least 2 rows shown" in capsys.readouterr().err


def test_failed_query_keeps_the_file_and_returns_the_exit_code(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = home / "rows.csv"
    file.write_text("old")
    for statement, message in (
        ("SELECT CAST(name AS INT) FROM shop.items", "Conversion Error"),
        ("SELECT * FROM shop.itemz", "SHOW TABLES"),
        ("SELECT [1] AS list", "--format json or parquet"),
    ):
        assert main(["sql", statement, "--format", "csv", "--output", str(file)]) == 64
        assert message in capsys.readouterr().err
    assert file.read_text() == "old"
    assert [path.name for path in home.glob("*.part")] == []
    assert main(["sql", "SELECT 1", "--format", "parquet"]) == 64
    assert main(["sql", "SELECT 1", "--file", "x.sql"]) == 64
    assert main(["sql", "SELECT 1", "--output", str(file)]) == 64


def test_scripts_stop_at_the_first_error(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = home / "script.sql"
    script.write_text(
        "DELETE FROM shop.items WHERE name = 'a;b'; SELECT count(*) AS n FROM shop.items; SELEC; TRUNCATE x"
    )
    capsys.readouterr()
    assert main(["sql", "--file", str(script), "--format", "json"]) == 64
    assert json.loads("[" + capsys.readouterr().out.rpartition("[")[2]) == [{"n": 2}]


def test_statements_are_read_from_standard_input(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    capsys.readouterr()
    monkeypatch.setattr(sys, "stdin", io.StringIO("SELECT 7 AS n;\n"))
    assert main(["sql", "--format", "csv"]) == 0
    assert capsys.readouterr().out == '"n"\n7\n'


def test_missing_package_is_reported_with_its_command(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def without_duckdb(name: str) -> Any:
        if name == "duckdb":
            raise ImportError(name)
        return import_module(name)

    monkeypatch.setattr("lakehouse.sql.duckdb_engine.import_module", without_duckdb)
    assert main(["sql", "SELECT 1"]) == 64
    assert "pip install 'lakehouse-tables[sql]'" in capsys.readouterr().err


def test_shell_reads_statements_over_lines_and_continues_after_errors(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: Iterator[Any] = iter(
        ["", "SELECT id,", KeyboardInterrupt(), "SELECT name", "FROM shop.items", "WHERE name <> ';' AND id = 2;",
         "SELEC 1;", "SELECT 3 AS x; SELECT 4 AS y;", "exit"]
    )  # fmt: skip

    def read(prompt: str) -> str:
        line = next(lines)
        if isinstance(line, BaseException):
            raise line
        return str(line)

    capsys.readouterr()
    monkeypatch.setattr(sql_shell, "_reader", lambda catalog: read)
    monkeypatch.setattr(sys.stdin, "isatty", lambda: True, raising=False)
    assert main(["sql"]) == 0
    printed = capsys.readouterr()
    assert "ink" in printed.out and "x\n-\n3" in printed.out and "y\n-\n4" in printed.out
    assert "EngineError: DuckDB: Parser Error" in printed.err


def test_completion_offers_keywords_tables_and_procedures(home: Path) -> None:
    with load_catalog(f"sqlite:///{home}/catalog.db") as catalog:
        assert sql_shell.completions(catalog, "shop.") == ["shop.items"]
        assert sql_shell.completions(catalog, "lakehouse.cle") == ["lakehouse.clean"]
        assert "SELECT" in sql_shell.completions(catalog, "sel")
