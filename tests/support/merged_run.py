"""Random histories of merge-on-read tables: writes with compactions that are planned and executed between them.

`MergedRun` compares each read with two references: a model of the operations, and the naive reader of the table's
files. The model is a plain dict for an index that looks keys up, and `BucketLogs` for the bucket index.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field

import pytest
from hypothesis import strategies as st

from lakehouse.core.files.log import slice_log_merge as slice_log
from lakehouse.core.index.hash.bucket import bucket_of
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.load.pending import pending_compactions
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.model.instant import Instant
from tests.support.layers import BucketLogs
from tests.support.model import VERBS, Model, Read, Row, Run, Verb, as_read, read, read_incremental, rows, shapes, verbs
from tests.support.naive import COMMIT_TIME, KEY, PATH, NaiveReader, counted
from tests.support.tables import SCHEMA, Shape, check_storage

SERVICES = ("plan compaction", "run compaction", "compact", "plan log compaction", "run log compaction")
COLUMNS = (PATH, KEY, COMMIT_TIME, *SCHEMA.names)


@contextmanager
def tiny_parts() -> Iterator[None]:
    """Limit the memory of readers so that even small logs are spilled to local files."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(slice_log, "_MIN_PART_BYTES", 512)
        patch.setitem(slice_context.__kwdefaults__, "budget", 2_000)
        yield


