"""Key matches do not depend on how the lookup divides the staged rows: rows, order and counts are the same."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.files.keys.key_lookup import entry_parts
from lakehouse.core.files.keys.key_matches import (
    IN_PLACE,
    LOST,
    MOVED_OUT,
    MatchCollector,
    Matches,
    read_matches,
    stream_matches,
)
from lakehouse.core.index.write_tasks import StagedEntry, fingerprint_of
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.model.attempt import Attempt
from lakehouse.model.files import BaseFile
from lakehouse.spec.options.write import WritePolicy
from tests.support.tables import examples
from tests.unit.core.files.test_staging import context

BASE = BaseFile(partition="x", file_id="f", write_token="1-0-1", instant="20260101000000000")
ATTEMPT = Attempt(partition=0, stage=0, number=0)


def entries_of(sizes: list[tuple[int, int]]) -> tuple[StagedEntry, ...]:
    """Return entries of two alternating runs and two partitions. Each pair of `sizes` is (upserts, deletes)."""
    offsets, entries = {"a": 0, "b": 0}, []
    for number, (upserts, deletes) in enumerate(sizes):
        run = "ab"[number % 2]
        rows = upserts + deletes
        partition = "xy"[number // 2 % 2]
        entries.append(
            StagedEntry(run=run, partition=partition, bucket=-1, offset=offsets[run], rows=rows, deletes=deletes)
        )
        offsets[run] += rows
    return tuple(entries)


@given(
    st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), min_size=1, max_size=6),
    st.integers(1, 40_000),
    st.integers(0, 2**32 - 1),
)
@examples(60)
def test_key_matches_do_not_depend_on_the_parts_of_the_lookup(
    sizes: list[tuple[int, int]], budget: int, seed: int
) -> None:
    entries, rng = entries_of(sizes), np.random.default_rng(seed)
    staged = [(e, e.offset + i) for e in entries for i in range(e.rows)]
    touched = [pair for pair in staged if rng.random() < 0.7]
    base_row = rng.permutation(3 * len(staged))[: len(touched)]
    kind = rng.choice([IN_PLACE, MOVED_OUT, LOST], len(touched))
    task_context = context(storage=MemoryStorage(), policy=WritePolicy(memory_budget_bytes=budget))
    with MatchCollector(task_context, entries) as found:
        for part in entry_parts(entries, budget):
            mine = [
                n
                for n, (e, row) in enumerate(touched)
                if any(p.run == e.run and p.offset <= row < p.offset + p.rows for p in part)
            ]
            mine.sort(key=lambda n: base_row[n])
            found.add(
                Matches(
                    base_row=base_row[mine].astype(np.int64),
                    run=np.array([("b", "a").index(touched[n][0].run) for n in mine], np.int64),
                    row=np.array([touched[n][1] for n in mine], np.int64),
                    kind=kind[mine].astype(np.int8),
                    runs=("b", "a"),
                )
            )
        result = found.write(ATTEMPT, BASE)
    assert result.matched_rows == sum(k != LOST for k in kind)
    wanted: dict[str, int] = {}
    for (entry, row), k in zip(touched, kind, strict=True):
        if k != MOVED_OUT and row < entry.offset + entry.upserts:
            wanted[entry.partition] = wanted.get(entry.partition, 0) + 1
    assert (result.consumed or {}) == wanted
    rows = {
        (e, row) for (e, row), k in zip(touched, kind, strict=True) if k != MOVED_OUT and row < e.offset + e.upserts
    }
    prints = {
        name: fingerprint_of(replace(e, offset=row, rows=1, deletes=0) for e, row in rows if e.partition == name)
        for name in wanted
    }
    assert (result.fingerprints or {}) == prints
    if not touched:
        assert result.matches_file is None
        return
    assert result.matches_file is not None
    matches = read_matches(task_context, result.matches_file)
    expected = sorted((int(b), e.run, r, int(k)) for b, (e, r), k in zip(base_row, touched, kind, strict=True))
    runs = [matches.runs[n] for n in matches.run]
    assert (
        list(zip(matches.base_row.tolist(), runs, matches.row.tolist(), matches.kind.tolist(), strict=True)) == expected
    )
    assert sum(len(chunk) for chunk in stream_matches(task_context, result.matches_file)) == len(touched)


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 5)), min_size=1, max_size=6), st.integers(1, 5_000))
@examples(60)
def test_entry_parts_hold_every_row_once_within_the_budget(sizes: list[tuple[int, int]], budget: int) -> None:
    entries = entries_of(sizes)
    parts = list(entry_parts(entries, budget, 20))
    limit = max(int(budget * 3 // 4 * 3 / 8 / (2 * 20 + 72)), 1)
    assert all(sum(e.rows for e in part) <= limit for part in parts)
    rows = [(e.run, e.partition, e.offset + i, i < e.upserts) for part in parts for e in part for i in range(e.rows)]
    assert rows == [(e.run, e.partition, e.offset + i, i < e.upserts) for e in entries for i in range(e.rows)]
