"""Invariants of clean on random histories: retained versions read as before, and all unneeded files are deleted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.layout.registry import table_layout
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.load.listing import list_data_files
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.services.clean import last_clean
from lakehouse.core.planning.restore import slice_paths
from lakehouse.core.state.file_system_view import (
    DataFile,
    VisibleTimeline,
    all_slices,
    latest_slices,
    replacements,
    visible_timeline,
)
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.clean import CleanMetadata
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Action, Instant
from tests.support.merged_run import SERVICES, MergedRun, merged_histories, merged_shapes
from tests.support.model import Run, histories, read, read_incremental, shapes
from tests.support.tables import base_files, examples, log_files, make_table, strays

KINDS = ("COPY_ON_WRITE", "MERGE_ON_READ")
ASIDE = ("", "", "clean", "clean", "savepoint", "forget")


def start(data: st.DataObject, kind: str, index: str, retained: int) -> tuple[Run, Iterator[str]]:
    """Create a table that retains `retained` commits, and draw a history for it.

    Each item of the returned iterator applies the next write or service, and names the action that follows it.
    """
    options = {"hoodie.clean.commits.retained": str(retained)}
    if kind == "MERGE_ON_READ":
        shape = data.draw(merged_shapes(index=index, options=options))
        run: Run = MergedRun(make_table(shape), shape)
        verbs = data.draw(merged_histories(max_size=10))
    else:
        shape = data.draw(shapes(index=index, options=options))
        run = Run(make_table(shape), shape)
        verbs = data.draw(histories(max_size=10))

    def life() -> Iterator[str]:
        for verb in verbs:
            if isinstance(run, MergedRun) and verb.name in SERVICES:
                run.serve(verb.name)
            else:
                run.apply(verb)
            yield data.draw(st.sampled_from(ASIDE))
        yield "clean"

    return run, life()


def files_of(table: Table) -> set[str]:
    storage = table.refresh().env.storage
    return {file.path for file in (*base_files(storage), *log_files(storage))}


def views(loaded: LoadedTable, earliest: Instant) -> Iterator[VisibleTimeline]:
    """Yield every version within retention, and the versions directly before the earliest retained commit."""
    replaced = replacements(loaded.store.commits(loaded.timeline.writes().where(action=Action.REPLACECOMMIT)))
    for write in loaded.timeline.writes():
        if write.requested >= earliest.requested:
            yield visible_timeline(loaded.timeline, replaced, as_of=write.requested)
        if write.completion >= earliest.completion:
            yield visible_timeline(loaded.timeline, replaced, completed_up_to=write.completion)
    yield visible_timeline(loaded.timeline, replaced, as_of=str(int(earliest.requested) - 1))
    yield visible_timeline(loaded.timeline, replaced, completed_up_to=str(int(earliest.completion) - 1))


def naively_needed(loaded: LoadedTable, files: Iterable[DataFile], earliest: Instant) -> set[str]:
    """Return the paths of all slices that a view of `views` needs, and of file groups that were replaced within it.

    As in Hudi, a replaced file group is kept whole until its replacement is older than all views.
    """
    listed = list(files)
    needed: set[str] = set()
    for view in views(loaded, earliest):
        needed |= paths(latest_slices(listed, view, layout=table_layout(9)))
    replaced = replacements(loaded.store.commits(loaded.timeline.writes().where(action=Action.REPLACECOMMIT)))
    now = visible_timeline(loaded.timeline, replaced)
    whole: set[str] = set()
    for group, slices in all_slices(listed, now, layout=table_layout(9)).items():
        late = group in now.replaced and now.replaced[group].requested >= earliest.requested
        whole |= paths(s for s in slices if late or paths([s]) & needed)
    return whole


def paths(slices: Iterable[FileSlice]) -> set[str]:
    return {path for file_slice in slices for path in slice_paths(file_slice)}


def check_reads(run: Run, earliest: str, kept: Iterable[str]) -> None:
    """Assert that each retained or kept version reads as the model, and that an older one does so or is refused."""
    assert read(run.table) == run.model.snapshot()
    sure = set(kept)
    for instant in run.commits:
        try:
            found = read(run.table, as_of=instant.requested)
        except UserError as error:
            assert instant.requested < earliest and instant.requested not in sure, error
            continue
        assert found == run.model.at(as_of=instant.requested), instant.requested
    ends = [instant for instant in run.commits if instant.requested >= earliest]
    for end in ends[:1] + ends[-1:]:
        assert read_incremental(run.table, "earliest", end.completion) is not None


def check_files(run: Run, before: set[str], metadata: CleanMetadata, kept: set[str]) -> None:
    """Assert that the clean deleted exactly the files that no retained version needs."""
    loaded, after = run.table.refresh(), files_of(run.table)
    assert before - after == set(metadata.deleted)
    earliest = loaded.timeline.find(metadata.earliest)
    assert earliest is not None
    needed = naively_needed(loaded, list_data_files(loaded), earliest) | kept
    pending = {i.requested for i in loaded.timeline.where(pending=True)}
    assert {path for path in after - needed if not any(instant in path for instant in pending)} == set()


def kept_by_savepoints(table: Table) -> set[str]:
    loaded = table.refresh()
    named = {name for s in table.savepoints() for names in s.metadata.files.values() for name in names}
    replaced = replacements(loaded.store.commits(loaded.timeline.writes().where(action=Action.REPLACECOMMIT)))
    slices = all_slices(list_data_files(loaded), visible_timeline(loaded.timeline, replaced), layout=table_layout(9))
    found = [s for of_group in slices.values() for s in of_group]
    return paths(s for s in found if named & {path.rpartition("/")[2] for path in slice_paths(s)})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("index", ["SIMPLE", "BUCKET"])
@examples(12)
@given(data=st.data())
def test_clean_keeps_retained_versions_and_deletes_all_other_files(kind: str, index: str, data: st.DataObject) -> None:
    retained = data.draw(st.integers(1, 4))
    run, life = start(data, kind, index, retained)
    for aside in life:
        table, done = run.table, run.table.timeline.writes()
        if aside == "savepoint" and done:
            try:
                table.savepoint(data.draw(st.sampled_from(done.instants)).requested)
            except UserError as error:
                assert "that the clean" in str(error)
        elif aside == "forget" and table.savepoints():
            table.delete_savepoint(table.savepoints()[0].requested)
        elif aside == "clean":
            before = files_of(table)
            pins = [i.requested for i in done.instants[-retained - 2 :][:1]] if data.draw(st.booleans()) else []
            pinned = {pin: readable(table, pin) for pin in pins}
            outcome = table.services.clean.run(pinned=pins, force=True)
            last = last_clean(table.refresh())
            check_reads(run, last.earliest if last else "", [pin for pin, was in pinned.items() if was])
            if isinstance(outcome, NothingToDo):
                assert files_of(table) == before
            else:
                assert last is not None and not table.timeline.where(action=Action.CLEAN, pending=True)
                kept = kept_by_savepoints(table)
                if not pins:
                    check_files(run, before, last, kept)
            assert strays(table.refresh().env.storage) == []
            # A plan that lists all partitions, instead of the changed ones, finds nothing more to delete.
            full = Table.open(
                table.location,
                options={"hoodie.clean.commits.retained": str(retained), "hoodie.clean.incremental.enabled": "false"},
                env=table.refresh().env,
            )
            assert isinstance(full.services.clean.plan(force=True, pinned=pins), NothingToDo)


def readable(table: Table, instant: str) -> bool:
    try:
        read(table, as_of=instant)
    except UserError:
        return False
    return True


@pytest.mark.parametrize("kind", KINDS)
@examples(8)
@given(data=st.data())
def test_clean_by_file_versions_keeps_the_newest_rows_and_never_corrupts_old_reads(
    kind: str, data: st.DataObject
) -> None:
    run, life = start(data, kind, "SIMPLE", 1)
    versions = {
        "hoodie.clean.policy": "KEEP_LATEST_FILE_VERSIONS",
        "hoodie.clean.fileversions.retained": str(data.draw(st.integers(1, 3))),
    }
    for aside in life:
        if aside == "clean":
            table = Table.open(run.table.location, options=versions, env=run.table.refresh().env)
            table.services.clean.run(force=True)
            check_reads(run, "9" * 17, [])
            assert isinstance(table.services.clean.plan(force=True), NothingToDo)
