"""Look-ups of record keys in the layers of a record index: the newest layer of a key decides."""

from __future__ import annotations

import pyarrow as pa
import pytest

from lakehouse.core.format.hfile.reader import read_hfile
from lakehouse.core.format.hfile.writer import LOOKED_UP, SCANNED, Layout, write_hfile
from lakehouse.core.format.log.blocks import scan_blocks
from lakehouse.core.format.metadata.locations import LOCATION_ROWS, encode_locations
from lakehouse.core.format.metadata.schema import SCHEMA
from lakehouse.core.metadata.read.layer_search import decoded_together, located_in_layers
from lakehouse.core.metadata.read.layers import FileLayer, MetadataCache
from lakehouse.core.metadata.write.files import log_bytes, log_headers


def entries(keys: list[str], partition: str) -> pa.Table:
    """Return the encoded locations of keys in one partition."""
    file_id = "6f2f4c3a-0000-4000-8000-000000000001-0"
    rows = {"key": keys, "partition": [partition] * len(keys), "file_id": [file_id] * len(keys)}
    return encode_locations(pa.table(rows | {"instant_ms": [1] * len(keys)}, schema=LOCATION_ROWS))


def file_layer(keys: list[str], partition: str, layout: Layout) -> FileLayer:
    """Return the layer of a file on storage."""
    data = write_hfile(entries(keys, partition), schema=SCHEMA, created_ms=1, layout=layout)
    return FileLayer(f"record_index/{partition}", (0, 0), read_hfile(data))


def partitions_of(layers: list[FileLayer], keys: list[str], cache: MetadataCache) -> dict[str, str]:
    """Return the partition of each key that has a location; no key is found twice."""
    found = located_in_layers(layers, pa.array(sorted(keys), pa.binary()), cache)
    rows = pa.concat_tables([layer.rows.cast(LOCATION_ROWS) for layer in decoded_together(found)])
    located = dict(zip(rows.column("key").to_pylist(), rows.column("partition").to_pylist(), strict=True))
    assert len(located) == rows.num_rows
    return located


@pytest.mark.parametrize("layout", [SCANNED, LOOKED_UP], ids=["compressed", "not compressed"])
@pytest.mark.parametrize("count", [3, 5_000], ids=["few entries", "many entries"])
def test_look_up_takes_the_newest_location_of_a_key(layout: Layout, count: int) -> None:
    keys = [f"k{number:05d}" for number in range(count)]
    layers = [
        file_layer(keys, "oldest", layout),
        FileLayer("record_index/deletes", (0, 0), deletes=pa.array([keys[0], keys[1]])),
        file_layer([keys[1]], "newer", layout),
        FileLayer("record_index/written", (0, 0), written=entries([keys[2], "new"], "newest")),
    ]
    expected = {keys[1]: "newer", keys[2]: "newest", "new": "newest"}
    expected |= dict.fromkeys(keys[3:], "oldest")
    cache = MetadataCache()
    # Repeated look-ups, because a process keeps what it read.
    for _ in range(3):
        assert partitions_of(layers, [*keys, "new", "missing"], cache) == expected
        assert partitions_of(layers, [keys[0], keys[1], keys[2]], cache) == {keys[1]: "newer", keys[2]: "newest"}


def test_look_up_does_not_open_layers_below_those_that_have_all_keys() -> None:
    class Unread:
        def __getattr__(self, name: str) -> object:
            raise AssertionError(f"{name} of an older layer was read")

    newest = file_layer(["a", "b"], "newest", SCANNED)
    older = FileLayer("record_index/older", (0, 0), Unread())  # type: ignore[arg-type]
    assert partitions_of([older, newest], ["a", "b"], MetadataCache()) == {"a": "newest", "b": "newest"}


@pytest.mark.parametrize(
    ("partition", "count", "is_compressed"),
    [("record_index", 5_000, False), ("record_index", 100, True), ("secondary_index_city", 5_000, True)],
)
def test_log_file_is_compressed_unless_it_has_many_locations(partition: str, count: int, is_compressed: bool) -> None:
    some = entries([f"k{number:05d}" for number in range(count)], "p")
    data = log_bytes(partition, log_headers("20260101000000000", SCHEMA), some, pa.array([], pa.binary()), 1)
    (block,) = scan_blocks(pa.BufferReader(data))
    file = read_hfile(data[block.offset : block.offset + block.length])
    assert (file.is_compressed, file.count) == (is_compressed, count)
