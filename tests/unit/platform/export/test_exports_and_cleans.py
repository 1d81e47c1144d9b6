"""Cleans of tables with views: readers of the newest view find its files, however long the export is late."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.errors import UnsupportedError
from tests.support.tables import make_env
from tests.support.views import FORMATS, check_view, export, read_view, rows_of

CLEANS = (
    {"hoodie.clean.commits.retained": "1"},
    {"hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS", "hoodie.clean.fileversions.retained": "1"},
)


def orders(home: Path, options: dict[str, str]) -> Table:
    location = f"{home}/orders"
    return Table.create(location, name="orders", record_key=["id"], options=options, env=make_env(location))


def rows(amount: int) -> pa.Table:
    return pa.table({"id": [1, 2], "amount": [amount, amount]})


@pytest.mark.parametrize("clean", CLEANS)
@pytest.mark.parametrize("name", FORMATS)
def test_clean_keeps_files_of_a_declared_view_until_the_next_export(
    name: str, clean: dict[str, str], tmp_path: Path
) -> None:
    table = orders(tmp_path, {**clean, "lakehouse.export.formats": name})
    declared = Table.open(f"{tmp_path}/orders", options={**clean, "lakehouse.export.formats": name})
    table.upsert(rows(0))
    table.upsert(rows(1))
    export(table, name)
    shown = rows_of(read_view(f"{tmp_path}/orders", name))
    for number in range(2, 8):
        table.upsert(rows(number))
        declared.services.clean.run(force=True)
        assert rows_of(read_view(f"{tmp_path}/orders", name)) == shown
    export(table, name)
    cleaned = declared.services.clean.run(force=True)
    assert not isinstance(cleaned, NothingToDo) and cleaned.files >= 4
    check_view(table, name)


def test_clean_ignores_views_of_formats_that_are_not_declared(tmp_path: Path) -> None:
    clean = {"hoodie.clean.commits.retained": "1"}
    table = orders(tmp_path, clean)
    table.upsert(rows(0))
    export(table, "delta")
    for number in range(1, 5):
        table.upsert(rows(number))
    cleaned = Table.open(f"{tmp_path}/orders", options=clean).services.clean.run(force=True)
    assert not isinstance(cleaned, NothingToDo) and cleaned.files >= 3
    export(table, "delta")
    check_view(table, "delta")


@pytest.mark.parametrize("name", FORMATS)
def test_export_refuses_files_with_earlier_names_of_columns(name: str, tmp_path: Path) -> None:
    """Readers of a view find columns of a file by name, so a file from before a rename would have nulls."""
    table = orders(tmp_path, {})
    table.upsert(rows(1))
    export(table, name)
    table.alter().rename_column("amount", "total").execute()
    with pytest.raises(UnsupportedError, match="Rewrite them first"):
        export(table, name)
    table.insert_overwrite_table(table.scan().to_arrow())
    export(table, name)
    check_view(table, name)
