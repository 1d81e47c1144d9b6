"""Publication plans of tables: archived commits, cleaned versions and old periods."""

from __future__ import annotations

from random import Random

import pyarrow as pa
import pytest

from lakehouse.core.operations.commit.complete import PreparedCommit, complete_commit
from lakehouse.core.operations.commit.results import Committed, Conflict
from lakehouse.core.operations.read.event_time import EventVersions
from lakehouse.core.operations.write import write
from lakehouse.core.planning.event_time import event_commit, find_version
from lakehouse.core.timeline.publications import read_publications
from lakehouse.errors import UserError
from lakehouse.model.publication import Stage
from lakehouse.platform.publish.job import PublishJob
from lakehouse.platform.publish.publication_plan import PublishRequest
from lakehouse.platform.publish.run import due, run, withdraw
from lakehouse.platform.publish.status import status
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.support.archived import EAGERLY
from tests.support.publishing import OPTIONS, make_job, rows_of, shown

DAYS = 12


def daily_job(days: int = DAYS, first: int = 1, job: PublishJob | None = None, **options: str) -> PublishJob:
    """Return a publication by date of a table with one commit a day: key `a` has the day's number, `d<n>` is new."""
    job = job or make_job(options=OPTIONS | EAGERLY | options)
    for day in range(first, first + days):
        job.table.upsert(
            rows_of(("a", f"2025-03-{day:02}T10:00:00", day), (f"d{day:02}", f"2025-03-{day:02}T11:00:00", day))
        )
    return job


def names(days: range) -> list[str]:
    """Return the partitions of some days of March."""
    return [f"dt=2025-03-{day:02}" for day in days]


def rows_at(day: int) -> dict[str, int]:
    """Return the table at the end of a day."""
    return {"a": day} | {f"d{n:02}": n for n in range(1, day + 1)}


def archive(job: PublishJob) -> None:
    """Archive until two commits are on the timeline."""
    job.table.services.archive.run(force=True)
    assert len(job.table.refresh().timeline.writes()) == 2


def test_due_days_stay_due_when_their_commits_are_archived() -> None:
    job = daily_job(DAYS + 1)
    archive(job)
    assert [planned.name for planned in due(job).publish] == names(range(1, DAYS + 1))
    assert list(run(job).published) == names(range(1, DAYS + 1))
    assert shown(job) == {f"dt=2025-03-{day:02}": rows_at(day) for day in range(1, DAYS + 1)}


def test_due_days_stay_due_when_a_run_found_none_before_the_archive() -> None:
    job = daily_job(1)
    assert run(job).published == ()
    daily_job(DAYS, 2, job)
    archive(job)
    assert list(run(job).published) == names(range(1, DAYS + 1))


def test_late_event_in_archived_commit_is_in_the_version_of_its_day() -> None:
    job = daily_job(2)
    job.table.upsert(rows_of(("late", "2025-03-01T23:00:00", 7)))
    daily_job(6, 3, job)
    archive(job)
    run(job, PublishRequest(names=("2025-03-01",)))
    assert shown(job) == {"dt=2025-03-01": rows_at(1) | {"a": 2, "d02": 2, "late": 7}}


def test_stored_event_range_avoids_reading_archived_commits_again(monkeypatch: pytest.MonkeyPatch) -> None:
    job = daily_job(DAYS + 1)
    archive(job)
    run(job)
    assert read_publications(job.table.refresh().env)["sales.orders"].span.first_ms == 1_740_823_200_000
    store = job.table.refresh().store
    read: list[str] = []
    original = type(store).archived_commits

    def counted(self: object, instants: list[object], containing: str = "") -> object:
        read.extend(instant.requested for instant in instants)  # type: ignore[attr-defined]
        return original(store, instants, containing)  # type: ignore[arg-type]

    monkeypatch.setattr(type(store), "archived_commits", counted)
    assert due(job).publish == ()
    assert read == [], "nothing is due, and the event range is stored"
    daily_job(6, DAYS + 2, job)
    archive(job)
    read.clear()
    written = {i.requested for i in job.table.archived().by_completion()[-8:]}
    assert [p.name for p in due(job).publish] == names(range(DAYS + 1, DAYS + 7))
    assert read and set(read) <= written, "reads only newly archived commits and those that due days need"


