"""Only a layout compares versions of tables."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from lakehouse.core.layout.registry import SUPPORTED_VERSIONS, WRITABLE_VERSIONS, table_layout

PACKAGE = Path(__file__).parents[2] / "lakehouse"
LAYOUTS = PACKAGE / "core/layout"


def comparisons(source: str) -> list[str]:
    """Return the comparisons of a table version, or of a layout, with a number or with a list of versions."""
    return [
        ast.unparse(node)
        for node in ast.walk(ast.parse(source))
        if isinstance(node, ast.Compare) and _compares_versions([node.left, *node.comparators])
    ]


def _compares_versions(sides: list[ast.expr]) -> bool:
    texts = [ast.unparse(side) for side in sides]
    subject = any(
        text.endswith(("config.version", "config.layout", "table_version", "layout.version")) or text == "layout"
        for text in texts
    )
    numbers = any(isinstance(side, ast.Constant) and isinstance(side.value, int) for side in sides)
    lists = any(text.rpartition("_")[2] in ("VERSION", "VERSIONS", "SINCE", "V6", "V8", "V9", "6") for text in texts)
    table_number = any(isinstance(side, ast.Constant) and side.value in SUPPORTED_VERSIONS for side in sides)
    return (subject and (numbers or lists)) or (table_number and any("version" in text.lower() for text in texts))


@pytest.mark.parametrize(
    "source",
    [
        "table.config.version < 8",
        "layout == LAYOUT_V6",
        "config.layout != 1",
        "version >= 9",
        "table_version not in AVRO_VERSIONS",
        "store.config.version == _VERSION_6",
    ],
)
def test_comparison_of_a_table_version_is_seen(source: str) -> None:
    assert comparisons(source) == [source]


@pytest.mark.parametrize("source", ["definition.version == 'V2'", "block.version == 1", "version is None"])
def test_other_comparison_is_not_reported(source: str) -> None:
    assert comparisons(source) == []


def test_only_layouts_compare_table_versions() -> None:
    found = {
        str(path.relative_to(PACKAGE)): texts
        for path in sorted(PACKAGE.rglob("*.py"))
        if LAYOUTS not in path.parents and (texts := comparisons(path.read_text()))
    }
    assert found == {}, "ask the layout of the table (lakehouse.core.layout) instead"


def test_versions_that_are_written_are_among_those_that_are_read() -> None:
    assert {version: table_layout(version).version for version in SUPPORTED_VERSIONS} == {6: 6, 8: 8, 9: 9}
    assert WRITABLE_VERSIONS == (6, 8, 9)
