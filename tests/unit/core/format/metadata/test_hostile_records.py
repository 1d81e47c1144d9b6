"""Damaged metadata records: each decoder returns rows or raises CorruptTableError, and nothing else."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lakehouse.core.format.hfile.reader import read_hfile
from lakehouse.core.format.metadata import keys, locations, records, schema, statistics
from lakehouse.errors import CorruptTableError
from tests.support.shared import fixtures

DECODERS: dict[str, tuple[str, Callable[[pa.Table, str], pa.Table]]] = {
    "files": ("base_files_0000.hfile", records.decode_files),
    "column_stats": ("base_column_stats_0000.hfile", statistics.decode_statistics),
    "partition_stats": ("base_partition_stats_0000.hfile", statistics.decode_statistics),
    "record_index": ("base_record_index_0000.hfile", locations.decode_locations),
    "secondary_index": ("base_secondary_index_name_idx_0000.hfile", records.decode_secondary),
    "bloom_filters": ("", records.decode_blooms),
}


def entries_of(kind: str) -> tuple[pa.Table, str]:
    """Return entries that Hudi wrote; the fixture of bloom filters is empty, so ours."""
    name = DECODERS[kind][0]
    if not name:
        columns = [["a", "b"], ["SIMPLE"] * 2, ["2026"] * 2, [b"x" * 90] * 2]
        return records.encode_blooms(pa.table(columns, schema=records.BLOOM_ROWS)), schema.SCHEMA
    file = read_hfile((fixtures("hudi_metadata") / "hfile" / name).read_bytes())
    assert file.schema is not None
    return file.entries(), file.schema


def outcome(decode: Callable[[pa.Table, str], pa.Table], entries: pa.Table, text: str) -> pa.Table | None:
    """Return the decoded rows, which must be valid Arrow data, or None for CorruptTableError."""
    try:
        rows = decode(entries, text)
    except CorruptTableError:
        return None
    rows.validate(full=True)
    return rows


def with_values(entries: pa.Table, values: list[bytes]) -> pa.Table:
    return pa.table([entries.column("key"), pa.array(values, pa.binary())], schema=entries.schema)


@pytest.mark.parametrize("kind", DECODERS)
def test_truncated_and_extended_records_are_corrupt(kind: str) -> None:
    entries, text = entries_of(kind)
    decode = DECODERS[kind][1]
    values = entries.column("value").to_pylist()
    for row in range(min(3, len(values))):
        for damaged in [values[row][:end] for end in range(len(values[row]))] + [values[row] + b"\0"]:
            changed = with_values(entries, [*values[:row], damaged, *values[row + 1 :]])
            assert outcome(decode, changed, text) is None


@pytest.mark.parametrize("kind", DECODERS)
@settings(max_examples=150, deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 4))
def test_changed_bytes_give_rows_or_are_corrupt(kind: str, seed: int, changes: int) -> None:
    entries, text = entries_of(kind)
    chosen = np.random.default_rng(seed)
    values = [bytearray(value) for value in entries.column("value").to_pylist()]
    for _ in range(changes):
        value = values[chosen.integers(len(values))]
        value[chosen.integers(len(value))] = chosen.integers(256)
    rows = outcome(DECODERS[kind][1], with_values(entries, [bytes(value) for value in values]), text)
    assert rows is None or set(rows.column("key").to_pylist()) <= set(keys.as_text(entries.column("key")).to_pylist())


@settings(max_examples=150, deadline=None)
@given(st.lists(st.tuples(st.text(max_size=3), st.binary(max_size=60)), max_size=5), st.sampled_from(sorted(DECODERS)))
def test_random_bytes_give_rows_or_are_corrupt(pairs: list[tuple[str, bytes]], kind: str) -> None:
    columns = [[key.encode() for key, _ in pairs], [value for _, value in pairs]]
    entries = pa.table([pa.array(column, pa.binary()) for column in columns], names=["key", "value"])
    outcome(DECODERS[kind][1], entries, schema.SCHEMA)


@pytest.mark.parametrize("kind", DECODERS)
@settings(max_examples=60, deadline=None)
@given(st.data())
def test_changed_schemas_give_rows_or_are_corrupt(kind: str, data: st.DataObject) -> None:
    entries, text = entries_of(kind)
    declared = json.loads(text)
    places = list(_places(declared))
    for _ in range(data.draw(st.integers(1, 3))):
        holder, key = data.draw(st.sampled_from(places))
        new = data.draw(
            st.sampled_from(["int", "long", "string", "bytes", "null", "boolean", "double", "Nothing", [], {}, 7, None,
                             ["null", "int"], {"type": "array", "items": "long"}, {"type": "map", "values": "int"}])
        )  # fmt: skip
        holder[key] = json.loads(json.dumps(new))
    outcome(DECODERS[kind][1], entries, json.dumps(declared))


def _places(value: Any) -> Any:
    """Yield each place of a JSON value: its container and the key in it."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, item in list(items):
        yield value, key
        yield from _places(item)


def test_keys_that_are_not_text_are_corrupt() -> None:
    entries, text = entries_of("files")
    changed = pa.table([pa.array([b"\xff"] * entries.num_rows), entries.column("value")], names=["key", "value"])
    assert outcome(records.decode_files, changed, text) is None
