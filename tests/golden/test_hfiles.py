"""Test that HFiles of Apache Hudi and of HBase are read with all their entries."""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakehouse.core.format.file_names import parse_log_file
from lakehouse.core.format.hfile.reader import HFile, read_hfile
from lakehouse.core.format.log.blocks import BlockType, scan_blocks
from lakehouse.errors import CorruptTableError
from tests.support.fuzz import fuzz_decoder
from tests.support.referees import referee
from tests.support.shared import fixture_names, fixtures

METADATA = fixture_names("hudi_metadata/hfile", "*.hfile")
HBASE = fixture_names("hudi_artifacts/hfile", "*.hfile")
LOGS = fixture_names("hudi_metadata/log", "*.log")
TABLES = fixture_names("hudi_tables", "*.zip")
NON_UNIQUE = "hudi_1_0_hbase_2_4_9_16KB_GZ_200_20_non_unique.hfile"


def pairs(entries: pa.Table) -> list[tuple[bytes, bytes]]:
    return list(zip(entries["key"].to_pylist(), entries["value"].to_pylist(), strict=True))


def check_look_ups(file: HFile) -> None:
    """Assert that keys, missing keys and prefixes give the matching part of all entries."""
    entries = file.entries()
    keys = entries["key"].combine_chunks()
    assert file.find(keys).equals(entries)
    some = pa.array(np.arange(0, len(keys), 3))
    near = pa.array([key + b"\0" for key in keys.to_pylist()] + [b"", b"\xff" * 40], pa.binary())
    assert file.find(pa.concat_arrays([near, keys.take(some)])).equals(entries.take(some))
    assert file.find_prefixes(pa.array([b""], pa.binary())).equals(entries)
    for prefix in {key[:length] for key in keys.to_pylist()[:: max(1, len(keys) // 5)] for length in (1, 5, 12)}:
        expected = entries.filter(pc.starts_with(entries["key"], prefix))
        assert file.find_prefixes(pa.array([prefix], pa.binary())).equals(expected)


@pytest.mark.parametrize("name", METADATA)
def test_hfile_of_hudi_has_the_expected_entries_and_info(name: str) -> None:
    path = fixtures("hudi_metadata/hfile") / name
    expected: dict[str, Any] = json.loads((path.parent / f"{name}.json").read_text())
    file = read_hfile(path.read_bytes(), name=name)
    assert pairs(file.entries()) == referee("hfile").parse(path.read_bytes()).entries
    check_look_ups(file)
    if "md5 of keys joined by newline" in expected:
        keys = b"\n".join(file.entries()["key"].to_pylist())
        assert hashlib.md5(keys).hexdigest() == expected["md5 of keys joined by newline"]
        assert file.count == expected["entryCount"]
    elif isinstance(expected["entries"], dict):
        assert pairs(file.entries()) == [(k.encode(), v.encode()) for k, v in expected["entries"].items()]
    else:
        assert pairs(file.entries()) == [(e["key"].encode(), bytes.fromhex(e["value"])) for e in expected["entries"]]
        texts = {key: value.decode() for key, value in file.info.items() if key in ("minRecordKey", "maxRecordKey")}
        assert texts == {key: expected["info"][key] for key in texts}
        assert json.loads(file.schema or "")["name"] == "HoodieMetadataRecord"


@pytest.mark.parametrize("name", HBASE)
def test_hfile_of_hbase_has_the_expected_entries(name: str) -> None:
    data = (fixtures("hudi_artifacts/hfile") / name).read_bytes()
    file = read_hfile(data, name=name)
    if name == NON_UNIQUE:
        with pytest.raises(CorruptTableError, match=f"{name} is not a valid HFile: its keys are not ascending"):
            file.entries()
        return
    if "large_keys" in name:
        assert file.trailer.levels == 2
    assert pairs(file.entries()) == referee("hfile").parse(data).entries
    check_look_ups(file)


@pytest.mark.parametrize("name", LOGS)
def test_hfile_in_a_log_block_has_the_expected_keys(name: str) -> None:
    path = fixtures("hudi_metadata/log") / name
    data = path.read_bytes()
    expected = json.loads((path.parent / f"{name}.json").read_text())
    blocks = scan_blocks(io.BytesIO(data))
    assert [block.kind.name for block in blocks] == [block["type"] for block in expected]
    for block, description in zip(blocks, expected, strict=True):
        if block.kind is BlockType.HFILE_DATA:
            file = read_hfile(data[block.offset : block.offset + block.length], name=name)
            assert [key.decode() for key in file.entries()["key"].to_pylist()] == [*description["content"]]
            check_look_ups(file)


@pytest.mark.parametrize("table", TABLES)
def test_each_hfile_of_a_table_of_hudi_is_read(table: str) -> None:
    parse = referee("hfile").parse
    with zipfile.ZipFile(fixtures("hudi_tables") / table) as archive:
        paths = [name for name in archive.namelist() if "/._" not in name and not name.startswith("__MACOSX")]
        for path in paths:
            for content in hfiles_in(Path(path).name, archive.read(path)):
                file = read_hfile(content, name=path)
                assert pairs(file.entries()) == parse(content).entries
                check_look_ups(file)


def hfiles_in(name: str, data: bytes) -> list[bytes]:
    """Return the HFiles that a file is or contains."""
    if name.endswith(".hfile"):
        return [data]
    if not data or parse_log_file(name, "", len(data)) is None:
        return []
    blocks = [block for block in scan_blocks(io.BytesIO(data)) if block.kind is BlockType.HFILE_DATA]
    return [data[block.offset : block.offset + block.length] for block in blocks]


@pytest.mark.parametrize("name", [*METADATA, *HBASE])
def test_damaged_hfile_is_refused_or_read(name: str) -> None:
    folder = "hudi_metadata" if name in METADATA else "hudi_artifacts"
    data = (fixtures(f"{folder}/hfile") / name).read_bytes()
    assert fuzz_decoder(name, [data], use, range(40)) == []


def use(data: bytes) -> object:
    """Read all entries, and look up keys and prefixes that fixtures have."""
    file = read_hfile(data)
    keys = pa.array(["k1", "part=eu", "hudi-key-000000010", "100bgu169kvxuuq4r7ci"])
    file.find_prefixes(pa.array(["k", "hudi-key-00000001", "zz"]))
    return file.find(keys), file.schema, file.entries()
