"""The pages that the plugin registers in Airflow's UI."""

from __future__ import annotations

import hashlib
import json
from functools import cache
from importlib.resources import files
from typing import Any

from lakehouse.model.timeline_service import TimelineService
from lakehouse.spec.table.services import SERVICE_SPECS, SERVICES
from lakehouse_airflow.compat import ASSET_PAGE, page_prefix

FOLDER = "pages"
#: Name of the generated module: it exports Python values that the other modules import.
DECLARED = "declared.js"


@cache
def page_modules() -> dict[str, bytes]:
    """Return the JavaScript modules and icons of the pages by their file names."""
    folder = files("lakehouse_airflow") / FOLDER
    stored = {part.name: part.read_bytes() for part in folder.iterdir() if part.name.endswith((".js", ".svg"))}
    return {**stored, DECLARED: declared_module().encode()}


def declared_module() -> str:
    """Return the source of `declared.js`: the table services, and the labels of a timeline."""
    values = {
        "SERVICES": SERVICES,
        "WITHOUT_INSTANT": [spec.name for spec in SERVICE_SPECS if not spec.leaves_instants],
        "WORDS": timeline_words(),
    }
    return "".join(f"export const {name} = {json.dumps(value)};\n" for name, value in values.items())


def timeline_words() -> dict[str, str]:
    """Return the lanes of a timeline from top to bottom, each with its label. Services are between writes and undo."""
    words = {str(service): service.word for service in TimelineService}
    lanes: list[str] = [TimelineService.WRITE]
    for spec in SERVICE_SPECS:
        lanes.append(spec.name)
        if spec.name == TimelineService.CLUSTERING:
            lanes.append(TimelineService.REPLACEMENT)
    return {str(lane): words.get(lane, lane) for lane in dict.fromkeys((*lanes, *words))}


@cache
def digest() -> str:
    """Return the hash of all modules.

    It is part of their URLs, so that browsers do not use cached modules after a release.
    """
    whole = hashlib.sha256()
    for name, content in sorted(page_modules().items()):
        whole.update(name.encode() + b"\0" + content)
    return whole.hexdigest()[:16]


def react_apps() -> list[dict[str, Any]]:
    """Return the pages in the format of Airflow's plugin manager."""
    place = f"{page_prefix()}lakehouse/{FOLDER}/{digest()}"
    pages: list[dict[str, Any]] = [
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
    ]
    if ASSET_PAGE.is_present:
        # Airflow supports no plugin on the asset page only, so this component renders nothing on other pages.
        pages.append({"name": "Lakehouse asset", "bundle_url": f"{place}/asset.js", "destination": "base"})
    return pages
