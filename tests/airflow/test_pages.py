"""Pages of the plugin in headless Chromium, on a running API server of Airflow, a catalog and a real table."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import select

from lakehouse.core.system.clock import SystemClock
from lakehouse.platform.catalog.connect import Database
from lakehouse.platform.catalog.models import (
    ActionRow,
    AlarmRow,
    LeaseRow,
    RunRow,
    SilenceRow,
    TableRow,
    TableStateRow,
)
from tests.support.api_server import ApiServer, airflow_command, api_server
from tests.support.browser import Page, browser
from tests.support.fleet_rows import FleetTable, add_table, numbers
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SPARK_PYTHON = ROOT / ".venv" / "bin" / "python"
pytestmark = pytest.mark.slow
NOW = SystemClock().now_ms()
#: 100,000 instants, one each minute; every tenth one is a clean.
MANY_INSTANTS = """import(%s).then((model) => {
  const many = 100000, every = 60000;
  const column = (of) => Array.from({length: many}, (_, i) => of(i));
  const bars = {
    now_ms: many * every, instants: column(String), actions: column((i) => i %% 10 ? 'deltacommit' : 'clean'),
    services: column((i) => i %% 10 ? 'write' : 'clean'),
    states: column(() => 'completed'), active: [],
    begin_ms: column((i) => i * every), end_ms: column((i) => i * every + 5000),
  };
  const placed = model.place(bars), lanes = model.lanesOf(bars).map(([service]) => service);
  const whole = model.decimate(placed, lanes, placed.first, placed.last, 1000);
  const hour = model.decimate(placed, lanes, 1000 * every, 1060 * every, 1000);
  const counted = whole.reduce((sum, box) => sum + box.count, 0);
  return JSON.stringify({rows: placed.rows.length, whole: whole.length, counted, hour: hour.length});
})"""
FIRST_DAY = "document.querySelector('[data-day=\"2026-03-01\"]')"
#: Days of partition paths, and the calendar of a month.
DAYS = """import(%s).then((model) => {
  const paths = ['day=2026-01-31', 'dt=20260131/city=bern', 'year=2026/month=1/day=31', 'city=bern/2026-01-31',
    '2026-02-31', 'id=20260131123'];
  const of = paths.map(model.dayOf), month = model.calendar(Date.parse('2026-01-01'), Date.parse('2026-01-31'));
  return JSON.stringify({
    days: of.map((day) => day && new Date(day.ms).toISOString().slice(0, 10)),
    others: of.map((day) => day && day.other),
    cells: month.cells.length, columns: month.columns,
  });
})"""
#: A graph with an edge that skips a column, and a cycle.
GRAPH = """import(%s).then((model) => {
  const edge = ([source, target]) => ({source, target});
  const graph = {nodes: ['a', 'b', 'c', 'd'].map((id) => ({id})), edges: ['ab', 'bc', 'ac', 'dc', 'ca'].map(edge)};
  const {boxes, paths} = model.placed(graph);
  return JSON.stringify({
    layers: [...model.layersOf(graph.nodes, graph.edges)], points: paths.map((path) => path.points),
    boxes: [...boxes.values()].map((box) => [box.x, box.y]),
  });
})"""
#: Column headers of the list of instants.
HEADERS = "[...document.querySelectorAll('[aria-label=Instants] thead th')].map((cell) => cell.innerText)"
REMOVE = {"action": "remove_policy", "parameters": {"service": "clean"}}
#: A commit, and two partitions of which one is published.
PUBLISHED = """import(%s).then((model) => {
  const bars = {
    now_ms: 9000, instants: ['1'], actions: ['deltacommit'], states: ['completed'], active: [],
    services: ['write'], begin_ms: [1000], end_ms: [2000],
  };
  const runs = [
    {service: 'archive', started_ms: 3000, ended_ms: 4000, state: 'committed', run: 'services.archive/r/run'},
    {service: 'archive', started_ms: 10, ended_ms: 20, state: 'committed', run: 'before the first instant'},
    {service: 'clean', started_ms: 3000, ended_ms: 4000, state: 'committed', run: 'has an instant of its own'},
  ];
  const status = {partitions: [
    {partition: 'dt=2026-03-01', published: '1970-01-01T00:00:05+00:00', instant: '1'},
    {partition: 'dt=2026-03-02', published: '', instant: ''},
  ]};
  const published = model.publications(status), of = model.serviceRuns(runs, bars);
  const more = [...published, ...of], lanes = model.lanesOf(bars, more);
  const boxes = model.decimate(model.place(bars, '', more), lanes.map(([service]) => service), 0, 9000, 900);
  const shown = boxes.filter((box) => box.service === 'publish')
    .map((box) => [lanes[box.lane][1], box.partition, box.instant, box.begin]);
  const only = model.place(bars, 'publish', published).rows.length;
  return JSON.stringify({lanes, shown, only, runs: of.map((row) => row.run)});
})"""


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Database:
    """A catalog with a real table, one that needs attention, and one that cannot be read."""
    if not SPARK_PYTHON.exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    place = tmp_path_factory.mktemp("catalog")
    url = f"sqlite:///{place}/catalog.db"
    environ = {**os.environ, "LAKEHOUSE_CATALOG": url}
    for command in (["tests.support.lake", str(place)], ["lakehouse", "services", "due"]):
        subprocess.run([SPARK_PYTHON, "-m", *command], cwd=ROOT, env=environ, check=True, capture_output=True)
    database = Database(url)
    late = {"rule": "freshness", "severity": 3, "text": "The newest commit is 14 h old; the objective is 1 h.",
            "action": "Look at the DAG ingest.bank.accounts.", "value": 14.0, "threshold": 1.0}  # fmt: skip
    with database.session() as session:
        ((orders, place_of_orders),) = session.execute(select(TableRow.id, TableRow.location)).all()
        state = session.get(TableStateRow, orders) or TableStateRow(table_id=orders)
        state.numbers, state.looked_ms = numbers(NOW), NOW
        state.severity, state.problems, state.error = 0, [], None
        session.add(state)
        stale = numbers(NOW, last_commit_ms=NOW - 14 * 3_600_000)
        derived = {"source": "table", "tables": {"o": place_of_orders}, "transform": {"sql": "SELECT * FROM o"}}
        accounts = FleetTable(
            name="bank.accounts",
            numbers=stale,
            severity=3,
            problems=(late,),
            spec={"ingest": derived, "schema": {"id": "string"}},
        )
        add_table(session, accounts, NOW)
        broken = FleetTable(name="web.clicks", error="CorruptTableError: hoodie.properties is missing")
        add_table(session, broken, NOW)
    return database


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, catalog: Database) -> Iterator[ApiServer]:
    """An API server on the catalog."""
    url = catalog.engine.url.render_as_string(hide_password=False)
    environment = {"LAKEHOUSE_CATALOG": url, "LAKEHOUSE_SPARK_HOME": str(ROOT / ".venv")}
    with api_server(tmp_path_factory.mktemp("airflow"), environment) as running:
        airflow_command(running, "dags", "reserialize")
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
    assert tab.run("document.querySelectorAll('[data-lakehouse=page]').length") == 1
    assert tab.errors == []
    tab.screenshot(picture("fleet", tmp_path), height=420)


def picture(name: str, folder: Path) -> Path:
    """Return the path of a picture: in the documentation if LAKEHOUSE_PICTURES names its folder, else in `folder`."""
    return Path(os.environ.get("LAKEHOUSE_PICTURES", folder)) / f"{name}.png"


def open_table(server: ApiServer, page: Page, table: str = "sales.orders", /, **query: str) -> None:
    """Open the page of a table."""
    words = "&".join(f"{name}={value}" for name, value in query.items())
    page.open(f"{server.url}/plugin/lakehouse/table/{table}{f'?{words}' if words else ''}")


def test_overview_shows_schema_commits_savepoints_and_file_sizes(server: ApiServer, tab: Page) -> None:
    open_table(server, tab)
    tab.see(
        "MERGE_ON_READ", "key order_id", "partition day", "order_id", "before the migration", "upsert", "File sizes"
    )
    tab.see("60 changed")
    # The fixture made a savepoint of the newest commit.
    tab.see("A savepoint keeps this commit, so it cannot be rolled back.")
    assert "Roll back" not in tab.run(
        "[...document.querySelectorAll('[aria-label=\"Last commits\"] button')].map((b) => b.innerText)"
    )
    histogram = "document.querySelectorAll('svg[aria-label^=\"Sizes of base files\"]').length"
    assert until(lambda: tab.run(histogram) == 1), tab.text()
    assert tab.errors == []


def test_partitions_policies_and_files_are_shown_with_their_origin(server: ApiServer, tab: Page) -> None:
    open_table(server, tab, tab="partitions")
    tab.see("2026-03-01", "2026-03-04", "4 of 4 partitions", "expires", "in 400 days")
    open_table(server, tab, tab="files")
    tab.see("2026-03-01", "base instant")
    open_table(server, tab, tab="policies")
    tab.see("max_delta_commits", "spec")
    given = {"service": "clean", "settings": {"commits_retained": 30}}
    server.api("tables/sales.orders/actions", body={"action": "edit_policy", "parameters": given})
    open_table(server, tab, tab="policies")
    tab.see("by oleg")
    tab.click("Remove policy")
    tab.see("The policy of clean for sales.orders is removed: commits_retained=30.")
    tab.click("Confirm")
    tab.see("Recorded as action")
    assert server.api("tables/sales.orders/actions/preview", body=REMOVE)["effects"][0].startswith("Nothing to do")


def test_partitions_by_day_are_a_calendar_with_three_measures(server: ApiServer, tab: Page) -> None:
    open_table(server, tab, tab="partitions")
    tab.see("2026-03-01 to 2026-03-04, 4 days with data", "Numbers of these days as a table")
    days = "[...document.querySelectorAll('[data-heatmap=calendar] [data-day]')].map((cell) => cell.dataset.day)"
    assert tab.run(days) == [f"2026-03-0{day}" for day in (1, 2, 3, 4)]

    def pointed() -> bool:
        # The window may be lower than the page.
        tab.run(f"{FIRST_DAY}.scrollIntoView({{block: 'center'}})")
        box = json.loads(tab.run(f"JSON.stringify({FIRST_DAY}.getBoundingClientRect())"))
        for x, y in ((1, 1), (box["x"] + 5, box["y"] + 5)):
            tab.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        tip = tab.run("(document.querySelector('[role=tooltip]') || {innerText: ''}).innerText")
        return "1 of 1 base files are small" in tip and "click for its files" in tip

    assert until(pointed), tab.text()
    tab.click("Small files")
    tab.see("Base files that are small", "up to 100 %")
    assert "measure=small" in tab.run("location.search")
    tab.click("Last write")
    tab.see("Time since the last write")
    tab.run(f"{FIRST_DAY}.dispatchEvent(new MouseEvent('click', {{bubbles: true}}))")
    tab.see("Partition 2026-03-01", "All partitions")


def test_lineage_links_tables_and_a_table_without_one_says_so(server: ApiServer, tab: Page) -> None:
    open_table(server, tab, tab="lineage")
    tab.see("sales.orders", "bank.accounts", "changes", "As a list")
    assert tab.run("document.querySelector('[data-lineage]').dataset.lineage") == "2"
    links = "[...document.querySelectorAll('[data-lineage] a')].map((link) => link.getAttribute('href'))"
    assert tab.run(links) == ["/plugin/lakehouse/table/bank.accounts?tab=lineage"]
    tab.click("bank.accounts", role="li a")
    assert until(lambda: tab.run("location.pathname") == "/plugin/lakehouse/table/bank.accounts")
    open_table(server, tab, "web.clicks", tab="lineage")
    tab.see("This table has no lineage", "no other table of the catalog reads it")
    assert tab.errors == []


def test_models_of_heat_map_and_lineage_place_days_and_edges(server: ApiServer, tab: Page) -> None:
    tab.open(f"{server.url}/plugin/lakehouse")
    tab.see("sales.orders")
    (main,) = [url for url in tab.requests.urls if url.endswith("/main.js")]
    found = json.loads(tab.run(DAYS % json.dumps(main.replace("main.js", "heatmap-model.js"))))
    assert found["days"] == ["2026-01-31", "2026-01-31", "2026-01-31", "2026-01-31", None, None]
    assert found["others"] == ["", "bern", "", "bern", None, None]
    assert found["cells"] == 31 and found["columns"] == 5
    graph = json.loads(tab.run(GRAPH % json.dumps(main.replace("main.js", "lineage-model.js"))))
    assert graph["layers"] == [["a", 0], ["b", 1], ["c", 2], ["d", 1]]
    # The edge from a to c passes the column of b at a place of its own; the cycle back to a goes from right to left.
    assert [len(points) for points in graph["points"]] == [2, 2, 4, 2, 2]
    passing = graph["points"][2][1]
    assert all(not (y <= passing[1] <= y + 52) for x, y in graph["boxes"] if x == passing[0])


def test_timeline_draws_instants_and_decodes_the_chosen_one(server: ApiServer, tab: Page, tmp_path: Path) -> None:
    open_table(server, tab, tab="timeline")
    text = tab.see("7 of 7 instants", "Newest instants of this range", "before the migration", "savepoint")
    assert "deltacommit" not in text and "replaced" not in text
    names = ["instant", "started", "service", "operation", "state", "took", "rows", "files", "bytes", "made by", "note"]
    assert tab.run(HEADERS) == names
    # The run of the last commit is a link to Airflow's page of it; the savepoint has its author.
    links = "[...document.querySelectorAll('[aria-label=Instants] td a')].map((link) => link.getAttribute('href'))"
    assert any(link.endswith("/dags/ingest.sales.orders/runs/manual__7") for link in tab.run(links))
    assert "ada" in text
    assert int(tab.run("document.querySelector('canvas').dataset.boxes")) >= 2
    (newest, *_) = reversed(server.api("tables/sales.orders/timeline")["instants"])
    tab.click(newest)
    shown = tab.see(f"Instant {newest}", "updates: 60", "partitions (4)", "files (4)")
    assert "A savepoint keeps this commit" in shown and "Roll back" not in shown
    tab.screenshot(picture("timeline", tmp_path), height=620)
    assert f"instant={newest}" in tab.run("location.search")
    tab.fill("service", "savepoint")
    tab.see("1 of 1 instants")
    rows = "[...document.querySelectorAll('[aria-label=Instants] tbody tr')].map((row) => row.cells[2].innerText)"
    assert until(lambda: tab.run(rows) == ["savepoint"]), tab.run(rows)
    tab.fill("service", "")
    tab.click("Zoom in")
    tab.see("of 7 instants")
    assert "from=" in tab.run("location.search")


def test_timeline_shows_the_decoded_commit_under_the_pointer(server: ApiServer, tab: Page) -> None:
    bars = server.api("tables/sales.orders/timeline")
    # The last write; services ran after it.
    last = [name for name, action in zip(bars["instants"], bars["actions"], strict=True) if action == "deltacommit"][-1]
    open_table(server, tab, tab="timeline", service="write")
    tab.see("Newest instants of this range")
    box = json.loads(tab.run("JSON.stringify(document.querySelector('canvas').getBoundingClientRect())"))
    text = "(document.querySelector('[role=tooltip]') || {innerText: ''}).innerText"

    def pointed() -> bool:
        for x in range(int(box["width"]) - 1, 0, -2):
            tab.send("Input.dispatchMouseEvent", type="mouseMoved", x=box["x"] + x, y=box["y"] + 37)
            if last in tab.run(text):
                return True
        return False

    assert until(pointed), tab.run(text)
    assert until(lambda: "updates: 60" in tab.run(text)), tab.run(text)
    assert "upsert" in tab.run(text) and "files: 4" in tab.run(text)


def test_decoded_commit_names_its_retries_and_a_plan_its_lists(server: ApiServer, tab: Page) -> None:
    tab.open(f"{server.url}/plugin/lakehouse")
    tab.see("sales.orders")
    (main,) = [url for url in tab.requests.urls if url.endswith("/main.js")]
    commit = {
        "operation": "BULK_INSERT",
        "numbers": {"files": 3, "bytes": 2000, "deletes": 0, "conflicts": 2},
        "plan": {},
    }
    plan = {"operation": "", "numbers": {}, "plan": {"operations": [{}] * 100, "partition_paths": ["a"]}}
    module = json.dumps(main.replace("main.js", "timeline.js"))
    script = f"import({module}).then((page) => JSON.stringify({json.dumps([commit, plan])}.map(page.decoded)))"
    assert json.loads(tab.run(script)) == [
        ["bulk insert", "files: 3", "2.0 kB", "2 retries after conflicts"],
        ["plan: operations: 100 or more, partition paths: 1"],
    ]


def test_commit_of_an_ingestion_links_to_its_dag_run(server: ApiServer, tab: Page) -> None:
    bars = server.api("tables/sales.orders/timeline")
    last = [name for name, action in zip(bars["instants"], bars["actions"], strict=True) if action == "deltacommit"][-1]
    open_table(server, tab, tab="timeline", instant=last)
    tab.see(f"Instant {last}", "DAG run that made it")
    script = (
        "[...document.querySelectorAll('a')].find(a => a.innerText === 'DAG run that made it').getAttribute('href')"
    )
    assert tab.run(script).endswith("/dags/ingest.sales.orders/runs/manual__7")


def test_boxes_of_a_timeline_are_bounded_by_the_width_for_many_instants(server: ApiServer, tab: Page) -> None:
    tab.open(f"{server.url}/plugin/lakehouse")
    tab.see("sales.orders")
    (main,) = [url for url in tab.requests.urls if url.endswith("/main.js")]
    script = MANY_INSTANTS % json.dumps(main.replace("main.js", "timeline-model.js"))
    found = json.loads(tab.run(script))
    assert found["rows"] == found["counted"] == 100_000
    assert found["whole"] <= 2 * 1000
    assert 60 <= found["hour"] <= 70
    lane = json.loads(tab.run(PUBLISHED % json.dumps(main.replace("main.js", "timeline-model.js"))))
    assert lane == {
        "lanes": [["write", "write"], ["archive", "archive"], ["publish", "publication"]],
        "shown": [["publication", "dt=2026-03-01", "1", 5000]],
        "only": 1,
        "runs": ["services.archive/r/run"],
    }


def test_why_compares_two_decisions_of_a_service(server: ApiServer, tab: Page, catalog: Database) -> None:
    environ = {**os.environ, "LAKEHOUSE_CATALOG": catalog.engine.url.render_as_string(hide_password=False)}
    command = [SPARK_PYTHON, "-m", "lakehouse", "services", "due"]
    subprocess.run(command, cwd=ROOT, env=environ, check=True, capture_output=True)
    open_table(server, tab, tab="services", service="compaction")
    tab.see("Why: compaction", "delta commits")
    for number in (1, 2):
        tab.click(f"compare decision {number}", role="input")
    tab.see("input", "reason", "code")


def test_paused_scheduler_is_named_and_started_by_a_click(server: ApiServer, tab: Page, tmp_path: Path) -> None:
    pause(server, "services.schedule")
    paused = "The DAG services.schedule is paused"
    open_table(server, tab, tab="services")
    tab.see(paused)
    tab.click("Request", role="[data-service=archive] button")
    tab.see("Once it is started, its first decision runs archive, due or not.")
    tab.click("Confirm")
    tab.see("waits until the DAG services.schedule is started.")
    tab.open(f"{server.url}/plugin/lakehouse/queue")
    tab.see(paused)
    tab.open(f"{server.url}/plugin/lakehouse")
    tab.see(paused, "no alarm is sent", "sales.orders")
    tab.screenshot(picture("fleet-paused", tmp_path), height=520)
    with browser(tmp_path / "viewer") as page:
        page.log_in(server.url, server.token("viewer"))
        page.open(f"{server.url}/plugin/lakehouse")
        page.see(paused, "You may not start it", "airflow dags unpause services.schedule")
        assert not page.run("!!document.querySelector('[data-lakehouse=dag-notice] button')")
    tab.click("Start services.schedule")
    assert until(lambda: paused not in tab.text()), tab.text()
    assert server.fetch("/api/v2/dags/services.schedule", role="op")[1]["is_paused"] is False
    assert tab.errors == []


def pause(server: ApiServer, dag_id: str, paused: bool = True) -> None:
    """Pause a DAG, or unpause it, with Airflow's API."""
    path = f"/api/v2/dags/{dag_id}?update_mask=is_paused"
    status, answer = server.fetch(path, role="admin", body={"is_paused": paused}, method="PATCH")
    assert status == 200, answer


