"""The filter build finds files without a bloom filter and builds the filters without changing rows."""

from __future__ import annotations

import json

import pytest

from lakehouse.cli.main import main
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from tests.support.tables import Shape, batch, data_rows, make_env, make_table, row

NO_FILTER = {"hoodie.parquet.bloom.filter.enabled": "false"}
ROWS = [row(f"k{n}", p="ab"[n % 2], v=str(n)) for n in range(6)]


def _reopened(table: Table, **options: str) -> Table:
    return Table.open(table.location, options=options, env=table.refresh().env)


@pytest.mark.parametrize("type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_filter_build_adds_bloom_filters_and_keeps_rows(type: str) -> None:
    table = make_table(Shape(type=type, rows_per_file=2, index="BLOOM"), env=make_env())
    bare = table.with_options(NO_FILTER)
    bare.insert(batch(ROWS))
    bare.upsert(batch([row("k1", p="b", v="new", ts=9)]))
    before = data_rows(table)
    found = table.services.bloom_filters.due().files
    assert found and all(path.endswith(".parquet") for path in found)
    outcome = table.services.bloom_filters.run()
    assert isinstance(outcome, Committed)
    assert outcome.metadata.operation == "CLUSTER"
    assert len(outcome.metadata.stats) == len(found)
    assert data_rows(table) == before
    assert table.services.bloom_filters.due().files == ()
    assert isinstance(table.services.bloom_filters.run(), NothingToDo), "a second run has nothing to do"
    table.upsert(batch([row("k1", p="b", v="newer", ts=10)]))
    assert next(r["v"] for r in data_rows(table) if r["id"] == "k1") == "newer"


def test_filter_build_keeps_files_that_have_a_bloom_filter() -> None:
    table = make_table(Shape(rows_per_file=2, index="BLOOM"), env=make_env())
    table.insert(batch(ROWS[:2]))
    kept = {stat.path for _, metadata in table.commits() for stat in metadata.stats}
    table.with_options(NO_FILTER).insert_overwrite(batch([row("z", p="c")]))
    outcome = table.services.bloom_filters.run()
    assert isinstance(outcome, Committed)
    assert [stat.partition for stat in outcome.metadata.stats] == ["c"]
    assert all(table.refresh().env.storage.get(path) for path in kept)


def test_filter_build_skips_bucket_index_and_refuses_disabled_bloom_filters() -> None:
    buckets = make_table(Shape(index="BUCKET"), env=make_env()).with_options(NO_FILTER)
    buckets.upsert(batch(ROWS))
    assert buckets.services.bloom_filters.due().files == ()
    table = make_table(Shape(index="BLOOM"), env=make_env()).with_options(NO_FILTER)
    table.insert(batch(ROWS))
    with pytest.raises(UserError, match=r"no bloom filter can be built, because .*filter\.enabled=false"):
        table.services.bloom_filters.run()


@pytest.mark.parametrize("index", ["SIMPLE", "BUCKET"])
def test_filter_build_rewrites_no_file_for_an_index_that_reads_no_filter(index: str) -> None:
    table = make_table(Shape(index=index), env=make_env())
    table.with_options(NO_FILTER).upsert(batch(ROWS))
    before = {file.path for file in table.refresh().env.storage.list("")}
    assert not table.services.bloom_filters.due().due
    outcome = table.services.bloom_filters.run()
    assert isinstance(outcome, NothingToDo)
    assert outcome.reason == f"the index {index} reads no bloom filter, so files are not rewritten for one"
    assert {file.path for file in table.refresh().env.storage.list("")} == before


def test_filter_build_serves_the_bloom_filters_of_the_metadata_table() -> None:
    table = make_table(Shape(), env=make_env())
    table.with_options(NO_FILTER).upsert(batch(ROWS))
    declared = table.with_options({"hoodie.metadata.index.bloom.filter.enable": "true"})
    assert declared.services.bloom_filters.due().files != ()


def test_filter_commands_check_and_build_bloom_filters(tmp_path: object, capsys: pytest.CaptureFixture[str]) -> None:
    location = f"{tmp_path}/t"
    made = make_table(Shape(index="BLOOM"), env=make_env(location))
    made.with_options(NO_FILTER).insert(batch(ROWS))
    assert main(["index", "filters", "check", "--table", location, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out)["count"] > 0
    assert main(["index", "filters", "build", "--table", location]) == 0
    assert "built" in capsys.readouterr().out
    assert main(["index", "filters", "check", "--table", location, "--output", "json"]) == 0
    assert json.loads(capsys.readouterr().out) == {"version": 1, "count": 0, "files": []}
    assert main(["index", "filters", "make"]) == 64
