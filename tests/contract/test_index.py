"""One suite for all indexes: the same history gives the same rows, whoever finds the keys.

A key never changes its partition here; what indexes do then differs by design and is tested with the model.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.operations.commit.results import Committed
from tests.support.model import Model, Shape, Verb, apply_verb, histories, rows, shapes
from tests.support.tables import batch, data_rows, examples, make_table, row

INDEXES = ({"index": "SIMPLE"}, {"index": "GLOBAL_SIMPLE"}, {"index": "BUCKET", "buckets": 3})


def settled(values: dict[str, Any]) -> dict[str, Any]:
    """The row with everything that makes its partition following from its id."""
    number = int(values["id"][1:])
    return values | {"p": ("a", None)[number % 2], "region": ("eu", "us")[number % 2], "at": 86_400_000 * (number % 3)}


@examples(8)
@given(shape=shapes(), history=histories(5, row=rows().map(settled)))
def test_indexes_agree_on_every_history(shape: Shape, history: list[Verb]) -> None:
    tables = [make_table(replace(shape, **choice)) for choice in INDEXES]
    models = [Model(replace(shape, **choice)) for choice in INDEXES]
    for verb in history:
        for table, model in zip(tables, models, strict=True):
            apply_verb(table, model, verb, unique=False)
        found = [data_rows(table) for table in tables]
        assert found[0] == found[1] == found[2], verb.name


@pytest.mark.parametrize("choice", INDEXES, ids=lambda choice: choice["index"])
def test_an_update_rewrites_only_the_groups_that_hold_its_keys(choice: dict[str, Any]) -> None:
    table = make_table(Shape(rows_per_file=2, fills_small_files=False, **choice))
    table.upsert(batch(row(f"k{number}") for number in range(12)))
    groups = {stat.file_id for _, metadata in table.commits() for stat in metadata.stats}
    outcome = table.upsert(batch([row("k3", ts=2, v="new")]))
    assert isinstance(outcome, Committed)
    (stat,) = outcome.metadata.stats
    assert stat.file_id in groups
    assert (stat.num_updates, stat.num_inserts, stat.num_deletes) == (1, 0, 0)
    assert data_rows(table, ["id"], where="v = 'new'") == [{"id": "k3"}]


@pytest.mark.parametrize("choice", INDEXES, ids=lambda choice: choice["index"])
def test_a_deleted_key_can_come_back(choice: dict[str, Any]) -> None:
    table = make_table(Shape(**choice))
    table.upsert(batch([row("k1", ts=9), row("k2")]))
    table.delete(["k1"])
    assert data_rows(table, ["id"]) == [{"id": "k2"}]
    table.upsert(batch([row("k1", ts=1)]))
    assert data_rows(table, ["id", "ts"]) == [{"id": "k1", "ts": 1}, {"id": "k2", "ts": 1}]


@given(data=st.data())
@examples(10)
def test_what_a_lookup_finds_does_not_depend_on_memory(data: st.DataObject) -> None:
    shape: Shape = data.draw(shapes())
    history = data.draw(histories(3, names=("upsert", "delete", "insert")))
    tables = [make_table(replace(shape, budget=budget)) for budget in (64 << 20, 1_000)]
    for verb in history:
        for table in tables:
            apply_verb(table, Model(shape), verb, unique=False)
    assert data_rows(tables[0]) == data_rows(tables[1])
