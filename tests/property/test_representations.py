"""The representation of a value is one short line and small HTML, whatever the fields of the value contain."""

from __future__ import annotations

import importlib
import itertools
import pkgutil
from collections.abc import Iterator
from dataclasses import fields, is_dataclass
from html.parser import HTMLParser
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import lakehouse.core
import lakehouse.model
import lakehouse.platform.catalog
import lakehouse.spec
from lakehouse.model.display import LONGEST_LINE, Readable, count_text, number_text, one_line, size_text

LONGEST_HTML = 64 * 1024
HOSTILE = ("<script>alert(1)</script>", "a\nb", "\x1b[31m", '"><img src=x>', "&amp;", "x" * 5000, "", " ")
TEXTS = st.sampled_from(HOSTILE) | st.text(max_size=120)
SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | TEXTS
VALUES = st.recursive(
    SCALARS,
    lambda parts: st.lists(parts, max_size=12).map(tuple) | st.dictionaries(TEXTS, parts, max_size=12),
    max_leaves=20,
)


def import_all() -> None:
    """Import the packages whose values are shown to users."""
    for package in (lakehouse.core, lakehouse.model, lakehouse.spec, lakehouse.platform.catalog):
        for module in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            if ".migrations" not in module.name:
                importlib.import_module(module.name)


def subclasses(kind: type) -> Iterator[type]:
    """Yield all classes below a class."""
    for found in kind.__subclasses__():
        yield found
        yield from subclasses(found)


import_all()
KINDS = sorted({kind for kind in subclasses(Readable) if is_dataclass(kind)}, key=lambda kind: kind.__qualname__)


class Tags(HTMLParser):
    """Collects the tags and attributes of HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note one tag."""
        self.tags.add(tag)
        self.attributes.update(name for name, _ in attrs)


def check(value: Any) -> None:
    """Assert that the representations of a value are short, safe and without external resources."""
    line, html = repr(value), value._repr_html_()
    assert line and len(line) <= LONGEST_LINE and line.isprintable()
    assert len(html) <= LONGEST_HTML
    parser = Tags()
    parser.feed(html)
    assert parser.tags <= {"div", "strong", "table", "tr", "th", "td"}
    assert parser.attributes <= {"style"}
    assert "color" not in "".join(part for part in html.split('"') if "text-align" in part)


def test_the_values_of_the_public_api_are_readable() -> None:
    names = {kind.__name__ for kind in KINDS}
    assert names >= {
        "Committed",
        "NothingToDo",
        "TableScan",
        "CompactionPlan",
        "ClusteringPlan",
        "CleanPlan",
        "TtlPlan",
    }
    assert names >= {"ArchivePlan", "RestorePlan", "RollbackPlan", "ServiceCondition", "ServiceCost", "TableEntry"}
    assert names >= {"Instant", "Timeline", "CommitMetadata", "TableSummary", "CompactionDue", "TableService"}


@settings(max_examples=40)
@given(st.lists(VALUES, min_size=1, max_size=7))
def test_representation_is_one_short_line_and_bounded_html_for_any_field_values(values: list[Any]) -> None:
    drawn = itertools.cycle(values)
    for kind in KINDS:
        value = object.__new__(kind)
        for field in fields(kind):
            object.__setattr__(value, field.name, next(drawn))
        check(value)


def test_representation_names_the_class_and_the_error_if_fields_cannot_be_read() -> None:
    kind = next(kind for kind in KINDS if kind.__name__ == "Committed")
    value = object.__new__(kind)
    assert repr(value) == "committed (AttributeError while its fields were read)"


@given(st.text(max_size=2000), st.integers(10, 300))
def test_one_line_is_printable_bounded_and_marks_what_is_missing(text: str, longest: int) -> None:
    line = one_line(text, longest)
    assert len(line) <= longest and line.isprintable()
    assert line.endswith("...") or line == one_line(text, 10_000)


@given(st.integers(0, 10**24))
def test_sizes_are_at_most_eight_characters_and_close_to_the_value(size: int) -> None:
    text = size_text(size)
    number, unit = text.rsplit(" ", 1)
    factor = 1000 ** ["B", "kB", "MB", "GB", "TB", "PB", "EB"].index(unit)
    assert abs(float(number.replace(",", "")) * factor - size) <= 0.06 * factor
    assert size >= 999.95 * 10**18 or len(number) <= 5


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (1_234_567, "1.2 MB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (5 * 10**12, "5.0 TB"),
        (-2_500, "-2.5 kB"),
    ],
)
def test_size_text_rounds_to_one_digit_in_the_largest_unit(size: int, text: str) -> None:
    assert size_text(size) == text


def test_counts_have_separators_and_plurals() -> None:
    assert count_text(1, "file") == "1 file"
    assert count_text(12_345, "file") == "12,345 files"
    assert count_text(0, "try") == "0 tries"
    assert count_text(2, "entry") == "2 entries"
    assert number_text(1234567) == "1,234,567"
    assert number_text(0.12345) == "0.123"
    assert number_text(2.0) == "2"
