"""A catalog with a session of DuckDB, and statements from files."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lakehouse.platform.catalog.catalog import Catalog, load_catalog
from lakehouse.sql.duckdb_engine import DuckDbEngine
from lakehouse.sql.session import SqlSession


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Catalog]:
    """Return an empty catalog."""
    with load_catalog(f"sqlite:///{tmp_path}/catalog.db") as opened:
        yield opened


@pytest.fixture
def session(catalog: Catalog, tmp_path: Path) -> Iterator[SqlSession]:
    """Return a session of DuckDB; its tables are below the folder of the test."""
    engine = DuckDbEngine()
    yield SqlSession(catalog=catalog, engine=engine, warehouse=str(tmp_path / "lake"))
    engine.close()


def rows_of(session: SqlSession, statement: str) -> list[tuple[Any, ...]]:
    """Return the rows of a statement as tuples."""
    table = session.execute(statement).read_all()
    return [tuple(row[name] for name in table.schema.names) for row in table.to_pylist()]
