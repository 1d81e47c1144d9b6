"""The columnar file system view equals the view on objects, for any timeline and any files."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.file_names import parse_base_file, parse_cdc_file, parse_log_file
from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.layout.registry import table_layout
from lakehouse.core.state.columnar_view import (
    NAMED,
    all_columns,
    duplicate_instants,
    latest_columns,
    unplaced_instants,
)
from lakehouse.core.state.data_files import data_files, file_objects, file_paths, files_table, listing_of
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.core.state.file_system_view import (
    DataFile,
    Replaced,
    VisibleTimeline,
    all_slices,
    duplicates,
    latest_slices,
    read_optimized,
    unplaced,
    visible_timeline,
)
from lakehouse.errors import UnsupportedError
from lakehouse.model.files import BaseFile, LogFile
from lakehouse.model.instant import Action, Instant, State, Timeline
from tests.support.tables import examples

times = st.sampled_from([f"2026010100000{number:02}00" for number in range(12)] + ["20260101000005"])
partitions = st.sampled_from(["", "a", "a/b", "é=1", "day=2026-01-01"])
groups = st.sampled_from(["g-0", "g-1", "h-0"])
tokens = st.sampled_from(["0-0-0", "1-0-1", "10-2-3", "2-0-0"])


@st.composite
def data_file(draw: st.DrawFn) -> DataFile:
    """Draw a base file, a log file or a change log."""
    partition, file_id, instant, token = draw(partitions), draw(groups), draw(times), draw(tokens)
    size = draw(st.integers(0, 2**40))
    if draw(st.booleans()):
        return BaseFile(partition=partition, file_id=file_id, write_token=token, instant=instant, size_bytes=size)
    return LogFile(
        partition=partition,
        file_id=file_id,
        instant=instant,
        version=draw(st.integers(1, 12)),
        write_token=token,
        size_bytes=size,
        suffix=draw(st.sampled_from(["", "", "", ".cdc"])),
    )


@st.composite
def views(draw: st.DrawFn) -> VisibleTimeline:
    """Draw a timeline with bounds, replaced groups and archived completions."""
    instants = []
    for requested in draw(st.lists(times, unique=True, max_size=8)):
        action = draw(st.sampled_from([Action.COMMIT, Action.DELTACOMMIT, Action.REPLACECOMMIT, Action.COMPACTION]))
        done = draw(st.booleans()) and action is not Action.COMPACTION
        completed = max(requested, draw(times)) if done else None
        state = State.COMPLETED if done else State.INFLIGHT
        instants.append(Instant(requested=requested, action=action, state=state, completed=completed))
    writes = [instant for instant in instants if instant.is_completed]
    replacing = draw(st.lists(st.tuples(partitions, groups, st.sampled_from(writes)), max_size=3)) if writes else []
    replaced = [Replaced(partition=p, file_id=g, instant=i) for p, g, i in replacing]
    bounds = draw(st.sampled_from([{}, {"as_of": draw(times)}, {"completed_up_to": draw(times)}]))
    visible = visible_timeline(Timeline(tuple(instants)), replaced, **bounds)
    archived = {time: max(time, later) for time, later in draw(st.dictionaries(times, times, max_size=4)).items()}
    return replace(visible, archived=archived)


def unique(files: list[DataFile]) -> list[DataFile]:
    return list({file.path: file for file in files}.values())


files_drawn = st.lists(data_file(), max_size=30).map(unique)


@given(files=files_drawn, visible=views(), layout=st.sampled_from([table_layout(6), table_layout(9)]), names=st.data())
@examples(300)
def test_columnar_view_equals_the_view_on_objects(
    files: list[DataFile], visible: VisibleTimeline, layout: TableLayout, names: st.DataObject
) -> None:
    if names.draw(st.booleans()):
        files = sorted(files, key=lambda file: (file.partition, file.file_id))
    several = names.draw(st.lists(st.sampled_from(files), max_size=4)) if files else []
    named: dict[tuple[str, str, str], frozenset[str]] = {}
    for file in several:
        other = names.draw(st.sampled_from([file.name, "lost.parquet"]))
        key = (file.partition, file.file_id, file.instant)
        named[key] = named.get(key, frozenset()) | {other}
    rows = [(*key, name) for key, listed in named.items() for name in sorted(listed)]
    columns = pa.Table.from_pylist([dict(zip(NAMED.names, row, strict=True)) for row in rows], schema=NAMED)
    table = files_table(files)
    expected = all_slices(files, visible, layout=layout, named=named)
    found = all_columns(table, visible, layout=layout, named=columns)
    assert found.slices == [piece for slices in expected.values() for piece in slices]
    assert found.first.tolist() == [i == 0 for slices in expected.values() for i in range(len(slices))]
    replaced = [group in visible.replaced for group, slices in expected.items() for _ in slices]
    assert found.replaced.tolist() == replaced
    also = {group for group in expected if group[1] == "h-0"}
    kept = {g: s for g, s in expected.items() if len(s) > 1 or g in visible.replaced or g in also}
    assert found.removable(also) == kept
    latest = latest_slices(files, visible, layout=layout, named=named)
    assert latest_columns(table, visible, layout=layout, named=columns) == latest
    assert duplicate_instants(table, layout=layout) == duplicates(files, layout=layout)
    assert unplaced_instants(table, visible, layout=layout) == unplaced(files, visible, layout=layout)


@given(files=files_drawn, visible=views(), numbers=st.data())
@examples(100)
def test_file_slices_behave_as_a_sequence_of_slices(
    files: list[DataFile], visible: VisibleTimeline, numbers: st.DataObject
) -> None:
    expected = latest_slices(files, visible, layout=table_layout(9))
    found = latest_columns(files_table(files), visible, layout=table_layout(9))
    assert (len(found), list(found), found == expected) == (len(expected), list(expected), True)
    assert FileSlices.of(expected) == found == pickle.loads(pickle.dumps(found))
    assert found.base_only() == read_optimized(expected)
    assert found.partitions.to_pylist() == [piece.partition for piece in expected]
    assert found.file_ids.to_pylist() == [piece.file_id for piece in expected]
    assert found.base_instants.to_pylist() == [piece.base_instant for piece in expected]
    assert found.log_counts.tolist() == [len(piece.logs) for piece in expected]
    assert found.has_base.tolist() == [piece.base is not None for piece in expected]
    base_sizes = [piece.base.size_bytes if piece.base else 0 for piece in expected]
    assert found.base_sizes.tolist() == base_sizes
    sizes = [size + piece.total_log_bytes for size, piece in zip(base_sizes, expected, strict=True)]
    assert (found.sizes.tolist(), found.bytes) == (sizes, sum(sizes))
    chosen = numbers.draw(st.lists(st.booleans(), min_size=len(expected), max_size=len(expected)))
    assert found.filter(pa.array(chosen, pa.bool_())) == [p for p, keep in zip(expected, chosen, strict=True) if keep]
    if expected:
        number = numbers.draw(st.integers(-len(expected), len(expected) - 1))
        assert found[number] == expected[number]
        assert found[number:] == expected[number:]
    with pytest.raises(IndexError):
        found[len(expected)]


_odd = st.sampled_from("._-/0a1\n é=")
_pieces = st.sampled_from(
    ["g-0", "_", "1-0-1", "_", "20260101000000000", ".parquet", ".orc", ".log.", "1", ".cdc", ".", "\n", "é", "x"]
)
_names = st.one_of(
    data_file().map(lambda file: file.name),
    st.lists(_pieces, max_size=9).map("".join),
    st.tuples(data_file(), _odd, st.integers(0, 60)).map(lambda t: t[0].name[: t[2]] + t[1] + t[0].name[t[2] :]),
)


@given(st.lists(st.tuples(partitions, _names.filter(lambda name: name and "/" not in name)), max_size=12))
@examples(300)
def test_data_files_parses_names_as_the_parsers_of_single_names(found: list[tuple[str, str]]) -> None:
    paths = [f"{partition}/{name}" if partition else name for partition, name in found]
    listing = listing_of(paths, range(len(paths)))
    assert listing.column("partition").to_pylist() == [partition for partition, _ in found]
    try:
        expected = [
            file
            for size, (partition, name) in enumerate(found)
            for parse in (parse_base_file, parse_log_file, parse_cdc_file)
            if (file := parse(name, partition, size)) is not None
        ]
    except UnsupportedError:
        with pytest.raises(UnsupportedError, match="no write token"):
            data_files(listing)
        return
    parsed = data_files(listing)
    assert [replace(f, size_bytes=f.size_bytes) for f in file_objects(parsed)] == expected
    assert file_paths(parsed).to_pylist() == [paths[file.size_bytes] for file in expected]


def test_instants_are_not_compared_where_each_group_has_one_file() -> None:
    files = files_table(
        BaseFile(partition=f"p{number:03d}", file_id=f"f{number}-0", write_token="0-0-0", instant="20260101000000000")
        for number in range(50)
    )
    assert duplicate_instants(files.drop_columns(["instant"]), layout=table_layout(9)) == frozenset()
    twice = pa.concat_tables([files.slice(0, 1), files])
    assert duplicate_instants(twice, layout=table_layout(9)) == frozenset()
    other = files_table([BaseFile(partition="p000", file_id="f0-0", write_token="1-1-1", instant="20260101000000000")])
    assert duplicate_instants(pa.concat_tables([other, files]), layout=table_layout(9)) == {"20260101000000000"}
