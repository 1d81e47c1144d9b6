"""Merge the base file and the logs of a file group, batch by batch (MDT-5).

The logs are in memory. The base file is read in batches, and entries with a key in no log are copied without decoding.
So merging a record index with millions of entries needs memory for one batch and the logs only.
"""

from __future__ import annotations

import io
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.arrow_versions import position_of
from lakehouse.core.format.hfile.entries import ENTRIES, is_ascending
from lakehouse.core.format.hfile.reader import HFile, read_hfile
from lakehouse.core.format.log.blocks import BlockType, LogBlock, scan_blocks
from lakehouse.core.format.log.delete_block import DecodeDeletes
from lakehouse.core.format.log.scan import settle_blocks
from lakehouse.core.format.metadata.merge import Layer
from lakehouse.core.format.metadata.schema import SCHEMA, record_node
from lakehouse.core.metadata.record_kinds import RecordKind
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import CorruptTableError

_NO_KEYS = pa.array([], pa.binary())
_DECODED_AT_ONCE = 50_000


class UnorderedError(Exception):
    """A base file has the order of Java strings, so its batches are not in the order of their bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLayer:
    """The contents of one log block: entries and deleted keys, both ascending, one of them empty."""

    entries: pa.Table
    deletes: pa.Array
    schema: str = SCHEMA


def read_layers(
    storage: Storage, paths: Sequence[str], is_valid: Callable[[str], bool], decode_deletes: DecodeDeletes
) -> list[LogLayer]:
    """Return the contents of the valid blocks in log files, oldest first.

    Raises:
        CorruptTableError: A file is damaged.
    """
    contents = [storage.get(path) for path in paths]
    placed = [(number, block) for number, data in enumerate(contents) for block in scan_blocks(io.BytesIO(data))]
    for number, block in placed:
        if block.kind is BlockType.CORRUPT:
            raise CorruptTableError(f"{storage.root}/{paths[number]} has a damaged block", path=paths[number])
    layers = []
    for number, block in settle_blocks(placed, is_valid):
        content = memoryview(contents[number])[block.offset : block.offset + block.length]
        layers.append(_layer(block, content, f"{storage.root}/{paths[number]}", decode_deletes))
    return layers


def _layer(block: LogBlock, content: memoryview, name: str, decode_deletes: DecodeDeletes) -> LogLayer:
    if block.kind is BlockType.DELETE:
        keys = decode_deletes(bytes(content), [pa.int32()]).keys.cast(pa.binary()).unique()
        return LogLayer(entries=ENTRIES.empty_table(), deletes=keys.take(pc.array_sort_indices(keys)))
    if block.kind is not BlockType.HFILE_DATA:
        raise CorruptTableError(f"{name} has a block of kind {block.kind.name}; metadata tables have none", path=name)
    file = read_hfile(content, name=name)
    return LogLayer(entries=file.entries(), deletes=_NO_KEYS, schema=file.schema or block.schema or SCHEMA)


def merged_batches(
    base: HFile | None, layers: Sequence[LogLayer], kind: RecordKind, *, at_once: bool = False
) -> Iterator[pa.Table]:
    """Yield the merged entries of a file group in ascending batches.

    Args:
        base: The base file; None if the group has none.
        layers: The contents of its log blocks, oldest first.
        kind: The kind of its records.
        at_once: Whether the base file is read as a whole, which base files in the order of Java strings need.

    Raises:
        UnorderedError: The base file is not ordered by bytes, and `at_once` is not set.
    """
    changed = _changed_keys(layers)
    start = 0
    if base is not None and base.count:
        schema = base.schema or SCHEMA
        batches = [base.entries()] if at_once else (pa.Table.from_batches([batch]) for batch in base.batches())
        for entries in _followed(batches):
            end = position_of(changed, entries.column("key")[-1], "right")
            yield _merged(entries, schema, changed[start:end], layers, kind)
            start = end
    if start < len(changed):
        yield _merged(ENTRIES.empty_table(), SCHEMA, changed[start:], layers, kind)


def _followed(batches: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the batches; raise UnorderedError if a key does not follow the one before it by its bytes."""
    last = _NO_KEYS
    for entries in batches:
        keys = pa.concat_arrays([last, *entries.column("key").chunks])
        if not is_ascending(keys):
            raise UnorderedError
        last = keys[-1:]
        yield entries


def _changed_keys(layers: Sequence[LogLayer]) -> Any:
    """Return the keys that occur in logs, ascending and distinct."""
    parts = [part for layer in layers for part in (*layer.entries.column("key").chunks, layer.deletes)]
    keys = pa.concat_arrays(parts).unique() if parts else _NO_KEYS
    return keys.take(pc.array_sort_indices(keys))


