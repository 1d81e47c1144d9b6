"""The referee of metadata tables: it accepts tables of Apache Hudi and finds differences that are planted."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import pytest

from tests.support.metadata_referee import MetadataReferee
from tests.support.shared import fixtures

pytestmark = pytest.mark.jvm


def unpacked(name: str, directory: Path) -> str:
    """Unpack a fixture table and return its location."""
    with zipfile.ZipFile(fixtures("hudi_metadata") / "tables" / f"{name}.zip") as archive:
        archive.extractall(directory)
    return str(directory / name)


def test_records_equal_the_expected_records_of_a_fixture(metadata_referee: MetadataReferee, tmp_path: Path) -> None:
    location = unpacked("cow_all_indexes", tmp_path)
    lines = (fixtures("hudi_metadata") / "tables" / "cow_all_indexes.metadata.jsonl").read_text().splitlines()
    expected = {(partition, record["key"]) for partition, record in map(json.loads, lines)}
    assert metadata_referee.records(location).keys() == expected


@pytest.mark.parametrize("name", ["cow_all_indexes", "mor_log_compacted"])
def test_differences_are_empty_for_a_table_of_hudi(
    name: str, metadata_referee: MetadataReferee, tmp_path: Path
) -> None:
    found = metadata_referee.differences(unpacked(name, tmp_path))
    assert not found, "\n".join(found)


def test_differences_name_a_file_that_the_metadata_table_lacks(
    metadata_referee: MetadataReferee, tmp_path: Path
) -> None:
    location = unpacked("cow_all_indexes", tmp_path)
    first = next(Path(location).glob("part=eu/*_20261122124728223.parquet"))
    # An older version of the file group, named after a commit that wrote other groups only.
    extra = first.with_name(first.name.replace("20261122124728223", "20261122124757667"))
    extra.write_bytes(first.read_bytes())
    found = metadata_referee.differences(location)
    assert any(extra.name in text for text in found)
