"""Random histories of writes and services on merge-on-read tables; each step compares every kind of query."""

from __future__ import annotations

from contextlib import nullcontext

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.merged_run import MergedRun, merged_histories, merged_shapes, tiny_parts
from tests.support.model import Shape, Verb
from tests.support.tables import examples, make_table


@pytest.mark.parametrize("index", ["SIMPLE", "GLOBAL_SIMPLE", "BUCKET"])
@examples(10)
@given(data=st.data())
def test_merge_on_read_table_equals_the_model_after_each_step(index: str, data: st.DataObject) -> None:
    shape: Shape = data.draw(merged_shapes(index=index))
    run = MergedRun(make_table(shape), shape)
    history: list[Verb] = data.draw(merged_histories())
    with tiny_parts() if shape.budget < 10_000 else nullcontext():
        for verb in history:
            run.step(verb)
        run.finish()


@examples(10)
@given(shape=merged_shapes(index="BUCKET"), history=merged_histories())
def test_bucket_table_equals_the_model_when_one_key_has_several_rows(shape: Shape, history: list[Verb]) -> None:
    run = MergedRun(make_table(shape), shape, unique=False)
    for verb in history:
        run.step(verb)
    run.finish()