# parameters: a batch of the base file with its schema, and the changes in its key range
def _merged(entries: pa.Table, schema: str, changed: Any, layers: Sequence[LogLayer], kind: RecordKind) -> pa.Table:
    is_changed = pc.is_in(entries.column("key"), value_set=changed)
    passed = entries.filter(pc.invert(is_changed))
    if record_node(schema) != record_node(SCHEMA):
        # A different release wrote the file, so its records are decoded and encoded again.
        passed = kind.encode(kind.decode(passed, schema)).cast(ENTRIES) if passed.num_rows else passed
    if len(changed) == 0:
        return passed
    again, parts = entries.filter(is_changed), _parts(layers, changed)
    added = _newest(again, schema, parts, kind)
    if added is None:
        decoded = _decoded([part.entries for part in parts], [part.schema for part in parts], kind)
        above = [Layer(rows, part.deletes.cast(pa.string())) for rows, part in zip(decoded, parts, strict=True)]
        rows = kind.merge([Layer(kind.decode(again, schema)), *above])
        added = kind.encode(rows).cast(ENTRIES) if rows.num_rows else ENTRIES.empty_table()
    both = pa.concat_tables([passed, added]) if added.num_rows else passed
    keys = both.column("key").combine_chunks() if both.num_rows else _NO_KEYS
    return both if is_ascending(keys) else both.take(pc.array_sort_indices(keys))


def _parts(layers: Sequence[LogLayer], changed: Any) -> list[LogLayer]:
    """Return the parts of log blocks with keys from the first to the last changed key."""
    bounds = changed.take(pa.array(np.array([0, len(changed) - 1])))
    parts = []
    for layer in layers:
        keys = layer.entries.column("key").combine_chunks() if layer.entries.num_rows else _NO_KEYS
        entries, deletes = (_range(keys, bounds), _range(layer.deletes, bounds))
        held = layer.entries.slice(entries[0], entries[1] - entries[0])
        parts.append(LogLayer(entries=held, deletes=layer.deletes[deletes[0] : deletes[1]], schema=layer.schema))
    return parts


# parameters: the entries of the base file with their schema, and the entries of logs
def _newest(entries: pa.Table, schema: str, parts: Sequence[LogLayer], kind: RecordKind) -> pa.Table | None:
    """Return the merged entries in stored form, without merging rows. Return None if a record must be merged.

    A statistics record is usually the only one for its key, or replaces older ones. Only the newest are decoded.
    """
    schemas = {part.schema for part in parts if part.entries.num_rows} | ({schema} if entries.num_rows else set())
    if kind.replaces is None or any(record_node(one) != record_node(SCHEMA) for one in schemas):
        return None
    stored = pa.concat_tables([entries, *(part.entries for part in parts)]).combine_chunks()
    keys = stored.column("key").combine_chunks() if stored.num_rows else _NO_KEYS
    layer = np.repeat(np.arange(len(parts) + 1), [entries.num_rows, *(part.entries.num_rows for part in parts)])
    is_live: Any = np.ones(len(keys), np.bool_)
    for number, part in enumerate(parts, 1):
        if len(part.deletes):
            is_live &= ~(np.asarray(pc.is_in(keys, value_set=part.deletes)) & (layer < number))
    stored, keys = stored.filter(pa.array(is_live)), keys.filter(pa.array(is_live))
    key_numbers = np.asarray(keys.dictionary_encode().indices)
    last = np.zeros(int(key_numbers.max(initial=-1)) + 1, np.int64)
    last[key_numbers] = np.arange(len(key_numbers))  # NumPy assigns in order, so the last row of a key stays
    newest = stored.take(pa.array(last))
    rows = kind.decode(newest, SCHEMA)
    is_final = np.asarray(kind.replaces(rows)) | (np.bincount(key_numbers, minlength=len(last)) == 1)
    if not is_final.all():
        return None
    return newest.filter(pc.invert(rows.column("deleted")))


def _decoded(parts: Sequence[pa.Table], schemas: Sequence[str], kind: RecordKind) -> list[pa.Table]:
    """Return the rows in parts of log blocks; few entries with one schema are decoded together."""
    is_small = sum(part.num_rows for part in parts) <= _DECODED_AT_ONCE
    if kind.decode_parts is not None and len(set(schemas)) == 1 and is_small:
        return kind.decode_parts(parts, schemas[0])
    return [kind.decode(part, schema) for part, schema in zip(parts, schemas, strict=True)]


def _range(keys: Any, bounds: Any) -> tuple[int, int]:
    return position_of(keys, bounds[0], "left"), position_of(keys, bounds[1], "right")
