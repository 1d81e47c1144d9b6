"""The pages that the plugin registers in Airflow's UI."""

from __future__ import annotations

import hashlib
from functools import cache
from importlib.resources import files
from typing import Any

FOLDER = "pages"


@cache
def page_modules() -> dict[str, bytes]:
    """Return the JavaScript modules and icons of the pages by their file names."""
    folder = files("lakehouse_airflow") / FOLDER
    return {part.name: part.read_bytes() for part in folder.iterdir() if part.name.endswith((".js", ".svg"))}


@cache
def digest() -> str:
    """Return the hash of all modules. It is part of their URLs, so that a new release is not read from a cache."""
    whole = hashlib.sha256()
    for name, content in sorted(page_modules().items()):
        whole.update(name.encode() + b"\0" + content)
    return whole.hexdigest()[:16]


def react_apps() -> list[dict[str, Any]]:
    """Return the pages in the form of Airflow's plugin manager. URLs are relative to Airflow's base URL."""
    place = f"lakehouse/{FOLDER}/{digest()}"
    return [
        {
            "name": "Lakehouse",
            "bundle_url": f"{place}/main.js",
            "destination": "nav",
            "url_route": "lakehouse",
            "icon": f"{place}/icon.svg",
            "nav_top_level": True,
        },
        {
            "name": "Lakehouse report",
            "bundle_url": f"{place}/report.js",
            "destination": "dag_run",
            "url_route": "lakehouse-report",
            "icon": f"{place}/icon.svg",
        },
        # Airflow has no place for plugins on the page of an asset. This component shows nothing on other pages.
        {"name": "Lakehouse asset", "bundle_url": f"{place}/asset.js", "destination": "base"},
    ]
