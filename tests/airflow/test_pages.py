"""Pages of the plugin in headless Chromium, on a running API server of Airflow and a catalog."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from lakehouse.core.system.clock import SystemClock
from lakehouse.platform.catalog.connect import Database
from tests.support.api_server import ApiServer, api_server
from tests.support.browser import Page, browser
from tests.support.fleet_rows import FleetTable, add_table, numbers

pytestmark = pytest.mark.slow
NOW = SystemClock().now_ms()


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Database:
    """A catalog with a healthy table, one that needs attention, and one that cannot be read."""
    database = Database(f"sqlite:///{tmp_path_factory.mktemp('catalog')}/catalog.db")
    late = {"rule": "freshness", "severity": 3, "text": "The newest commit is 14 h old; the objective is 1 h.",
            "action": "Look at the DAG ingest.bank.accounts.", "value": 14.0, "threshold": 1.0}  # fmt: skip
    with database.session() as session:
        growth = tuple(2_000_000_000 + n * 10_000_000 for n in range(160))
        add_table(session, FleetTable(name="sales.orders", numbers=numbers(NOW), growth=growth), NOW)
        stale = numbers(NOW, last_commit_ms=NOW - 14 * 3_600_000)
        add_table(session, FleetTable(name="bank.accounts", numbers=stale, severity=3, problems=(late,)), NOW)
        broken = FleetTable(name="web.clicks", error="CorruptTableError: hoodie.properties is missing")
        add_table(session, broken, NOW)
    return database


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, catalog: Database) -> Iterator[ApiServer]:
    """An API server on the catalog."""
    url = catalog.engine.url.render_as_string(hide_password=False)
    with api_server(tmp_path_factory.mktemp("airflow"), {"LAKEHOUSE_CATALOG": url}) as running:
        yield running


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory, server: ApiServer) -> Iterator[Page]:
    """A browser in which an operator is logged in."""
    with browser(tmp_path_factory.mktemp("browser")) as page:
        page.log_in(server.url, server.token("op"))
        yield page


def test_tables_need_a_login_and_a_viewer_reads_them(server: ApiServer) -> None:
    status, refused = server.fetch("/lakehouse/api/v1/tables")
    assert (status, refused["code"]) == (401, "not_logged_in")
    page = server.api("tables", role="viewer")
    assert [row["table"] for row in page["rows"]] == ["bank.accounts", "web.clicks", "sales.orders"]


def test_fleet_shows_tables_with_the_worst_first(server: ApiServer, tab: Page, tmp_path: Path) -> None:
    tab.open(f"{server.url}/plugin/lakehouse")
    text = tab.see("sales.orders", "bank.accounts", "web.clicks", "The newest commit is 14 h old")
    assert text.index("bank.accounts") < text.index("web.clicks") < text.index("sales.orders")
    assert "hoodie.properties is missing" in text
    assert "3.1 GB" in text
    assert tab.errors == []
    tab.screenshot(tmp_path / "fleet.png")
