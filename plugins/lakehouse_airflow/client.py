"""Client for the REST API of the pages, for use in other programs: `ApiClient(url=..., token=...)`."""

from __future__ import annotations

from lakehouse.platform.remote.client import ApiClient, api_client

__all__ = ["ApiClient", "api_client"]
