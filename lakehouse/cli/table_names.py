"""Lists table names of a catalog, for shell completion."""

from __future__ import annotations

import os

from lakehouse.errors import LakehouseError
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.catalog.connect import DEFAULT, is_configured


def table_names(catalog: str | None) -> list[str]:
    """Return all table names of a catalog.

    Return nothing if the catalog is unavailable, because a shell shows no errors.
    """
    name = catalog or DEFAULT
    if name == DEFAULT and not is_configured(os.environ):
        return []
    try:
        with load_catalog(name) as opened:
            return [entry.identifier for entry in opened.list_tables()]
    except LakehouseError:
        return []
