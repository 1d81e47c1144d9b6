"""The page about performance: its tables and charts are made from one file of numbers, and people can read them."""

from __future__ import annotations

import re
from dataclasses import replace
from xml.etree import ElementTree

import pytest

from docs.generators.performance import (
    CHARTS,
    DARK,
    LIGHT,
    PAGE,
    load_charts,
    performance_files,
    svg,
    with_numbers,
)

#: The labels of both sides share a line of this many characters.
LABELS = 70


def luminance(color: str) -> float:
    """Return the relative luminance of a color such as `#1f2933` (WCAG 2)."""
    parts = (int(color[index : index + 2], 16) / 255 for index in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def contrast(one: str, other: str) -> float:
    """Return the contrast of two colors, 1 to 21."""
    dark, light = sorted((luminance(one), luminance(other)))
    return (light + 0.05) / (dark + 0.05)


def test_page_and_charts_are_those_of_the_numbers() -> None:
    different = [path.name for path, text in performance_files().items() if path.read_text(encoding="utf-8") != text]
    assert different == [], "they differ from performance.yaml: run 'make reference'"
    assert {path.stem for path in CHARTS.glob("*.svg")} == set(load_charts())


def test_every_chart_is_on_the_page() -> None:
    blocks = re.findall(r"<!-- numbers: (\w+) -->", PAGE.read_text(encoding="utf-8"))
    assert sorted(blocks) == sorted(load_charts())


def test_a_changed_number_changes_the_table_and_the_chart() -> None:
    charts = load_charts()
    first = charts["load"].rows[0]
    changed = replace(charts["load"], rows=(replace(first, low=7.77, high=7.77), *charts["load"].rows[1:]))
    assert "7.77" in svg(changed)
    page = PAGE.read_text(encoding="utf-8")
    assert "| 7.77 |" in with_numbers(page, charts | {"load": changed})
    assert with_numbers(page, charts) == page


@pytest.mark.parametrize("name", load_charts())
def test_chart_is_readable(name: str) -> None:
    chart = load_charts()[name]
    root = ElementTree.fromstring(svg(chart))
    width = float(root.attrib["viewBox"].split()[2])
    bars = [
        float(rect.attrib["x"]) + float(rect.attrib["width"])
        for rect in root.iter()
        if "x" in rect.attrib and "width" in rect.attrib
    ]
    assert len(bars) == len(chart.rows) and max(bars) + 60 < width
    assert [row.what for row in chart.rows if len(row.what) + len(row.other) + 11 * row.is_cpu > LABELS] == []
    texts = [element.text for element in root.iter() if element.tag.endswith("text")]
    assert [row.text for row in chart.rows if row.text not in texts] == []


@pytest.mark.parametrize("colors", [LIGHT, DARK], ids=["light", "dark"])
def test_text_of_charts_has_contrast(colors: dict[str, str]) -> None:
    assert contrast(colors["text"], colors["ground"]) >= 4.5
    assert contrast(colors["note"], colors["ground"]) >= 4.5
    assert all(contrast(colors[name], colors["ground"]) >= 3 for name in ("line", "fast", "slow"))
