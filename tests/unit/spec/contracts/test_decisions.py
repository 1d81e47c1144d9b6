"""Contracts of scheduler decisions: each is decoded to the value that was encoded."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lakehouse.spec.contracts.decisions import (
    DecisionReason,
    DueServices,
    RecordedDecision,
    RecordedRun,
    ServiceDecision,
    ServiceExplanation,
    ServiceState,
    ServiceStates,
    SpecInForce,
    TableExplanation,
    TableHealth,
    TablesHealth,
)
from lakehouse.spec.contracts.document import Document

names = st.text(max_size=5)
numbers = st.dictionaries(names, st.floats(0, 1e6), max_size=2)
inputs = st.dictionaries(names, st.integers() | names | st.none() | st.lists(names, max_size=2), max_size=2)
decisions = st.builds(
    ServiceDecision,
    table=names,
    service=names,
    due=st.booleans(),
    runs_now=st.booleans(),
    requested=st.booleans(),
    code=st.sampled_from(DecisionReason),
    reason=names,
    inputs=inputs,
    predicted=numbers,
)
batches = st.lists(st.lists(names, max_size=2).map(tuple), max_size=2).map(tuple)
explanations = st.builds(
    ServiceExplanation,
    settings=inputs,
    decision=st.none()
    | st.builds(RecordedDecision, at=names, due=st.booleans(), runs_now=st.booleans(), reason=names, inputs=inputs),
    active_run=st.none() | names,
    requests=st.lists(inputs, max_size=2).map(tuple),
    last_runs=st.lists(st.builds(RecordedRun, run=names, state=names, at=names), max_size=2).map(tuple),
)
specs = st.builds(
    SpecInForce, spec_version=st.none() | st.integers(), author=names, file=st.none() | names, since=names
)
states = st.builds(
    ServiceState, table=names, service=names, due=st.none() | st.booleans(), last_run=names, at=names, reason=names
)
health = st.builds(TableHealth, table=names, freshness_lag_s=st.none() | st.floats(0, 1e6), error=st.none() | names)
documents = (
    st.builds(
        DueServices,
        decisions=st.lists(decisions, max_size=2).map(tuple),
        batches=st.dictionaries(names, batches, max_size=2),
    )
    | st.builds(TableExplanation, table=names, spec=specs, services=st.dictionaries(names, explanations, max_size=2))
    | st.builds(ServiceStates, services=st.lists(states, max_size=2).map(tuple))
    | st.builds(TablesHealth, tables=st.lists(health, max_size=2).map(tuple))
)


@given(document=documents)
def test_decision_contract_round_trips_through_json(document: Document) -> None:
    assert type(document).from_json(document.to_json()) == document