def test_request_shows_its_dry_run_first_and_is_recorded_with_the_user(
    server: ApiServer, tab: Page, catalog: Database
) -> None:
    pause(server, "services.schedule", False)
    open_table(server, tab, tab="services")
    tab.click("Request", role="[data-service=clean] button")
    tab.see("What would happen", "The next decision of the scheduler runs clean")
    requested = select(ActionRow).where(
        ActionRow.action == "request_service", ActionRow.parameters["service"].as_string() == "clean"
    )
    with catalog.reading() as session:
        assert session.scalars(requested).all() == []
    tab.click("Confirm")
    tab.see("Recorded as action", "oleg")
    with catalog.reading() as session:
        (action,) = session.scalars(requested)
        assert (action.action, action.author, action.subject) == ("request_service", "oleg", "sales.orders")
    open_table(server, tab, tab="activity")
    tab.see("Request", "oleg", "service=clean")


def test_rollback_names_the_files_and_starts_a_dag_run(server: ApiServer, tab: Page) -> None:
    open_table(server, tab)
    tab.click("Roll back failed writes")
    tab.see("0 failed writes would be rolled back")
    tab.click("Confirm")
    tab.see("Open the DAG run")
    href = tab.run(
        "[...document.querySelectorAll('a')].find(a => a.innerText === 'Open the DAG run').getAttribute('href')"
    )
    assert href.startswith("/dags/lakehouse.actions/runs/lakehouse_action_")


