"""Test that HFiles are opened on each kind of storage, with few requests."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.format.hfile.writer import LOOKED_UP, SCANNED, Layout, write_hfile
from lakehouse.core.metadata.hfiles import open_hfile
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.errors import CorruptTableError

KEYS = [f"key-{n:06d}" for n in range(20_000)]
ENTRIES = pa.table({"key": pa.array(KEYS).cast(pa.binary()), "value": pa.array([bytes(50)] * len(KEYS))})


@pytest.mark.parametrize("layout", [SCANNED, LOOKED_UP], ids=["scanned", "looked up"])
@pytest.mark.parametrize("kind", ["local", "memory"])
def test_hfile_on_a_store_finds_its_keys(kind: str, layout: Layout, tmp_path: Path) -> None:
    storage: Storage = LocalStorage(str(tmp_path)) if kind == "local" else MemoryStorage()
    storage.put("p/x.hfile", write_hfile(ENTRIES, schema='"bytes"', created_ms=1, layout=layout))
    file = open_hfile(storage, "p/x.hfile")
    wanted = pa.array([KEYS[n] for n in (0, 77, 10_000, 19_999)])
    assert file.find(wanted)["key"].to_pylist() == [key.encode() for key in wanted.to_pylist()]
    assert file.entries().num_rows == len(KEYS)


def test_damaged_hfile_is_named_by_the_error() -> None:
    storage = MemoryStorage()
    storage.put("p/x.hfile", b"no HFile" * 1000)
    with pytest.raises(CorruptTableError, match=r"p/x\.hfile is not a valid HFile"):
        open_hfile(storage, "p/x.hfile")
    with pytest.raises(NotFoundError):
        open_hfile(storage, "p/y.hfile")


def test_look_up_on_an_object_store_reads_the_end_and_one_range() -> None:
    storage = CountingStorage(MemoryStorage())
    storage.put("p/x.hfile", write_hfile(ENTRIES, schema='"bytes"', created_ms=1, layout=LOOKED_UP))
    storage.reset()
    file = open_hfile(storage, "p/x.hfile")
    assert file.find(pa.array([KEYS[0]])).num_rows == 1
    assert {verb: count for verb, count in storage.counts().items() if count} == {"GET": 2}
