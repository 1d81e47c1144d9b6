"""Encoding of contracts: versions, unknown fields, wrong types."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

import pytest

from lakehouse.errors import UserError
from lakehouse.spec.contracts.document import Document


class Color(StrEnum):
    RED = "red"


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    name: str
    sizes: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleReport(Document):
    VERSION: ClassVar[int] = 2

    color: Color
    parts: tuple[Part, ...] = ()
    first: Part | None = None
    numbers: Mapping[str, float] = field(default_factory=dict)
    inputs: Mapping[str, Any] = field(default_factory=dict)
    seconds: float = 0.0
    done: bool = False


SAMPLE = SampleReport(
    color=Color.RED,
    parts=(Part(name="a", sizes=(1, 2)),),
    first=Part(name="b"),
    numbers={"x": 1.5},
    inputs={"commits": 3, "names": ["a"], "oldest": None},
    seconds=2.0,
    done=True,
)


def test_document_round_trips_through_json_with_snake_case_keys() -> None:
    assert SampleReport.from_json(SAMPLE.to_json()) == SAMPLE
    assert SAMPLE.to_mapping() == {
        "version": 2,
        "color": "red",
        "parts": [{"name": "a", "sizes": [1, 2]}],
        "first": {"name": "b", "sizes": []},
        "numbers": {"x": 1.5},
        "inputs": {"commits": 3, "names": ["a"], "oldest": None},
        "seconds": 2.0,
        "done": True,
    }


def test_newer_version_is_refused_with_both_versions_and_the_remedy() -> None:
    with pytest.raises(UserError, match=r"sample report document of version 3 .* up to 2\. Install the same version"):
        SampleReport.from_mapping({"version": 3, "color": "red"})


def test_older_version_is_decoded_with_defaults() -> None:
    assert SampleReport.from_mapping({"version": 1, "color": "red"}) == SampleReport(color=Color.RED)


def test_unknown_field_is_ignored_so_that_fields_can_be_added() -> None:
    mapping = {"version": 2, "color": "red", "shade": "dark", "first": {"name": "b", "weight": 1}}
    assert SampleReport.from_mapping(mapping) == SampleReport(color=Color.RED, first=Part(name="b"))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"version": None}, "its version is None"),
        ({"version": 0}, "its version is 0"),
        ({"version": True}, "its version is True"),
        ({"color": "blue"}, "'blue' is not a valid Color"),
        ({"parts": "ab"}, "parts is 'ab', not a list"),
        ({"parts": ["ab"]}, "parts is 'ab', not an object"),
        ({"parts": [{}]}, "name is missing"),
        ({"parts": [{"name": "a", "sizes": ["1"]}]}, "sizes is '1', not of type int"),
        ({"first": 3}, "first is 3, not an object"),
        ({"numbers": [1]}, r"numbers is \[1\], not an object"),
        ({"seconds": "long"}, "seconds is 'long', not of type float"),
        ({"seconds": True}, "seconds is True, not of type float"),
        ({"done": 1}, "done is 1, not of type bool"),
    ],
)
def test_wrong_value_is_refused_with_the_field_and_the_value(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"not a sample report document: .*{message}"):
        SampleReport.from_mapping({"version": 2, "color": "red", **changes})


@pytest.mark.parametrize("text", ["", "nonsense", "[]", "null", "3", '{"version": 1e999}'])
def test_text_of_another_kind_is_refused(text: str) -> None:
    with pytest.raises(UserError, match="not a sample report"):
        SampleReport.from_json(text)
