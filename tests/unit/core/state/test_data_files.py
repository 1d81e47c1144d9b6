"""Names of files are parsed in parts; the result is that of all at once, in the order of the listing."""

from __future__ import annotations

import pytest

from lakehouse.core.state import data_files as module
from lakehouse.core.state.data_files import DATA_FILES, data_files, listing_of

BASES = [f"p={number}/f{number}-0_0-1-2_2026010{number}.parquet" for number in range(1, 6)]
LOG = "p=1/.f1-0_20260101.log.1_0-1-2"
OTHER = "p=1/_SUCCESS"


@pytest.mark.parametrize("paths", [BASES, [*BASES, LOG, *BASES[:1]], [OTHER, *BASES], [OTHER] * 5, [LOG] * 3, []])
def test_listing_is_parsed_in_parts_as_at_once(paths: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    listing = listing_of(paths, range(len(paths)))
    expected = data_files(listing)
    monkeypatch.setattr(module, "_PARSED_AT_ONCE", 2)
    found = data_files(listing)
    assert found.schema == expected.schema == DATA_FILES
    assert found.to_pylist() == expected.to_pylist()
    assert found.num_rows == sum(path != OTHER for path in paths)


def test_columns_of_the_listing_are_not_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PARSED_AT_ONCE", 2)
    listing = listing_of(BASES, range(len(BASES))).combine_chunks()
    found = data_files(listing)
    stored = [table.column("name").chunk(0).buffers()[2].address for table in (listing, found)]
    assert stored[0] == stored[1]
