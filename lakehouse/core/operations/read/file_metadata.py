"""Reads what commits state about the files that they wrote: the schema of the files and ranges of their columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pyarrow as pa

from lakehouse.core.format.avro.schema import META_COLUMNS, with_meta_fields
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.key_ranges import RANGES_KEY, decode_ranges
from lakehouse.core.planning.predicate import Range
from lakehouse.model.files import FileSlice
from lakehouse.model.predicate import Predicate, columns_of

_MAX_ARCHIVED_COMMITS = 2_048

#: Ranges of the values of columns, by path of the file.
FileRanges = dict[str, Mapping[str, Range]]


def schemas_and_ranges(
    table: LoadedTable, slices: Sequence[FileSlice], schema: pa.Schema, *, needs_ranges: bool
) -> tuple[dict[str, str], FileRanges]:
    """Return the Avro schemas of the slices' files by instant, and column ranges by path, from the active timeline.

    Args:
        table: The loaded table.
        slices: The slices that the read may need.
        schema: The data columns of the table.
        needs_ranges: Whether to decode column ranges; only a read with a condition uses them.
    """
    instants = _instants(slices)
    schemas: dict[str, str] = {}
    ranges: FileRanges = {}
    writes = [instant for instant in table.timeline.writes() if instant.requested in instants]
    for instant, metadata in table.store.commits(writes):
        if metadata.extra.get("schema"):
            schemas[instant.requested] = metadata.extra["schema"]
        if needs_ranges:
            ranges.update(decode_ranges(metadata.extra.get(RANGES_KEY), _all_columns(schema)))
    return schemas, ranges


def archived_ranges(table: LoadedTable, slices: Sequence[FileSlice], where: Predicate, schema: pa.Schema) -> FileRanges:
    """Return the column ranges that archived commits state about files of these slices, by path.

    `slices` are those that other information has not excluded. The archive is not read for conditions that partition
    paths decide. Of more than 2,048 commits only the newest are read.
    """
    keys = table.config.keys
    decided = {f for f, kind in zip(keys.partition_fields, keys.partition_types, strict=False) if kind == "SIMPLE"}
    if not slices or set(columns_of(where)) <= decided | {META_COLUMNS[3]}:
        return {}
    active = {instant.requested for instant in table.timeline.writes()}
    archived = sorted(_instants(slices) - active, reverse=True)[:_MAX_ARCHIVED_COMMITS]
    ranges: FileRanges = {}
    for text in table.store.archived_extras(archived, RANGES_KEY).values():
        ranges.update(decode_ranges(text, _all_columns(schema)))
    return ranges


def _instants(slices: Sequence[FileSlice]) -> set[str]:
    return {s.base.instant for s in slices if s.base} | {log.instant for s in slices for log in s.logs}


def _all_columns(schema: pa.Schema) -> pa.Schema:
    return with_meta_fields(schema) if META_COLUMNS[0] not in schema.names else schema
