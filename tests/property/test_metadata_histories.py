"""Random histories of writes and services; after each step the metadata table equals the files of the table."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from lakehouse.core.table.table import Table
from tests.support.merged_run import SERVICES, MergedRun, merged_histories, merged_shapes
from tests.support.metadata_check import check_metadata
from tests.support.model import Run, Verb, histories, shapes
from tests.support.tables import Shape, batch, examples, make_table, row

#: A compaction of the metadata table after few commits, so that histories contain several.
OPTIONS = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.compact.max.delta.commits": "2",
    "hoodie.clean.commits.retained": "1",
}


def with_metadata(shape: Shape, *, log_compaction: bool) -> Shape:
    options = {"hoodie.metadata.log.compaction.enable": "true", "hoodie.metadata.log.compaction.blocks.threshold": "2"}
    return replace(shape, options={**shape.options, **OPTIONS, **(options if log_compaction else {})})


#: Keys of tables with a global index are unique, so that a record index can contain them.
INDEXES = {
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.index.bloom.filter.enable": "true",
    "hoodie.metadata.global.record.level.index.min.filegroup.count": "2",
}


def clean(table: Table) -> None:
    table.services.clean.run(force=True)


def archive(table: Table) -> None:
    options = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}
    table.with_options(options).services.archive.run(force=True)


def cluster(table: Table) -> None:
    table.services.clustering.run(force=True)


MAINTENANCE: tuple[Callable[[Table], None], ...] = (clean, archive)


@pytest.mark.parametrize("index", ["SIMPLE", "GLOBAL_SIMPLE", "BUCKET"])
@examples(4)
@given(data=st.data())
def test_metadata_equals_the_files_after_each_write(index: str, data: st.DataObject) -> None:
    shape = with_metadata(data.draw(shapes(index=index, version=9)), log_compaction=data.draw(st.booleans()))
    if shape.is_global:
        shape = replace(shape, options={**shape.options, **INDEXES})
    run = Run(make_table(shape), shape)
    history: list[Verb] = data.draw(histories())
    for verb in history:
        run.apply(verb)
        check_metadata(run.table)
    services = MAINTENANCE if index == "BUCKET" else (*MAINTENANCE, cluster)
    for service in data.draw(st.lists(st.sampled_from(services), max_size=3)):
        service(run.table)
        check_metadata(run.table)


@pytest.mark.parametrize("index", ["SIMPLE", "BUCKET"])
@examples(4)
@given(data=st.data())
def test_metadata_equals_the_files_of_a_merge_on_read_table(index: str, data: st.DataObject) -> None:
    shape = with_metadata(data.draw(merged_shapes(index=index, version=9)), log_compaction=data.draw(st.booleans()))
    run = MergedRun(make_table(shape), shape)
    history: list[Verb] = data.draw(merged_histories())
    for verb in history:
        if verb.name in SERVICES:
            run.serve(verb.name)
        else:
            run.apply(verb)
        check_metadata(run.table)
    services = MAINTENANCE if index == "BUCKET" else (*MAINTENANCE, cluster)
    for service in data.draw(st.lists(st.sampled_from(services), max_size=3)):
        service(run.table)
        check_metadata(run.table)


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@examples(4)
@given(data=st.data())
def test_metadata_equals_the_files_after_a_rollback_or_restore(kind: str, data: st.DataObject) -> None:
    shape = with_metadata(Shape(type=kind), log_compaction=data.draw(st.booleans()))
    run = Run(make_table(shape), shape)
    for verb in data.draw(histories()):
        run.apply(verb)
    assume(len(run.commits) > 1)
    if data.draw(st.booleans()):
        run.table.rollback(run.commits[-1].requested)
    else:
        run.table.restore(run.commits[data.draw(st.integers(0, len(run.commits) - 2))].requested)
    check_metadata(run.table)
    run.table.upsert(batch([row("k1", ts=99), row("other", p="c")]))
    check_metadata(run.table)


#: Functions of a text and of a number; both columns are null in some rows of some histories.
EXPRESSIONS = "by_length=length(v); by_time=from_unixtime(ts, yyyy-MM-dd HH:mm:ss)"
FILTERS = "; by_text=bloom_filters:upper(v)"


@pytest.mark.parametrize("merges", [False, True], ids=["COPY_ON_WRITE", "MERGE_ON_READ"])
@examples(5)
@given(data=st.data())
def test_expression_index_equals_one_that_is_built_from_the_files(merges: bool, data: st.DataObject) -> None:
    drawn = data.draw(merged_shapes(index="SIMPLE", version=9) if merges else shapes(index="SIMPLE", version=9))
    shape = with_metadata(drawn, log_compaction=data.draw(st.booleans()))
    assume(not merges or shape.type == "MERGE_ON_READ")
    declared = {"lakehouse.index.expressions": EXPRESSIONS + ("" if shape.type == "MERGE_ON_READ" else FILTERS)}
    run: Run | MergedRun = MergedRun(make_table(shape), shape) if merges else Run(make_table(shape), shape)
    history: list[Verb] = data.draw(merged_histories() if merges else histories())
    # Writes between the plan of the build and its execution record their changes above the base files of the build.
    planned = data.draw(st.integers(0, len(history)))
    built = data.draw(st.integers(planned, len(history)))
    for number in range(len(history) + 1):
        if number == planned:
            run.table.with_options(declared).services.index.schedule()
        if number == built:
            run.table.with_options(declared).services.index.run()
            check_metadata(run.table)
        if number == len(history):
            break
        verb = history[number]
        if isinstance(run, MergedRun) and verb.name in SERVICES:
            run.serve(verb.name)
        else:
            run.apply(verb)
        check_metadata(run.table)
    for service in data.draw(st.lists(st.sampled_from((*MAINTENANCE, cluster)), max_size=3)):
        service(run.table)
        check_metadata(run.table)
    report = run.table.metadata.validate()
    assert report.ok, [f"{check!r} {check.examples}" for check in report.checks if not check.ok]
