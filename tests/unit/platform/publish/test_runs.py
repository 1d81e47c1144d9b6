"""Publication runs on an in-memory metastore: readiness, versions, copies, withdrawal, crashes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.timeline.publications import read_publications
from lakehouse.errors import CorruptTableError, RetryableError, UnsupportedError, UserError
from lakehouse.model.publication import Stage
from lakehouse.platform.metastore.memory import MemoryMetastore
from lakehouse.platform.metastore.protocol import HivePartition
from lakehouse.platform.publish.job import PublishJob
from lakehouse.platform.publish.metastore_partitions import hive_table
from lakehouse.platform.publish.publication_plan import PublishRequest
from lakehouse.platform.publish.run import PublishReport, due, run, signal, withdraw
from lakehouse.platform.publish.status import status
from lakehouse.platform.publish.version_pins import begin
from lakehouse.spec.contracts.publication import Visibility
from tests.support.publishing import OPTIONS, make_job, reopened, rows_of, shown

FIRST = rows_of(("a", "2025-03-01T10:00:00", 1), ("b", "2025-03-01T11:00:00", 1))
LATER = rows_of(("a", "2025-03-01T23:00:00", 2))
NEXT_DAY = rows_of(("a", "2025-03-02T01:00:00", 3), ("c", "2025-03-02T01:00:00", 1))
DAY_ONE = {"dt=2025-03-01": {"a": 2, "b": 1}}


def test_day_is_published_at_its_end_version_after_the_watermark_passed() -> None:
    job = make_job()
    job.table.upsert(FIRST)
    job.table.upsert(LATER)
    assert run(job).published == ()
    assert shown(job) == {}
    waiting = due(job).waiting
    assert [(w.name, w.lag_ms) for w in waiting] == [("dt=2025-03-01", 3_600_000)], "an hour is missing"
    job.table.upsert(NEXT_DAY)
    assert run(job).published == ("dt=2025-03-01",)
    assert shown(job) == DAY_ONE
    (partition,) = job.metastore.partitions("sales", "orders", ["dt=2025-03-01"])
    version = job.table.timeline.writes().by_completion()[1]
    assert partition.parameters["lakehouse.instant"] == version.requested
    assert partition.parameters["lakehouse.event_time"] == "2025-03-02T00:00:00Z"
    assert run(job) == PublishReport(waiting=1), "a second run finds nothing to do"


def test_partitions_from_before_a_rename_are_not_shown_with_nulls() -> None:
    """Readers find columns by name, so older versions would have nulls in a renamed column."""
    job = make_job()
    for rows in (FIRST, LATER, NEXT_DAY):
        job.table.upsert(rows)
    run(job)
    assert shown(job) == DAY_ONE
    before = job.metastore.table("sales", "orders")
    job.table.alter().rename_column("v", "amount").execute()
    # The upsert rewrites the only file, so the newest version has the new name.
    later = rows_of(("a", "2025-03-03T01:00:00", 4))
    job.table.upsert(later.rename_columns(["id", "at", "amount", "day"]))
    with pytest.raises(
        UnsupportedError, match=r"2 partitions would show .*: dt=2025-03-01, dt=2025-03-02\. .*--newest"
    ):
        run(job)
    day = (1_740_787_200_000, 1_740_873_600_000)
    with pytest.raises(UnsupportedError, match="1 partition would show"):
        run(job, PublishRequest(interval_ms=day, force=True))
    assert (job.metastore.table("sales", "orders"), shown(job)) == (before, DAY_ONE)
    request = PublishRequest(names=("dt=2025-03-02",), newest=True, force=True)
    with pytest.raises(UnsupportedError, match=r"1 partition would show .*: dt=2025-03-01\. "):
        run(job, request)
    withdraw(job, ["dt=2025-03-01"])
    assert run(job, request).published == ("dt=2025-03-02",)
    columns = [column.name for column in job.metastore.table("sales", "orders").columns]  # type: ignore[union-attr]
    assert columns == ["id", "at", "amount", "day"]
    assert run(job).published == ()


def test_partitions_from_before_a_retype_are_not_shown_if_readers_cannot_convert_them() -> None:
    """Readers by name fail at integers in a column of strings."""
    job = make_job()
    for rows in (FIRST, LATER, NEXT_DAY):
        job.table.upsert(rows)
    run(job)
    before = job.metastore.table("sales", "orders")
    job.table.alter().change_type("v", "string").execute()
    later = rows_of(("a", "2025-03-03T01:00:00", 4))
    job.table.upsert(later.set_column(later.schema.get_field_index("v"), "v", later.column("v").cast("string")))
    request = PublishRequest(names=("dt=2025-03-02",), newest=True, force=True)
    with pytest.raises(UnsupportedError, match=r"from before a column was renamed, retyped.*: dt=2025-03-01\. "):
        run(job, request)
    assert (job.metastore.table("sales", "orders"), shown(job)) == (before, DAY_ONE)
    withdraw(job, ["dt=2025-03-01"])
    assert run(job, request).published == ("dt=2025-03-02",)
    kinds = {column.name: column.type for column in job.metastore.table("sales", "orders").columns}  # type: ignore[union-attr]
    assert kinds["v"] == "string"


def test_published_partition_is_unchanged_until_a_forced_request() -> None:
    job = make_job()
    for rows in (FIRST, LATER, NEXT_DAY):
        job.table.upsert(rows)
    run(job)
    job.table.upsert(rows_of(("late", "2025-03-01T12:00:00", 9)))
    run(job)
    assert shown(job) == DAY_ONE
    day = (1_740_787_200_000, 1_740_873_600_000)
    assert run(job, PublishRequest(interval_ms=day, force=True)).published == ("dt=2025-03-01",)
    assert shown(job)["dt=2025-03-01"]["late"] == 9


def test_lateness_delays_a_day() -> None:
    job = make_job(options={**OPTIONS, "lakehouse.event_time.lateness": "2h"})
    for rows in (FIRST, LATER, NEXT_DAY):
        job.table.upsert(rows)
    assert run(job).published == (), "01:00 minus two hours is before midnight"
    job.table.upsert(rows_of(("late", "2025-03-01T22:00:00", 5), ("c", "2025-03-02T02:00:00", 2)))
    assert run(job).published == ("dt=2025-03-01",)
    assert shown(job)["dt=2025-03-01"]["late"] == 5


def test_signal_publishes_the_newest_version_and_a_second_signal_again() -> None:
    job = make_job({"ready": ["signal"]})
    job.table.upsert(FIRST)
    assert run(job).published == ()
    assert signal(job, ["2025-03-01"]) == ("dt=2025-03-01",)
    assert run(job).published == ("dt=2025-03-01",)
    assert shown(job) == {"dt=2025-03-01": {"a": 1, "b": 1}}
    job.table.upsert(LATER)
    assert run(job).published == ()
    job.table.refresh().env.clock.sleep(1)
    signal(job, ["dt=2025-03-01"])
    assert run(job).published == ("dt=2025-03-01",)
    assert shown(job) == DAY_ONE


def test_ended_data_interval_publishes_only_its_days() -> None:
    job = make_job({"ready": "interval"})
    job.table.upsert(FIRST)
    job.table.upsert(NEXT_DAY)
    assert run(job).published == ()
    request = PublishRequest(interval_ms=(1_740_787_200_000, 1_740_873_600_000), ended=True)
    assert run(job, request).published == ("dt=2025-03-01",)
    assert list(shown(job)) == ["dt=2025-03-01"]


def test_publication_of_table_partitions_shows_their_rows() -> None:
    job = make_job({"partitions": "table"}, partition_by=["day"])
    job.table.upsert(FIRST)
    job.table.upsert(NEXT_DAY)
    assert run(job).published == ("day=2025-03-01",)
    assert shown(job) == {"day=2025-03-01": {"a": 1, "b": 1}}
    table = job.metastore.table("sales", "orders")
    assert table is not None
    assert [c.name for c in table.columns] == ["id", "at", "v"], "the partition column is not a data column"
    assert [c.name for c in table.partition_columns] == ["day"]


def test_old_pointers_are_copied_and_release_their_version() -> None:
    job = make_job({"archive_after": "1h", "retain": "10m", "success_file": True})
    for rows in (FIRST, LATER, NEXT_DAY):
        job.table.upsert(rows)
    run(job, engine=LocalEngine())
    assert due(job).archive == ()
    clock = job.table.refresh().env.clock
    clock.sleep(3601)
    assert run(job).archived == (), "only a run with an engine copies"
    assert run(job, engine=LocalEngine()).archived == ("dt=2025-03-01",)
    assert shown(job) == DAY_ONE
    (partition,) = job.metastore.partitions("sales", "orders", ["dt=2025-03-01"])
    assert partition.location.startswith(job.place.native(""))
    names = {file.name for file in job.place.list("")}
    assert names == {"part-00000-00000.parquet", "_SUCCESS"}
    publication = read_publications(job.table.refresh().env)["sales.orders"]
    assert len(publication.manifests) == 1, "readers of the pointer may continue"
    clock.sleep(601)
    run(job)
    assert not read_publications(job.table.refresh().env)["sales.orders"].manifests
    assert not [f for f in job.table.refresh().env.storage.list(".hoodie/.lakehouse/published") if "manifest" in f.path]
    assert shown(job) == DAY_ONE


def test_version_with_log_files_is_published_as_a_copy() -> None:
    options = {**OPTIONS, "hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
    job = make_job(table_type="MERGE_ON_READ", options=options)
    for rows in (FIRST, LATER, NEXT_DAY):
        job.table.upsert(rows)
    report = run(job)
    assert report.published == ()
    assert shown(job) == {}, "a pointer would show base files only"
    assert run(job, engine=LocalEngine()).archived == ("dt=2025-03-01",)
    assert shown(job) == DAY_ONE


def test_withdrawn_partition_returns_only_on_request() -> None:
    job = make_job()
    for rows in (FIRST, LATER, NEXT_DAY):
        job.table.upsert(rows)
    run(job)
    assert withdraw(job, ["2025-03-01"]) == ("dt=2025-03-01",)
    assert shown(job) == {}
    assert run(job).published == ()
    assert run(job, PublishRequest(names=("2025-03-01",), force=True)).published == ("dt=2025-03-01",)
    assert shown(job) == DAY_ONE


def test_run_restores_partitions_that_others_changed_in_the_metastore() -> None:
    job = make_job()
    for rows in (FIRST, LATER, NEXT_DAY):
        job.table.upsert(rows)
    run(job)
    (mine,) = job.metastore.partitions("sales", "orders", ["dt=2025-03-01"])
    job.metastore.drop_partitions("sales", "orders", ["dt=2025-03-01"])
    assert run(job).repaired == ("dt=2025-03-01",)
    other = HivePartition(
        values=mine.values,
        location="memory://elsewhere/x",
        format=mine.format,
        columns=mine.columns,
        parameters={"a": "b"},
    )
    job.metastore.alter_partitions("sales", "orders", [other])
    assert status(job)[0].visibility is Visibility.OTHER
    assert run(job).repaired == ("dt=2025-03-01",)
    assert shown(job) == DAY_ONE
    (found,) = job.metastore.partitions("sales", "orders", ["dt=2025-03-01"])
    assert found.parameters["a"] == "b", "other parameters are kept"
    row = status(job)[0]
    assert (row.is_visible, row.visible_version) == (True, found.parameters["lakehouse.instant"])


def test_foreign_partition_is_replaced_when_it_is_ready() -> None:
    job = make_job()
    job.table.upsert(FIRST)
    loaded = job.table.refresh()
    table = hive_table(job, loaded, job.table.schema)
    job.metastore.create_database("sales")
    job.metastore.create_table(table)
    foreign = HivePartition(
        values=("2025-03-01",), location="memory://elsewhere/y", format=table.format, columns=table.columns
    )
    job.metastore.add_partitions("sales", "orders", [foreign])
    job.table.upsert(LATER)
    job.table.upsert(NEXT_DAY)
    assert run(job).published == ("dt=2025-03-01",)
    assert shown(job) == DAY_ONE


def test_table_of_another_program_is_not_changed() -> None:
    job = make_job()
    for rows in (FIRST, LATER, NEXT_DAY):
        job.table.upsert(rows)
    theirs = hive_table(job, job.table.refresh(), job.table.schema)
    job.metastore.create_database("sales")
    job.metastore.create_table(type(theirs)(**{**_fields(theirs), "parameters": {}}))
    with pytest.raises(UserError, match=r"sales\.orders exists and is not of lakehouse"):
        run(job)
    assert job.metastore.partition_names("sales", "orders") == ()


def _fields(value: object) -> dict[str, object]:
    return {name: getattr(value, name) for name in value.__dataclass_fields__}  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("names", "message"),
    [(["2025-3-1"], "names no day"), (["dt=soon"], "names no day"), (["hour=2025-03-01"], "names no day")],
)
def test_signal_for_an_invalid_partition_name_is_refused(names: list[str], message: str) -> None:
    job = make_job({"ready": ["signal"]})
    job.table.upsert(FIRST)
    with pytest.raises(UserError, match=message):
        signal(job, names)


def test_signal_is_refused_if_the_publication_does_not_use_signals() -> None:
    job = make_job()
    with pytest.raises(UserError, match="a signal changes nothing"):
        signal(job, ["2025-03-01"])


def test_cleaned_version_is_refused_with_advice_to_publish_the_newest() -> None:
    job = make_job(options={**OPTIONS, "hoodie.clean.commits.retained": "1"})
    for rows in (
        FIRST,
        LATER,
        NEXT_DAY,
        rows_of(("a", "2025-03-02T05:00:00", 4)),
        rows_of(("a", "2025-03-02T06:00:00", 5)),
    ):
        job.table.upsert(rows)
    job.table.services.clean.run(force=True)
    with pytest.raises(UserError, match="cleaned or rolled back before it was published; publish with --newest"):
        run(job)
    assert shown(job) == {}
    assert run(job, PublishRequest(newest=True)).published == ("dt=2025-03-01",)
    assert shown(job)["dt=2025-03-01"]["a"] == 5


def test_version_with_a_missing_file_is_not_published_from_older_rows() -> None:
    job = make_job()
    for rows in (FIRST, LATER, NEXT_DAY):
        job.table.upsert(rows)
    env = job.table.refresh().env
    (path,) = {stat.path for stat in job.table.commits()[1][1].stats}
    data = env.storage.get(path)
    env.storage.delete(path)
    with pytest.raises(CorruptTableError, match=f"{path} is missing"):
        run(reopened(job))
    assert shown(job) == {}
    env.storage.put(path, data)
    assert run(reopened(job)).published == ("dt=2025-03-01",)
    assert shown(job) == DAY_ONE


def test_publication_of_several_days_lists_data_once_and_without_work_never() -> None:
    job = make_job()
    for rows in (FIRST, LATER, NEXT_DAY, rows_of(("a", "2025-03-03T01:00:00", 4))):
        job.table.upsert(rows)
    storage = CountingStorage(job.table.refresh().env.storage)
    assert run(reopened(job, storage)).published == ("dt=2025-03-01", "dt=2025-03-02")
    assert storage.listed_data() == ("",)
    storage.reset()
    assert run(reopened(job, storage)).published == ()
    assert storage.listed_data() == ()


def test_clean_keeps_published_versions_and_removes_withdrawn_ones() -> None:
    job = make_job({"retain": "0s"}, options={**OPTIONS, "hoodie.clean.commits.retained": "1"})
    for rows in (FIRST, LATER, NEXT_DAY):
        job.table.upsert(rows)
    run(job)
    for value in range(4, 9):
        job.table.upsert(rows_of(("a", f"2025-03-02T0{value}:00:00", value)))
    job.table.services.clean.run(force=True)
    assert shown(job) == DAY_ONE
    before = len(job.table.refresh().env.storage.list(""))
    withdraw(job, ["2025-03-01"])
    run(job)
    job.table.upsert(rows_of(("a", "2025-03-02T09:30:00", 9)))
    job.table.services.clean.run(force=True)
    publication = read_publications(job.table.refresh().env)["sales.orders"]
    assert publication.partitions["dt=2025-03-01"].stage is Stage.WITHDRAWN
    assert not publication.manifests
    assert len([f for f in job.table.refresh().env.storage.list("") if f.path.endswith(".parquet")]) <= 3 < before


@pytest.mark.parametrize("mode", [FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER])
@pytest.mark.parametrize("which", ["table", "place", "metastore"])
def test_next_run_recovers_from_a_crash_at_any_step(which: str, mode: FaultMode) -> None:
    """Publish, archive and delete retired files with a crash at each step; readers never see a partial change."""
    step, crashes = 0, 0
    while True:
        step += 1
        job = make_job({"success_file": True})
        for rows in (FIRST, LATER, NEXT_DAY):
            job.table.upsert(rows)
        if not _crashed(lambda: _all(_with_fault(job, which, mode, step))):  # noqa: B023
            break
        crashes += 1
        assert shown(job) in ({}, DAY_ONE), f"{which} step {step}"
        again = reopened(job, hours=5, archive_after_s=0, retain_s=0)
        run(again, engine=LocalEngine())
        assert shown(job) == DAY_ONE, f"{which} step {step}"
        again.table.refresh().env.clock.sleep(10)
        run(again, engine=LocalEngine())
        again.table.refresh().env.clock.sleep(10)
        run(again, engine=LocalEngine())
        assert shown(job) == DAY_ONE
        publication = read_publications(again.table.refresh().env)["sales.orders"]
        assert [p.stage for p in publication.partitions.values()] == [Stage.ARCHIVED]
        assert not publication.retired
        files = sorted(file.name for file in job.place.list(""))
        assert files == ["_SUCCESS", "part-00000-00000.parquet"], f"{which} step {step} left {files}"
    assert crashes >= 3, "crashes happened"


def _all(job: PublishJob) -> None:
    run(job)
    run(job, PublishRequest(archive=True), engine=LocalEngine())


def _crashed(work: Callable[[], None]) -> bool:
    try:
        work()
    except (SimulatedCrash, RetryableError):
        return True
    return False


def _with_fault(job: PublishJob, which: str, mode: FaultMode, step: int) -> PublishJob:
    if which == "table":
        return reopened(job, FaultyStorage(job.table.refresh().env.storage, step, mode))
    if which == "place":
        return reopened(job, place=FaultyStorage(job.place, step, mode))

    def hook(verb: str, number: int) -> None:
        if number == step:
            raise RetryableError(f"{verb}: the metastore does not answer")

    metastore = job.metastore
    assert isinstance(metastore, MemoryMetastore)
    before = len(metastore.requests)

    def shifted(verb: str, number: int) -> None:
        hook(verb, number - before)

    metastore.before, metastore.after = (shifted, None) if mode is FaultMode.CRASH_BEFORE else (None, shifted)
    return job


def test_published_version_cannot_be_rolled_back_before_withdrawal() -> None:
    job = make_job()
    for rows in (FIRST, LATER, NEXT_DAY):
        job.table.upsert(rows)
    first, second, third = job.table.timeline.writes().by_completion()
    run(job, PublishRequest(names=("2025-03-02",), force=True))
    with pytest.raises(
        UserError, match=rf"{third.requested} cannot be undone: sales\.orders publishes it in dt=2025-03-02"
    ):
        job.table.rollback(third.requested)
    with pytest.raises(UserError, match="cannot be undone"):
        job.table.restore(first.requested)
    withdraw(job, ["2025-03-02"])
    job.table.refresh().env.clock.sleep(3700)
    run(job)
    withdraw(job, ["2025-03-01"])
    job.table.refresh().env.clock.sleep(3700)
    run(job)
    job.table.rollback(third.requested)
    assert job.table.timeline.writes().by_completion()[-1] == second


def test_version_that_was_rolled_back_before_it_was_pinned_is_not_published() -> None:
    job = make_job()
    for rows in (FIRST, LATER, NEXT_DAY):
        job.table.upsert(rows)
    newest = job.table.timeline.writes().by_completion()[-1]
    planned = due(job, PublishRequest(names=("2025-03-02",), force=True, newest=True))
    loaded = job.table.refresh()
    begin(job, loaded, planned)
    job.table.rollback(newest.requested)
    with pytest.raises(UserError, match="--newest"):
        run(job)
    assert "dt=2025-03-02" not in shown(job)


def test_next_run_drops_a_withdrawn_partition_that_a_stale_run_published() -> None:
    job = make_job()
    for rows in (FIRST, LATER, NEXT_DAY):
        job.table.upsert(rows)
    run(job)
    shown_before = job.metastore.partitions("sales", "orders", ["dt=2025-03-01"])
    withdraw(job, ["2025-03-01"])
    job.metastore.add_partitions("sales", "orders", shown_before)
    run(job)
    assert shown(job) == {}


def test_signal_is_removed_after_publication() -> None:
    job = make_job({"ready": ["signal"]})
    job.table.upsert(FIRST)
    signal(job, ["2025-03-01"])
    run(job)
    assert read_publications(job.table.refresh().env)["sales.orders"].signals == {}


def test_signal_with_another_partition_column_is_refused() -> None:
    job = make_job({"partitions": "table", "ready": "signal"}, partition_by=["day"])
    job.table.upsert(FIRST)
    with pytest.raises(UserError, match=r"'date=2025-03-01' names no partition of sales\.orders; write one like day="):
        signal(job, ["date=2025-03-01"])
    assert signal(job, ["day=2025-03-09"]) == ("day=2025-03-09",), "a partition may be signalled before it exists"
    assert run(job).published == ()
    job.table.upsert(rows_of(("n", "2025-03-09T01:00:00", 1)))
    assert run(job).published == ("day=2025-03-09",)
