"""Compressed files of several members or frames, as concatenated files have: all rows are read."""

from __future__ import annotations

import bz2
import gzip
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from tests.support.text_landing import TextLanding

pytestmark = pytest.mark.spark


def zstd(data: bytes) -> bytes:
    """Return a frame of zstd."""
    return bytes(pa.compress(data, codec="zstd", asbytes=True))


PACKERS: dict[str, Callable[[bytes], bytes]] = {"gz": gzip.compress, "bz2": bz2.compress, "zst": zstd}


@pytest.mark.parametrize("suffix", PACKERS)
def test_empty_members_before_rows_lose_nothing(spark: SparkSession, tmp_path: Path, suffix: str) -> None:
    """dart-lang/sdk#64218, madler/zlib#984: a reader of the first member takes such a file for an empty one."""
    landing, pack = TextLanding(spark, tmp_path), PACKERS[suffix]
    members = (b"", b"id,n\nk1,", b'"a\nb"\n', b"", b"k2,y\n")
    landing.put(f"a.csv.{suffix}", b"".join(map(pack, members)))
    landing.put(f"b.csv.{suffix}", b"".join(map(pack, (b"", b"id,n\n", b"k3,z\n", b""))))
    assert landing.ingest(format="csv").rows == 3
    assert landing.rows() == [("k1", "a\nb"), ("k2", "y"), ("k3", "z")]
    landing.put(f"c.json.{suffix}", b"".join(map(pack, (b"", b'{"id": "k4", ', b'"n": "x"}\n', b'{"id": "k5"}\n'))))
    for path in landing.folder.glob("*.csv.*"):
        path.unlink()
    assert landing.ingest(format="json").rows == 2
    assert landing.rows("id") == [("k1",), ("k2",), ("k3",), ("k4",), ("k5",)]
