"""Every page, tab and dialog as a picture in Chromium: 1280 and 1920 wide, light and dark, measured in the DOM.

`tests/support/page_audit.js` finds what runs out of the page or its card, values that wrap, empty cards, letters of a
wrong size and contrast below 4.5:1. LAKEHOUSE_AUDIT_PICTURES is a folder for the pictures, for a person to look at.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from lakehouse.core.system.clock import SystemClock
from lakehouse.platform.catalog.connect import Database
from lakehouse_airflow.page_list import digest
from tests.support.api_server import ApiServer, api_server
from tests.support.browser import Page, browser
from tests.support.page_samples import BROKEN, LONG, PUBLISHED, REAL, fill
from tests.support.waiting import until

ROOT = Path(__file__).resolve().parents[2]
SPARK_PYTHON = ROOT / ".venv" / "bin" / "python"
AUDIT = (ROOT / "tests" / "support" / "page_audit.js").read_text(encoding="utf-8")
pytestmark = pytest.mark.slow
NOW = SystemClock().now_ms()
READ_S = 150
WIDTHS, THEMES = (1280, 1920), ("light", "dark")
#: Documents that replace answers of the API: {a part of the URL: [status, document]}.
STUBBED = """(() => {
  const stubs = %s, real = window.fetch;
  window.fetch = (input, init) => {
    const url = String(input.url || input);
    const part = Object.keys(stubs).find((name) => url.includes(name));
    if (!part) return real(input, init);
    const [status, document] = stubs[part];
    const headers = {'Content-Type': 'application/json'};
    return Promise.resolve(new Response(JSON.stringify(document), {status, headers}));
  };
})()"""
SETTLED = "!document.querySelector('[data-lakehouse] [data-loading], [role=dialog] [role=status]')"
THEME = """(() => {
  const html = document.documentElement;
  html.classList.remove('light', 'dark'); html.classList.add('%s'); html.style.colorScheme = '%s';
  const still = document.createElement('style');
  still.textContent = '*{transition:none!important;animation:none!important}';
  document.head.append(still);
  return new Promise((done) => setTimeout(() => requestAnimationFrame(() => requestAnimationFrame(() => done(1))), 60));
})()"""
#: Shows the tab of a DAG run in the place of the page, because it needs a run in Airflow's database.
REPORT = """(() => {
  const load = () => import(location.origin + '/lakehouse/pages/%s/report.js').then(() => ({
    default: () => React.createElement(globalThis['Lakehouse report'], {dagId: 'ingest', runId: 'manual__7'}),
  }));
  let shown;
  const body = () => React.createElement(shown ||= React.lazy(load));
  const page = () => React.createElement(React.Suspense, {fallback: null}, body());
  Object.defineProperty(globalThis, 'Lakehouse', {get: () => page, set: () => {}});
})();"""
#: Height of the whole content of the page or dialog.
TALL = (
    "Math.max(900, ...[...document.querySelectorAll('[data-lakehouse], [role=dialog]')].map(e => e.scrollHeight + 160))"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """What the browser opens: a path below the pages, texts that it shows, and the buttons that open a dialog."""

    path: str
    see: tuple[str, ...] = ()
    clicks: tuple[tuple[str, str], ...] = ()
    fill: tuple[tuple[str, str], ...] = ()
    then: tuple[str, ...] = ()
    stubs: dict[str, Any] | None = None
    script: str = ""
    base: str = "/plugin/lakehouse"


def _stub(document: Any, status: int = 200) -> list[Any]:
    return [status, document]


PARTS = [
    {
        "partition": f"settlement_day=2026-11-{day:02d}",
        "state": ("published", "waiting", "archived", "withdrawn")[day % 4],
        "instant": "20261128101500000" if day % 4 != 1 else "",
        "files": 1204,
        "size_bytes": 38_200_000_000,
        "published": "2026-11-28T10:15:00+00:00" if day % 4 != 1 else "",
        "reason": "waits for the watermark: source `cdc` has not reached 2026-11-28T00:00" if day % 4 == 1 else "",
    }
    for day in range(1, 9)
]
PUBLICATION = {"table": PUBLISHED, "target": "hive_prod.finance.settlements", "partitions": PARTS, "as_of_ms": NOW}
EMPTY_TABLES = {"now_ms": NOW, "total": 0, "offset": 0, "rows": [], "namespaces": []}
UNAVAILABLE = {
    "code": "unavailable",
    "text": "cannot connect to the catalog at db.example.org. Try again; `lakehouse doctor` checks the deployment",
}
EFFECTS = {
    "table": PUBLISHED,
    "action": "x",
    "facts": {},
    "effects": [
        "Readers of hive_prod.finance.settlements will see settlement_day=2026-11-02 as version 20261128101500000."
    ],
}
_SOURCE = "json files of s3://landing-marketing-production/attribution/touchpoints/{yyyy}/{MM}/{dd}"
_STEPS = (("source", _SOURCE, ""), ("table", LONG, LONG), ("table", PUBLISHED, PUBLISHED))
#: Sources, derived tables and a publication of a table with long names.
LINEAGE_OF = {
    "now_ms": NOW,
    "table": LONG,
    "nodes": [
        {"id": name, "kind": kind, "name": name, "detail": f"{kind} in eu-central-1", "table": table}
        for kind, name, table in (*_STEPS, ("publication", "hive_prod.marketing.touchpoints_enriched_daily", ""))
    ],
    "edges": [
        {"source": _SOURCE, "target": LONG, "label": ""},
        {"source": LONG, "target": PUBLISHED, "label": "changes"},
        {"source": LONG, "target": "hive_prod.marketing.touchpoints_enriched_daily", "label": "publication"},
    ],
    "shortened": True,
}
LINEAGE = {f"api/v1/tables/{LONG}/lineage": _stub(LINEAGE_OF)}
_TYPE = "struct<campaign:struct<id:int64,name:string,tags:list<string>>,cost:decimal(38,10),seen:timestamp[us, tz=UTC]>"
_COMMIT = {"instant": "20261128101500000", "operation": "INSERT_OVERWRITE_TABLE", "files": 20_104, "bytes": 38 * 10**9}
#: The state of a table with long names and large numbers.
DESCRIPTION = {
    "as_of_ms": NOW,
    "schema": [
        {"column": f"touchpoint_attribution_{place}", "type": (_TYPE, "int64")[place % 2]} for place in range(9)
    ],
    "commits": [{**_COMMIT, "inserts": 1_204_998_113, "updates": 20_499_811, "deletes": 9_113}] * 3,
    "savepoints": [
        {
            "instant": "20261128101500000",
            "files": 20_104,
            "by": "svc-airflow-spec-sync@example.org",
            "comment": "before the migration of all touchpoints to decimals, see the ticket of the data team",
        }
    ],
    "partitions": [
        {
            "partition": f"country=DE/day=2026-11-{day:02d}",
            "base_bytes": (40 if day == 7 else 1) * 10**9 + day,
            "log_bytes": day * 10**8,
            "file_groups": 1204,
            "planned_groups": 12,
            "log_ratio": day / 10,
            "base_files": 1204,
            "small_files": day * 40,
            "written_ms": NOW - day * 3_600_000,
            "expires_ms": NOW + day * 86_400_000,
            "expired": "",
        }
        for day in range(1, 29)
    ],
}
FILES = {
    "as_of_ms": NOW,
    "small_bytes": 104_857_600,
    "target_bytes": 536_870_912,
    "total": 1204,
    "histogram": [
        {"up_to_bytes": edge, "files": 12_345 + place * 1000, "bytes": 10**9}
        for place, edge in enumerate((1_000_000, 16_000_000, 64_000_000, 128_000_000, 256_000_000, 512_000_000, None))
    ],
    "groups": [
        {
            "partition": f"country=DE/day=2026-11-{day:02d}",
            "file_group": f"{day:08d}-7f3a-4c1e-9b1d-0242ac120002-0",
            "base_instant": "20261128101500000",
            "base_bytes": 510_000_000,
            "log_bytes": 38_000_000,
            "log_files": 12,
        }
        for day in range(1, 29)
    ],
}
LONG_TABLE = {"/description": _stub(DESCRIPTION), "/files?": _stub(FILES)}
COMMITTED = {
    "version": 1,
    "status": "committed",
    "table": REAL,
    "instant": "20261128101500000",
    "rows": 1_204_998,
    "inserts": 1_000_000,
    "updates": 204_998,
    "files": 312,
    "bytes": 38_200_000_000,
    "seconds": 611.2,
    "bad_records": 3,
    "conflicts": 2,
    "warning": "the column amount_eur of the source is not in the table; it was ignored",
    "interval": "2026-11-28T00:00:00+00:00 to 2026-11-29T00:00:00+00:00",
    "drift": [{"column": "amount_eur", "kind": "added", "type": "decimal(18,2)", "action": "ignored"}],
    "lag": [{"source": "kafka://orders-eu-central-1", "records": 120_400, "seconds": 61.5}],
    "folders": [f"s3://landing/orders/2026-11-28/part-{part:05d}.json.gz" for part in range(9)],
}
FAILED = {
    "version": 1,
    "status": "failed",
    "table": LONG,
    "error": {"type": "CorruptTableError", "message": "hoodie.properties is missing; restore it from a copy " * 4},
}
XCOM = {"xcom_entries": [{"task_id": "ingest", "map_index": -1}, {"task_id": "cluster", "map_index": 12}]}
REPORTS = {
    "xcomEntries?xcom_key": _stub(XCOM),
    "ingest/xcomEntries/return_value": _stub({"value": COMMITTED}),
    "cluster/xcomEntries/return_value": _stub({"value": json.dumps(FAILED)}),
    "timeline/20261128101500000": _stub(
        {
            "watermarks": {"kafka://orders-eu-central-1": "2026-11-28T10:14:58+00:00"},
            "watermarks_before": {"kafka://orders-eu-central-1": "2026-11-27T10:14:58+00:00"},
            "extra": {"lakehouse.ingest.dead_letters": "s3://lake/sales/orders_dead_letters/manual__7"},
        }
    ),
}
ASSET = {"api/v2/assets/7": _stub({"uri": "lakehouse://sales/orders", "name": REAL})}

_SCANNED = {
    "location": "s3://lake-eu-central-1/marketing/touchpoint_attribution_by_campaign_and_channel",
    "kind": "hudi",
    "table": "marketing.touchpoint_attribution_by_campaign_and_channel",
    "version": 6,
    "type": "MERGE_ON_READ",
    "bytes": 38_200_000_000,
    "features": [
        {"feature": "payload class", "value": "OverwriteWithLatestAvroPayload"},
        {"feature": "metadata table", "value": "bloom_filters,column_stats,files"},
    ],
    "readable": True,
    "writable": True,
    "services": ["compaction", "clustering", "clean", "archive"],
    "refusals": [{"operation": "index", "reason": "indexes are stored in the metadata table, not maintained here"}],
    "next": ["lakehouse table validate --table s3://lake-eu-central-1/marketing/touchpoint_attribution --deep"],
    "registered": "",
    "problem": "",
    "metastore_tables": ["marketing.touchpoints_ro", "marketing.touchpoints_rt"],
}
_OTHER = {"features": [], "services": [], "metastore_tables": [], "bytes": None, "version": None, "type": ""}
_PLACES = [
    {"place": "s3://lake-eu-central-1", "author": "ada", "started_ms": NOW - 7_200_000, "folders": 1204, "tables": 4},
    {"place": "hms://metastore.example.org:9083", "author": "ada", "started_ms": NOW - 90_000_000, "folders": 12},
]
SCAN = {
    "now_ms": NOW,
    "scans": _PLACES,
    "place": "s3://lake-eu-central-1",
    "totals": {"tables": 4, "hudi": 2, "unreadable": 1, "registered": 1},
    "total": 4,
    "offset": 0,
    "tables": [
        _SCANNED,
        {**_SCANNED, "location": "s3://lake-eu-central-1/sales/orders", "registered": REAL, "refusals": []},
        {
            **_SCANNED,
            **_OTHER,
            "location": "s3://lake-eu-central-1/raw/clicks",
            "kind": "parquet",
            "readable": False,
            "writable": False,
            "next": ["lakehouse spec suggest s3://lake-eu-central-1/raw/clicks"],
        },
        {
            **_SCANNED,
            **_OTHER,
            "location": "s3://lake-eu-central-1/secret",
            "kind": "unreadable",
            "readable": False,
            "writable": False,
            "problem": "access denied: s3://lake-eu-central-1/secret; the credentials need the permission to list it",
            "next": [],
        },
    ],
}
EMPTY_SCAN = {**SCAN, "scans": [], "place": "", "totals": dict.fromkeys(SCAN["totals"], 0), "total": 0, "tables": []}
NEW_SCAN = {
    **SCAN,
    "scans": _PLACES[:1],
    "totals": {**SCAN["totals"], "registered": 0},
    "tables": [_SCANNED],
    "total": 1,
}

PAGES = {
    "scan": View(
        path="/scan",
        see=("touchpoint_attribution", "read and write", "access denied", "lakehouse spec suggest", "50 % of Hudi's"),
        stubs={"api/v1/scans": _stub(SCAN)},
    ),
    "scan-empty": View(path="/scan", see=("No place was scanned yet", "lakehouse fleet scan s3://lake")),
    "scan-first-hour": View(
        path="/scan",
        see=("No table of this place is registered yet", "--register"),
        stubs={"api/v1/scans": _stub(NEW_SCAN)},
    ),
    "fleet": View(path="", see=(REAL, LONG, BROKEN, "hr.unseen")),
    "fleet-empty": View(path="", see=("lakehouse table register",), stubs={"api/v1/tables?": _stub(EMPTY_TABLES)}),
    "fleet-filtered": View(path="?search=none-such", see=("No table matches",)),
    "fleet-unavailable": View(
        path="?search=x", see=("does not answer",), stubs={"api/v1/tables?": _stub(UNAVAILABLE, 503)}
    ),
    "queue": View(path="/queue", see=(LONG, "clustering")),
    "queue-running": View(path="/queue?section=running", see=("1,200 of 3,120",)),
    "queue-done": View(path="/queue?section=done", see=("failed", "DAG run")),
    "alarms": View(path="/alarms", see=(LONG, "Silences in force")),
    "alarms-resolved": View(path="/alarms?resolved=true", see=("resolved",)),
    "activity": View(path="/activity", see=("oleg", "target_file_bytes")),
    "fleet-why": View(path=f"?why={LONG}", see=("rule small_files", "delta commits 412", "Services of the table")),
    "fleet-rules": View(
        path="",
        see=(REAL,),
        clicks=(("When does a table need attention?", "button"),),
        then=("Share of file groups with small base files",),
    ),
    "unknown-page": View(path="/qeue", see=("There is no page qeue", "All tables")),
    "unknown-table": View(
        path="/table/sales.order", see=("There is no table sales.order", "sales.orders", "All tables")
    ),
    "lineage": View(path=f"/table/{LONG}?tab=lineage", see=("As a list", "hive_prod.marketing"), stubs=LINEAGE),
    "unknown-tab": View(path=f"/table/{REAL}?tab=fils", see=("There is no tab fils", f"Overview of {REAL}")),
    "table-long": View(path=f"/table/{LONG}?tab=services", see=("not decided", "412 delta commits")),
    "table-long-overview": View(path=f"/table/{LONG}", see=("svc-airflow", "1,204,998,113 new"), stubs=LONG_TABLE),
    "table-long-partitions": View(path=f"/table/{LONG}?tab=partitions", see=("× median",), stubs=LONG_TABLE),
    "table-long-files": View(path=f"/table/{LONG}?tab=files", see=("1 to 50 of 1,204",), stubs=LONG_TABLE),
    "table-copy-on-write": View(path=f"/table/{PUBLISHED}?tab=services", see=("not applicable", "does not need it")),
    "table-published": View(
        path=f"/table/{PUBLISHED}?tab=publication",
        see=("hive_prod.finance.settlements", "waits for the watermark"),
        stubs={"/publication": _stub(PUBLICATION)},
    ),
    "report": View(
        path="", see=("1,204,998", "kafka://orders", "CorruptTableError"), stubs=REPORTS, script=REPORT % digest()
    ),
    "report-empty": View(
        path="",
        see=("no lakehouse report",),
        stubs={"xcomEntries": _stub({"xcom_entries": []})},
        script=REPORT % digest(),
    ),
    "asset": View(path="/7", base="/assets", see=(REAL, "latest versions"), stubs=ASSET),
    "table-broken": View(path=f"/table/{BROKEN}", see=("This table cannot be read",)),
}
TABS = {
    "overview": View(path="", see=("Versions of the spec", "before the migration", "Growth")),
    "timeline": View(path="?tab=timeline", see=("Newest instants of this range",)),
    "partitions": View(path="?tab=partitions", see=("2026-03-01",)),
    "services": View(path="?tab=services&service=compaction", see=("Why: compaction", "delta commits")),
    "lineage": View(path="?tab=lineage", see=("lineage",)),
    "policies": View(path="?tab=policies", see=("max_delta_commits",)),
    "files": View(path="?tab=files", see=("base instant",)),
    "activity": View(path="?tab=activity", see=("Edit policy", "target_file_bytes")),
    "publication": View(path="?tab=publication", see=("not published",)),
}
_SERVICE = "[data-service=clean] button"
_ROW = "tr td button, section button"
DIALOGS = {
    "request_service": View(
        path=f"/table/{REAL}?tab=services", clicks=(("Request", _SERVICE),), then=("What would happen",)
    ),
    "pause_service": View(
        path=f"/table/{REAL}?tab=services", clicks=(("Pause", _SERVICE),), then=("What would happen",)
    ),
    "edit_policy": View(
        path=f"/table/{REAL}?tab=policies", clicks=(("Edit policy", "button"),), then=("Pattern of partitions",)
    ),
    "edit_policy-preview": View(
        path=f"/table/{REAL}?tab=policies",
        clicks=(("Edit policy", "button"),),
        fill=(("Settings, one name=value per line", "enabled=false"),),
        then=("What would happen",),
    ),
    "remove_policy": View(
        path=f"/table/{REAL}?tab=policies", clicks=(("Remove policy", "button"),), then=("What would happen",)
    ),
    "rollback": View(
        path=f"/table/{REAL}",
        clicks=(("Roll back", "td button"),),
        then=("What would happen",),
        stubs={"/description": _stub({**DESCRIPTION, "savepoints": []}), "actions/preview": _stub(EFFECTS)},
    ),
    "rollback_failed": View(
        path=f"/table/{REAL}", clicks=(("Roll back failed writes", "button"),), then=("What would happen",)
    ),
    "savepoint": View(path=f"/table/{REAL}", clicks=(("Savepoint", "button"),), then=("Reason for the savepoint",)),
    "restore": View(path=f"/table/{REAL}", clicks=(("Restore", "td button"),), then=("What would happen",)),
    **{
        action.lower(): View(
            path=f"/table/{REAL}",
            clicks=((action, "button"),),
            fill=(("New table version", version),),
            then=("What would happen",),
            stubs={"actions/preview": _stub(EFFECTS)},
        )
        for action, version in (("Upgrade", "9"), ("Downgrade", "6"))
    },
    "publish": View(
        path=f"/table/{PUBLISHED}?tab=publication",
        clicks=(("Publish", "td button"),),
        then=("What would happen",),
        stubs={"/publication": _stub(PUBLICATION), "actions/preview": _stub(EFFECTS)},
    ),
    "withdraw": View(
        path=f"/table/{PUBLISHED}?tab=publication",
        clicks=(("Withdraw", "td button"),),
        then=("What would happen",),
        stubs={"/publication": _stub(PUBLICATION), "actions/preview": _stub(EFFECTS)},
    ),
    "stop_run": View(
        path="/queue?section=running",
        clicks=(("Stop", "td button"),),
        then=("What would happen", "Stop logcompaction"),
    ),
    "silence": View(path="/alarms", clicks=(("Silence", "td button"),), then=("Reason, which others see",)),
    "end_silence": View(path="/alarms", clicks=(("End silence", "button"),), then=("What would happen",)),
    "resume_service": View(
        path=f"/table/{REAL}?tab=services", clicks=(("Resume", "button"),), then=("What would happen",)
    ),
}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Database:
    """A catalog whose pages are full, with one table that has files."""
    if not SPARK_PYTHON.exists():
        pytest.skip("missing: .venv with Spark; run 'make venvs'")
    place = tmp_path_factory.mktemp("catalog")
    url = f"sqlite:///{place}/catalog.db"
    environ = {**os.environ, "LAKEHOUSE_CATALOG": url}
    for command in (["tests.support.lake", str(place)], ["lakehouse", "services", "due"]):
        subprocess.run([SPARK_PYTHON, "-m", *command], cwd=ROOT, env=environ, check=True, capture_output=True)
    database = Database(url)
    with database.session() as session:
        fill(session, NOW)
    return database


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, catalog: Database) -> Iterator[ApiServer]:
    """An API server on the catalog."""
    url = catalog.engine.url.render_as_string(hide_password=False)
    environment = {"LAKEHOUSE_CATALOG": url, "LAKEHOUSE_SPARK_HOME": str(ROOT / ".venv")}
    with api_server(tmp_path_factory.mktemp("airflow"), environment) as running:
        yield running


@pytest.fixture(scope="module")
def tab(tmp_path_factory: pytest.TempPathFactory, server: ApiServer) -> Iterator[Page]:
    """A browser in which an operator is logged in."""
    with browser(tmp_path_factory.mktemp("browser")) as page:
        page.log_in(server.url, server.token("op"))
        yield page


def faults_of(server: ApiServer, page: Page, name: str, view: View) -> list[str]:
    """Open a view and measure it at all widths and in both themes; return its faults."""
    stub = page.send(
        "Page.addScriptToEvaluateOnNewDocument", source=view.script + STUBBED % json.dumps(view.stubs or {})
    )
    try:
        page.send("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
        page.open(f"{server.url}{view.base}{view.path}")
        wait(page)
        page.see(*view.see)
        for text, role in view.clicks:
            page.click(text, role=role)
        for label, value in view.fill:
            page.fill(label, value)
            page.click("Show what would happen")
        wait(page)
        page.see(*view.then)
        return [
            f"{width} {theme}: {fault}"
            for width in WIDTHS
            for theme in THEMES
            for fault in measured(page, name, width, theme)
        ]
    finally:
        page.send("Page.removeScriptToEvaluateOnNewDocument", identifier=stub["identifier"])


def wait(page: Page) -> None:
    """Wait until the page or dialog shows what it reads; reads of a table are processes, which may take long."""
    assert until(lambda: bool(page.run("!!document.querySelector('[data-lakehouse]')")), READ_S), page.text()
    assert until(lambda: bool(page.run(SETTLED)), READ_S), page.text()


def measured(page: Page, name: str, width: int, theme: str) -> list[str]:
    """Return the faults of the open page at one width and in one theme."""
    size = {"width": width, "deviceScaleFactor": 1, "mobile": False}
    page.send("Emulation.setDeviceMetricsOverride", height=900, **size)
    page.run(THEME % (theme, theme))
    page.send("Emulation.setDeviceMetricsOverride", height=int(page.run(TALL)), **size)
    page.run(THEME % (theme, theme))
    found: list[str] = page.run(AUDIT)
    folder = os.environ.get("LAKEHOUSE_AUDIT_PICTURES")
    if folder:
        Path(folder).mkdir(parents=True, exist_ok=True)
        page.screenshot(Path(folder) / f"{name}-{width}-{theme}.png", width=width, height=int(page.run(TALL)))
    return found


def shown(faults: Sequence[str]) -> str:
    """Return faults as lines."""
    return "\n".join(faults)


@pytest.mark.parametrize("name", PAGES)
def test_page_has_no_faults_at_both_widths_and_themes(server: ApiServer, tab: Page, name: str) -> None:
    faults = faults_of(server, tab, name, PAGES[name])
    assert not faults, shown(faults)


@pytest.mark.parametrize("name", TABS)
def test_tab_of_a_table_has_no_faults_at_both_widths_and_themes(server: ApiServer, tab: Page, name: str) -> None:
    view = TABS[name]
    faults = faults_of(server, tab, f"tab-{name}", View(path=f"/table/{REAL}{view.path}", see=view.see))
    assert not faults, shown(faults)


@pytest.mark.parametrize("name", DIALOGS)
def test_dialog_has_no_faults_at_both_widths_and_themes(server: ApiServer, tab: Page, name: str) -> None:
    faults = faults_of(server, tab, f"dialog-{name}", DIALOGS[name])
    assert not faults, shown(faults)


def test_every_tab_and_action_has_a_picture(server: ApiServer, tab: Page) -> None:
    tab.open(f"{server.url}/plugin/lakehouse/table/{BROKEN}")
    tab.see("This table cannot be read")
    tabs = tab.run("[...document.querySelectorAll('[role=tab]')].map((e) => e.innerText.toLowerCase())")
    (main,) = [url for url in tab.requests.urls if url.endswith("/main.js")]
    script = f"import({json.dumps(main.replace('main.js', 'actions.js'))}).then((module) => Object.keys(module.LABELS))"
    assert set(tabs) == set(TABS)
    assert set(tab.run(script)) <= set(DIALOGS)


def test_dialog_names_its_service_and_only_a_harmful_action_is_red(server: ApiServer, tab: Page) -> None:
    button = "[...document.querySelectorAll('[role=dialog] button')].find((e) => e.innerText === 'Confirm')"
    colours = {}
    for name, title in (
        ("request_service", f"Request clean: {REAL}"),
        ("rollback_failed", f"Roll back failed writes: {REAL}"),
    ):
        view = DIALOGS[name]
        tab.open(f"{server.url}/plugin/lakehouse{view.path}")
        wait(tab)
        for text, role in view.clicks:
            tab.click(text, role=role)
        wait(tab)
        tab.see(title, "What would happen")
        assert until(lambda: bool(tab.run(f"!!{button}")))
        pixel = f"getComputedStyle({button}).backgroundColor"
        colours[name] = tab.run(
            "(() => { const pen = document.createElement('canvas').getContext('2d');"
            f" pen.fillStyle = {pixel}; pen.fillRect(0, 0, 1, 1); return [...pen.getImageData(0, 0, 1, 1).data]; }})()"
        )
    red, _, blue, _ = colours["request_service"]
    assert red < blue, "a request is not red"
    red, _, blue, _ = colours["rollback_failed"]
    assert red > 2 * blue, "a rollback is red"


def test_last_state_is_shown_with_its_age_while_a_table_is_read_again(server: ApiServer, tab: Page) -> None:
    tab.open(f"{server.url}/plugin/lakehouse/table/{REAL}?tab=files")
    wait(tab)
    tab.see("base instant")
    # The next read of the files does not end.
    hung = "const real = window.fetch; window.fetch = (input, init) => (String(input.url || input).includes('/files') ?"
    hung += " new Promise(() => {}) : real(input, init));"
    stub = tab.send("Page.addScriptToEvaluateOnNewDocument", source=hung)
    try:
        tab.open(f"{server.url}/plugin/lakehouse/table/{REAL}?tab=files")
        tab.see("Reading the table again. Shown is its state of", "ago.", "base instant")
        tab.open(f"{server.url}/plugin/lakehouse/table/{REAL}?tab=files&partition=2026-03-02")
        tab.see("Reading the files and the timeline of the table")
    finally:
        tab.send("Page.removeScriptToEvaluateOnNewDocument", identifier=stub["identifier"])
