"""HFiles of lakehouse are read by Apache Hudi's Java reader, which finds each key."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pytest

from lakehouse.core.format.hfile.entries import ENTRIES
from lakehouse.core.format.hfile.writer import SCANNED, Layout, write_hfile
from tests.support.hudi import JARS, ROOT
from tests.support.referees import referee

pytestmark = pytest.mark.jvm

LAYOUTS = {
    "gz": SCANNED,
    "none": Layout(compression="none", checksums=False),
    "checksums": Layout(compression="none"),
    "small": Layout(compression="none", block_bytes=4096),
    "small gz": Layout(block_bytes=2048),
}


@pytest.fixture(scope="module")
def java() -> Iterator[ModuleType]:
    """Return the functions that run Hudi's Java reader of HFiles."""
    jars = sorted((ROOT / ".jars").glob(JARS))
    if not jars or not shutil.which("java"):
        pytest.skip("missing: Apache Hudi's jar or Java; run `make interop`")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HUDI_JAR", str(jars[-1]))
        yield referee("java_hfile")


def entries_of(count: int, key_width: int, value_width: int) -> pa.Table:
    """Return entries with random keys; a width of values of 0 gives the smallest cells that exist."""
    rng = np.random.default_rng(count + key_width)
    letters = np.frombuffer(b"abcdefghijklmnopqrstuvwxyz0123456789", "S1")
    keys = np.unique(letters[rng.integers(0, 36, (count, key_width))].view(f"S{key_width}").ravel())
    values = [rng.bytes(value_width) for _ in range(len(keys))]
    return pa.Table.from_arrays([pa.array(keys.tolist(), pa.binary()), pa.array(values, pa.binary())], schema=ENTRIES)


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS)
@pytest.mark.parametrize(("key_width", "value_width"), [(2, 0), (20, 12), (24, 100)])
def test_hudi_finds_each_key_also_at_the_end_of_blocks(
    layout: Layout, key_width: int, value_width: int, java: ModuleType, tmp_path: Path
) -> None:
    entries = entries_of(20_000, key_width, value_width)
    path = tmp_path / "x.hfile"
    path.write_bytes(write_hfile(entries, schema='"bytes"', created_ms=1, layout=layout, bounds=True))
    keys = [key.decode() for key in entries["key"].to_pylist()]
    assert java.scan(str(path)) == (len(keys), len(keys), keys[0], keys[-1])
    assert java.seek(str(path), keys) == dict.fromkeys(keys, 0)
