"""Versions and watermarks by event time, compared with a model that knows all events.

A commit of a tracking writer also records a summary of the commits before it. The tests check that summary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.planning.event_time import (
    decode_past,
    event_commit,
    event_time_metadata,
    find_version,
    known_past,
    milliseconds,
    moved,
    spares_older,
    time_of,
    watermark_of,
)
from lakehouse.core.table.table import Table
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.instant import Action, Instant, State
from tests.support.archived import EAGERLY
from tests.support.tables import SCHEMA, Shape, batch, examples, make_table, row

LATENESS = 2
TIMES = st.integers(0, 12)
TRACKED = {"hoodie.payload.event.time.field": "at"}
DAY = datetime(2025, 3, 1, tzinfo=UTC)


@dataclass(frozen=True)
class Write:
    """One write.

    Attributes:
        events: The event times of its rows.
        untimed: The number of rows without event time.
        tracks: Whether the writer tracks event times.
        source: The name of its source.
        unseen: The number of newest commits that the writer did not see.
    """

    events: tuple[int, ...] = ()
    untimed: int = 0
    tracks: bool = True
    source: str = "a"
    unseen: int = 0


writes = st.builds(
    Write,
    events=st.lists(TIMES, max_size=3).map(tuple),
    untimed=st.sampled_from((0, 0, 0, 1)),
    tracks=st.sampled_from((True, True, True, False)),
    source=st.sampled_from("ab"),
    unseen=st.integers(0, 2),
)
histories = st.lists(writes, max_size=9)


def committed(history: Sequence[Write]) -> list[tuple[Instant, CommitMetadata]]:
    """Return the commits of a history. A writer that does not track records no event times."""
    found: list[tuple[Instant, CommitMetadata]] = []
    for number, write in enumerate(history):
        seen = found[: max(number - write.unseen, 0)]
        events = write.events if write.tracks else ()
        times = (min(events), max(events)) if events else None
        rows = len(write.events) + write.untimed
        stat = WriteStat(partition="p", file_id="f", path="p/f.parquet", num_inserts=rows, event_time=times)
        extra = {}
        if write.tracks:
            past = known_past(reversed(seen))
            marks = moved(past, write.source, max(events, default=None), LATENESS)
            newest = max((instant.completion for instant, _ in seen), default="")
            extra = event_time_metadata(replace(past, up_to=newest), marks)
        instant = Instant(
            requested=f"{number * 2:017d}",
            action=Action.COMMIT,
            state=State.COMPLETED,
            completed=f"{number * 2 + 1:017d}",
        )
        found.append((instant, CommitMetadata(operation="UPSERT", stats=(stat,) if rows else (), extra=extra)))
    return found


def recorded_times(write: Write) -> tuple[int, ...]:
    """Return the event times that the commit of a write records."""
    return write.events if write.tracks else ()


def is_untimed(write: Write) -> bool:
    """Return whether a write has rows whose event times are not recorded."""
    return not write.tracks and bool(write.events or write.untimed)


def longest(history: Sequence[Write], at: int) -> int:
    """Return how many writes the version before time `at` holds.

    It is the longest prefix of the history whose last timed write has an event before `at`.
    """

    def ends_before(prefix: Sequence[Write]) -> bool:
        timed = [write for write in prefix if recorded_times(write)]
        return not timed or any(time < at for time in recorded_times(timed[-1]))

    return max(n for n in range(len(history) + 1) if ends_before(history[:n]))


@examples(300)
@given(history=histories, at=TIMES)
def test_version_by_event_time_equals_the_model(history: list[Write], at: int) -> None:
    commits = committed(history)
    found = find_version([event_commit(*pair) for pair in commits], at)
    held = longest(history, at)
    prefix = history[:held]
    assert found.instant == (commits[held - 1][0] if held else None)
    clean = all(time < at for write in prefix for time in recorded_times(write)) and not any(map(is_untimed, prefix))
    assert found.is_clean == clean
    later = [n for n, write in enumerate(history) if any(time >= at for time in recorded_times(write))]
    assert found.first_later == (commits[later[0]][0] if later else None)
    outside = [time for write in history[held:] for time in recorded_times(write)]
    assert all(time >= at for time in outside), "the version misses an event before its time"


@examples(300)
@given(history=histories)
def test_commit_summary_equals_all_event_times_and_watermarks_of_the_model(history: list[Write]) -> None:
    commits = committed(history)
    known = known_past(reversed(commits))
    events = [time for write in history for time in recorded_times(write)]
    assert known.greatest == max(events, default=None)
    assert known.untimed == any(map(is_untimed, history))
    expected: dict[str, datetime] = {}
    for write in history:
        if recorded_times(write):
            seen = time_of(max(recorded_times(write)) - LATENESS)
            expected[write.source] = max(seen, expected.get(write.source, seen))
    assert known.watermarks == expected
    assert watermark_of(known.watermarks).value == min(expected.values(), default=None)
    both = watermark_of(known.watermarks, ("a", "b")).value
    assert (both is None) == (len(expected) < 2)


@examples(300)
@given(history=st.lists(writes, min_size=5, max_size=9), at=st.integers(5, 14), archived=st.integers(1, 4))
def test_active_timeline_gives_the_same_version_when_archived_commits_are_not_needed(
    history: list[Write], at: int, archived: int
) -> None:
    commits = committed(history)
    moved_out, remaining = commits[:archived], commits[archived:]
    active = [event_commit(*pair) for pair in remaining]
    summary = next(((instant, past) for instant, metadata in remaining if (past := decode_past(metadata))), None)
    if summary is None or any(instant.completion > summary[1].up_to for instant, _ in moved_out):
        return
    if spares_older(active, at, summary[0].completion, summary[1]):
        assert find_version(active, at, summary[1]) == find_version([event_commit(*pair) for pair in commits], at)


TIMED = pa.schema([f if f.name != "at" else pa.field("at", pa.timestamp("us", "UTC")) for f in SCHEMA])


@examples(12)
@given(
    days=st.lists(st.lists(TIMES, min_size=1, max_size=3), min_size=1, max_size=7),
    merge_on_read=st.booleans(),
    archive_after=st.integers(0, 6),
)
def test_read_by_event_time_returns_the_rows_of_the_model(
    days: list[list[int]], merge_on_read: bool, archive_after: int
) -> None:
    table: Table = make_table(Shape(type="MERGE_ON_READ" if merge_on_read else "COPY_ON_WRITE"), schema=TIMED)
    table = table.with_options({**TRACKED, **EAGERLY})
    for number, times in enumerate(days):
        rows = [row(f"{number}-{n}", at=DAY + timedelta(hours=time)) for n, time in enumerate(times)]
        table.insert(batch(rows, TIMED))
        if number == archive_after:
            table.services.archive.run()
    history = [Write(events=tuple(times)) for times in days]
    for at in range(14):
        moment = DAY + timedelta(hours=at)
        held = longest(history, at)
        expected = sorted(f"{number}-{n}" for number in range(held) for n in range(len(days[number])))
        assert sorted(table.scan(["id"], as_of_event_time=moment).to_arrow().column("id").to_pylist()) == expected
        version = table.version_at(moment)
        assert version.is_clean == all(time < at for times in days[:held] for time in times)
    newest = max(time for times in days for time in times)
    assert table.watermark().value == DAY + timedelta(hours=newest)
    assert milliseconds(DAY) == int(DAY.timestamp()) * 1000