def test_action_with_nothing_to_do_cannot_be_confirmed(server: ApiServer, tab: Page) -> None:
    open_table(server, tab)
    tab.see("before the migration")
    tab.click("Savepoint")
    tab.click("Show what would happen")
    tab.see("What would happen", "Nothing to do: ")
    (shown,) = tab.run(
        "[...document.querySelectorAll('[role=dialog] button')].filter((b) => b.innerText === 'Confirm')"
        ".map((b) => [b.disabled, b.title])"
    )
    assert shown == [True, "The action would change nothing, so there is nothing to confirm."]
    tab.click("Cancel")
    tab.click("Roll back failed writes")
    tab.see("0 failed writes would be rolled back")
    enabled = (
        "[...document.querySelectorAll('[role=dialog] button')].some((b) => b.innerText === 'Confirm' && !b.disabled)"
    )
    assert tab.run(enabled)


def test_table_that_cannot_be_read_still_shows_its_services_and_policies(server: ApiServer, tab: Page) -> None:
    open_table(server, tab, "web.clicks")
    tab.see("This table cannot be read", "hoodie.properties is missing", "Versions of the spec")
    open_table(server, tab, "web.clicks", tab="services")
    tab.see("compaction", "archive", "Pause")


def test_tab_of_a_dag_run_shows_the_report_of_its_job(server: ApiServer, tab: Page) -> None:
    record = server.api(
        "tables/sales.orders/actions", body={"action": "rollback_failed", "parameters": {}}, role="admin"
    )["action"]
    run = f"dags/lakehouse.actions/dagRuns/{record['dag_run']}"
    bars = server.api("tables/sales.orders/timeline")
    last = [name for name, action in zip(bars["instants"], bars["actions"], strict=True) if action == "deltacommit"][-1]
    report = {"version": 1, "status": "committed", "table": "sales.orders", "rows": 197, "bad_records": 3}
    report |= {"instant": last}
    entry = {"key": "return_value", "value": {**report, "bytes": 1_200_000, "seconds": 8.0}, "map_index": -1}
    path = f"/api/v2/{run}/taskInstances/act/xcomEntries"
    assert server.fetch(path, role="admin", body=entry)[0] in (200, 201)
    tab.open(f"{server.url}/dags/lakehouse.actions/runs/{record['dag_run']}/plugin/lakehouse-report")
    tab.see("sales.orders", "197", "1.2 MB", "bad records", "✔ committed")
    tab.see(f"instant {last}", "bad records: /lake/orders_dead_letters/manual__7")


