"""The how-to page "Add a page": its plugin is loaded by a real API server, and its page is shown by Chromium."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lakehouse.core.system.clock import SystemClock
from lakehouse.platform.catalog.connect import Database
from lakehouse_airflow.plugin import LakehousePlugin
from tests.support.api_server import api_server
from tests.support.browser import browser
from tests.support.doc_blocks import DOCS
from tests.support.fleet_rows import FleetTable, add_table, numbers

PAGE = DOCS / "how-to/add-a-page.md"
_BLOCK = re.compile(r"^```(?P<language>\w+)\n(?:(?:#|//) (?P<file>plugins/\S+)\n)?(?P<code>.*?)^```$", re.M | re.S)


@pytest.mark.slow
def test_page_of_the_how_to_guide_shows_the_largest_tables(tmp_path: Path) -> None:
    blocks = [match.groupdict() for match in _BLOCK.finditer(PAGE.read_text(encoding="utf-8"))]
    files = {block["file"]: block["code"] for block in blocks if block["file"]}
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    now_ms = SystemClock().now_ms()
    database = Database(f"sqlite:///{tmp_path}/catalog.db")
    with database.session() as session:
        add_table(session, FleetTable(name="sales.orders", numbers=numbers(now_ms)), now_ms)
    environment = {
        "LAKEHOUSE_CATALOG": f"sqlite:///{tmp_path}/catalog.db",
        "AIRFLOW__CORE__PLUGINS_FOLDER": str(tmp_path / "plugins"),
    }
    with api_server(tmp_path / "airflow", environment) as server, browser(tmp_path / "browser") as tab:
        assert server.fetch("/growth/growth.js")[0] == 401
        tab.log_in(server.url, server.token("viewer"))
        tab.open(f"{server.url}/plugin/largest-tables")
        tab.see("Largest tables", "sales.orders", "3100000000 bytes")
        assert tab.errors == []
    assert len(files) == 2


def test_application_of_the_pages_is_built_once_for_all_lists_of_plugins() -> None:
    plugin = LakehousePlugin()
    (first,), (second,) = plugin.fastapi_apps, plugin.fastapi_apps
    assert first["app"] is second["app"]
