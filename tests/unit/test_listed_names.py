"""Pages that list names of index types, sources and formats list those of the code, all of them and no others."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from lakehouse.core.format.log.blocks import BlockType
from lakehouse.core.operations.placement.registry import PLACEMENTS
from lakehouse.core.state.table_config import SUPPORTED_VERSIONS, WRITABLE_VERSIONS
from lakehouse.model.index_type import CONSISTENT_BUCKET, CONSISTENT_HASHING, INDEX_TYPES
from lakehouse.model.keys import KeyGeneratorType
from lakehouse.model.merge import MergeMode
from lakehouse.spec.sources import file_source, kafka_source
from lakehouse.spec.sources.ingest import SOURCE_SPECS

DOCS = Path(__file__).parents[2] / "docs"
INDEX_NAMES = set(INDEX_TYPES)
_CODE = re.compile(r"`([^`]+)`")


def rows(page: str) -> list[list[str]]:
    """Return the cells of all rows of the tables of a page."""
    text = (DOCS / page).read_text(encoding="utf-8")
    lines = [line for line in text.splitlines() if line.startswith("| ") and not line.startswith("| ---")]
    return [[cell.strip() for cell in line.strip().strip("|").split(" | ")] for line in lines]


def row(page: str, head: str) -> list[str]:
    """Return the row of a page whose first cell contains a text."""
    (found,) = (cells for cells in rows(page) if head in cells[0])
    return found


def names(text: str) -> set[str]:
    """Return the code spans of a text."""
    return set(_CODE.findall(text))


def test_supported_formats_list_the_versions_of_the_code() -> None:
    _, read, written = row("concepts/formats.md", "table versions")
    assert tuple(map(int, re.findall(r"\d+", read))) == SUPPORTED_VERSIONS
    newest, *options = WRITABLE_VERSIONS[::-1]
    assert written.startswith(f"{newest}, or {', '.join(map(str, options))} with")


def test_supported_formats_list_the_index_types_of_the_code() -> None:
    assert names(row("concepts/formats.md", "[indexes]")[2]) == INDEX_NAMES | {CONSISTENT_HASHING}
    assert {index.name for index in PLACEMENTS} <= INDEX_NAMES and CONSISTENT_BUCKET in PLACEMENTS


def test_supported_formats_list_key_generators_and_merge_modes_of_the_code() -> None:
    assert names(row("concepts/formats.md", "key generators")[1]) == {member.value for member in KeyGeneratorType}
    assert names(row("concepts/formats.md", "merge modes")[1]) == {member.value for member in MergeMode}


def test_supported_formats_name_each_kind_of_data_block() -> None:
    read = row("concepts/formats.md", "log blocks")[1].lower()
    kinds = [kind.name.removesuffix("_DATA").lower() for kind in BlockType if kind.name.endswith("_DATA")]
    assert [kind for kind in kinds if kind != "cdc" and kind not in read] == []


@pytest.mark.parametrize("page", ["concepts/indexes.md", "how-to/choose-an-index.md"])
def test_pages_about_indexes_have_a_row_for_each_index_type(page: str) -> None:
    listed = {name for cells in rows(page) for name in names(cells[0]) if name.isupper()}
    assert listed == INDEX_NAMES


def test_page_about_ingestion_has_a_row_for_each_source() -> None:
    listed = [name for cells in rows("ingestion.md") for name in names(cells[0]) if name in SOURCE_SPECS]
    assert sorted(listed) == sorted(SOURCE_SPECS)
    start = next(number for number, cells in enumerate(rows("ingestion.md")) if cells[0] == "`source`")
    after = [cells[0] for cells in rows("ingestion.md")[start + 1 : start + 1 + len(SOURCE_SPECS)]]
    assert {name for text in after for name in names(text)} == set(SOURCE_SPECS)


def test_page_about_ingestion_lists_the_formats_of_files_and_messages() -> None:
    assert names(row("ingestion.md", "`files`")[2]) == set(file_source.FORMATS)
    assert names(row("ingestion.md", "`kafka`")[2]) == set(kafka_source.FORMATS)


def test_page_about_files_has_a_row_for_each_format() -> None:
    listed = [
        name for cells in rows("how-to/ingest-files.md") for name in names(cells[0]) if name in file_source.FORMATS
    ]
    assert sorted(listed) == sorted(file_source.FORMATS)
