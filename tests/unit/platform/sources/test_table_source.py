"""Settings of the source `table` and of transforms: what the parser accepts, and what the check refuses."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.operations.commit.complete import PreparedCommit, complete_commit
from lakehouse.core.operations.commit.results import Committed, Conflict
from lakehouse.core.operations.write import write
from lakehouse.core.table.table import Table
from lakehouse.errors import CorruptTableError, UnsupportedError, UserError
from lakehouse.platform.sources.tables.table_reader import open_tables
from lakehouse.platform.sources.tables.table_source import (
    TableCheckpoint,
    TablesSource,
    check_tables_source,
    table_source_of,
)
from lakehouse.spec.options.transaction import TransactionPolicy
from lakehouse.spec.table.table_spec import TableSpec, parse_spec
from tests.support.version_6 import MANY_WRITERS, batch, committed, created


def spec(ingest: str, **more: str) -> TableSpec:
    lines = "".join(f"{name}: {value}\n" for name, value in more.items())
    return parse_spec(f"table: t\nlocation: x\nrecord_key: id\n{lines}ingest: {{{ingest}}}\n", source="t.yaml")


@pytest.mark.parametrize(
    ("ingest", "message"),
    [
        ("source: table", "needs 'tables'"),
        ("source: table, tables: {a-b: lake/a}", "'a-b' is not the name of a view"),
        ("source: table, tables: {a: x, A: y}", "two views differ only in case"),
        ("source: table, tables: {a: x, b: y}", "several tables need 'transform'"),
        ("source: table, tables: {a: x}, join: {A: y}, transform: {sql: SELECT 1}", "view 'A' is in 'tables' already"),
        ("source: table, tables: {a: x}, changes: groups", "'group_by' and 'changes: groups' need each other"),
        ("source: table, tables: {a: x}, group_by: day", "'group_by' and 'changes: groups' need each other"),
        ("source: table, tables: {a: x}, changes: cdc, deletes: apply", "the transform marks deletes"),
        ("source: table, tables: {a: x}, join: {b: x}, transform: {sql: SELECT 1}", "needs 'changes: groups'"),
        ("source: table, tables: {a: x}, operation: insert", "insert cannot delete rows"),
        ("source: table, tables: {a: x}, by_interval: true", "intervals may run in any order"),
        ("path: landing, select: [id], transform: {sql: SELECT 1}", "remove one of the two"),
        ("path: landing, transform: {sql: SELECT 1, function: 'a:b'}", "needs either 'sql' or 'function'"),
        ("path: landing, transform: {}", "needs either 'sql' or 'function'"),
        ("path: landing, transform: {sql: DROP TABLE x}", "is not a query"),
        ("path: landing, transform: {sql: 'SELECTED'}", "is not a query"),
        ("path: landing, transform: {function: clean}", "is not a name such as package.module:function"),
    ],
)
def test_contradicting_settings_are_refused_with_file_and_line(ingest: str, message: str) -> None:
    with pytest.raises(UserError, match=message) as refused:
        spec(ingest)
    assert str(refused.value).startswith("t.yaml:4")


@pytest.mark.parametrize(
    "sql", ["select 1", "-- a comment\nWITH a AS (SELECT 1) SELECT * FROM a", "/* x */ (SELECT 1)"]
)
def test_queries_may_begin_with_comments_and_brackets(sql: str) -> None:
    section = spec(f"path: landing, transform: {{sql: {sql!r}}}".replace("'", '"')).ingest
    assert section is not None
    assert section.transform is not None
    assert section.transform.sql == sql


def test_check_refuses_missing_tables_and_timestamp_partitions(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="is not a Hudi table"):
        check_tables_source(spec(f"source: table, tables: {{a: {tmp_path}/a}}"), None, {}, {})
    Table.create(tmp_path / "a", name="a", record_key="id")
    with pytest.raises(UserError, match="keeps no change data"):
        check_tables_source(spec(f"source: table, tables: {{a: {tmp_path}/a}}"), None, {}, {})
    check_tables_source(spec(f"source: table, tables: {{a: {tmp_path}/a}}, deletes: ignore"), None, {}, {})
    timed = spec(f"source: table, tables: {{a: {tmp_path}/a}}", partition_by="at:TIMESTAMP")
    with pytest.raises(UserError, match="'at' is of type TIMESTAMP"):
        check_tables_source(timed, None, {}, {})


def test_plan_counts_commits_that_change_rows_and_refuses_open_intervals(tmp_path: Path) -> None:
    table = Table.create(tmp_path / "a", name="a", record_key="id", table_type="MERGE_ON_READ")
    table.upsert(pa.table({"id": ["1"], "v": [1]}))
    table.upsert(pa.table({"id": ["1"], "v": [2]}))
    declared = spec(f"source: table, tables: {{a: {tmp_path}/a}}, deletes: ignore")
    settings = table_source_of(declared)
    session: Any = None
    source = TablesSource(
        spec=declared,
        settings=settings,
        locations=settings.tables,
        storage_options={},
        reader=partial(open_tables, session),
    )
    first = source.plan(None, None, full_refresh=False)
    assert first.units == 2
    writes = len(table.commits())
    table.with_options({"hoodie.compact.inline.max.delta.commits": "1"}).services.compaction.run()
    assert len(table.commits()) == writes + 1
    assert source.plan(first.checkpoint, None, full_refresh=False).units == 0
    now = datetime.now(UTC)
    by_interval = spec(f"source: table, tables: {{a: {tmp_path}/a}}, deletes: ignore, by_interval: true")
    timed = TablesSource(
        spec=by_interval,
        settings=table_source_of(by_interval),
        locations=settings.tables,
        storage_options={},
        reader=partial(open_tables, session),
    )
    with pytest.raises(UserError, match="is not over"):
        timed.plan(None, (now - timedelta(hours=1), now + timedelta(hours=1)), full_refresh=False)


def test_checkpoint_does_not_pass_a_pending_write_without_completion_times(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = created(tmp_path, "COPY_ON_WRITE", options=MANY_WRITERS)
    first = committed(table.insert(batch(["a1", "b1"], 1, "x"))).requested
    declared = spec(f"source: table, tables: {{a: {table.location}}}, deletes: ignore")
    settings = table_source_of(declared)
    session: Any = None
    source = TablesSource(
        spec=declared,
        settings=settings,
        locations=settings.tables,
        storage_options={},
        reader=partial(open_tables, session),
    )
    begin = source.plan(None, None, full_refresh=False).checkpoint
    assert begin is not None and TableCheckpoint.from_json(begin).commits == {"a": first}

    def late(candidate: PreparedCommit, policy: TransactionPolicy) -> Committed | Conflict:
        monkeypatch.setattr(write, "complete_commit", complete_commit)
        committed(Table.open(table.location).upsert(batch(["b1"], 2, "early")))
        assert source.plan(begin, None, full_refresh=False).units == 0
        whole = source.plan(None, None, full_refresh=True)
        assert whole.checkpoint == begin and whole.units == 1
        return complete_commit(candidate, policy)

    monkeypatch.setattr(write, "complete_commit", late)
    passed = committed(table.upsert(batch(["a1"], 2, "late"))).requested
    newest = max(instant.requested for instant in table.timeline.writes())
    after = source.plan(begin, None, full_refresh=False)
    assert newest > passed and after.units == 2
    assert after.checkpoint is not None and TableCheckpoint.from_json(after.checkpoint).commits == {"a": newest}


def test_checkpoints_round_trip_and_refuse_other_texts() -> None:
    checkpoint = TableCheckpoint(commits={"b": "20260101000000000", "a": "20260102000000000"})
    assert TableCheckpoint.from_json(checkpoint.to_json()) == checkpoint
    with pytest.raises(UnsupportedError, match="version 2"):
        TableCheckpoint.from_json('{"version": 2, "commits": {}}')
    for text in ("[]", '{"version": 1}', '{"version": 1, "commits": {"a": "later"}}', '{"version": 1, "commits": 3}'):
        with pytest.raises(CorruptTableError, match="ingest checkpoint"):
            TableCheckpoint.from_json(text)
