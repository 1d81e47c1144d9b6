"""Rows of a catalog that fill every page: long names, many problems, decisions, runs, alarms, silences and actions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from lakehouse.platform.catalog.models import (
    ActionRow,
    AlarmRow,
    DecisionRow,
    LeaseRow,
    PolicyRow,
    RunRow,
    SilenceRow,
    SpecRow,
    TablePointRow,
    TableRow,
    TableStateRow,
)
from tests.support.fleet_rows import HOUR_MS, FleetTable, add_table, numbers

#: The table with files; `tests.support.lake` makes it.
REAL = "sales.orders"
#: A table whose names, settings and texts are long, and one that is published.
LONG, PUBLISHED = "marketing_attribution.customer_touchpoints_enriched_daily", "finance.settlements"
BROKEN = "web.clicks"
LATE = {
    "rule": "freshness",
    "severity": 3,
    "text": "no commit for 14h; the objective is 1h",
    "action": f"look at the DAG that ingests {LONG}; lakehouse services explain --table {LONG} shows the last runs",
    "value": 50_400.0,
    "threshold": 3600.0,
}
SMALL = {
    "rule": "small_files",
    "severity": 1,
    "text": "100% of the files are small, more than 50%: 24 of 24 files",
    "action": "lakehouse services request --table bank.accounts --service clustering",
    "value": 1.0,
    "threshold": 0.5,
}
_PREDICTED = {"files": 3120, "bytes": 38_200_000_000, "benefit": 9.0, "seconds": 540.0}
_ACTUAL = {"files": 3120, "bytes": 36_900_000_000, "seconds": 611.2, "rows": 1_204_998}
_FAILURE = (
    "CommitStateUnknownError: 20261128101500000.replacecommit may be on the timeline, because the store closed the "
    "connection; the next run reads it back"
)


def fill(session: Session, now_ms: int) -> None:
    """Add the rows beside a catalog that has the table `REAL`."""
    orders = session.scalars(select(TableRow.id)).one()
    state = session.get(TableStateRow, orders) or TableStateRow(table_id=orders)
    state.numbers, state.looked_ms = numbers(now_ms, watermark_ms=now_ms - 200_000, conflicts=2), now_ms
    state.severity, state.problems, state.error = 0, [], None
    session.add(state)
    _grow(session, orders, now_ms)
    long = _tables(session, now_ms)
    for version in range(2, 8):
        source = f"dags/tables/marketing/attribution/{LONG.partition('.')[2]}.yaml"
        spec = {"table": LONG, "type": "MERGE_ON_READ", "record_key": ["touchpoint_id", "session_id"]}
        row = SpecRow(table_id=long, version=version, document=spec, author="svc-airflow-spec-sync", source=source)
        row.created_ms = now_ms - (9 - version) * 30 * HOUR_MS
        session.add(row)
    _queue(session, {"orders": orders, "long": long}, now_ms)
    _alarms(session, {"orders": orders, "long": long}, now_ms)
    _actions(session, orders, now_ms)
    settings = {
        "group_bytes": 2_147_483_648,
        "target_file_bytes": 536_870_912,
        "quiet_hours": "Mon-Fri 08:00-18:00 Europe/Berlin",
    }
    shared = {"namespace": "sales", "settings": settings, "version": 1, "updated_ms": now_ms, "author": "oleg"}
    session.add(PolicyRow(**shared, name="orders", service="clustering", pattern=""))
    session.add(PolicyRow(**shared, name="orders", service="clustering", pattern="^2026-0[1-3]-.*"))


def _tables(session: Session, now_ms: int) -> int:
    """Add tables in every state of health; return the id of the one with long texts."""
    growth = tuple(10**12 + hour * 10**9 for hour in range(160))
    late = numbers(
        now_ms, last_commit_ms=now_ms - 14 * HOUR_MS, pending_plans=12, failed_plans=3, base_bytes=3 * 10**12
    )
    busy = {"numbers": late | {"small_files": 18_204, "files": 20_011, "file_groups": 19_000, "log_bytes": 10**11}}
    long = FleetTable(name=LONG, **busy, severity=3, problems=(LATE, SMALL), growth=growth)
    number = add_table(session, long, now_ms)
    add_table(session, FleetTable(name=BROKEN, error="CorruptTableError: hoodie.properties is missing"), now_ms)
    few = numbers(now_ms, file_groups=24, files=24, small_files=24, base_bytes=9_120_000, log_bytes=0)
    add_table(session, FleetTable(name="bank.accounts", numbers=few, severity=1, problems=(SMALL,)), now_ms)
    add_table(session, FleetTable(name="hr.unseen", looked=False), now_ms)
    publish = {"target": "finance.settlements", "ready": {"watermark": "1h"}}
    spec = {"type": "COPY_ON_WRITE", "partition_by": "day", "services": {"publish": publish}}
    add_table(session, FleetTable(name=PUBLISHED, numbers=numbers(now_ms), spec=spec, growth=growth), now_ms)
    return number


def _grow(session: Session, table: int, now_ms: int) -> None:
    for hour in range(0, 30 * 24, 2):
        base = 3_100_000_000 - hour * 2_900_000
        sizes = {"base_bytes": base, "log_bytes": (hour % 40) * 9_000_000}
        session.merge(
            TablePointRow(table_id=table, hour_ms=now_ms // HOUR_MS * HOUR_MS - hour * HOUR_MS, numbers=sizes)
        )


def _queue(session: Session, tables: Mapping[str, int], now_ms: int) -> None:
    reason = (
        "412 delta commits and 9 h since the first one; due after 5 delta commits; rewrites 38.2 GB in about 9 min; "
        "queries of these rows would open 3,111 files instead of 3,120"
    )
    for place, service in enumerate(("compaction", "clustering", "clean")):
        due = {"due": True, "chosen": place == 0, "code": "due" if place == 0 else "file_groups_wanted"}
        shared: dict[str, Any] = {"predicted": _PREDICTED, "inputs": {"delta_commits": 412, "threshold": 5}}
        row = DecisionRow(table_id=tables["long"], service=service, decided_ms=now_ms - 180_000, **due, **shared)
        row.reason, row.priority, row.deadline_ms = reason, 92.25, now_ms - HOUR_MS
        session.add(row)
    runs: dict[str, Any] = {"table_id": tables["long"], "predicted": _PREDICTED}
    active = "services.logcompaction/scheduled__2026-11-29T06:15:00+00:00/run"
    row = RunRow(**runs, run_id=active, service="logcompaction", state="running", started_ms=now_ms - 240_000)
    row.progress = {"stage": "execute", "unit": "group", "done": 1200, "total": 3120}
    session.add(row)
    session.add(LeaseRow(key=f"{LONG}/logcompaction", owner=active, token=1, expires_ms=now_ms + 9 * HOUR_MS))
    session.add(RunRow(**runs, run_id="cli-4711-a0b1", service="index", state="running", started_ms=now_ms - 300_000))
    for place, state in enumerate(("committed", "failed", "nothing_to_do", "died")):
        begin = now_ms - (place + 2) * HOUR_MS
        run = f"services.clustering/manual__2026-11-2{place}T06:15:00.123456+00:00_k3Jd8x/run"
        row = RunRow(**runs, run_id=run, service="clustering", state=state, started_ms=begin, ended_ms=begin + 611_000)
        row.actual, row.error = (_ACTUAL, None) if state == "committed" else ({}, _FAILURE)
        session.add(row)


def _alarms(session: Session, tables: Mapping[str, int], now_ms: int) -> None:
    for problem, table in ((LATE, tables["long"]), (SMALL, tables["orders"]), (LATE | {"rule": "scheduler"}, None)):
        shared = {
            "table_id": table,
            "raised_ms": now_ms - 9 * HOUR_MS,
            "seen_ms": now_ms,
            "notified": {"slack_ops": now_ms},
        }
        found = {name: problem[name] for name in ("rule", "severity", "text", "action", "value", "threshold")}
        session.add(AlarmRow(**shared, **found, state="open", subject="clustering"))
        session.add(AlarmRow(**shared, **found, state="resolved", resolved_ms=now_ms - HOUR_MS))
    silence = SilenceRow(rule="small_files", scope="sales.orders", until_ms=now_ms + HOUR_MS, author="oleg")
    silence.reason, silence.created_ms = "the backfill of March writes small files; clustering follows tonight", now_ms
    session.add(silence)


def _actions(session: Session, orders: int, now_ms: int) -> None:
    done: dict[str, Any] = {"table_id": orders, "subject": REAL, "author": "oleg.kowalczyk@example.org"}
    settings = {"service": "clustering", "settings": {"target_file_bytes": 536_870_912, "group_bytes": 2_147_483_648}}
    session.add(ActionRow(**done, action="edit_policy", parameters=settings, created_ms=now_ms - HOUR_MS, state="done"))
    failed = {"error": _FAILURE}
    row = ActionRow(
        **done, action="rollback", parameters={"instant": "20261128101500000"}, state="failed", result=failed
    )
    row.created_ms, row.dag_id, row.dag_run_id = now_ms - 2 * HOUR_MS, "lakehouse.actions", "lakehouse_action_1"
    session.add(row)
