"""Tables without record key in a catalog: registered by location, and created from a spec."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse import Table, load_catalog
from lakehouse.errors import UserError
from lakehouse.spec.table.table_spec import parse_spec

ROWS = pa.table({"a": [1, 1], "p": ["x", "x"]})


def test_table_with_generated_keys_is_registered_and_loaded(tmp_path: Path) -> None:
    location = str(tmp_path / "events")
    Table.create(location, name="events", partition_by="p").insert(ROWS)
    with load_catalog(f"sqlite:///{tmp_path}/catalog.db") as catalog:
        catalog.register_table("log.events", location)
        table = catalog.load_table("log.events")
        table.insert(ROWS)
        assert table.scan(columns=["a"]).to_arrow().column("a").to_pylist() == [1, 1, 1, 1]
        table.services.clean.run(force=True)


def test_spec_without_record_key_creates_a_table_and_refuses_one_with_another_key(tmp_path: Path) -> None:
    spec = parse_spec(f"table: log.events\nlocation: {tmp_path}/events\n", source="events.yaml")
    keyed = parse_spec(f"table: log.orders\nlocation: {tmp_path}/orders\n", source="orders.yaml")
    Table.create(keyed.location, name="orders", record_key="a")
    with load_catalog(f"sqlite:///{tmp_path}/catalog.db") as catalog:
        table = catalog.create_table(spec)
        table.insert(ROWS)
        assert table.config.keys.record_key_fields == ()
        assert len(set(table.scan(columns=["_hoodie_record_key"]).to_arrow().column(0).to_pylist())) == 2
        with pytest.raises(UserError, match=r"declares record_key \[\], but the table at .* was created with \[a\]"):
            catalog.create_table(keyed)
