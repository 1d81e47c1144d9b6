"""The decoder on recorded events: rows as the server printed them, and errors for everything that is not right."""

from __future__ import annotations

import random
import struct
import zlib
from collections.abc import Iterator
from dataclasses import replace

import pyarrow as pa
import pytest

from lakehouse.errors import CorruptLogError, LakehouseError, UnsupportedError
from lakehouse.platform.sources.binlog import events
from lakehouse.platform.sources.binlog.changes import CONTROL, ChangeBatch, DecodedLog, SchemaEvent
from lakehouse.platform.sources.binlog.decoder import Decoder
from tests.support.binlog import Recording, rows_of
from tests.support.fuzz import mutated
from tests.support.type_matrix import differences

ROWS = {**events.WRITE_ROWS, **events.UPDATE_ROWS, **events.DELETE_ROWS}


@pytest.fixture(scope="module", params=["mysql", "mariadb"])
def recording(request: pytest.FixtureRequest) -> Recording:
    """Events of MySQL in the first run of a test, of MariaDB in the second."""
    return Recording.load(request.param)


def decoded(recording: Recording, given: list[bytes] | None = None) -> DecodedLog:
    """Return what a decoder makes of events; of those of the recording by default."""
    decoder = recording.decoder()
    for event in recording.events if given is None else given:
        decoder.feed(event)
    return decoder.take()


def kind_of(event: bytes) -> int:
    """Return the type of an event."""
    return event[4]


def without_checksum(event: bytes) -> bytes:
    """Return an event as a server without checksums writes it."""
    if kind_of(event) == events.ROTATE and not events.ends_with_checksum(event):
        return event
    body = bytearray(event[:-4])
    if kind_of(event) == events.FORMAT_DESCRIPTION:
        # This event always has four bytes for a checksum, and before them the algorithm.
        body = bytearray(event)
        body[-5] = 0
    return resized(bytes(body))


def resized(event: bytes) -> bytes:
    """Return an event with its size in its header."""
    return event[:9] + struct.pack("<I", len(event)) + event[13:]


def signed(event: bytes) -> bytes:
    """Return an event with a right size and a right checksum instead of its last four bytes."""
    body = resized(event)[:-4]
    return body + struct.pack("<I", zlib.crc32(body))


def test_recorded_events_give_the_rows_that_the_server_printed(recording: Recording) -> None:
    state: dict[int, int] = {}
    batches = []
    for change in decoded(recording).changes:
        if isinstance(change, ChangeBatch) and change.table.table == "t":
            batches.append(change)
    (batch,) = batches
    for place, (kind, row) in enumerate(rows_of(batch)):
        if kind == "delete":
            del state[row["id"]]
        else:
            state[row["id"]] = place
    rows = batch.rows.take(pa.array(sorted(state.values())))
    assert len(recording.columns) > 80 and len(state) == len(recording.rows) == 4
    assert differences(batch.columns, rows, {int(row["id"]): row for row in recording.rows}) == []


def test_recorded_changes_of_a_key_and_of_columns_come_in_order(recording: Recording) -> None:
    found: list[object] = []
    for change in decoded(recording).changes:
        if isinstance(change, SchemaEvent):
            found.append(f"{change.kind} {change.table.table}")
        elif change.table.table == "k":
            assert change.key == ("a", "b")
            found += [(kind, *(str(value) for value in row.values())) for kind, row in rows_of(change)]
    assert [one for one in found if one not in ("create t", "create k")] == [
        ("insert", "1", "x", "one"),
        ("insert", "2", "y", "None"),
        ("insert", "3", "z", "three"),
        ("delete", "1", "x", "None"),
        ("insert", "11", "x", "one"),
        ("delete", "2", "y", "None"),
        ("insert", "12", "y", "None"),
        "alter k",
        ("update", "3", "2026-01-02 03:04:05.678901", "z", "three"),
        "truncate k",
        ("insert", "5", "None", "v", "five"),
        "rename k",
        "drop l",
    ]


def test_ordering_values_grow_and_are_the_same_in_every_batch_size(recording: Recording) -> None:
    def places(each: bool) -> Iterator[tuple[int, object]]:
        decoder = recording.decoder()
        for event in recording.events:
            decoder.feed(event)
            if each and decoder.at_border:
                yield from changes_of(decoder)
        yield from changes_of(decoder)

    def changes_of(decoder: Decoder) -> Iterator[tuple[int, object]]:
        for change in decoder.take().changes:
            if isinstance(change, SchemaEvent):
                yield change.position, (change.kind, change.table)
                continue
            rows = zip(change.rows["_position"].to_pylist(), rows_of(change), strict=True)
            yield from ((place, (change.table, str(row))) for place, row in rows)

    single = list(places(True))
    assert [place for place, _ in single] == sorted({place for place, _ in single})
    assert recording.start.order < single[0][0]
    assert sorted(places(False), key=lambda one: one[0]) == single


