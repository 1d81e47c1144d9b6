"""Keys of metadata records and the file groups that they belong to, against keys and groups of Apache Hudi."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.metadata import keys
from lakehouse.core.format.metadata.groups import (
    data_partition_of,
    data_partitions_of_groups,
    escape_partition,
    estimated_groups,
    metadata_file_id,
    partition_shards,
    secondary_shards,
    shards,
)
from lakehouse.errors import CorruptTableError
from tests.support.shared import fixtures


def vectors(section: str) -> Any:
    return json.loads((fixtures("hudi_metadata") / "keys.json").read_text())[section]


def test_hashes_equal_those_of_hudi() -> None:
    for name, function in (("hash64", keys.hash64), ("hash128", keys.hash128)):
        expected = vectors(name)
        assert function(pa.array(list(expected))).to_pylist() == list(expected.values())


def test_hashes_repeat_for_equal_texts_and_chunks() -> None:
    chunked = pa.chunked_array([["id", "ts"], [], ["id"]])
    assert keys.hash64(chunked).to_pylist() == ["sLZoasJosec=", "oyTjviKHuhI=", "sLZoasJosec="]
    assert keys.hash64(pa.array([], pa.string())).to_pylist() == []
    assert keys.hash128(chunked.dictionary_encode()).to_pylist()[0] == keys.hash128(pa.array(["id"]))[0].as_py()


def test_statistics_and_bloom_keys_equal_those_of_hudi() -> None:
    known = vectors("keys")
    columns, partitions, files = ([entry[name] for entry in known] for name in ("column", "partition", "file"))
    found = keys.column_stats_keys(pa.array(columns), pa.array(partitions), pa.array(files))
    assert found.to_pylist() == [entry["column_stats key"] for entry in known]
    found = keys.partition_stats_keys(pa.array(columns), pa.array(partitions))
    assert found.to_pylist() == [entry["partition_stats key"] for entry in known]
    assert shards(found, 2).shape == (len(known),)
    assert shards(pa.array([e["column_stats key"] for e in known]), 2).tolist() == [e["shard of 2"] for e in known]
    blooms = keys.bloom_keys(pa.array(partitions), pa.array(files))
    assert blooms.to_pylist() == [entry["column_stats key"][12:] for entry in known]


def test_partition_rows_of_expression_indexes_have_a_marker_in_their_key() -> None:
    (found,) = keys.partition_stats_keys(pa.array(["ts"]), pa.array([""]), expression=True).to_pylist()
    assert found == "oyTjviKHuhI=" + "2CMHrhWVE9w=" + "FXThHwelITM="


def test_a_table_without_partitions_has_a_point_as_partition() -> None:
    assert keys.identifiers(pa.array(["", "a=1"])).to_pylist() == [".", "a=1"]
    assert keys.paths(pa.array([".", "a=1"])).to_pylist() == ["", "a=1"]


def test_secondary_keys_and_their_shards_equal_those_of_hudi() -> None:
    known = vectors("secondary")
    values = pa.array([entry["value"] for entry in known], pa.string())
    record_keys = pa.array([entry["record key"] for entry in known])
    found = keys.secondary_keys(values, record_keys)
    assert found.to_pylist() == [entry["key"] for entry in known]
    for version in ("V1", "V2"):
        expected = [entry[f"{version} shard of 10"] for entry in known]
        assert secondary_shards(found, 10, version).tolist() == expected
        assert partition_shards("secondary_index_x", found.cast(pa.binary()), 10, version).tolist() == expected


@given(
    st.lists(st.tuples(st.none() | st.text("ab\\$\0é😀\n", max_size=6), st.text("k\\$\0é😀\n", max_size=6)), min_size=1)
)
def test_secondary_keys_are_split_into_the_value_and_the_record_key(pairs: list[tuple[str | None, str]]) -> None:
    values, record_keys = pa.array([v for v, _ in pairs], pa.string()), pa.array([k for _, k in pairs])
    built = keys.secondary_keys(values, record_keys)
    split = keys.split_secondary_keys(built)
    assert split.column("value").to_pylist() == values.to_pylist()
    assert split.column("record_key").to_pylist() == record_keys.to_pylist()
    assert split.column("prefix").to_pylist() == keys.secondary_prefixes(values).to_pylist()
    assert all(
        key.startswith(prefix) for key, prefix in zip(built.to_pylist(), split["prefix"].to_pylist(), strict=True)
    )


def test_secondary_key_without_separator_is_corrupt() -> None:
    with pytest.raises(CorruptTableError, match="no separator"):
        keys.split_secondary_keys(pa.array(["a$b", "no\\$separator"]))


def test_shards_equal_those_of_hudi() -> None:
    known = vectors("shard")
    for groups in (1, 2, 3, 10):
        found = shards(pa.array(list(known)), groups)
        assert found.tolist() == [entry[f"of {groups}"] for entry in known.values()]


def test_shards_refuse_keys_that_are_not_text() -> None:
    with pytest.raises(CorruptTableError, match="not UTF-8"):
        shards(pa.array([b"\xff"]), 3)


def test_file_ids_of_metadata_partitions() -> None:
    assert metadata_file_id("files", 0) == "files-0000-0"
    assert metadata_file_id("column_stats", 1) == "col-stats-0001-0"
    assert metadata_file_id("secondary_index_name_idx", 3) == "secondary-index-name-idx-0003-0"
    assert metadata_file_id("record_index", 12345) == "record-index-12345-0"
    assert metadata_file_id("record_index", 2, "part=a-x") == "record-index-part%3Da%2Dx-0002-0"


@given(st.text(st.characters(max_codepoint=0x2FF, blacklist_characters="."), min_size=1))
def test_data_partition_of_a_group_is_found_in_its_file_id(path: str) -> None:
    file_id = metadata_file_id("record_index", 7, path)
    assert data_partition_of("record_index", file_id) == path
    assert not set(escape_partition(path)) & set("-_/")


def test_data_partitions_of_groups_ignores_file_ids_of_other_forms() -> None:
    ids = [metadata_file_id("record_index", shard, "p=1") for shard in (1, 0)]
    assert data_partitions_of_groups("record_index", [*ids, "record-index-0000-0", "files-0000-0"]) == {
        "p=1": sorted(ids)
    }


def test_group_estimate_stays_within_its_limits() -> None:
    assert estimated_groups(100, minimum=10, maximum=10_000) == 10
    assert estimated_groups(10**15, minimum=10, maximum=10_000) == 10_000
    assert estimated_groups(10**12, minimum=4, maximum=4) == 4
    assert estimated_groups(1_000_000_000, minimum=1, maximum=10_000) == -(-96_000_000_000 // 2**30)
