"""Registration of tables whose location has another spelling, or whose properties are incomplete."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.core.timeline.table_properties import PROPERTIES
from lakehouse.errors import UserError
from lakehouse.model.table_identity import TABLE_ID
from lakehouse.platform.catalog.catalog import load_catalog
from tests.reports.test_table_identity import NAME, made, properties_of, without_id


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a location, and configure a catalog."""
    monkeypatch.setenv("LAKEHOUSE_HOME", str(tmp_path / "home"))
    return tmp_path / "lake" / "orders"


def test_location_with_a_slash_at_its_end_is_the_location_without_it(place: Path) -> None:
    """trinodb/trino#19143: the other spelling would be refused as a copy, with the advice to give it a new id."""
    made(place)
    with load_catalog() as catalog:
        catalog.register_table(NAME, str(place))
        for new_id in (False, True):
            with pytest.raises(UserError, match=r"is already in this catalog, as sales\.orders"):
                catalog.register_table("sales.other", f"{place}/", new_id=new_id)
        assert catalog.load_table(NAME).scan().to_arrow().num_rows == 1


@pytest.mark.parametrize("state", ["no line break", "backup only", "backup and an empty file"])
def test_table_whose_properties_are_incomplete_is_registered_without_id(place: Path, state: str) -> None:
    """apache/hudi#8462: the program that changed the properties crashed, or an editor removed the last line break."""
    made(place)
    without_id(place)
    main, backup = place / PROPERTIES, place / f"{PROPERTIES}.backup"
    complete = main.read_bytes()
    if state == "no line break":
        main.write_bytes(complete.rstrip(b"\n"))
    else:
        backup.write_bytes(complete)
        main.write_bytes(b"")
        if state == "backup only":
            main.unlink()
    with load_catalog() as catalog:
        table = catalog.register_table(NAME, str(place))
        assert table.scan().to_arrow().num_rows == 1
        assert catalog.entry(NAME).identity == table.config.identity and not table.config.identity.id
        with pytest.raises(UserError, match="otherwise add the line break"):
            catalog.accept_table(NAME, new_id=True)
        # The ways out of the message.
        main.write_bytes(complete)
        catalog.adopt(catalog.entry(NAME), catalog.load_table(NAME))
        assert catalog.entry(NAME).identity == catalog.load_table(NAME).config.identity
        assert properties_of(place)[TABLE_ID]