def test_page_of_an_asset_shows_the_health_of_its_table(
    server: ApiServer, tab: Page, catalog: Database, tmp_path_factory: pytest.TempPathFactory
) -> None:
    assets = server.fetch("/api/v2/assets?limit=100", role="op")[1]["assets"]
    asset = next(asset for asset in assets if asset["uri"].startswith("lakehouse://"))
    table = asset["name"] if "." in asset["name"] else f"default.{asset['name']}"
    place = tmp_path_factory.mktemp("asset")
    environ = {**os.environ, "LAKEHOUSE_CATALOG": server.environment["LAKEHOUSE_CATALOG"]}
    command = [SPARK_PYTHON, "-m", "tests.support.lake", place, table]
    subprocess.run(command, cwd=ROOT, env=environ, check=True, capture_output=True)
    with catalog.session() as session:
        namespace, name = table.split(".")
        table_id = session.scalars(select(TableRow.id).filter_by(namespace=namespace, name=name)).one()
        state = {"changed_ms": NOW, "looked_ms": NOW, "severity": 0, "problems": [], "error": None}
        session.merge(TableStateRow(table_id=table_id, numbers=numbers(NOW), **state))
    tab.open(f"{server.url}/assets/{asset['id']}")
    tab.see(table, "● healthy", "last commit", "3.1 GB")
    tab.see("latest versions: ", "upsert, 60 rows")
    tab.click("timeline", inside="[data-lakehouse=asset]")
    assert until(lambda: tab.run("location.pathname") == f"/plugin/lakehouse/table/{table}"), tab.text()


