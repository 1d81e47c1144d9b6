"""The file system view: a reader gets each committed log file exactly once, during any writes and compactions."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.layout.registry import table_layout
from lakehouse.core.state.file_system_view import all_slices, latest_slices, read_optimized, visible_timeline
from lakehouse.model.files import BaseFile, LogFile
from lakehouse.model.instant import Action, Instant, State, Timeline
from tests.support.merged_groups import MergedGroups
from tests.support.tables import examples

GROUPS = ("g", "h", "i")
#: Steps of a history: the verb, the index of the pending instant that completes, and the file groups of a write.
STEPS = st.lists(
    st.tuples(
        st.sampled_from(("write", "write", "complete", "complete", "compact")),
        st.integers(0, 7),
        st.lists(st.sampled_from(GROUPS), unique=True, min_size=1),
    ),
    max_size=30,
)


def run(steps: list[tuple[str, int, list[str]]]) -> MergedGroups:
    """Run a history; check the result of a read after each step."""
    table, pending = MergedGroups(), list[Instant]()
    for verb, number, groups in steps:
        if verb == "write":
            pending.append(table.request(Action.DELTACOMMIT, groups))
        elif verb == "compact":
            planned = table.plan()
            pending += [planned[0]] if planned else []
        elif pending:
            table.complete(pending.pop(number % len(pending)))
        assert table.read() == table.committed()
    return table


@given(STEPS)
@examples(150)
def test_view_reads_each_committed_log_file_once_for_any_interleaving(
    steps: list[tuple[str, int, list[str]]],
) -> None:
    table = run(steps)
    times = sorted({time for i in table.timeline for time in (i.requested, i.completed) if time})
    for time in times:
        assert table.read(as_of=time) == table.committed(as_of=time)
        assert table.read(completed_up_to=time) == table.committed(completed_up_to=time)


@given(STEPS)
@examples(50)
def test_view_puts_each_committed_file_into_exactly_one_slice(steps: list[tuple[str, int, list[str]]]) -> None:
    table = run(steps)
    visible = visible_timeline(table.timeline, ())
    groups = all_slices(table.files, visible, layout=table_layout(9))
    placed = [f.path for found in groups.values() for s in found for f in (*((s.base,) if s.base else ()), *s.logs)]
    assert sorted(placed) == sorted(f.path for f in table.files if visible.shows(f.instant))
    for found in groups.values():
        starts = [s.base_instant for s in found]
        assert starts == sorted(set(starts), reverse=True)
        assert all(s.base is not None for s in found[:-1])
        assert all(list(s.logs) == sorted(s.logs, key=lambda log: log.instant) for s in found)
    latest = latest_slices(reversed(table.files), visible, layout=table_layout(9))
    assert latest == tuple(found[0] for found in groups.values())
    assert read_optimized(latest) == tuple(replace(s, logs=()) for s in latest if s.base)


@st.composite
def version_6_histories(draw: st.DrawFn) -> tuple[Timeline, list[BaseFile | LogFile], dict[str, set[str]]]:
    """Draw a file group of table version 6: its timeline, its files, and the delta commits in each file.

    A compaction is planned while no write is pending. Log files that are written after its request have its instant in
    their names.
    """
    instants: list[Instant] = []
    files: list[BaseFile | LogFile] = []
    content: dict[str, set[str]] = {}
    name, compacting, version = "", "", 0
    verbs = draw(st.lists(st.sampled_from(("write", "write", "plan", "complete")), max_size=15))
    for clock, verb in enumerate(verbs):
        time = f"20260101{clock:09}"
        if verb == "write":
            name, version = name or time, version + 1
            log = LogFile(partition="p", file_id="g", instant=name, version=version, write_token="0-0-0")
            files.append(log)
            content[log.name] = {time}
            instants.append(Instant(requested=time, action=Action.DELTACOMMIT, state=State.COMPLETED))
        elif verb == "plan" and name and not compacting:
            base = BaseFile(partition="p", file_id="g", write_token="0-0-0", instant=time)
            content[base.name] = {i.requested for i in instants if i.action is Action.DELTACOMMIT}
            files.append(base)
            instants.append(Instant(requested=time, action=Action.COMPACTION, state=State.INFLIGHT))
            name, compacting, version = time, time, 0
        elif verb == "complete" and compacting:
            instants = [i for i in instants if i.requested != compacting]
            instants.append(Instant(requested=compacting, action=Action.COMMIT, state=State.COMPLETED))
            compacting = ""
    return Timeline(tuple(instants)), files, content


@given(version_6_histories())
@examples(100)
def test_view_of_version_6_reads_each_write_once_during_and_after_a_compaction(
    history: tuple[Timeline, list[BaseFile | LogFile], dict[str, set[str]]],
) -> None:
    timeline, files, content = history
    for as_of in (None, *(instant.requested for instant in timeline)):
        visible = visible_timeline(timeline, (), as_of=as_of)
        slices = latest_slices(files, visible, layout=table_layout(6))
        names = [f.name for s in slices for f in (*((s.base,) if s.base else ()), *s.logs)]
        # The log reader skips blocks of later instants.
        read = sorted(time for name in names for time in content[name] if as_of is None or time <= as_of)
        wrote = timeline.where(action=Action.DELTACOMMIT, requested_up_to=as_of)
        assert read == [instant.requested for instant in wrote]
        assert len(slices) <= 1
