"""Lineage of tables from the specs of a catalog: sources, derived tables, publications, and tables without any."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import create_engine
from sqlalchemy.orm import Session

from lakehouse.platform.catalog.connect import Database, upgrade
from lakehouse.platform.fleet_views.lineage import MOST_TABLES, table_lineage
from lakehouse.platform.fleet_views.names import UnknownTableError
from lakehouse.spec.contracts.table_lineage import TableLineage
from tests.support.fleet_rows import FleetTable, add_table

NOW = 1_000
SCHEMA = {"id": "string", "day": "string"}


@pytest.fixture
def session(tmp_path: Path) -> Iterator[Session]:
    url = f"sqlite:///{tmp_path}/catalog.db"
    upgrade(create_engine(url))
    with Database(url).session() as opened:
        yield opened


def add(session: Session, name: str, **spec: Any) -> None:
    location = spec.pop("location", f"/lake/{name.replace('.', '/')}")
    add_table(session, FleetTable(name=name, location=location, spec={"schema": SCHEMA, **spec}), NOW)


def derived(tables: Mapping[str, str], **more: Any) -> dict[str, Any]:
    sql = "SELECT id, day FROM " + next(iter(tables))
    return {"source": "table", "tables": dict(tables), "transform": {"sql": sql}, **more}


def lineage(session: Session, name: str, environ: Mapping[str, str] | None = None) -> TableLineage:
    session.flush()
    return table_lineage(session, name, NOW, environ or {})


def edges(found: TableLineage) -> set[tuple[str, str, str]]:
    names = {node.id: node.name for node in found.nodes}
    return {(names[edge.source], names[edge.target], edge.label) for edge in found.edges}


def test_lineage_reaches_from_sources_over_derived_tables_to_publications(session: Session) -> None:
    add(session, "raw.trips", ingest={"path": "landing/trips", "format": "json"})
    add(session, "mart.clean", ingest=derived({"raw": "/lake/raw/trips"}))
    publish = {"database": "shop", "metastore": "thrift://hms:9083", "ready": "signal"}
    add(session, "mart.daily", ingest=derived({"trips": "/lake/mart/clean/"}), services={"publish": publish})
    add(session, "other.table", ingest={"path": "landing/other", "format": "json"})
    whole = {
        ("json files of landing/trips", "raw.trips", ""),
        ("raw.trips", "mart.clean", "changes"),
        ("mart.clean", "mart.daily", "changes"),
        ("mart.daily", "shop.daily", "publish"),
    }
    for name in ("raw.trips", "mart.clean", "mart.daily"):
        assert edges(lineage(session, name)) == whole
    facts = {node.name: (node.kind, node.table, node.detail) for node in lineage(session, "mart.clean").nodes}
    assert facts["shop.daily"] == ("publication", "mart.daily", "thrift://hms:9083")
    assert facts["json files of landing/trips"] == ("source", "", "files")
    assert facts["raw.trips"] == ("table", "raw.trips", "/lake/raw/trips")


def test_inputs_are_labels_and_connections_are_details(session: Session) -> None:
    topic = {"source": "kafka", "topic": "payments", "format": "json", "schema": SCHEMA}
    inputs = {"files": {"path": "landing/a", "format": "json", "schema": SCHEMA}, "topic": topic}
    add(session, "a.wide", ingest={"inputs": inputs}, ordering="day")
    found = lineage(session, "a.wide")
    assert edges(found) == {
        ("json files of landing/a", "a.wide", "files"),
        ("json messages of topic payments", "a.wide", "topic"),
    }
    assert "kafka, connection kafka_default" in {node.detail for node in found.nodes}


def test_locations_with_variables_and_relative_ones_find_their_tables(session: Session) -> None:
    add(session, "raw.a", location="/lake/raw/a")
    add(session, "raw.b", location="/jobs/lake/raw/b")
    tables = {"a": "${LAKE}/raw/a", "b": "lake/raw/b", "c": "s3://elsewhere/c"}
    add(session, "mart.x", ingest=derived(tables))
    found = lineage(session, "mart.x", {"LAKE": "/lake"})
    assert {source for source, _, _ in edges(found)} == {"raw.a", "raw.b", "s3://elsewhere/c"}
    outside = next(node for node in found.nodes if node.name == "s3://elsewhere/c")
    assert (outside.kind, outside.table, outside.detail) == ("table", "", "not in this catalog")


def test_table_without_lineage_is_alone(session: Session) -> None:
    add(session, "a.b")
    found = lineage(session, "a.b")
    assert [node.name for node in found.nodes] == ["a.b"] and found.edges == ()
    with pytest.raises(UnknownTableError):
        lineage(session, "a.c")


def test_refused_spec_and_cycle_do_not_break_the_picture(session: Session) -> None:
    add(session, "a.x", ingest=derived({"y": "/lake/a/y"}))
    add(session, "a.y", ingest={**derived({"x": "/lake/a/x"}), "misspelt": 1})
    assert {(a, b) for a, b, _ in edges(lineage(session, "a.x"))} == {("a.x", "a.y"), ("a.y", "a.x")}


def test_picture_is_bounded_and_says_so(session: Session) -> None:
    add(session, "a.root")
    for number in range(MOST_TABLES + 5):
        add(session, f"a.d{number}", ingest=derived({"x": "/lake/a/root"}))
    found = lineage(session, "a.root")
    assert (len(found.nodes), found.shortened) == (MOST_TABLES, True)
    assert len(found.edges) == MOST_TABLES - 1


def test_lineage_needs_no_arrow() -> None:
    """Airflow's environment has none."""
    script = "import sys; sys.modules['pyarrow'] = None; import lakehouse.platform.fleet_views.lineage"
    subprocess.run([sys.executable, "-c", script], check=True)