def test_page_of_an_asset_shows_why_its_table_cannot_be_read(server: ApiServer, tab: Page, catalog: Database) -> None:
    assets = server.fetch("/api/v2/assets?limit=100", role="op")[1]["assets"]
    asset = [asset for asset in assets if asset["uri"].startswith("lakehouse://")][1]
    table = asset["name"] if "." in asset["name"] else f"default.{asset['name']}"
    with catalog.session() as session:
        add_table(session, FleetTable(name=table, numbers=numbers(NOW), location="/lake/missing"), NOW)
    tab.open(f"{server.url}/assets/{asset['id']}")
    tab.see(table, "last commit", "This request failed", "/lake/missing")


def test_alarms_are_silenced_with_a_reason_and_the_silence_is_ended(
    server: ApiServer, tab: Page, catalog: Database
) -> None:
    with catalog.session() as session:
        accounts = session.scalar(select(TableRow.id).where(TableRow.name == "accounts"))
        times = {"raised_ms": NOW, "seen_ms": NOW}
        session.add(AlarmRow(rule="freshness", table_id=accounts, severity=3, state="open", text="late", **times))
    tab.open(f"{server.url}/plugin/lakehouse/alarms")
    tab.see("bank.accounts", "late", "critical")
    tab.click("Silence", role="td button")
    tab.fill("Reason, which others see", "new disks")
    tab.click("Show what would happen")
    tab.see("Alarms of freshness of bank.accounts are shown, but not sent, for 2h.", "1 open alarm is covered.")
    tab.click("Confirm")
    tab.see("Recorded as action", "oleg")
    tab.click("Close", role="footer button, button")
    tab.see("Silences in force", "by oleg: new disks", "silenced")
    tab.click("End silence")
    tab.see("are sent again", "1 open alarm can be sent now.")
    tab.click("Confirm")
    tab.see("Recorded as action")
    with catalog.reading() as session:
        (silence,) = session.scalars(select(SilenceRow))
        assert (silence.scope, silence.rule, silence.author) == ("bank.accounts", "freshness", "oleg")
        assert silence.until_ms < NOW + 3_600_000, "it ended now, not after two hours"


