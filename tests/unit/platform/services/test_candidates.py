"""Candidates of a pass on values: waits for writers, and pauses after runs."""

from __future__ import annotations

from lakehouse.core.operations.services.service import ServiceCost
from lakehouse.platform.catalog.entries import TableEntry
from lakehouse.platform.services.assess import Assessment
from lakehouse.platform.services.candidates import Past, candidate
from lakehouse.platform.services.choose import AssessedService, Choice, Rules, choose_runs
from lakehouse.platform.services.look import Look, SeenService, next_writer_ms
from lakehouse.spec.contracts.decisions import DecisionReason
from lakehouse.spec.table.service_settings import service_settings
from lakehouse.spec.table.table_spec import parse_spec

#: 2026-03-01 12:00:00 UTC
NOW = 1_772_366_400_000
MINUTE = 60_000
SPEC = """\
table: sales.orders
location: /lake/orders
record_key: id
ingest: {path: /landing, format: csv, schedule: "0 * * * *"}
"""


def entry() -> TableEntry:
    spec = parse_spec(SPEC, source="orders.yaml")
    return TableEntry(id=1, namespace="sales", name="orders", location="/lake/orders", spec_version=1, spec=spec)


def look(service: str, *, size: int = 0, **facts: object) -> Look:
    """Return a look at a table on which a service is due, with facts about its writers."""
    assessment = Assessment(due=True, reason="due", cost=ServiceCost(files=10, bytes=size, benefit=10))
    seen = {service: SeenService(assessment=assessment, settings=service_settings(service, {}))}
    return Look(entry=entry(), looked_ms=NOW, services=seen, **facts)  # type: ignore[arg-type]


def choice(seen: Look, past: Past | None = None, now_ms: int = NOW) -> Choice:
    (service,) = seen.services
    found: AssessedService = candidate(seen, service, past or Past(), now_ms).assessed
    (made,) = choose_runs([found], Rules(), now_ms=now_ms)
    return made


def test_clustering_waits_for_a_cron_of_the_ingestion_that_starts_before_it_ends() -> None:
    noon = next_writer_ms(entry(), NOW - 5000)
    assert noon == NOW
    soon = look("clustering", next_writer_ms=NOW + 5000, writer_gap_ms=60 * MINUTE)
    waits = choice(soon)
    assert (waits.code, waits.starts_ms) == (DecisionReason.WRITER, NOW + 5000)
    assert "the ingestion starts at 12:00 UTC" in waits.reason
    # It ends before the ingestion starts.
    assert choice(look("clustering", next_writer_ms=NOW + 30 * MINUTE, writer_gap_ms=60 * MINUTE)).chosen
    # It never fits between two ingestions, so it does not wait for the next one.
    long = look("clustering", size=10**12, next_writer_ms=NOW + 5000, writer_gap_ms=60 * MINUTE)
    assert choice(long).chosen
    # A compaction does not conflict with writers.
    assert choice(look("compaction", next_writer_ms=NOW + 5000, writer_gap_ms=60 * MINUTE)).chosen


def test_clustering_waits_for_an_active_writer_and_a_requested_one_does_not() -> None:
    seen = look("clustering", writer_active=True, look_at_ms=NOW + 5 * MINUTE)
    waits = choice(seen)
    assert (waits.code, waits.starts_ms) == (DecisionReason.WRITER, NOW + 5 * MINUTE)
    assert choice(seen, Past(requested=True)).code is DecisionReason.REQUESTED
    assert choice(look("compaction", writer_active=True, look_at_ms=NOW + 5 * MINUTE)).chosen
