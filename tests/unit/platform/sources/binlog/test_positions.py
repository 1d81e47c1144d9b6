"""Places in the log: sets of GTIDs, their order, and ordering values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.errors import UnsupportedError, UserError
from lakehouse.platform.sources.binlog.positions import (
    BinlogPosition,
    MariadbGtids,
    MysqlGtids,
    covers,
    ordering_value,
)
from tests.support.tables import examples

A, B = "3e11fa47-71ca-11e1-9e33-c80aa9429562", "00000000-71ca-11e1-9e33-c80aa9429562"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ""),
        (f"{A}:5", f"{A}:5"),
        (f"{A}:1-3:5-7,\n{B}:1", f"{B}:1,{A}:1-3:5-7"),
        (f"{A}:4-5:1-3", f"{A}:1-5"),
        (f"{A.upper()}:1-2,{A}:2-9", f"{A}:1-9"),
    ],
)
def test_gtid_set_is_printed_as_mysql_prints_it(text: str, expected: str) -> None:
    assert str(MysqlGtids.parse(text)) == expected


@pytest.mark.parametrize("text", ["x", A, f"{A}:", f"{A}:a", f"{A}:tag:1-2", "0-1-2"])
def test_text_that_is_no_gtid_set_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="GTID set"):
        MysqlGtids.parse(text)


@examples(60)
@given(st.lists(st.integers(1, 60)), st.lists(st.integers(1, 60)))
def test_gtid_set_equals_a_set_of_numbers(own: list[int], other: list[int]) -> None:
    left, right = MysqlGtids(), MysqlGtids()
    for numbers, found in ((own, left), (other, right)):
        for number in numbers:
            found.add(A, number, number + 1)
    assert left.covers(right) == (set(other) <= set(own))
    again = MysqlGtids.parse(str(left))
    assert str(again) == str(left) and again.covers(left) and left.covers(again)


def test_position_of_mariadb_covers_another_one_if_each_domain_is_as_far() -> None:
    position = MariadbGtids.parse("0-1-100,5-2-7")
    assert str(position) == "0-1-100,5-2-7"
    assert position.covers(MariadbGtids.parse("0-9-100"))
    assert not position.covers(MariadbGtids.parse("0-1-101"))
    assert not position.covers(MariadbGtids.parse("0-1-1,6-1-1"))
    with pytest.raises(UserError, match="is not a MariaDB GTID"):
        MariadbGtids.parse(f"{A}:1")


def test_place_is_the_same_after_a_round_trip_through_text() -> None:
    place = BinlogPosition(flavor="mysql", gtid=f"{A}:1-5", file="binlog.000017", offset=4711, committed_us=12)
    assert BinlogPosition.from_json(place.to_json()) == place
    with pytest.raises(UserError, match="is not a binlog position"):
        BinlogPosition.from_json("[]")


def test_places_without_gtids_are_compared_by_file_and_offset() -> None:
    first = BinlogPosition(flavor="mysql", file="binlog.000009", offset=900)
    second = BinlogPosition(flavor="mysql", file="binlog.000010", offset=4)
    assert covers(second, first) and not covers(first, second)


def test_ordering_values_grow_with_file_and_offset_and_have_limits() -> None:
    places = [("b.000001", 4), ("b.000001", 5), ("b.000001", 2**33 - 1), ("b.000002", 4), ("b.1048575", 2**33 - 1)]
    values = [ordering_value(*place) for place in places]
    assert values == sorted(set(values))
    assert values[-1] + 1023 == 2**63 - 1
    for place in (("b.1048576", 4), ("b.x", 4), ("b.000001", 2**33)):
        with pytest.raises(UnsupportedError):
            ordering_value(*place)