def test_active_run_is_stopped_after_its_dry_run(server: ApiServer, tab: Page, catalog: Database) -> None:
    started = server.api("tables/sales.orders/actions", body={"action": "rollback_failed", "parameters": {}})["action"]
    run = f"lakehouse.actions/{started['dag_run']}/act"
    with catalog.session() as session:
        orders = session.scalar(select(TableRow.id).where(TableRow.name == "orders"))
        session.add(RunRow(run_id=run, table_id=orders, service="clustering", state="running", started_ms=NOW))
        key = "sales.orders/clustering"
        session.add(LeaseRow(key=key, owner=run, token=1, expires_ms=NOW + 3_600_000))
    tab.open(f"{server.url}/plugin/lakehouse/queue?section=running")
    tab.click("Stop")
    tab.see("is marked failed without a retry", "Readers and writers see no change")
    tab.click("Confirm")
    tab.see("Recorded as action", "Open the DAG run")
    task = f"/api/v2/dags/lakehouse.actions/dagRuns/{started['dag_run']}/taskInstances/act"
    assert server.fetch(task, role="op")[1]["state"] == "failed"


def test_table_that_no_pass_has_seen_gets_its_numbers_on_demand(
    server: ApiServer, tab: Page, tmp_path_factory: pytest.TempPathFactory
) -> None:
    place = tmp_path_factory.mktemp("unseen")
    environ = {**os.environ, "LAKEHOUSE_CATALOG": server.environment["LAKEHOUSE_CATALOG"]}
    command = [SPARK_PYTHON, "-m", "tests.support.lake", place, "web.unseen"]
    subprocess.run(command, cwd=ROOT, env=environ, check=True, capture_output=True)
    (row,) = server.api("tables?search=web.unseen")["rows"]
    assert (row["looked_ms"], row["numbers"]) == (None, {})
    tab.open(f"{server.url}/plugin/lakehouse?search=web.unseen")
    text = tab.see("web.unseen", "not checked yet", "numbers read", "4 (100 %)")
    assert "kB" in text and "not looked at" not in text
    open_table(server, tab, "web.unseen")
    tab.see("file groups", "not checked yet")
    assert until(lambda: "4\n\nfile groups" in tab.text()), tab.text()


def test_viewer_sees_actions_disabled(server: ApiServer, tmp_path: Path) -> None:
    with browser(tmp_path) as page:
        page.log_in(server.url, server.token("viewer"))
        open_table(server, page, tab="services")
        page.see("compaction", "Request")
        script = (
            "[...document.querySelectorAll('[data-service] button')].filter(b => !b.disabled).map(b => b.innerText)"
        )
        assert set(page.run(script)) == {"Why"}