@dataclass(slots=True)
class MergedRun(Run):
    """A merge-on-read table, its model, and the groups of each pending plan by the plan's requested time."""

    plans: dict[str, frozenset[tuple[str, str]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.model = BucketLogs(self.shape) if self.shape.index == "BUCKET" else Model(self.shape)

    def step(self, verb: Verb) -> None:
        """Apply one operation or service and compare the reads that end at it."""
        before = len(self.commits)
        if verb.name in SERVICES:
            self.serve(verb.name)
        else:
            self.apply(verb)
        check_storage(self.table, unique=self.unique, plans=self.plans)
        self.compare_snapshots(verb.name)
        self.compare_bases(verb.name)
        if len(self.commits) > before:
            self.compare_incremental(ends=self.commits[-1:])

    def serve(self, name: str) -> None:
        """Schedule a compaction or log compaction, or execute the oldest plan, or both."""
        logs_only, services = "log" in name, self.table.services
        if name.startswith("plan"):
            planned = services.named("logcompaction" if logs_only else "compaction").schedule(force=True)
            if isinstance(planned, Instant):
                self.note_plan(planned.requested, logs_only=logs_only)
            elif not logs_only:
                assert not self.with_logs() - self.held(), planned.reason
            return
        before = self.with_logs() - self.held()
        outcome = services.log_compaction.run() if logs_only else services.compaction.run(force=name == "compact")
        if isinstance(outcome, NothingToDo):
            return
        self.note_run(outcome, before, logs_only=logs_only)

    def note_plan(self, requested: str, *, logs_only: bool = False) -> None:
        """Record a plan in the model; a compaction plan must contain each group that has logs and no other plan."""
        expected = self.with_logs() - self.held()
        self.plans[requested] = self.planned_groups(requested)
        if not logs_only:
            assert self.plans[requested] == expected
            self.add_plan_to_model(requested)

    def note_run(self, outcome: Committed, before: frozenset[tuple[str, str]], *, logs_only: bool) -> None:
        """Record an executed plan in the model; a plan without a record was scheduled by the same call."""
        requested = outcome.instant.requested
        groups = frozenset((stat.partition, stat.file_id) for stat in outcome.metadata.stats)
        if requested not in self.plans and not logs_only:
            assert groups == before
            self.plans[requested] = groups
            self.add_plan_to_model(requested)
        assert self.plans.pop(requested, groups) == groups
        if isinstance(self.model, BucketLogs):
            self.model.carried_out(outcome.instant)
        self.commits.append(outcome.instant)

    def add_plan_to_model(self, requested: str) -> None:
        """Add the groups of a plan to the model if the table has a bucket index."""
        if isinstance(self.model, BucketLogs):
            held = self.plans[requested]
            self.model.planned(requested, [(partition, bucket_of(file_id)) for partition, file_id in held])

    def held(self) -> frozenset[tuple[str, str]]:
        """Return the groups of pending plans."""
        return frozenset(group for groups in self.plans.values() for group in groups)

    def with_logs(self) -> frozenset[tuple[str, str]]:
        """Return the groups whose latest slice has logs."""
        return frozenset(where for where, group in NaiveReader(self.table).groups.items() if group.logs)

    def planned_groups(self, requested: str) -> frozenset[tuple[str, str]]:
        """Return the groups of a pending plan on the timeline."""
        found = pending_compactions(self.table.refresh())
        return frozenset(group for group, instant in found.items() if instant == requested)

    def compare_snapshots(self, last: str) -> None:
        """Compare the latest rows with the model and the files, and the rows of some commits with the model."""
        assert read(self.table) == self.model.snapshot(), last
        for instant in {*self.commits[:1], *self.commits[-2:]}:
            self.compare_past(instant, last)
        assert counted(NaiveReader(self.table).snapshot(), COLUMNS) == self.model.snapshot(), last

    def compare_past(self, instant: Instant, last: str) -> None:
        """Compare the rows as of a commit with the model."""
        expected = self.model.at(as_of=instant.requested)
        assert read(self.table, as_of=instant.requested) == expected, ("as of", instant.requested, last)

    def finish(self) -> None:
        """Compare the rows of each commit, and the changes up to every second commit."""
        for instant in self.commits:
            self.compare_past(instant, "all")
        self.compare_incremental(self.commits[::2])

    def compare_bases(self, last: str) -> None:
        """Compare the read-optimized rows."""
        found = as_read(self.table.scan(read_optimized=True).to_arrow())
        assert found == counted(NaiveReader(self.table).read_optimized(), COLUMNS), last
        if isinstance(self.model, BucketLogs):
            assert found == self.model.read_optimized(), last
        if last == "compact" and not self.with_logs():
            assert found == self.model.snapshot(), "after a full compaction the base files contain all rows"

    def compare_incremental(self, ends: Sequence[Instant]) -> None:
        """Compare the changes up to each of `ends` from three starts: the first, a middle and the previous commit."""
        for end in ends:
            files, seen = NaiveReader(self.table, upto=end.completion), self.model.at(upto=end.completion)
            done = [instant for instant in self.commits if instant.completion <= end.completion]
            done.sort(key=lambda instant: instant.completion)
            for number in sorted({0, len(done) // 2, len(done) - 1}):
                begin = "000" if number == 0 else done[number - 1].completion
                found = read_incremental(self.table, "earliest" if number == 0 else begin, end.completion)
                assert found == counted(files.incremental(begin), COLUMNS), ("incremental", begin, end.completion)
                if isinstance(self.model, BucketLogs):
                    # An incremental read merges without older entries, which may have overruled a delete in the range.
                    continue
                wanted = {instant.requested for instant in done[number:]}
                changed: Counter[Read] = Counter({row: n for row, n in seen.items() if row[2] in wanted})
                assert changed <= found, ("incremental", begin, end.completion)


def merged_shapes(**fixed: object) -> st.SearchStrategy[Shape]:
    """Return random shapes of merge-on-read tables; `fixed` fields keep their values."""
    return shapes(type="MERGE_ON_READ", **fixed)


def meeting_rows() -> st.SearchStrategy[Row]:
    """Return random rows, most of them in one partition, so that equal keys occur with each key generator."""
    near = rows(partitions=("a", "a", "a", "b/c d=ü")).map(lambda row: row | {"region": "eu", "at": 0})
    return st.one_of(near, near, near, rows())


def merged_histories(max_size: int = 8) -> st.SearchStrategy[list[Verb]]:
    """Return random histories that start with a write of rows; upserts and services occur most often."""
    many = st.lists(meeting_rows(), min_size=6, max_size=16).map(tuple)
    first = st.builds(Verb, name=st.sampled_from(["insert", "bulk_insert", "upsert"]), rows=many)
    upserts = verbs(names=("upsert", "delete"), row=meeting_rows())
    services = st.builds(Verb, name=st.sampled_from(SERVICES))
    others = verbs(names=VERBS[1:], row=meeting_rows())
    rest = st.lists(st.one_of(upserts, upserts, services, services, others), min_size=2, max_size=max_size)
    return st.builds(lambda verb, more: [verb, *more], first, rest)
