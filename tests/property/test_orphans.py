"""No file that a reader of any version needs is an orphan, whichever version of Hudi named it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.layout.registry import table_layout
from lakehouse.core.planning.orphans import Found, Needs, committed_paths, needed_paths, plan_orphans
from lakehouse.core.state.file_system_view import DataFile, all_slices, duplicates, first_write, visible_timeline
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.files import BaseFile, LogFile
from lakehouse.model.instant import Action, Instant, State, Timeline
from tests.support.tables import examples

TIMES = [f"202601010000{number:02}000" for number in range(10)]
ACTIONS = [Action.COMMIT, Action.DELTACOMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT, Action.COMPACTION]
files_drawn = st.lists(
    st.builds(
        lambda group, time, version, token: (
            LogFile(partition="p", file_id=group, instant=time, version=version, write_token=token)
            if version
            else BaseFile(partition="p", file_id=group, instant=time, write_token=token)
        ),
        st.sampled_from(["g-0", "h-0"]),
        st.sampled_from(TIMES),
        st.integers(0, 3),
        st.sampled_from(["0-0-0", "1-1-1"]),
    ),
    max_size=20,
).map(lambda files: list({file.path: file for file in files}.values()))


@st.composite
def timelines(draw: st.DrawFn) -> Timeline:
    """Draw completed writes and pending compactions."""
    instants = []
    for number, requested in enumerate(TIMES):
        if draw(st.booleans()):
            continue
        action = draw(st.sampled_from(ACTIONS))
        done = action is not Action.COMPACTION
        completed = str(int(draw(st.sampled_from(TIMES[number:]))) + 1) if done else None
        state = State.COMPLETED if done else State.REQUESTED
        instants.append(Instant(requested=requested, action=action, state=state, completed=completed))
    return Timeline(tuple(instants))


def commit_of(instant: Instant, files: list[DataFile], named: set[str]) -> CommitMetadata:
    """Return a commit that names the chosen files with its instant in their names."""
    stats = [
        WriteStat(partition=file.partition, file_id=file.file_id, path=file.path)
        for file in files
        if file.path in named and file.instant == instant.requested
    ]
    return CommitMetadata(operation="UPSERT", stats=tuple(stats))


@given(files=files_drawn, timeline=timelines(), choice=st.data())
@examples(300)
def test_orphans_are_in_no_slice_of_any_version(
    files: list[DataFile], timeline: Timeline, choice: st.DataObject
) -> None:
    named = set(choice.draw(st.lists(st.sampled_from([file.path for file in files])))) if files else set()
    commits = {write.requested: commit_of(write, files, named) for write in timeline.writes()}
    candidates = plan_orphans(
        [Found(path=file.path, size_bytes=1, modified_ms=0, data=file) for file in files],
        timeline,
        lambda write: commits[write.requested],
        archived_before=first_write(timeline),
        protected=(),
        older_than_ms=1,
    )
    paths = {candidate.path for candidate in candidates}
    suspects = [file for file in files if file.path in paths]
    settled = {
        (stat.partition, stat.file_id, requested): frozenset(
            other.path.rpartition("/")[2] for other in metadata.stats if other.file_id == stat.file_id
        )
        for requested, metadata in commits.items()
        if requested in duplicates(files, layout=table_layout(9))
        for stat in metadata.stats
    }

    def logs(**bounds: str) -> set[str]:
        slices = all_slices(files, visible_timeline(timeline, (), **bounds), layout=table_layout(9), named=settled)
        return {log.path for pieces in slices.values() for piece in pieces for log in piece.logs}

    services = {Action.COMMIT, Action.REPLACECOMMIT, Action.COMPACTION}
    needs = Needs(
        sliced=logs(),
        committed=frozenset[str]().union(*map(committed_paths, commits.values())),
        planned=(),
        bases={(file.partition, file.file_id, file.instant) for file in files if isinstance(file, BaseFile)},
        services={instant.requested for instant in timeline.where(action=services)},
    )
    orphans = paths - needed_paths(suspects, needs)
    for write in timeline.writes():
        assert not orphans & logs(as_of=write.requested), write
        assert not orphans & logs(completed_up_to=write.completion), write
    for metadata in commits.values():
        assert not orphans & committed_paths(metadata)
