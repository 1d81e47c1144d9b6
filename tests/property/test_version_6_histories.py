"""Random histories of writes, services and undo operations on tables of version 6, compared with a model.

After each step the metadata table equals the files of the table.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.write import write
from lakehouse.core.table.table import Table
from lakehouse.model.instant import Action
from tests.support.metadata_check import check_metadata
from tests.support.model import Run, histories, shapes
from tests.support.tables import KEYS, Shape, examples, make_env, make_table

#: Version 6 stores no types of partition columns, and ordering columns decide with every payload class.
KEYS_OF_6 = sorted(name for name in KEYS if name != "custom")
MERGES_OF_6 = ("event", "commit")
#: A compaction of the metadata table after few commits, so that histories contain several.
METADATA = {
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.compact.max.delta.commits": "3",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.metadata.index.bloom.filter.enable": "true",
    "hoodie.clean.commits.retained": "1",
}
RECORD_INDEX = {
    "hoodie.metadata.global.record.level.index.enable": "true",
    "hoodie.metadata.global.record.level.index.min.filegroup.count": "2",
}
ARCHIVE = {"hoodie.keep.min.commits": "2", "hoodie.keep.max.commits": "3"}
SCHEMA = pa.schema([("id", pa.string()), ("p", pa.string()), ("ts", pa.int64()), ("v", pa.string())])


def of_version_6(data: st.DataObject, shape: Shape) -> Shape:
    keys, merge = data.draw(st.sampled_from(KEYS_OF_6)), data.draw(st.sampled_from(MERGES_OF_6))
    options = {**shape.options, **METADATA, **(RECORD_INDEX if shape.is_global else {})}
    return replace(shape, version=6, keys=keys, merge=merge, options=options)


@pytest.mark.parametrize("index", ["SIMPLE", "GLOBAL_SIMPLE", "BUCKET", "BLOOM"])
@examples(6)
@given(data=st.data())
def test_copy_on_write_table_equals_the_model_after_each_step(index: str, data: st.DataObject) -> None:
    shape = of_version_6(data, data.draw(shapes(index=index)))
    run = Run(make_table(shape), shape)
    for verb in data.draw(histories()):
        run.step(verb)
        check_metadata(run.table)
    run.compare_incremental(run.commits)
    run.table.services.clean.run(force=True)
    run.table.with_options(ARCHIVE).services.archive.run(force=True)
    check_metadata(run.table)


class Killed(BaseException):
    """Ends a write before its commit, as a killed process does."""


class MergedHistory:
    """A merge-on-read table of version 6, its rows as a dict, and the rows after each commit that can be restored."""

    def __init__(self, options: dict[str, str]) -> None:
        self.env = make_env()
        named: dict[str, Any] = {"name": "t", "record_key": "id", "partition_by": "p", "ordering": "ts"}
        self.options = options
        options = {"hoodie.write.table.version": "6", **options}
        Table.create(self.env.storage.root, **named, table_type="MERGE_ON_READ", options=options, env=self.env)
        self.rows: dict[str, tuple[int, str]] = {}
        self.states: list[tuple[str, dict[str, tuple[int, str]]]] = []
        self.clock = 0

    @property
    def table(self) -> Table:
        return Table.open(self.env.storage.root, options=self.options, env=self.env)

    def batch(self, ids: list[str]) -> pa.Table:
        self.clock += 1
        rows = [{"id": i, "p": i[0], "ts": self.clock, "v": f"{i} {self.clock}"} for i in ids]
        return pa.Table.from_pylist(rows, schema=SCHEMA)

    def commit(self, outcome: object, rows: dict[str, tuple[int, str]]) -> None:
        if isinstance(outcome, Committed):
            self.rows = rows
            self.states.append((outcome.instant.requested, rows))

    def upsert(self, ids: list[str]) -> None:
        rows = self.batch(ids)
        after = self.rows | {r["id"]: (r["ts"], r["v"]) for r in rows.to_pylist()}
        self.commit(self.table.upsert(rows), after)

    def delete(self, ids: list[str]) -> None:
        keys = self.batch(ids).select(["id", "p"])
        self.commit(self.table.delete(keys), {key: value for key, value in self.rows.items() if key not in ids})

    def fail(self, ids: list[str]) -> None:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(write, "complete_commit", lambda *_: (_ for _ in ()).throw(Killed()))
            patch.setattr(write, "abandon", lambda *_: False)
            try:
                self.table.upsert(self.batch(ids))
            except Killed:
                for file in self.env.storage.list(".hoodie/.heartbeat"):
                    self.env.storage.delete(file.path)

    def plan(self, _ids: list[str]) -> None:
        self.table.services.compaction.schedule(force=True)

    def compact(self, _ids: list[str]) -> None:
        self.commit(self.table.services.compaction.run(force=True), self.rows)

    def cluster(self, _ids: list[str]) -> None:
        self.commit(self.table.services.clustering.run(force=True), self.rows)

    def purge(self, _ids: list[str]) -> None:
        """Delete old versions; states before them cannot be restored."""
        self.table.services.clean.run(force=True)
        self.states = self.states[-1:]

    def archive(self, _ids: list[str]) -> None:
        self.table.with_options(ARCHIVE).services.archive.run(force=True)
        self.states = self.states[-1:]

    def clean(self, _ids: list[str]) -> None:
        self.table.rollback_failed()

    def undo(self, _ids: list[str]) -> None:
        """Roll back the newest write if it is not a service."""
        newest = self.table.timeline.writes().by_completion()[-1:]
        operations = {instant.requested: metadata.operation for instant, metadata in self.table.commits()}
        pending = [i for i in self.table.timeline if not i.is_completed]
        if newest and not pending and operations[newest[0].requested] in ("UPSERT", "DELETE") and len(self.states) > 1:
            self.table.rollback(newest[0].requested)
            self.states.pop()
            self.rows = self.states[-1][1]

    def restore(self, ids: list[str]) -> None:
        """Restore one of the newest states."""
        back = min(len(ids) + 1, len(self.states))
        if back > 1 and not any(i.action is Action.CLUSTERING and not i.is_completed for i in self.table.timeline):
            target, rows = self.states[-back]
            self.table.restore(target, force=True)
            self.rows, self.states = rows, self.states[: len(self.states) - back + 1]

    def check(self) -> None:
        read = self.table.scan(["id", "ts", "v"]).to_arrow().to_pylist()
        assert sorted((r["id"], (r["ts"], r["v"])) for r in read) == sorted(self.rows.items())
        check_metadata(self.table)


STEPS = ("upsert", "upsert", "upsert", "delete", "fail", "plan", "compact", "cluster", "undo", "restore", "clean")
SERVICES = ("purge", "archive")


@pytest.mark.parametrize("index", ["SIMPLE", "BUCKET", "GLOBAL_SIMPLE", "RECORD_INDEX"])
@examples(24)
@given(data=st.data())
def test_merge_on_read_table_equals_a_dict_after_each_step(index: str, data: st.DataObject) -> None:
    buckets = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
    first = {"lakehouse.bucket.inserts": data.draw(st.sampled_from(["base", "log"]))}
    sort = {"hoodie.clustering.plan.strategy.sort.columns": "v"}
    chosen = buckets if index == "BUCKET" else {"hoodie.index.type": index, **RECORD_INDEX}
    history = MergedHistory({**METADATA, **sort, **first, **({} if index == "SIMPLE" else chosen)})
    ids = st.lists(st.sampled_from(["a1", "a2", "a3", "b1", "b2"]), min_size=1, max_size=3, unique=True)
    history.upsert(data.draw(ids))
    for _ in range(data.draw(st.integers(3, 10))):
        getattr(history, data.draw(st.sampled_from(STEPS + SERVICES)))(data.draw(ids))
        history.check()
    history.clean([])
    history.compact([])
    history.check()
    assert history.table.validate(deep=True).corrupt == ()
