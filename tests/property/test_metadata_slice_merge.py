"""Property test: a file group that is merged in batches of its base file equals one that is merged as a whole."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.hfile import reader
from lakehouse.core.format.hfile.entries import ENTRIES, entry_table
from lakehouse.core.format.hfile.reader import read_hfile
from lakehouse.core.format.hfile.writer import Layout, write_hfile
from lakehouse.core.format.metadata.locations import LOCATION_ROWS
from lakehouse.core.format.metadata.merge import Layer
from lakehouse.core.format.metadata.records import BLOOM_ROWS, FILE_ROWS, SECONDARY_ROWS
from lakehouse.core.format.metadata.schema import SCHEMA
from lakehouse.core.format.metadata.statistics import STAT_ROWS, statistics_of
from lakehouse.core.metadata.read.layers import FileLayer
from lakehouse.core.metadata.record_kinds import BLOOMS, FILES, LOCATIONS, SECONDARY, STATISTICS, RecordKind
from lakehouse.core.metadata.services.slice_merge import LogLayer, UnorderedError, merged_batches
from lakehouse.core.metadata.small.merge import small_merge
from tests.support.referees import referee
from tests.support.tables import examples

KEYS = st.integers(0, 60).map(lambda number: f"key-{number:02d}")
SMALL = Layout(block_bytes=60, compression="none")


def files(keys: list[str], number: int) -> pa.Table:
    """Return files and tombstones; layers share names, so that tombstones meet files."""
    rows = [
        {"key": key, "name": f"f{n}", "size_bytes": 10 + number, "deleted": (n + number) % 3 == 0}
        for key in keys
        for n in range((number + len(key)) % 4)
    ]
    return pa.Table.from_pylist(rows, FILE_ROWS)


def locations(keys: list[str], number: int) -> pa.Table:
    rows = [
        {"key": key, "partition": f"p{number}", "file_id": f"bucket-{number}", "instant_ms": number} for key in keys
    ]
    return pa.Table.from_pylist(rows, LOCATION_ROWS)


def secondary(keys: list[str], number: int) -> pa.Table:
    return pa.Table.from_pylist([{"key": key} for key in keys], SECONDARY_ROWS)


def statistics(keys: list[str], number: int) -> pa.Table:
    """Return rows of which those of odd layers replace older ones."""
    tables = [STAT_ROWS.empty_table()]
    for key in keys:
        bounds = {"min": [number], "max": [number + 9], "value_count": [3], "null_count": [0]}
        sizes = {"size_bytes": [0], "uncompressed_bytes": [0], "tight": [len(key) % 2 == 0 or number % 4 > 0]}
        rows = pa.table({"name": ["p"], **bounds, **sizes})
        tables.append(statistics_of(rows, "c", pa.array([key]), version="V2", partition_stats=True))
    return pa.concat_tables(tables)


def blooms(keys: list[str], number: int) -> pa.Table:
    rows = [{"key": key, "type": "SIMPLE", "instant": str(number), "filter": b"x" * number} for key in keys]
    return pa.Table.from_pylist(rows, BLOOM_ROWS)


KINDS: dict[str, tuple[RecordKind, Any]] = {
    "files": (FILES, files),
    "locations": (LOCATIONS, locations),
    "secondary": (SECONDARY, secondary),
    "blooms": (BLOOMS, blooms),
}


def binary(keys: set[str]) -> pa.Array:
    return pa.array(sorted(keys), pa.string()).cast(pa.binary())


def layer(kind: RecordKind, rows: pa.Table) -> LogLayer:
    return LogLayer(entries=kind.encode(rows).cast(ENTRIES), deletes=binary(set()))


@examples(80)
@given(
    name=st.sampled_from(sorted(KINDS)),
    base=st.sets(KEYS, max_size=50),
    logs=st.lists(st.tuples(st.sets(KEYS, max_size=12), st.sets(KEYS, max_size=4)), max_size=4),
    scan_bytes=st.sampled_from([1, 500, 1 << 20]),
)
def test_batches_of_a_file_group_equal_the_whole_merge(
    name: str, base: set[str], logs: list[tuple[set[str], set[str]]], scan_bytes: int
) -> None:
    kind, rows_of = KINDS[name]
    below = rows_of(sorted(base), 0)
    stored = kind.encode(below).cast(ENTRIES)
    file = read_hfile(write_hfile(stored, schema=SCHEMA, created_ms=1, layout=SMALL))
    layers, whole = [], [Layer(kind.decode(stored, SCHEMA))]
    for number, (written, deleted) in enumerate(logs, 1):
        rows = rows_of(sorted(written), number)
        empty = layer(kind, rows_of([], 0)).entries
        layers += [layer(kind, rows), LogLayer(entries=empty, deletes=binary(deleted))]
        whole += [Layer(rows), Layer(rows_of([], 0), pa.array(sorted(deleted), pa.string()))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(reader, "SCAN_BYTES", scan_bytes)
        batches = list(merged_batches(file, layers, kind))
    merged = pa.concat_tables([ENTRIES.empty_table(), *batches])
    keys = merged["key"].to_pylist()
    assert keys == sorted(set(keys))
    assert values(kind.decode(merged, SCHEMA)) == values(kind.merge(whole))


@examples(100)
@given(
    name=st.sampled_from(["files", "statistics"]),
    base=st.one_of(st.none(), st.sets(KEYS, max_size=20)),
    logs=st.lists(st.tuples(st.sets(KEYS, max_size=12), st.sets(KEYS, max_size=4)), max_size=4),
)
def test_merge_of_a_small_file_group_equals_the_merge_of_batches(
    name: str, base: set[str] | None, logs: list[tuple[set[str], set[str]]]
) -> None:
    kind, rows_of = {"files": (FILES, files), "statistics": (STATISTICS, statistics)}[name]
    file = None
    if base is not None:
        stored = kind.encode(rows_of(sorted(base), 0)).cast(ENTRIES)
        file = read_hfile(write_hfile(stored, schema=SCHEMA, created_ms=1))
    few = [] if file is None else [FileLayer("base", (0, 0), hfile=file)]
    layers = []
    for number, (written, deleted) in enumerate(logs, 1):
        blocks = [
            layer(kind, rows_of(sorted(written), number)),
            LogLayer(entries=ENTRIES.empty_table(), deletes=binary(deleted)),
        ]
        layers += blocks
        few += [
            FileLayer("log", (0, 0), written=blocks[0].entries),
            FileLayer("log", (0, 0), deletes=blocks[1].deletes.cast("string")),
        ]
    merged = pa.concat_tables([ENTRIES.empty_table(), *merged_batches(file, layers, kind)])
    found = small_merge(few, kind)
    if found is None:
        assert name == "statistics", "records of files are always merged as plain values"
        return
    assert [*found] == sorted(found)
    assert values(kind.decode(entry_table(found), SCHEMA)) == values(kind.decode(merged, SCHEMA))


def values(rows: pa.Table) -> list[Any]:
    """Return sorted rows; a record without files has no row of a file."""
    held = rows.to_pylist()
    return sorted((tuple(row.values()) for row in held if row.get("name", "") is not None), key=repr)


def test_base_file_in_the_order_of_java_strings_is_merged_as_a_whole() -> None:
    texts = sorted((f"{a}{n}" for a in "a\uff08\U0001f600" for n in range(9)), key=lambda t: t.encode("utf-16-be"))
    entries = SECONDARY.encode(secondary(texts, 0))
    by_key = dict(zip(entries["key"].to_pylist(), entries["value"].to_pylist(), strict=True))
    info = {"schema": SCHEMA.encode()}
    data = referee("hfile").write([(t.encode(), by_key[t.encode()]) for t in texts], codec=2, block_size=80, info=info)
    changes = [layer(SECONDARY, secondary(["a99"], 1))]
    with pytest.raises(UnorderedError):
        list(merged_batches(read_hfile(data), changes, SECONDARY))
    merged = pa.concat_tables(merged_batches(read_hfile(data), changes, SECONDARY, at_once=True))
    assert merged["key"].to_pylist() == sorted([*(t.encode() for t in texts), b"a99"])
    assert pc.all(pc.greater(pc.binary_length(merged["value"]), 0)).as_py()