def test_open_transaction_is_left_out(recording: Recording) -> None:
    last = max(n for n, event in enumerate(recording.events) if kind_of(event) == events.XID)
    decoder = recording.decoder()
    for event in recording.events[:last]:
        decoder.feed(event)
    assert not decoder.at_border
    taken = decoder.take()
    rows = [row for change in taken.changes if isinstance(change, ChangeBatch) for row in rows_of(change)]
    assert 6 not in [row["id"] for _, row in rows if "id" in row]
    begin = max(n for n, event in enumerate(recording.events[:last]) if kind_of(event) == events.XID)
    before = decoded(recording, recording.events[: begin + 1])
    assert taken.position == before.position
    assert rows == [row for change in before.changes if isinstance(change, ChangeBatch) for row in rows_of(change)]


def test_events_without_checksums_give_the_same_changes(recording: Recording) -> None:
    plain = decoded(recording, [without_checksum(event) for event in recording.events])
    assert _rows(plain) == _rows(decoded(recording))


def _rows(log: DecodedLog) -> list[object]:
    return [
        (change.kind, change.table)
        if isinstance(change, SchemaEvent)
        else (change.table, str(change.rows.drop_columns(["_position"]).to_pylist()))
        for change in log.changes
    ]


def test_every_changed_bit_is_found_by_the_checksum(recording: Recording) -> None:
    rng = random.Random(7)
    for number, event in enumerate(recording.events):
        if kind_of(event) in (events.ROTATE, events.FORMAT_DESCRIPTION):
            continue
        damaged = bytearray(event)
        damaged[rng.randrange(len(event))] ^= 1 << rng.randrange(8)
        with pytest.raises(CorruptLogError):
            decoded(recording, [*recording.events[:number], bytes(damaged)])


def test_rows_that_are_cut_off_are_an_error_even_with_a_right_checksum(recording: Recording) -> None:
    checked = 0
    for number, event in enumerate(recording.events):
        if kind_of(event) not in ROWS:
            continue
        decoder = recording.decoder()
        for before in recording.events[:number]:
            decoder.feed(before)
        rows = decoder.rows
        decoder.feed(event)
        is_single = decoder.rows == rows + 1
        step = max(1, len(event) // 12)
        for cut in range(1, len(event) - events.HEADER_BYTES - 12, step):
            again = recording.decoder()
            for before in recording.events[:number]:
                again.feed(before)
            shorter = signed(event[: len(event) - cut])
            if is_single:
                with pytest.raises(LakehouseError):
                    again.feed(shorter)
                checked += 1
    assert checked > 40


def test_damaged_events_with_right_checksums_give_values_or_errors_of_this_package(recording: Recording) -> None:
    rng = random.Random(11)
    outcomes = {"value": 0, "error": 0}
    for _ in range(60):
        number = rng.randrange(2, len(recording.events))
        damaged = signed(mutated(recording.events[number], rng).ljust(events.HEADER_BYTES + 4, b"\0"))
        given = [*recording.events[:number], damaged, *recording.events[number + 1 :]]
        try:
            decoded(recording, given)
            outcomes["value"] += 1
        except LakehouseError:
            outcomes["error"] += 1
    assert outcomes["value"] > 2 and outcomes["error"] > 20, outcomes


def test_unknown_and_refused_events_are_named(recording: Recording) -> None:
    event = next(one for one in recording.events if kind_of(one) == events.XID)
    for kind, name in ((99, "unknown type 99"), (40, "TRANSACTION_PAYLOAD"), (42, "GTID_TAGGED"), (26, "INCIDENT")):
        decoder = recording.decoder()
        for before in recording.events[:3]:
            decoder.feed(before)
        changed = signed(event[:4] + bytes([kind]) + event[5:])
        with pytest.raises(UnsupportedError, match=name):
            decoder.feed(changed)


def test_partial_json_is_refused_for_wanted_tables_only(recording: Recording) -> None:
    place = next(n for n, event in enumerate(recording.events) if kind_of(event) in ROWS)
    event = recording.events[place]
    changed = signed(event[:4] + bytes([events.PARTIAL_UPDATE_ROWS]) + event[5:])
    with pytest.raises(UnsupportedError, match="PARTIAL_UPDATE_ROWS"):
        decoded(recording, [*recording.events[:place], changed])
    decoder = recording.decoder()
    decoder.settings = replace(decoder.settings, wants=lambda name: False)
    for one in [*recording.events[:place], changed]:
        decoder.feed(one)


def test_rows_without_a_description_of_their_table_are_an_error(recording: Recording) -> None:
    place = next(n for n, event in enumerate(recording.events) if kind_of(event) == events.TABLE_MAP)
    with pytest.raises(CorruptLogError, match="without a description"):
        decoded(recording, [*recording.events[:place], *recording.events[place + 1 :]])


def test_lost_end_of_a_transaction_is_an_error(recording: Recording) -> None:
    place = next(n for n, event in enumerate(recording.events) if kind_of(event) == events.XID)
    with pytest.raises(CorruptLogError, match="within another one"):
        decoded(recording, [*recording.events[:place], *recording.events[place + 1 :]])


def test_batches_have_the_columns_of_control_in_their_types(recording: Recording) -> None:
    batch = next(change for change in decoded(recording).changes if isinstance(change, ChangeBatch))
    assert [batch.rows.schema.field(name) for name in CONTROL.names] == list(CONTROL)
