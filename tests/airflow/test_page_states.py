"""States of the pages on one PostgreSQL catalog: empty, 1,000 tables, and a catalog that does not answer.

The tests run in this order: the tables are added after the empty catalog was shown, and the server is stopped last.
"""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest

from lakehouse.core.system.clock import SystemClock
from lakehouse.platform.catalog.connect import Database, upgrade
from lakehouse.platform.fleet_views.fleet import FleetQuery, fleet_page
from tests.support.api_server import ApiServer, api_server
from tests.support.browser import Page, browser
from tests.support.fleet_rows import FleetTable, add_table, numbers
from tests.support.postgresql import Server, server
from tests.support.queries import counted
from tests.support.waiting import until

pytestmark = pytest.mark.slow
NOW = SystemClock().now_ms()
TABLES = 1000
#: JavaScript modules, documents of the API and an icon that the first page may need.
MOST_REQUESTS = 12
#: Bytes of one page of rows, before they are compressed.
MOST_BYTES = 40_000
#: Records when the browser has painted the first row of a table, in milliseconds from the begin of the navigation.
ROWS_PAINTED = """new MutationObserver(() => {
  if (window.rowsFound || !document.querySelector('table tbody tr')) return;
  window.rowsFound = true;
  requestAnimationFrame(() => setTimeout(() => { window.rowsPainted = performance.now(); }));
}).observe(document, {childList: true, subtree: true})"""
#: Milliseconds from the begin of the navigation: first paint of the browser, first request of the page, rows painted.
STEPS_MS = """(() => {
  const mine = performance.getEntriesByType('resource').filter((entry) => entry.name.includes('/lakehouse/'));
  const painted = performance.getEntriesByName('first-contentful-paint')[0].startTime;
  return [painted, Math.min(...mine.map((e) => e.startTime)), window.rowsPainted].map(Math.round);
})()"""


@pytest.fixture(scope="module")
def postgresql() -> Iterator[Server]:
    """A database server that a test can stop."""
    with server() as running:
        yield running


@pytest.fixture(scope="module")
def catalog(postgresql: Server) -> Database:
    """An empty catalog."""
    from sqlalchemy import create_engine

    # Airflow's environment has psycopg 2 only.
    url = postgresql.url.replace("+psycopg:", "+psycopg2:")
    upgrade(create_engine(url))
    return Database(url)


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, catalog: Database, postgresql: Server) -> Iterator[ApiServer]:
    """An API server on the catalog, whose URL has a password."""
    url = postgresql.url.replace("lakehouse@", "lakehouse:geheim77@")
    with api_server(tmp_path_factory.mktemp("airflow"), {"LAKEHOUSE_CATALOG": url}) as running:
        yield running


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory, airflow: ApiServer) -> Iterator[Page]:
    """A browser in which a viewer is logged in."""
    with browser(tmp_path_factory.mktemp("browser")) as page:
        page.log_in(airflow.url, airflow.token("viewer"))
        yield page


def test_empty_catalog_says_what_to_do_first(airflow: ApiServer, tab: Page) -> None:
    tab.open(f"{airflow.url}/plugin/lakehouse")
    tab.see("The catalog has no tables yet", "lakehouse table register")
    tab.open(f"{airflow.url}/plugin/lakehouse/queue")
    tab.see("No service is due")
    tab.open(f"{airflow.url}/plugin/lakehouse/alarms")
    tab.see("No alarm is open")
    assert tab.errors == []


def test_thousand_tables_load_one_page_with_few_requests(
    airflow: ApiServer, tab: Page, catalog: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    with catalog.session() as session:
        for number in range(TABLES):
            growth = tuple(10**9 + hour * 10**6 for hour in range(48))
            name, found = f"n{number % 10}.t{number:04d}", numbers(NOW, base_bytes=number)
            add_table(session, FleetTable(name=name, numbers=found, growth=growth), NOW)
    tab.send("Page.addScriptToEvaluateOnNewDocument", source=ROWS_PAINTED)
    for origin in ("another page of Airflow", "a new process of the browser", "a new process with an empty cache"):
        if origin.startswith("a new"):
            tab.open("about:blank")
        if origin.endswith("empty cache"):
            tab.send("Network.clearBrowserCache")
        tab.open(f"{airflow.url}/plugin/lakehouse")
        tab.see("1,000", "n0.t0000", "1 to 50 of 1,000")
        assert until(lambda: bool(tab.run("window.rowsPainted")))
        first, asked, rows_ms = tab.run(STEPS_MS)
        with capsys.disabled():
            times = f"first paint {first} ms, page asked {asked} ms, rows painted {rows_ms} ms"
            print(f"\n1,000 tables, from {origin}: {times}")
    ours = [url for url in tab.requests.urls if "/lakehouse/" in url and "/plugin/" not in url]
    with capsys.disabled():
        rows = airflow.fetch("/lakehouse/api/v1/tables", role="viewer")[1]
        size = len(json.dumps(rows))
        print(f"1,000 tables: {len(ours)} requests, {size} bytes of rows")
    assert len(ours) <= MOST_REQUESTS
    assert size <= MOST_BYTES
    documents = [url.partition("/api/v1/")[2] for url in ours if "/api/v1/" in url]
    asked_for = ["dag-states?dag=services.schedule", "summary", "tables?order=attention&limit=50"]
    assert sorted(documents) == asked_for, "each is read once"
    # The rows below the first screen are drawn after it was painted.
    assert until(lambda: tab.run("document.querySelectorAll('table tbody tr').length") == 50)
    tab.click("Next")
    tab.see("51 to 100 of 1,000")
    tab.click("size")
    tab.see("n9.t0999")
    assert "order=base_bytes" in tab.run("location.search")
    tab.fill("Search tables", "t0123")
    assert "t0999" not in tab.see("n3.t0123")


@pytest.mark.parametrize("limit", [10, 200])
def test_fleet_page_takes_the_same_number_of_queries_for_any_number_of_rows(catalog: Database, limit: int) -> None:
    from lakehouse.platform.fleet_views.paging import Paging

    with catalog.reading() as session, counted(catalog.engine) as statements:
        page = fleet_page(session, FleetQuery(paging=Paging(limit=limit)), NOW)
    assert (len(page.rows), page.total) == (limit, TABLES)
    assert len(statements) == 5


def test_catalog_that_does_not_answer_shows_the_last_state_with_its_time(
    airflow: ApiServer, tab: Page, postgresql: Server
) -> None:
    tab.open(f"{airflow.url}/plugin/lakehouse")
    tab.see("1 to 50 of 1,000")
    postgresql.stop(signal.SIGINT)
    try:
        tab.open(f"{airflow.url}/plugin/lakehouse")
        text = tab.see("The catalog does not answer", "This page shows the state of", "n0.t0000")
        assert "geheim77" not in text
        status, refused = airflow.fetch("/lakehouse/api/v1/tables?search=never-asked", role="viewer")
        assert (status, refused["code"]) == (503, "unavailable")
        assert "lakehouse doctor" in refused["text"]
    finally:
        postgresql.start()
    tab.open(f"{airflow.url}/plugin/lakehouse")
    assert "does not answer" not in tab.see("1 to 50 of 1,000")