def test_lost_days_fail_one_run_and_are_reported_by_later_runs() -> None:
    job = daily_job(5)
    job.table.services.clean.run(force=True)
    archive(job)
    with pytest.raises(
        UserError, match=r"dt=2025-03-01, dt=2025-03-02, .* was cleaned or rolled back before"
    ) as failed:
        run(job)
    assert failed.value.facts["taken"] == names(range(1, 4))
    assert list(shown(job)) == names(range(4, 5)), "the other days are published"
    report = run(job)
    assert (list(report.lost), report.published) == (names(range(1, 4)), ())
    states = {row.partition: row.state for row in status(job)}
    assert states == dict.fromkeys(names(range(1, 4)), "lost") | {
        "dt=2025-03-04": "published",
        "dt=2025-03-05": "waiting",
    }
    assert "a clean removed files of its version" in status(job, ["2025-03-01"])[0].reason
    withdraw(job, ["2025-03-02"])
    assert run(job, PublishRequest(names=("2025-03-03",), newest=True)).published == ("dt=2025-03-03",)
    assert shown(job)["dt=2025-03-03"] == rows_at(5)
    assert list(run(job).lost) == names(range(1, 2))


def test_lost_partition_keeps_its_state_through_the_stored_publication() -> None:
    job = daily_job(4)
    job.table.services.clean.run(force=True)
    with pytest.raises(UserError):
        run(job)
    stored = read_publications(job.table.refresh().env)["sales.orders"].partitions["dt=2025-03-01"]
    assert (stored.stage, stored.manifest, stored.is_shown) == (Stage.LOST, "", False)


def test_days_older_than_max_age_are_expired_and_counted_unless_requested() -> None:
    job = make_job({"max_age": "101d"}, options=OPTIONS | EAGERLY)
    daily_job(8, 1, job)
    archive(job)
    assert job.table.refresh().env.clock.now_ms() // 86_400_000 == 20_254, "the clock shows 2025-06-15"
    report = run(job)
    assert list(report.published) == names(range(6, 8))
    assert report.expired == 5
    assert status(job, ["2025-03-01"])[0].state == "expired"
    assert run(job, PublishRequest(names=("2025-03-01",), force=True)).published == ("dt=2025-03-01",)
    assert shown(job)["dt=2025-03-01"] == rows_at(1)


def test_plan_with_too_many_periods_is_refused_with_advice() -> None:
    job = make_job({"granularity": "hour"})
    job.table.upsert(rows_of(("a", "1970-01-02T00:00:00", 1), ("b", "2025-03-01T00:00:00", 1)))
    with pytest.raises(UserError, match=r"more than 100000 periods .* set services\.publish\.since"):
        due(job)


@pytest.mark.parametrize("seed", range(20))
def test_event_versions_equal_their_definition(seed: int) -> None:
    """Both searches agree for commits in any order of event time, with and without times, archived or not."""
    draw = Random(seed)
    table = make_job(options=OPTIONS | EAGERLY).table
    table.upsert(rows_of(("k0", "2025-03-05T10:00:00", 1)))
    for _ in range(draw.randint(1, 9)):
        if draw.random() < 0.2:
            table.delete(pa.table({"id": ["a"]}))
            continue
        days = [draw.randint(1, 9) for _ in range(draw.randint(1, 2))]
        table.upsert(rows_of(*((f"k{n}", f"2025-03-{day:02}T10:00:00", 1) for n, day in enumerate(days))))
    loaded = table.refresh()
    known = [event_commit(i, m) for i, m in loaded.store.commits(loaded.timeline.writes().by_completion())]
    table.services.archive.run(force=True)
    versions = EventVersions(table.refresh())
    for day in range(1, 12):
        at_ms = 1_740_787_200_000 + (day - 1) * 86_400_000
        assert versions.at(at_ms) == find_version(known, at_ms).instant


def test_version_after_a_pending_write_is_not_published_without_completion_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    options = {
        **OPTIONS,
        "hoodie.write.table.version": "6",
        "hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL",
    }
    job = make_job(options=options, partition_by=["day"])
    job.table.upsert(rows_of(("a", "2025-03-01T10:00:00", 1)))

    def late(candidate: PreparedCommit, policy: TransactionPolicy) -> Committed | Conflict:
        monkeypatch.setattr(write, "complete_commit", complete_commit)
        # This write passes the pending one, and the watermark passes the end of the first day.
        assert isinstance(job.table.upsert(rows_of(("c", "2025-03-02T12:00:00", 3))), Committed)
        assert run(job).published == ()
        return complete_commit(candidate, policy)

    monkeypatch.setattr(write, "complete_commit", late)
    assert isinstance(job.table.upsert(rows_of(("z", "2025-03-01T09:00:00", 2))), Committed)
    assert run(job).published == ("dt=2025-03-01",)
    assert shown(job) == {"dt=2025-03-01": {"a": 1, "z": 2}}
