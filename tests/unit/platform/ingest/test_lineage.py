"""Lineage of ingestions: the datasets of views, and columns whose sources are unknown."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.table.table import Table
from lakehouse.platform.jobs.lineage import ingest_lineage, with_lineage
from lakehouse.spec.contracts.job import IngestReport, JobStatus
from lakehouse.spec.contracts.lineage import (
    LINEAGE,
    VIEWS,
    JobLineage,
    LineageColumn,
    LineageDataset,
    LineageField,
    LineageKind,
)
from lakehouse.spec.table.table_spec import TableSpec, parse_spec

JOINED = "source: table, tables: {a: lake/a}, join: {b: 's3://lake/b'}, transform: {sql: SELECT 1}, changes: groups"


@pytest.fixture
def table(tmp_path: Path) -> Table:
    made = Table.create(tmp_path / "t", name="t", record_key="id")
    made.upsert(pa.table({"id": ["1"], "v": [1]}))
    return made


def spec(ingest: str) -> TableSpec:
    return parse_spec(f"table: t\nlocation: x\nrecord_key: id\ningest: {{{ingest}}}\n", source="t.yaml")


def made(*columns: LineageColumn, influences: tuple[LineageField, ...] = ()) -> JobLineage:
    return JobLineage(outputs=(LineageDataset(namespace=VIEWS, name="", columns=columns, influences=influences),))


def of_view(view: str, column: str, kind: LineageKind = LineageKind.IDENTITY) -> LineageField:
    return LineageField(namespace=VIEWS, name=view, field=column, kind=kind)


def test_ingest_lineage_names_the_tables_of_views_and_of_joins(table: Table, tmp_path: Path) -> None:
    id_, v = of_view("a", "id"), of_view("b", "w", LineageKind.AGGREGATION)
    query = made(
        LineageColumn(name="ID", type="", sources=(id_,)),
        LineageColumn(name="v", type="", sources=(v,)),
        influences=(of_view("b", "id", LineageKind.JOIN),),
    )
    environ = {"LAKEHOUSE_HOME": str(tmp_path)}
    found = ingest_lineage(spec(f"{JOINED}, group_by: id"), table, environ, query)
    (output,) = found.outputs
    own, other = ("file", f"{tmp_path}/lake/a"), ("s3://lake", "b")
    assert [(one.namespace, one.name) for one in found.inputs] == [own, other]
    assert {c.name: [(s.namespace, s.name, s.field, s.kind) for s in c.sources] for c in output.columns} == {
        "id": [(*own, "id", LineageKind.IDENTITY)],
        "v": [(*other, "w", LineageKind.AGGREGATION)],
    }
    assert [(one.name, one.field, one.kind) for one in output.influences] == [("b", "id", LineageKind.JOIN)]
    assert found.unknown_columns == 0


@pytest.mark.parametrize(
    ("columns", "reasons"),
    [
        ([LineageColumn(name="*", type="", unknown="a function")], {"id": "a function", "v": "a function"}),
        ([LineageColumn(name="id", type="")], {"id": "", "v": "the run did not write the column"}),
        (
            [LineageColumn(name=name, type="", sources=(of_view("c", "x"),)) for name in ("id", "v")],
            {"id": "a view of the query has no dataset", "v": "a view of the query has no dataset"},
        ),
    ],
)
def test_columns_of_unknown_sources_say_why_and_have_none(
    columns: list[LineageColumn], reasons: dict[str, str], table: Table
) -> None:
    found = ingest_lineage(spec("path: landing, transform: {sql: SELECT 1}"), table, {}, made(*columns))
    assert {column.name: column.unknown for column in found.outputs[0].columns} == reasons
    assert [column.sources for column in found.outputs[0].columns] == [(), ()]
    assert found.unknown_columns == len([reason for reason in reasons.values() if reason])


def test_ingest_lineage_without_an_analysis_knows_copied_columns_only(table: Table) -> None:
    found = ingest_lineage(spec("path: landing, select: [id, v + 1 AS v]"), table, {})
    copied, computed = found.outputs[0].columns
    assert [one.field for one in copied.sources] == ["id"] and not copied.unknown
    assert not computed.sources and computed.unknown == "the expression was not analysed"


def test_failure_to_name_the_lineage_leaves_the_report_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(LINEAGE, "true")
    report = IngestReport(status=JobStatus.COMMITTED, table="t", rows=3, lineage=made())

    def fails() -> JobLineage:
        raise KeyError("view")

    lineage: Callable[[], JobLineage] = fails
    traced = with_lineage(report, lineage)
    assert (traced.lineage, traced.rows) == (None, 3)
