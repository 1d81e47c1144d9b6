"""Published partitions keep their rows during any sequence of writes, services, publications and withdrawals.

The model records the state after each commit. A published partition shows the state after the last commit that has an
event before the end of the partition. It keeps that state until it is published again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.operations.commit.results import Committed
from lakehouse.errors import UserError
from lakehouse.platform.publish.job import PublishJob
from lakehouse.platform.publish.publication_plan import PublishRequest
from lakehouse.platform.publish.run import run, signal, withdraw
from tests.support.publishing import OPTIONS, make_job, rows_of, shown
from tests.support.tables import examples

SERVICED = {
    **OPTIONS,
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.clustering.plan.strategy.sort.columns": "v",
}
START = datetime(2025, 3, 1, 12)

writes = st.tuples(
    st.just("write"),
    st.lists(
        st.tuples(st.sampled_from("abcd"), st.integers(-30, 12)), min_size=1, max_size=3, unique_by=lambda x: x[0]
    ),
)
services = st.sampled_from(
    [(name, None) for name in ("clean", "archive", "clustering", "compaction", "publish", "copy")]
)
edits = st.tuples(st.sampled_from(["withdraw", "again"]), st.integers(0, 5))
steps = st.lists(st.one_of(writes, writes, services, services, edits), min_size=6, max_size=22)

_WITH_EXPIRY = (
    "write",
    "write",
    "write",
    "publish",
    "publish",
    "ttl",
    "clean",
    "archive",
    "clustering",
    "copy",
    "withdraw",
)


@dataclass
class Model:
    """The expected contents.

    `states` has, for each commit, its earliest event in epoch milliseconds and the rows after it. `versions` has the
    newest event and value of each key. `seen` has the expected rows of each published partition.
    """

    states: list[tuple[int, dict[str, int]]] = field(default_factory=list)
    versions: dict[str, tuple[str, int]] = field(default_factory=dict)
    seen: dict[str, dict[str, int]] = field(default_factory=dict)
    hours: int = 0
    number: int = 0

    def write(self, job: PublishJob, changes: list[tuple[str, int]]) -> None:
        """Upsert rows whose events are at an offset in hours from now; the newest event of a key wins."""
        self.number += 1
        self.hours += 6
        moments = {key: START + timedelta(hours=self.hours + min(shift, 0)) for key, shift in changes}
        batch = [(key, at.isoformat(), self.number) for key, at in moments.items()]
        job.table.upsert(rows_of(*batch))
        state = dict(self.states[-1][1]) if self.states else {}
        for key, at in moments.items():
            if key not in self.versions or at.isoformat() >= self.versions[key][0]:
                self.versions[key] = (at.isoformat(), self.number)
                state[key] = self.number
        earliest = int((min(moments.values()) - datetime(1970, 1, 1)).total_seconds() * 1000)
        self.states.append((earliest, state))

    def at(self, end_ms: int) -> dict[str, int]:
        """Return the state after the last commit that has an event before this time, in epoch milliseconds."""
        return next(state for earliest, state in reversed(self.states) if earliest < end_ms)


@examples(40)
@given(steps)
def test_published_partitions_keep_their_rows_on_copy_on_write(drawn: list[tuple[str, Any]]) -> None:
    _play(make_job({"retain": "0s"}, options=SERVICED), drawn)


@examples(40)
@given(steps)
def test_published_partitions_keep_their_rows_on_merge_on_read(drawn: list[tuple[str, Any]]) -> None:
    _play(make_job({"retain": "0s"}, options=SERVICED, table_type="MERGE_ON_READ"), drawn)


@examples(30)
@given(st.lists(st.tuples(st.sampled_from(_WITH_EXPIRY), st.integers(0, 40)), min_size=8, max_size=20))
def test_published_partitions_keep_their_rows_when_ttl_expires_them(drawn: list[tuple[str, int]]) -> None:
    job = make_job(
        {"partitions": "table", "ready": "signal", "retain": "0s"},
        options={**SERVICED, "lakehouse.ttl.max.partitions": "1"},
        partition_by=["day"],
    )
    days: dict[str, dict[str, int]] = {}
    seen: dict[str, dict[str, int]] = {}
    for number, (what, shift) in enumerate(drawn, 1):
        if what == "write":
            at = START + timedelta(hours=6 * number + shift)
            job.table.upsert(rows_of(("ab"[number % 2], at.isoformat(), number)))
            days.setdefault(f"day={at:%Y-%m-%d}", {})["ab"[number % 2]] = number
        elif what == "ttl":
            outcome = job.table.services.ttl.run() if days else None
            for partition in outcome.metadata.replaced if isinstance(outcome, Committed) else ():
                days.pop(f"day={partition}")
        elif what == "publish" and days:
            signal(job, [sorted(days)[shift % len(days)]])
            # Separate the times: a signal with the time of an earlier publication counts as handled by it.
            job.table.refresh().env.clock.sleep(1)
            seen |= {name: dict(days[name]) for name in run(job, engine=LocalEngine()).published}
        elif what == "copy" and seen:
            run(job, PublishRequest(names=(sorted(seen)[shift % len(seen)],), archive=True), engine=LocalEngine())
        elif what == "withdraw" and seen:
            name = sorted(seen)[shift % len(seen)]
            withdraw(job, [name])
            del seen[name]
        elif what in ("clean", "archive", "clustering") and days:
            _service(job, what)
        assert shown(job) == seen, f"after {what}"


def _play(job: PublishJob, drawn: list[tuple[str, Any]]) -> None:
    model = Model()
    for what, detail in drawn:
        published: tuple[str, ...] = ()
        if what == "write":
            model.write(job, detail)
        elif not model.states:
            continue
        elif what in ("publish", "copy"):
            published = _publish(job, model, PublishRequest(archive=what == "copy"))
        elif what == "again":
            published = _again(job, model, detail)
        elif what == "withdraw":
            names = sorted(model.seen)
            if names:
                gone = names[detail % len(names)]
                withdraw(job, [gone])
                del model.seen[gone]
        else:
            _service(job, what)
        _check(job, model, published)


def _publish(job: PublishJob, model: Model, request: PublishRequest) -> tuple[str, ...]:
    """Run a publication; return the partitions that it published."""
    try:
        done = run(job, request, engine=LocalEngine())
    except UserError as error:
        # Clean removed the version of a partition before its first publication. The run publishes the other partitions.
        assert "cleaned or rolled back before it was published" in str(error)
        found = shown(job)
        assert not set(error.facts["taken"]) & (set(found) - set(model.seen))
        return tuple(sorted(set(found) - set(model.seen)))
    return (*done.published, *done.archived)


def _again(job: PublishJob, model: Model, number: int) -> tuple[str, ...]:
    names = sorted(model.seen)
    if not names:
        return ()
    name = names[number % len(names)]
    del model.seen[name]
    try:
        done = run(job, PublishRequest(names=(name,), force=True), engine=LocalEngine())
    except UserError as error:
        # Clean or rollback removed the version of that event time; the partition keeps its rows.
        assert "cleaned or rolled back before it was published" in str(error)
        model.seen[name] = shown(job)[name]
        return ()
    return (*done.published, *done.archived)


def _service(job: PublishJob, name: str) -> None:
    services = job.table.services
    if name == "compaction" and not job.table.config.is_merge_on_read:
        return
    services.named(name).run(force=True)


def _check(job: PublishJob, model: Model, published: tuple[str, ...]) -> None:
    found = shown(job)
    for name in published:
        if name not in model.seen:
            end = datetime.fromisoformat(name.removeprefix("dt=")) + timedelta(days=1)
            model.seen[name] = model.at(int((end - datetime(1970, 1, 1)).total_seconds() * 1000))
    assert found == model.seen, f"after {published}"


def test_pointer_keeps_its_rows_through_all_services_and_becomes_a_copy() -> None:
    """Cover a sequence that random histories rarely reach."""
    job = make_job({"retain": "0s"}, options=SERVICED)
    model = Model()
    for _ in range(4):
        model.write(job, [("a", 0), ("b", 0)])
    published = run(job).published
    assert published
    _check(job, model, published)
    for _ in range(8):
        model.write(job, [("a", 0)])
        _check(job, model, run(job).published)
        for service in ("clustering", "clean", "archive"):
            _service(job, service)
            _check(job, model, ())
    archived = job.table.archived()
    pinned = job.metastore.partitions("sales", "orders", published)[0].parameters["lakehouse.instant"]
    assert archived.find(pinned) is not None or job.table.timeline.writes().find(pinned) is not None
    done = run(job, PublishRequest(archive=True), engine=LocalEngine())
    assert set(published) <= set(done.archived)
    _check(job, model, done.published + done.archived)
