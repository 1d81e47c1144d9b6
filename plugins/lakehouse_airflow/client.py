"""Client of the REST API of the pages, for programs of users: `ApiClient(url=..., token=...)`."""

from __future__ import annotations

from lakehouse.platform.remote.client import ApiClient, api_client

__all__ = ["ApiClient", "api_client"]
