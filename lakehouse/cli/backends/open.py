"""Open the backend of a fleet command: the REST API if `LAKEHOUSE_API` is set, otherwise a catalog."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from lakehouse.cli.backends.catalog_backend import CatalogBackend
from lakehouse.cli.backends.protocol import Backend
from lakehouse.cli.backends.rest_backend import RestBackend
from lakehouse.errors import UserError
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.catalog.connect import DEFAULT
from lakehouse.platform.remote.client import API, api_client


@contextmanager
def open_backend(catalog: str) -> Iterator[Backend]:
    """Yield the REST backend if `LAKEHOUSE_API` is set, otherwise the backend of a catalog.

    Raises UserError if both the API and a catalog are given, because the API only serves the catalog of its Airflow.
    """
    client = api_client()
    if client is None:
        with load_catalog(catalog) as opened:
            yield CatalogBackend(opened)
        return
    if catalog != DEFAULT:
        raise UserError(
            f"catalog {catalog!r}: {API} is set, and the API shows the catalog of its Airflow only. Leave the name "
            f"out, or unset {API}",
            catalog=catalog,
        )
    yield RestBackend(client)
