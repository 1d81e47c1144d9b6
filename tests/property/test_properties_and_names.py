"""Property tests of properties files and of instant names: they round trip."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.file_names import parse_instant
from lakehouse.core.format.properties import parse_properties, render_properties
from lakehouse.core.layout.registry import table_layout
from lakehouse.model.instant import Action, Instant, State

TEXT = st.text(st.characters(exclude_categories=("Cs",)))
TIMES = st.integers(0, 10**17 - 1).map(lambda n: f"{n:017d}")
COMPLETED = sorted(set(Action) - {Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING})


@given(st.dictionaries(TEXT, TEXT), st.lists(TEXT, max_size=2))
def test_properties_round_trip(values: dict[str, str], comments: list[str]) -> None:
    assert parse_properties(render_properties(values, comments=comments)) == values


@given(TIMES, TIMES, st.sampled_from(COMPLETED))
def test_names_of_completed_instants_round_trip(requested: str, completed: str, action: Action) -> None:
    instant = Instant(requested=requested, action=action, state=State.COMPLETED, completed=completed)
    assert parse_instant(table_layout(9).instant_name(instant)) == instant


@given(TIMES, st.sampled_from(sorted(set(Action) - {Action.SAVEPOINT})), st.sampled_from(list(State)[:2]))
def test_names_of_pending_instants_round_trip(requested: str, action: Action, state: State) -> None:
    instant = Instant(requested=requested, action=action, state=state)
    assert parse_instant(table_layout(9).instant_name(instant)) == instant
