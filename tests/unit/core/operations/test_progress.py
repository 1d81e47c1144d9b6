"""Progress of services and validations: each unit is reported once, and the total is reached."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.engine.progress import Stage, finished_task, observed_stage, observing
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.services import compaction_execution
from lakehouse.core.table.table import Table
from tests.support.progress import CountingObserver
from tests.support.tables import Shape, make_table

PARTITIONS = ("a", "b", "c", "d", "e")
WORK = Stage(name="work", table="orders", unit="task", total=6, total_bytes=15)


def rows(value: int) -> pa.Table:
    """Return one row for each partition."""
    return pa.table({"id": [f"k{p}" for p in PARTITIONS], "p": PARTITIONS, "v": [str(value)] * 5, "ts": [value] * 5})


def made(table_type: str) -> Table:
    """Return a table with two versions of each row; a merge-on-read table has log files."""
    table = make_table(Shape(type=table_type), schema=None)
    table.upsert(rows(1))
    table.upsert(rows(2))
    return table


def test_compaction_reports_each_file_group_and_its_log_bytes() -> None:
    table, observer = made("MERGE_ON_READ"), CountingObserver()
    with observing(observer):
        assert isinstance(table.services.compaction.run(force=True), Committed)
    observer.assert_complete("compaction")
    (stage,) = observer.stages
    assert (stage.unit, stage.total, observer.calls["compaction"]) == ("file group", len(PARTITIONS), len(PARTITIONS))
    assert stage.total_bytes > 0 and stage.table == table.name


def test_clustering_reports_each_input_file_group() -> None:
    table, observer = made("COPY_ON_WRITE"), CountingObserver()
    sorted_by = {"hoodie.clustering.plan.strategy.sort.columns": "v"}
    with observing(observer):
        done = table.with_options(sorted_by).services.clustering.run(force=True)
    assert isinstance(done, Committed)
    observer.assert_complete("clustering")
    assert observer.stages[0].total == sum(map(len, done.metadata.replaced.values()))


def test_clean_reports_each_deleted_file() -> None:
    table, observer = made("COPY_ON_WRITE").with_options({"hoodie.clean.commits.retained": "1"}), CountingObserver()
    for value in (3, 4):
        table.upsert(rows(value))
    with observing(observer):
        done = table.services.clean.run(force=True)
    observer.assert_complete("clean")
    assert observer.units["clean"] == done.totals.files > 0


@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_deep_validation_reports_each_file_slice(table_type: str) -> None:
    table, observer = made(table_type), CountingObserver()
    with observing(observer):
        report = table.validate(deep=True)
    assert report.rows >= len(PARTITIONS)
    observer.assert_complete("validation")
    assert observer.stages[0].total == len(PARTITIONS)


def test_write_reports_each_file_group() -> None:
    table, observer = make_table(schema=None), CountingObserver()
    with observing(observer):
        table.upsert(rows(1))
    observer.assert_complete("write")
    assert observer.stages[0].total == len(PARTITIONS)


def test_filter_build_reports_each_file_that_it_reads_and_each_group_that_it_writes() -> None:
    table, observer = make_table(schema=None), CountingObserver()
    table.with_options({"hoodie.parquet.bloom.filter.enabled": "false"}).upsert(rows(1))
    table = table.with_options({"hoodie.index.type": "BLOOM"})
    with observing(observer):
        assert isinstance(table.services.bloom_filters.run(), Committed)
    observer.assert_complete("search for bloom filters", "clustering")
    assert [stage.total for stage in observer.stages] == [len(PARTITIONS), len(PARTITIONS)]


def test_failed_stage_reports_its_end_once_and_no_unit_of_the_failed_task(monkeypatch: pytest.MonkeyPatch) -> None:
    table, observer = made("MERGE_ON_READ"), CountingObserver()

    def fail(*_: object) -> None:
        raise OSError("disk is full")

    monkeypatch.setattr(compaction_execution, "_task", fail)
    with observing(observer), pytest.raises(OSError, match="disk is full"):
        table.services.compaction.run(force=True)
    assert observer.ended_stages == {"compaction": True}
    assert observer.units["compaction"] == 0


def test_units_of_a_repeated_task_are_counted_once() -> None:
    observer = CountingObserver()
    with observing(observer), observed_stage(WORK) as running, running.tasks([1, 2, 3, 4, 5, 0]):
        finished = finished_task()
        assert finished is not None
        for number in (0, 1, 2, 2, 3, 4, 5, 5):
            finished(number)
    observer.assert_complete("work")
    assert observer.calls["work"] == 6


def test_error_of_an_observer_does_not_end_the_operation() -> None:
    class Broken(CountingObserver):
        def advanced(self, stage: Stage, units: int, size: int) -> None:
            self.calls["work"] += 1
            raise RuntimeError("no screen")

    observer = Broken()
    with observing(observer), observed_stage(WORK) as running, running.tasks([1, 2, 3, 4, 5, 0]):
        assert LocalEngine(2).run(lambda _, task: task, list(range(6))) == list(range(6))
    assert observer.calls["work"] >= 1 and observer.ended_stages == {}


def test_engine_gets_no_function_to_call_without_an_observer() -> None:
    with observed_stage(WORK) as running, running.tasks([1, 2, 3, 4, 5, 0]):
        assert finished_task() is None
    with observing(CountingObserver()), observed_stage(WORK):
        assert finished_task() is None, "calls outside of counted tasks are not counted"
