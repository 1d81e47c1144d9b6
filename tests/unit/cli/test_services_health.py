"""`lakehouse services health` of tables that exist, that their first rows will create, and that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse import Table, load_catalog
from lakehouse.cli.main import main
from lakehouse.spec.contracts.decisions import TablesHealth
from lakehouse.spec.contracts.read_numbers import ReadTables
from lakehouse.spec.table.table_spec import load_spec

SPEC = "table: {name}\nlocation: {location}\nrecord_key: [id]\nschema: {{id: string}}\n"


def test_table_without_first_rows_has_no_numbers_and_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("LAKEHOUSE_CATALOG", f"sqlite:///{tmp_path}/catalog.db")
    (tmp_path / "new.yaml").write_text(SPEC.format(name="shop.new", location=tmp_path / "new"))
    with load_catalog() as catalog:
        # An ingestion registers its table before the first rows create it.
        catalog.ensure_table(load_spec(tmp_path / "new.yaml"), create=False)
        for name in ("orders", "broken"):
            table = Table.create(str(tmp_path / name), name=name, record_key=["id"])
            table.upsert(pa.table({"id": ["a"]}))
            catalog.register_table(f"shop.{name}", str(tmp_path / name))
    (tmp_path / "broken" / ".hoodie" / "hoodie.properties").unlink()
    assert main(["services", "health", "--output", "json"]) == 0
    health = TablesHealth.from_json(capsys.readouterr().out)
    found = {table.table: table for table in ReadTables.of(health, 10**15).tables}
    assert (found["shop.new"].numbers, found["shop.new"].error) == ({}, None)
    assert found["shop.broken"].error is not None
    assert found["shop.orders"].numbers["small_files"] == 1
    assert not (tmp_path / "new").exists(), "nothing is written"
