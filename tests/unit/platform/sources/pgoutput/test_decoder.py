"""The decoder on messages as a server writes them: values of each kind of change, and errors for everything else."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.errors import CorruptLogError, LakehouseError, SnapshotNeededError, UnsupportedError, UserError
from lakehouse.platform.sources.databases.server import Changes, SchemaEvent
from lakehouse.platform.sources.pgoutput import batches
from lakehouse.platform.sources.pgoutput.columns import BYTEA, INT4, TEXT
from lakehouse.platform.sources.pgoutput.decoder import Decoder, lsn_number, lsn_text
from tests.support.fuzz import mutated
from tests.support.pgoutput import (
    COLUMNS,
    OID,
    UNSENT,
    Value,
    begin,
    commit,
    decoded,
    delete,
    insert,
    relation,
    rows_of,
    transaction,
    truncate,
    update,
)


def test_changes_of_each_kind_have_their_values_and_places() -> None:
    found = decoded(
        transaction(
            relation(),
            insert([1, "x", "1.50"]),
            update([1, "y", None]),
            update([2, UNSENT, "NaN"], [1, None, None]),
            delete([2, None, None]),
        )
    )
    (changes,) = found
    assert isinstance(changes, Changes)
    assert rows_of(found) == [
        ("insert", "1", "x", "1.50", ()),
        ("update", "1", "y", None, ()),
        ("delete", "1", None, None, ()),
        ("insert", "2", None, None, ("a",)),
        ("delete", "2", None, None, ()),
    ]
    assert changes.rows["_position"].to_pylist() == [1101, 1201, 1300, 1301, 1401]
    assert str(changes.rows["_committed_us"][0]) == "2000-01-01 00:00:00+00:00"


def test_old_rows_give_values_that_were_not_sent_and_tell_whether_the_key_changed() -> None:
    found = decoded(
        transaction(
            relation(identity="f", key=("id", "a", "b")),
            update([1, UNSENT, "2.00"], [1, "long", "1.00"], b"O"),
            update([3, UNSENT, "2.00"], [1, "long", "2.00"], b"O"),
            delete([3, "long", "2.00"], b"O"),
        )
    )
    assert rows_of(found) == [
        ("update", "1", "long", "2.00", ()),
        ("delete", "1", "long", "2.00", ()),
        ("insert", "3", "long", "2.00", ()),
        ("delete", "3", "long", "2.00", ()),
    ]


def test_rows_that_share_a_record_have_places_of_their_own() -> None:
    rows = [(insert([number, "", 0]), 500) for number in range(3)]
    messages = [(begin(9000), 500), (relation(), 0), *rows, (insert([4, "", 0]), 540), (commit(9000), 9000)]
    (changes,) = decoded(messages)
    assert isinstance(changes, Changes)
    assert changes.rows["_position"].to_pylist() == [501, 503, 505, 541]


def test_decoder_stops_before_the_first_transaction_behind_the_end() -> None:
    decoder = Decoder(end=2000, keys={"public.t": ("id",)})
    assert all(decoder.feed(*one) for one in transaction(relation(), insert([1, "", 0])))
    assert not decoder.feed(begin(2000), 1900)
    assert (decoder.position, decoder.transactions, decoder.is_inside) == (1240, 1, False)
    assert len(rows_of(decoder.take())) == 1
    assert [*decoder.take()] == []


def test_unwanted_tables_are_left_out_and_truncates_are_events() -> None:
    other = relation(name="other", oid=9)
    found = decoded(
        transaction(relation(), other, insert([1], 9), insert([1, "", 0]), truncate(9, OID), insert([2, "", 0]))
    )
    assert [row[1] for row in rows_of(found)] == ["1", "2"]
    (event,) = [one for one in found if isinstance(one, SchemaEvent)]
    (changes,) = [one for one in found if isinstance(one, Changes)]
    first, second = changes.rows["_position"].to_pylist()
    assert (event.kind, event.table) == ("truncate", "public.t") and first < event.position < second


def test_other_columns_are_another_batch_after_an_event() -> None:
    columns = (("id", INT4, -1), ("c", BYTEA, -1))
    found = decoded(
        [
            *transaction(relation(), insert([1, "x", 0]), relation(), insert([2, "x", 0])),
            *transaction(relation(columns), insert([3, "\\x00ff"]), relation(columns), first=5000),
        ]
    )
    first, event, second = found
    assert isinstance(first, Changes) and isinstance(event, SchemaEvent) and isinstance(second, Changes)
    assert first.rows.num_rows == 2 and second.rows["c"].to_pylist() == [b"\x00\xff"]
    assert event.kind == "alter" and 1402 < event.position < second.rows["_position"][0].as_py()


def test_domains_have_the_type_that_they_are_made_of() -> None:
    made_of = {70_000: (70_001, -1), 70_001: (INT4, -1)}
    decoder = Decoder(end=1 << 40, keys={"public.t": ()}, domains=made_of)
    columns = (("id", 70_000, -1), ("mood", 70_002, -1))
    for one in transaction(relation(columns), insert([5, "ok"])):
        decoder.feed(*one)
    (changes,) = decoder.take()
    assert isinstance(changes, Changes)
    assert changes.rows.select(["id", "mood"]).to_pylist() == [{"id": 5, "mood": "ok"}]


def test_long_transactions_become_arrow_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "MOST_ROWS", 3)
    messages = [insert([number, "x", 0]) if number % 2 else update([number, "y", 0]) for number in range(8)]
    found = decoded(transaction(relation(), *messages))
    assert [(row[0], row[1]) for row in rows_of(found)] == [
        ("insert" if number % 2 else "update", str(number)) for number in range(8)
    ]


@pytest.mark.parametrize(
    ("messages", "error", "text"),
    [
        ([(b"S\0\0\0\1\1", 0x1_0000_0001)], UnsupportedError, r"unknown type 'S' at 1/1"),
        ([(insert([1, "", 0]), 5)], CorruptLogError, "a table that was not described"),
        (transaction(truncate(9)), CorruptLogError, "TRUNCATE .* a table that was not described"),
        (transaction(relation(), insert([1, ""])), CorruptLogError, "2 values for 3 columns"),
        (transaction(relation(), insert([1, "", "x"])), CorruptLogError, "column 'b' .* has a value that is none"),
        (transaction(relation(), insert([1, "", 0]) + b"."), CorruptLogError, "bytes behind its last value"),
        (transaction(relation(), insert([1, "", 0])[:-2]), CorruptLogError, "longer than its message|before its last"),
        (transaction(relation()[:-3]), CorruptLogError, "'R' at .* is cut off"),
        ([(begin(10), 1), (begin(20), 2)], CorruptLogError, "commits at 0/A has no end"),
        ([(begin(10), 1), (commit(20), 20)], CorruptLogError, "was not begun"),
        ([(b"", 1)], CorruptLogError, "is cut off"),
        (transaction(relation(), update([UNSENT, "", 0])), UserError, "lack values of its key"),
        (transaction(relation(key=("a",), identity="i"), delete([1, "", 0])), SnapshotNeededError, "REPLICA IDENTITY"),
        (transaction(relation(COLUMNS[1:], key=())), UserError, "'id' is not a column of public.t any more"),
    ],
)
def test_messages_that_cannot_be_applied_end_the_read(
    messages: list[tuple[bytes, int]], error: type[LakehouseError], text: str
) -> None:
    with pytest.raises(error, match=text):
        decoded(messages)


def test_texts_that_are_not_utf_8_are_named() -> None:
    with pytest.raises(UserError, match=r"column 'a' has bytes that are not UTF-8"):
        decoded(transaction(relation(), insert([1, "xxxx", 0]).replace(b"xxxx", b"\xff\xfe\xff\xfe")))


def test_broken_messages_raise_errors_of_this_package_only() -> None:
    source = random.Random(5)
    messages = transaction(
        relation(),
        insert([1, "abc", "1.5"]),
        update([2, UNSENT, 0], [1, None, None]),
        truncate(OID),
        delete([2, "", 0]),
    )
    failures = 0
    for _ in range(600):
        place = source.randrange(len(messages))
        broken = [*messages]
        broken[place] = (mutated(messages[place][0], source), messages[place][1])
        try:
            decoded(broken)
        except LakehouseError:
            failures += 1
    assert failures > 300


TEXTS = st.one_of(st.none(), st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=8))
CHANGE = st.tuples(
    st.sampled_from(["insert", "update", "move", "delete"]), st.integers(0, 5), TEXTS, st.booleans(), st.integers(0, 5)
)


@given(st.lists(st.lists(CHANGE, min_size=1, max_size=6), max_size=5), st.sampled_from(["d", "f"]))
def test_any_transactions_give_the_changes_one_by_one(
    transactions: list[list[tuple[str, int, str | None, bool, int]]], identity: str
) -> None:
    columns = (("id", INT4, -1), ("a", TEXT, -1))
    messages = [(begin(1), 0), (relation(columns, identity=identity), 0), (commit(1), 1)]
    wanted: list[tuple[object, ...]] = []
    place = 10
    for changes in transactions:
        rows = []
        for kind, key, text, is_unsent, other in changes:
            sent: Value = UNSENT if is_unsent else text
            old: list[Value] = [key, "old"] if identity == "f" else [key, None]
            tag = b"O" if identity == "f" else b"K"
            # The old row has the value that was not sent.
            value, lacking = (("old", ()) if identity == "f" else (None, ("a",))) if is_unsent else (text, ())
            if kind == "insert":
                rows.append(insert([key, text]))
                wanted.append(("insert", str(key), text, ()))
            elif kind == "delete":
                rows.append(delete(old, tag))
                wanted.append(("delete", str(key), old[1], ()))
            elif kind == "update" or other == key:
                rows.append(update([key, sent], old if identity == "f" else None, tag))
                wanted.append(("update", str(key), value, lacking))
            else:
                rows.append(update([other, sent], old, tag))
                wanted += [("delete", str(key), old[1], ()), ("insert", str(other), value, lacking)]
        messages += transaction(*rows, first=place, step=10)
        place += 1000
    found = decoded(messages)
    assert rows_of(found) == wanted
    positions = [place for one in found if isinstance(one, Changes) for place in one.rows["_position"].to_pylist()]
    assert positions == sorted(set(positions))


def test_places_are_texts_as_the_server_prints_them() -> None:
    assert lsn_text(0x16_B374_D848) == "16/B374D848" and lsn_number("16/B374D848") == 0x16_B374_D848
    with pytest.raises(ValueError, match="'12' is not a log position"):
        lsn_number("12")
