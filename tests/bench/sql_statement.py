"""Overhead of a SQL statement in this process: a filtered query against the same scan by its methods.

Both open the table of the catalog and plan the scan; no file is read. The numbers are minima of alternating rounds.
With `attach`, Spark analyses the query too: on the other side it analyses the same query on a view of the scan.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pyarrow as pa

from lakehouse.core.table.table import Table
from lakehouse.platform.catalog.catalog import Catalog, load_catalog
from lakehouse.spark import attach, detach
from lakehouse.sql.engine import Parameters
from lakehouse.sql.session import SqlSession
from lakehouse.sql.tokens import SPARK
from tests.bench.measure import Comparison, show_lines
from tests.bench.setting import Setting, spark

TARGET_MS = 50.0
_ROUNDS = 15
_WHERE = "day >= '2026-01-07'"
_QUERY = f"SELECT o.city, count(*) FROM {{}} o WHERE o.{_WHERE} GROUP BY o.city"


class PlanningEngine:
    """Plans the scans of a statement and evaluates nothing."""

    dialect, mark, prunes, is_utc, session = SPARK, "`", False, True, None

    def text_problem(self, text: str) -> str:
        return ""

    def drop_view(self, name: str) -> None:
        return None

    def has_view(self, name: str) -> bool:
        """Return False."""
        return False

    def run(self, text: str, views: dict[str, Any], parameters: Parameters) -> str:
        """Return the text."""
        for scan in views.values():
            scan.plan()
        return text


def run(setting: Setting) -> list[Comparison]:
    """Measure a query on a table of eight files, and a query that names no table of the catalog."""
    place = setting.fresh("sql-statement")
    rows = pa.table({"id": range(8), "city": ["Rome", "Oslo"] * 4, "day": [f"2026-01-0{day}" for day in range(1, 9)]})
    Table.create(f"{place}/orders", name="orders", record_key="id", partition_by="day").insert(rows)
    with load_catalog(f"sqlite:///{place}/catalog.db") as catalog:
        catalog.register_table("sales.orders", f"{place}/orders")
        engine: Any = PlanningEngine()
        session = SqlSession(catalog=catalog, engine=engine)
        ways: dict[str, Callable[[], object]] = {
            "scan": lambda: catalog.load_table("sales.orders").scan(where=_WHERE).plan(),
            "statement": lambda: session.execute(_QUERY.format("sales.orders")),
            "other statement": lambda: session.execute(_QUERY.format("hr.orders")),
        }
        lines = [("way", "wall ms", "CPU ms"), *_measured(ways, "scan", "statement")]
        lines += _attached(catalog)
    show_lines(lines)
    return []


def _attached(catalog: Catalog) -> list[tuple[str, ...]]:
    """Return the lines of a statement in a session of Spark with the catalog, and of the query on a view."""
    session = spark()
    original = session.sql

    def by_scan() -> object:
        scan = catalog.load_table("sales.orders").scan(where=_WHERE)
        scan.to_spark(session).createOrReplaceTempView("scanned")
        return original(_QUERY.format("scanned"))

    attach(session, catalog)
    try:
        return _measured(
            {
                "scan and view in Spark": by_scan,
                "statement by attach": lambda: session.sql(_QUERY.format("sales.orders")),
            },
            "scan and view in Spark",
            "statement by attach",
        )
    finally:
        detach(session)


def _measured(ways: dict[str, Callable[[], object]], scan: str, statement: str) -> list[tuple[str, ...]]:
    """Return the minimum of each way in alternating rounds, and the overhead of the statement over the scan."""
    best = {way: (float("inf"), float("inf")) for way in ways}
    for _ in range(_ROUNDS):
        for way, call in ways.items():
            wall, cpu = time.perf_counter(), time.process_time()
            call()
            taken = (time.perf_counter() - wall, time.process_time() - cpu)
            best[way] = (min(best[way][0], taken[0]), min(best[way][1], taken[1]))
    overhead = (best[statement][0] - best[scan][0]) * 1e3
    verdict = f"target <= {TARGET_MS:.0f}" + ("" if overhead <= TARGET_MS else "  MISSED")
    lines = [(way, f"{wall * 1e3:.1f}", f"{cpu * 1e3:.1f}") for way, (wall, cpu) in best.items()]
    return [*lines, (f"overhead of {statement}", f"{overhead:.1f}", verdict)]
