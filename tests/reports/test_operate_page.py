"""The page operate.md runs as it stands: generated specs, policies, and the backup and restore of the catalog."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse import load_catalog
from lakehouse.spec.table.table_spec import load_spec
from lakehouse_airflow.pools import POOLS
from tests.support.doc_blocks import DOCS, PageRun, read_page
from tests.support.postgresql import HOST, USER, server

PAGE = "operate.md"


def test_page_runs_and_the_restored_catalog_has_tables_and_policies(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = read_page(f"docs/{PAGE}", (DOCS / PAGE).read_text(encoding="utf-8"))
    with server() as running:
        for name, value in (("PGHOST", HOST), ("PGPORT", str(running.port)), ("PGUSER", USER)):
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path))
        run = PageRun(tmp_path, monkeypatch)
        run.run(page)
        assert set(run.executed) >= page.runnable
        base = f"postgresql+psycopg://{USER}@{HOST}:{running.port}"
        contents = []
        for name in ("lakehouse", "lakehouse_restored"):
            with load_catalog(f"{base}/{name}") as catalog:
                entries = (*catalog.list_tables("sales"), *catalog.list_tables("web"))
                tables = sorted(entry.identifier for entry in entries)
                contents.append((tables, repr(catalog.policies("sales").declared("sales", "", "clean"))))
        assert contents[0] == contents[1]
        assert "commits_retained" in contents[1][1]
        assert contents[1][0] == ["sales.items", "sales.orders", "web.clicks"]
    specs = [load_spec(file) for file in sorted((tmp_path / "tables").glob("*.yaml"))]
    assert len({spec.ingest.schedule for spec in specs if spec.ingest is not None}) == 3


def test_page_names_every_pool() -> None:
    text = (DOCS / PAGE).read_text(encoding="utf-8")
    assert [pool.name for pool in POOLS if f"`{pool.name}`" not in text] == []
