"""The diagrams of the documentation: their texts are inside of their boxes, and pages show each of them."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from xml.etree.ElementTree import Element, fromstring

import pytest

from tests.unit.test_docs import PAGES, page_text

STATIC = Path(__file__).parents[2] / "docs" / "_static"
DIAGRAMS = sorted(path.name for path in STATIC.glob("*.svg"))
_SVG = "{http://www.w3.org/2000/svg}"
#: Mean width of a character in parts of the font's size: Helvetica, its bold face, and a monospaced font.
_WIDTH, _BOLD, _MONO = 0.45, 0.52, 0.6


def overflows(svg: str) -> list[str]:
    """Return the texts that are wider than the box in which they begin, or outside of the picture."""
    root = fromstring(svg)
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    boxes = [
        tuple(float(box.get(name, 0)) for name in ("x", "y", "width", "height")) for box in root.iter(f"{_SVG}rect")
    ]
    found = []
    for text in root.iter(f"{_SVG}text"):
        x, y, length = float(text.attrib["x"]), float(text.attrib["y"]), _length(text)
        left = x - length / 2 if text.get("text-anchor") == "middle" else x
        inside = [box for box in boxes if box[0] <= x <= box[0] + box[2] and box[1] <= y <= box[1] + box[3]]
        box = min(inside, key=lambda one: one[2] * one[3], default=(0.0, 0.0, width, height))
        if left < box[0] or left + length > box[0] + box[2] or not 0 < y < height:
            found.append(str(text.text))
    return found


def _length(text: Element) -> float:
    share = _MONO if "mono" in text.get("font-family", "") else _BOLD if text.get("font-weight") else _WIDTH
    return share * float(text.get("font-size", 14)) * len(str(text.text))


@pytest.mark.parametrize("name", DIAGRAMS)
def test_texts_of_a_diagram_are_inside_of_their_boxes(name: str) -> None:
    svg = (STATIC / name).read_text(encoding="utf-8")
    assert overflows(svg) == []
    root = fromstring(svg)
    assert root.get("aria-label")
    # The background is white, so that letters can be read on a dark page.
    first = next(root.iter(f"{_SVG}rect"))
    assert (first.get("fill"), first.get("width")) == ("#ffffff", root.attrib["viewBox"].split()[2])


def test_a_text_that_leaves_its_box_is_found() -> None:
    svg = (
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 100 50"><rect x="0" y="0" width="40" height="20"/>'
        '<text x="5" y="10" font-size="13">a long text</text><text x="5" y="12" font-size="13">ab</text></svg>'
    )
    assert overflows(svg) == ["a long text"]


def test_each_diagram_is_on_a_page_and_on_the_first_page() -> None:
    assert {"overview.svg", "commit.svg", "ingestion.svg", "service.svg"} <= set(DIAGRAMS)
    pages = "".join(chain.from_iterable(page_text(page) for page in PAGES))
    assert [name for name in DIAGRAMS if f"_static/{name})" not in pages] == []
    first = page_text("docs/index.md")
    assert [name for name in ("overview.svg", "commit.svg", "ingestion.svg", "service.svg") if name not in first] == []
