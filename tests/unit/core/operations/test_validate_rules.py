"""Validation rules on values: timelines, files of commits, unique keys within the memory budget."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from lakehouse.core.files.keys.key_uniqueness import KeyTask, check_keys
from lakehouse.core.files.log.slice_validation import CheckContext
from lakehouse.core.format.file_names import parse_instant
from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.layout.registry import table_layout
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.core.planning.validate import check_files, check_timeline
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.instant import Action, Instant, State
from tests.support.killed import batch, create

V6, V9 = table_layout(6), table_layout(9)


def instant(text: str) -> Instant:
    found = parse_instant(text)
    assert found is not None
    return found


def test_check_timeline_finds_each_violation() -> None:
    t1, t2, t3 = "20260101000000000", "20260102000000000", "20260103000000000"
    legal = [f"{t1}.commit.requested", f"{t1}.inflight", f"{t1}_{t2}.commit", f"{t1}.savepoint.inflight"]

    def broken(*more: str, layout: TableLayout = V9, is_upgraded: bool = False) -> set[tuple[str, str]]:
        names, archived = (*legal, *more), {(t3, Action.CLEAN)}
        found = check_timeline([instant(name) for name in names], archived, layout=layout, is_upgraded=is_upgraded)
        return {(finding.invariant, finding.instant) for finding in found}

    assert broken() == set()
    assert broken(f"{t1}.clean.requested") == {("timeline.unique", t1)}
    assert broken(f"{t1}_{t3}.commit") == {("timeline.unique", t1)}
    assert broken(f"{t2}.clean.inflight") == {("timeline.requested", t2)}
    assert broken(f"{t2}.clean.inflight", layout=V6) == set()
    assert broken(f"{t2}.clean.requested", f"{t2}_{t1}.clean") == {("timeline.order", t2)}
    assert broken(f"{t3}.clean.requested", f"{t3}_{t3}9.clean") == {("timeline.archived", t3)}
    other = "20260101120000000"
    same = (f"{other}.commit.requested", f"{other}_{t2}.commit")
    assert broken(*same) == {("timeline.unique", other)}
    assert broken(*same, is_upgraded=True) == {("timeline.completions", other)}
    assert State.COMPLETED in {instant(name).state for name in legal}


def test_check_files_compares_commits_with_sizes() -> None:
    times = ("20260101000000000", "20260102000000000", "20260103000000000")
    base, later, log = "p/f_0-0-0_1.parquet", "p/f_0-0-0_2.parquet", "p/.f_1.log.1_0-0-0"

    def commit(number: int, path: str, **more: Any) -> tuple[Instant, CommitMetadata]:
        at = Instant(requested=times[number], action=Action.COMMIT, state=State.COMPLETED, completed=times[number])
        stat = WriteStat(partition="p", file_id="f", path=path, size_bytes=10)
        return at, CommitMetadata(operation="UPSERT", stats=(replace(stat, **more),) if path else ())

    def findings(sizes: dict[str, int], gone: Iterable[str] = (), layout: TableLayout = V9) -> set[tuple[str, str]]:
        found = check_files(commits, sizes, set(gone), layout=layout)
        return {(finding.invariant, finding.path) for finding in found}

    commits = [commit(0, base), commit(1, log, cdc_files={"p/c.cdc": 5}), commit(2, later)]
    there = {base: 10, log: 10, later: 10, "p/c.cdc": 5}
    assert findings(there) == set()
    assert findings({**there, log: 11, base: 9}) == {("file.size", log), ("file.size", base)}
    assert findings({**there, log: 11, base: 9}, layout=V6) == {("file.size", base)}, (
        "logs of version 6 are appended to"
    )
    assert findings({**there, log: 9}, layout=V6) == {("file.size", log)}
    without = {path: size for path, size in there.items() if path not in (base, "p/c.cdc")}
    assert findings(without) == {("file.present", base), ("file.present", "p/c.cdc")}
    assert findings(without, gone=[base, log]) == set(), "a clean removed them, and change logs with their file"
    assert findings({base: 10, log: 10, "p/c.cdc": 5}, layout=V6) == {("file.present", later)}
    assert findings({later: 10, "p/c.cdc": 5}, layout=V6) == set(), "an archived clean may have removed them"


def test_number_of_passes_over_keys_depends_on_the_memory_budget() -> None:
    storage = MemoryStorage()
    table = create(storage, "LOGS_SIMPLE")
    keys = {("a", f"k{number:05}"): 1 for number in range(5_000)}
    table.bulk_insert(batch(keys))
    table.upsert(batch({("a", "k00007"): 2}))
    table.bulk_insert(batch({("a", "k00007"): 3, ("a", "k04711"): 3}))
    loaded = table.refresh()
    schema = table.schema
    for budget in (1 << 30, 40_000):
        context = CheckContext(read=slice_context(loaded, schema, budget=budget), layout=V9)
        task = KeyTask(slices=load_slices(loaded), rows=5_002)
        (finding,) = check_keys(context, Attempt(partition=0, stage=0, number=0), task)
        assert "k00007" in finding.problem or "k04711" in finding.problem
        assert "(2 times)" in finding.problem
    clean = KeyTask(slices=load_slices(loaded)[:1], rows=5_002)
    assert check_keys(context, Attempt(partition=0, stage=0, number=0), clean) == ()
