"""The archive boundary: commits with savepoints stay on the timeline after their neighbours are archived."""

from __future__ import annotations

from lakehouse.core.state.file_system_view import first_write
from lakehouse.model.instant import Action, Instant, State, Timeline

T1, T2, T3 = (f"2026010100000{n}000" for n in (1, 2, 3))


def done(requested: str, action: Action = Action.COMMIT) -> Instant:
    return Instant(requested=requested, action=action, state=State.COMPLETED, completed=requested[:-1] + "5")


def test_archive_boundary_is_the_first_write_without_savepoint() -> None:
    assert first_write(Timeline((done(T1), done(T1, Action.SAVEPOINT), done(T2), done(T3)))) == T2


def test_archive_boundary_is_the_newest_write_if_all_have_savepoints() -> None:
    saved = (done(T1), done(T1, Action.SAVEPOINT), done(T2), done(T2, Action.SAVEPOINT))
    assert first_write(Timeline(saved)) == T2


def test_archive_boundary_is_empty_without_writes() -> None:
    assert first_write(Timeline((done(T1, Action.CLEAN),))) == ""
