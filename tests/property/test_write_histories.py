"""Random histories of writes, compared with a model that is a plain dict; each step compares every kind of query."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.model import Run, Shape, Verb, histories, shapes
from tests.support.tables import examples, make_table


@pytest.mark.parametrize("index", ["SIMPLE", "GLOBAL_SIMPLE", "BUCKET"])
@examples(12)
@given(data=st.data())
def test_table_equals_the_model_after_each_step(index: str, data: st.DataObject) -> None:
    shape: Shape = data.draw(shapes(index=index))
    run = Run(make_table(shape), shape)
    history: list[Verb] = data.draw(histories())
    for verb in history:
        run.step(verb)
    run.compare_incremental(run.commits)


@examples(12)
@given(shape=shapes(), history=histories())
def test_table_equals_the_model_when_inserts_repeat_keys(shape: Shape, history: list[Verb]) -> None:
    run = Run(make_table(shape), shape, unique=False)
    for verb in history:
        run.step(verb)
