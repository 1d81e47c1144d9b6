"""Invariants of `combine`: it keeps one row per key, and its result does not depend on the order or split of rows."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.rows.deduplicate import combine
from lakehouse.model.merge import MergeMode, MergeRule
from tests.support.tables import examples

PLAIN = MergeRule(mode=MergeMode.COMMIT_TIME_ORDERING)
BY_TS = MergeRule(mode=MergeMode.EVENT_TIME_ORDERING, ordering=("ts",))
SCHEMA = pa.schema(
    [
        ("key", pa.string()),
        ("path", pa.string()),
        ("ts", pa.int64()),
        ("text", pa.string()),
        ("inner", pa.struct([("a", pa.int32()), ("b", pa.list_(pa.int32()))])),
        ("tags", pa.map_(pa.string(), pa.int32())),
    ]
)
small = st.integers(0, 2)
row = st.fixed_dictionaries(
    {
        "key": st.sampled_from(["a", "b", "c", "é"]),
        "path": st.sampled_from(["", "x"]),
        "ts": st.one_of(st.none(), small),
        "text": st.one_of(st.none(), st.sampled_from(["", "u", "v"])),
        "inner": st.one_of(
            st.none(),
            st.fixed_dictionaries({"a": st.one_of(st.none(), small), "b": st.one_of(st.none(), st.lists(small))}),
        ),
        "tags": st.one_of(st.none(), st.lists(st.tuples(st.sampled_from("mn"), small), max_size=2)),
    }
)
batches = st.lists(row, min_size=1, max_size=20)
keys_of = st.sampled_from([("key",), ("key", "path")])
rules = st.sampled_from([PLAIN, BY_TS])


def table(rows: list[dict[str, Any]]) -> pa.Table:
    """Return rows as a staged file holds them: in chunks, with a dictionary-encoded path."""
    half = len(rows) // 2
    parts = [pa.Table.from_pylist(part, schema=SCHEMA) for part in (rows[:half], rows[half:])]
    joined = pa.concat_tables(parts)
    return joined.set_column(1, "path", joined.column("path").dictionary_encode())


def content(rows: pa.Table) -> list[str]:
    """Return the rows as text in a canonical order."""
    return sorted(map(repr, rows.to_pylist()))


@examples(50)
@given(rows=batches, keys=keys_of, rule=rules, seed=st.integers(0, 99))
def test_combine_result_does_not_depend_on_row_order(
    rows: list[dict[str, Any]], keys: tuple[str, ...], rule: MergeRule, seed: int
) -> None:
    shuffled = random.Random(seed).sample(rows, len(rows))
    assert content(combine(table(rows), keys=keys, rule=rule)) == content(
        combine(table(shuffled), keys=keys, rule=rule)
    )


@examples(50)
@given(rows=batches, keys=keys_of, rule=rules, cut=st.integers(0, 20))
def test_combine_result_does_not_change_if_parts_are_combined_first(
    rows: list[dict[str, Any]], keys: tuple[str, ...], rule: MergeRule, cut: int
) -> None:
    parts = [part for part in (rows[:cut], rows[cut:]) if part]
    combined = pa.concat_tables([combine(table(part), keys=keys, rule=rule) for part in parts])
    once = combine(table(rows), keys=keys, rule=rule)
    assert content(combine(combined, keys=keys, rule=rule)) == content(once)


@examples(50)
@given(rows=batches, keys=keys_of, rule=rules)
def test_combine_keeps_one_row_per_key_with_the_greatest_ordering_value(
    rows: list[dict[str, Any]], keys: tuple[str, ...], rule: MergeRule
) -> None:
    kept = combine(table(rows), keys=keys, rule=rule).to_pylist()
    identities = [tuple(row[key] for key in keys) for row in kept]
    assert len(set(identities)) == len(identities)
    assert set(identities) == {tuple(row[key] for key in keys) for row in rows}
    if rule.ordering:
        for survivor in kept:
            rivals = [row["ts"] for row in rows if all(row[key] == survivor[key] for key in keys)]
            known = [ts for ts in rivals if ts is not None]
            assert survivor["ts"] == (max(known) if known else None)


@examples(30)
@given(rows=batches, keys=keys_of)
def test_combine_is_idempotent(rows: list[dict[str, Any]], keys: tuple[str, ...]) -> None:
    once = combine(table(rows), keys=keys, rule=BY_TS)
    assert combine(once, keys=keys, rule=BY_TS).equals(once)
