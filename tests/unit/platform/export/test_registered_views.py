"""Iceberg views in a catalog of pyiceberg, and views of tables on S3."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.table import StaticTable

from lakehouse import Table
from tests.support.s3 import BUCKET, S3Server, s3_server
from tests.support.views import FORMATS, export, rows_of

__all__ = ["s3_server"]
ROWS = pa.table({"id": [1, 2], "p": ["a b", "\u00fc%20"], "v": [1, 2]})


def rows(view: pa.Table, table: Table) -> tuple[list[str], list[str]]:
    """Return the rows of a view and of its table, which must be equal."""
    expected = table.scan().to_arrow()
    return rows_of(view.select(expected.column_names).cast(expected.schema)), rows_of(expected)


def test_view_is_registered_in_a_catalog_again_after_each_export(tmp_path: Path) -> None:
    location = str(tmp_path / "orders")
    table = Table.create(location, name="orders", record_key=["id"], partition_by=["p"])
    catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/iceberg.db", warehouse=str(tmp_path))
    catalog.create_namespace("sales")
    for version in (ROWS, pa.table({"id": [1, 3], "p": ["a b", "c"], "v": [7, 8]})):
        table.upsert(version)
        export(table, "iceberg")
        newest = StaticTable.from_metadata(location).metadata_location
        if catalog.table_exists("sales.orders"):
            catalog.drop_table("sales.orders")
        catalog.register_table("sales.orders", newest)
        view, expected = rows(catalog.load_table("sales.orders").scan().to_arrow(), table)
        assert view == expected
    catalog.drop_table("sales.orders")
    view, expected = rows(StaticTable.from_metadata(location).scan().to_arrow(), table)
    assert view == expected


@pytest.mark.parametrize("scheme", ["s3", "s3a"])
@pytest.mark.parametrize("name", FORMATS)
def test_views_on_s3_are_read_by_other_engines(name: str, scheme: str, s3_server: S3Server, tmp_path: Path) -> None:
    location = f"{scheme}://{BUCKET}/views/{scheme}-{name}"
    table = Table.create(
        location, name="orders", record_key=["id"], partition_by=["p"], storage_options=s3_server.options
    )
    table.upsert(ROWS)
    export(table, name)
    table.upsert(pa.table({"id": [1, 3], "p": ["a b", "c"], "v": [7, 8]}))
    export(table, name)
    if name == "delta":
        options = {
            "AWS_ENDPOINT_URL": s3_server.endpoint,
            "AWS_ACCESS_KEY_ID": "key",
            "AWS_SECRET_ACCESS_KEY": "secret",
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }
        view = DeltaTable(location, storage_options=options).to_pyarrow_table()
    else:
        properties = {
            "s3.endpoint": s3_server.endpoint,
            "s3.access-key-id": "key",
            "s3.secret-access-key": "secret",
            "s3.region": "us-east-1",
        }
        static = StaticTable.from_metadata(location.replace("s3a:", "s3:"), properties)
        catalog = SqlCatalog("lake", uri=f"sqlite:///{tmp_path}/iceberg.db", warehouse=f"s3://{BUCKET}", **properties)
        catalog.create_namespace("sales")
        catalog.register_table("sales.orders", static.metadata_location)
        view = catalog.load_table("sales.orders").scan().to_arrow()
    seen, expected = rows(view, table)
    assert seen == expected and len(seen) == 3
