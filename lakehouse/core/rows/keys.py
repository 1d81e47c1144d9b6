"""Compute the record keys and partition paths of whole batches (DATA-2).

A row is valid if its record key has a value and its partition path is a safe relative directory. `record_keys` and
`partition_paths` refuse a batch with invalid rows by an error that names them. `bad_key_mask` returns which rows are
invalid, for callers that divert them. Partition paths are formatted once per distinct value of their columns.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import reduce
from typing import NoReturn

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.rows.key_values import Column, Rows, column, flat, plain, value_text
from lakehouse.core.rows.partition_path import escape, is_timestamp_field, segment
from lakehouse.core.rows.timestamp_keys import timestamp_texts
from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.keys import KeyConfig, KeyEncoding, KeyGeneratorType, TimestampFormat
from lakehouse.model.path_limits import PathLimits

NULL_PLACEHOLDER = "__null__"
EMPTY_PLACEHOLDER = "__empty__"
#: `%` is escaped first, because the other escapes contain it.
_ESCAPES = (("%", "%25"), (",", "%2C"), (":", "%3A"))
#: Maximum number of characters per value or key in an error message.
_SHOWN = 200
#: Java's reader of marker files ends a line at a carriage return, too.
_SUSPICIOUS = r"\x00|\n|\r|(^|/)\.hoodie(/|$)"
_METADATA_FOLDER = re.compile(r"(?:^|/)\.hoodie(?:/|$)")


def required_columns(config: KeyConfig) -> tuple[str, ...]:
    """Return the top-level columns of which keys and partition paths are composed, each once."""
    return tuple(dict.fromkeys(name.split(".")[0] for name in (*config.record_key_fields, *config.partition_fields)))


def record_keys(data: Rows, config: KeyConfig) -> Column:
    """Return the record key of each row: a string array (chunked for a table), without nulls.

    Raises UserError for a missing column, a type that cannot form a key, or rows whose key is null or empty.
    """
    keys, bad = _keys_and_bad(data, config)
    if bad is not None:
        _refuse(data, config, bad, f"a null or empty record key ({', '.join(config.record_key_fields)})")
    return keys


def refuse_ambiguous_keys(data: Rows, config: KeyConfig) -> None:
    """Raise UserError for rows whose key could stand for other values, if `config` requires the check.

    Keys have the form `f1:v1,f2:v2`, with a placeholder for null and empty values. Column names contain no comma. Two
    different rows can therefore have one key in two cases only: a value of each contains `,f2:` (comma, a key column
    other than the first, colon), or a value of one reads like a placeholder. Rows without such values are never
    refused, even if they contain commas and colons. Only string columns can have such values.
    """
    fields = config.record_key_fields
    if config.encoding is not KeyEncoding.CHECKED or len(fields) < 2:
        return
    separators = [f",{name}:" for name in fields[1:]]
    for name in fields:
        values = column(data, name)
        is_text = pa.types.is_string if not pa.types.is_dictionary(values.type) else _has_text
        if not (is_text(values.type) or pa.types.is_large_string(values.type) or pa.types.is_string_view(values.type)):
            continue
        mask = _ambiguous(value_text(values, name=name), separators)
        if mask is not None:
            _refuse_ambiguous(data, config, name, mask)


def refuse_long_keys(keys: Column, limit_bytes: int) -> None:
    """Raise UserError for record keys of more than `limit_bytes` UTF-8 bytes; 0 means no limit."""
    lengths = pc.binary_length(keys)
    longest = pc.max(lengths).as_py() or 0
    if not limit_bytes or longest <= limit_bytes:
        return
    count = pc.sum(pc.greater(lengths, limit_bytes)).as_py()
    first = flat(keys)[pc.index(flat(lengths), pa.scalar(longest, lengths.type)).as_py()].as_py()
    raise UserError(
        f"{count} of {len(keys)} rows have a record key of more than {limit_bytes:,} bytes; the longest has "
        f"{longest:,} and begins with {first[:40]!r}. Each key is hashed and stored many times, so such writes "
        "take seconds a row. Use a shorter column, or a digest of this one, such as sha2(column, 256); or increase "
        "lakehouse.record_key.max.bytes (0 = any length)",
        rows=count,
        longest=longest,
    )


def _has_text(kind: pa.DictionaryType) -> bool:
    return not pa.types.is_nested(kind.value_type)


def _ambiguous(text: Column, separators: list[str]) -> Column | None:
    """Return the mask of values that contain a separator or read like a placeholder; None if there are none."""
    masks = []
    # A single search for a rare character saves one search per key column for its separator.
    if pc.any(pc.match_substring(text, ",")).as_py():
        masks += [pc.match_substring(text, separator) for separator in separators]
    if pc.any(pc.starts_with(text, "__")).as_py():
        masks.append(pc.is_in(text, value_set=pa.array([NULL_PLACEHOLDER, EMPTY_PLACEHOLDER])))
    if not masks:
        return None
    mask = pc.fill_null(reduce(pc.or_, masks), False)
    return mask if pc.any(mask).as_py() else None


def _refuse_ambiguous(data: Rows, config: KeyConfig, name: str, mask: Column) -> NoReturn:
    count, first = pc.sum(mask).as_py(), pc.index(flat(mask), True).as_py()
    row = {field: _short(column(data, field)[first].as_py()) for field in config.record_key_fields}
    key = _short(flat(record_keys(data.slice(first, 1), config))[0].as_py())
    raise UserError(
        f"{count} of {data.num_rows} rows have a value in key column {name!r} that makes the record key ambiguous; "
        f"first is row {first}: {row}. Other values have the same key {key!r}, and one of two such rows "
        "would be lost. Create the table with lakehouse.record_key.encoding=escaped. If no two such rows exist, "
        "write with lakehouse.record_key.encoding=hudi",
        column=name,
        rows=count,
        first=row,
    )


def _short(value: object) -> object:
    return f"{value[:_SHOWN]}..." if isinstance(value, str) and len(value) > _SHOWN else value


def _escaped(text: Column) -> Column:
    """Return values with `%`, `,` and `:` as `%25`, `%2C` and `%3A`, and with placeholders for null and empty."""
    for character, escaped in _ESCAPES:
        if pc.any(pc.match_substring(text, character)).as_py():
            text = pc.replace_substring(text, character, escaped)
    if pc.any(pc.starts_with(text, "__")).as_py():
        reserved = pc.is_in(text, value_set=pa.array([NULL_PLACEHOLDER, EMPTY_PLACEHOLDER]))
        text = pc.if_else(reserved, pc.binary_replace_slice(text, 0, 1, "%5F"), text)
    return text


def partition_paths(
    data: Rows, config: KeyConfig, limits: PathLimits | None = None, exists: Callable[[str], bool] | None = None
) -> pa.Array:
    """Return the result of `encoded_partition_paths` as one string array."""
    return encoded_partition_paths(data, config, limits, exists).dictionary_decode()


def encoded_partition_paths(
    data: Rows, config: KeyConfig, limits: PathLimits | None = None, exists: Callable[[str], bool] | None = None
) -> pa.DictionaryArray:
    """Return the partition path of each row, without nulls; `""` in a table without partitions.

    The dictionary has each path once, in the order of their first rows.

    Args:
        data: The rows.
        config: How the paths are built.
        limits: The paths that the storage accepts, for rows that will be written there.
        exists: Returns whether a partition has files; those may exceed `limits`.

    Raises:
        UserError: A column is missing or has a type that cannot form a path, or values are not safe directory names
            or exceed `limits`.
    """
    if not config.partition_fields:
        return pa.DictionaryArray.from_arrays(np.zeros(data.num_rows, np.int32), pa.array([""], pa.string()))
    encoded = [_segments(data, config, index) for index in range(len(config.partition_fields))]
    for index, segments in enumerate(encoded):
        bad = _without_value(segments)
        if bad is not None:
            field, why = config.partition_fields[index], _path_help(index, config)
            _refuse(data, config, bad, f"a value in {field!r} that cannot form a partition path: {why}")
    joined = reduce(_join, encoded)
    if limits is not None:
        fault = first_fault(joined.dictionary, limits, exists or _never)
        if fault is not None:
            _refuse_path(data, config, encoded, pc.equal(joined.indices, fault), limits)
    distinct = joined.dictionary.dictionary_encode()
    if len(distinct.dictionary) == len(joined.dictionary):
        return joined
    # Different values may have one path, such as times of one day.
    return pa.DictionaryArray.from_arrays(distinct.indices.take(joined.indices), distinct.dictionary)


def bad_key_mask(data: Rows, config: KeyConfig) -> pa.BooleanArray:
    """Return the mask of rows without a valid record key or without a valid partition path.

    Raises UserError if no row could be valid: for a missing column or a type that cannot form a key.
    """
    masks = [_keys_and_bad(data, config)[1]]
    masks += [_without_value(_segments(data, config, index)) for index in range(len(config.partition_fields))]
    bad = [flat(mask) for mask in masks if mask is not None]
    return reduce(pc.or_, bad) if bad else pa.repeat(pa.scalar(False), data.num_rows)


def _keys_and_bad(data: Rows, config: KeyConfig) -> tuple[Column, Column | None]:
    """Return the keys and the mask of rows without a key. The mask is None if all rows have a key."""
    fields = config.record_key_fields
    if not fields:
        raise UnsupportedError(
            "the table declares no record key field; keys generated at write time are not supported. "
            "Set record_key (hoodie.table.recordkey.fields)."
        )
    texts = [
        value_text(column(data, name), name=name, consistent_timestamps=config.consistent_timestamps) for name in fields
    ]
    if is_prefixed(config):
        if config.encoding is KeyEncoding.ESCAPED and len(fields) > 1:
            texts = [_escaped(text) for text in texts]
        return _prefixed_keys(fields, texts)
    return texts[0], _missing(texts[0])


def is_prefixed(config: KeyConfig) -> bool:
    """Return whether keys are stored as `f1:v1,f2:v2` instead of the value alone (DATA-2.1)."""
    if len(config.record_key_fields) == 1:
        return config.generator is KeyGeneratorType.COMPLEX and config.field_prefix is not False
    if config.generator in (KeyGeneratorType.SIMPLE, KeyGeneratorType.TIMESTAMP):
        raise UserError(
            f"key generator {config.generator.value} takes one record key field, not "
            f"{', '.join(config.record_key_fields)}; use COMPLEX",
            fields=config.record_key_fields,
        )
    return True


def _prefixed_keys(fields: tuple[str, ...], texts: list[Column]) -> tuple[Column, Column | None]:
    pieces: list[object] = []
    missing: list[Column | None] = []
    for index, (name, text) in enumerate(zip(fields, texts, strict=True)):
        absent = _missing(text)
        if absent is not None:
            text = pc.fill_null(pc.if_else(pc.equal(text, ""), EMPTY_PLACEHOLDER, text), NULL_PLACEHOLDER)
        missing.append(absent)
        pieces += [pa.scalar(f"{',' if index else ''}{name}:"), text]
    keys = pc.binary_join_element_wise(*pieces, "")
    if any(mask is None for mask in missing):
        return keys, None
    bad = reduce(pc.and_, missing)
    return keys, bad if pc.any(bad).as_py() else None


def _missing(text: Column) -> Column | None:
    """Return the mask of null or empty values; None if there are none."""
    mask = pc.fill_null(pc.equal(pc.binary_length(text), 0), True)
    return mask if pc.any(mask).as_py() else None


def _segments(data: Rows, config: KeyConfig, index: int) -> pa.DictionaryArray:
    """Return the dictionary-encoded path segments of one partition field. An invalid value gives null."""
    field = config.partition_fields[index]
    values = plain(flat(column(data, field)))
    if is_timestamp_field(index, config):
        encoded = timestamp_texts(
            values,
            config.timestamp or TimestampFormat(),
            name=field,
            consistent_timestamps=config.consistent_timestamps,
        )
        segments = [text and segment(text, field, config) for text in encoded.dictionary.to_pylist()]
    else:
        if pa.types.is_floating(values.type):
            # Arrow counts 0.0 and -0.0 as one distinct value, but they are printed differently.
            values = value_text(values, name=field)
        encoded = _encode(values)
        texts = value_text(encoded.dictionary, name=field, consistent_timestamps=config.consistent_timestamps)
        segments = [segment(text, field, config) for text in texts.to_pylist()]
    return pa.DictionaryArray.from_arrays(encoded.indices, pa.array(segments, pa.string()))


def _encode(values: pa.Array) -> pa.DictionaryArray:
    return pc.dictionary_encode(values, null_encoding="encode")


def _join(left: pa.DictionaryArray, right: pa.DictionaryArray) -> pa.DictionaryArray:
    """Join two encoded paths with `/`, once per distinct pair."""
    width = len(right.dictionary)
    codes = left.indices.to_numpy().astype(np.int64) * width + right.indices.to_numpy()
    pairs = _encode(pa.array(codes))
    lefts, rights = left.dictionary.to_pylist(), right.dictionary.to_pylist()
    paths = [f"{lefts[pair // width]}/{rights[pair % width]}" for pair in pairs.dictionary.to_pylist()]
    return pa.DictionaryArray.from_arrays(pairs.indices, pa.array(paths, pa.string()))


def _without_value(segments: pa.DictionaryArray) -> pa.Array | None:
    """Return the mask of rows with an invalid segment; None if all are valid."""
    if not segments.dictionary.null_count:
        return None
    return pc.is_null(segments.dictionary).take(segments.indices)


def _never(_: str) -> bool:
    return False


# parameters: the parameters of `partition_paths`, and the mask of the rows with the first such path
def _refuse_path(
    data: Rows, config: KeyConfig, encoded: list[pa.DictionaryArray], bad: pa.Array, limits: PathLimits
) -> NoReturn:
    """Raise UserError that names the column and value of a path that cannot be written."""
    first = pc.index(bad, True).as_py()
    texts = [segments[first].as_py() for segments in encoded]
    fields = dict(zip(config.partition_fields, texts, strict=True))
    guilty = next(((name, text) for name, text in fields.items() if path_fault(text, limits)), None)
    name, text = guilty or (", ".join(fields), "/".join(texts))
    encoding = ""
    if not config.url_encode and path_fault(escape(text), limits) is None:
        encoding = " Or create the table with hoodie.datasource.write.partitionpath.urlencode=true, which escapes it."
    raise UserError(
        f"a value of partition column {name!r} cannot be a partition path: {path_fault(text, limits)}. The path is "
        f"{_short(text)!r}, of {pc.sum(bad).as_py()} of {data.num_rows} rows; first is row {first}: "
        f"{_shown_row(data, config, first)}. Shorten or clean the value, such as by substr or sha2, or partition by "
        f"another column.{encoding}",
        column=name,
        first=first,
    )


def _path_help(index: int, config: KeyConfig) -> str:
    if is_timestamp_field(index, config):
        timestamp = config.timestamp or TimestampFormat()
        formats = f", formats {', '.join(timestamp.input_formats)}" if timestamp.input_formats else ""
        return f"it is not a time between years 1 and 9999 (timestamp type {timestamp.type}{formats})"
    if config.url_encode:
        return "a directory cannot be named '.' or '..', and '.hoodie' is the metadata of the table"
    return "every level between '/' needs a name, not '.', '..' or '.hoodie'; url-encoding would escape the '/'"


def _refuse(data: Rows, config: KeyConfig, bad: Column, what: str) -> NoReturn:
    mask = flat(bad)
    count, first = pc.sum(mask).as_py(), pc.index(mask, True).as_py()
    row = _shown_row(data, config, first)
    raise UserError(f"{count} of {data.num_rows} rows have {what}; first is row {first}: {row}", rows=count, first=row)


def _shown_row(data: Rows, config: KeyConfig, row: int) -> dict[str, object]:
    """Return the shortened values of one row's key and partition columns."""
    names = dict.fromkeys((*config.record_key_fields, *config.partition_fields))
    return {name: _short(column(data, name)[row].as_py()) for name in names}


def first_fault(paths: pa.Array, limits: PathLimits, exists: Callable[[str], bool]) -> int | None:
    """Return the position of the first path that must not be written, or None.

    `exists` returns whether a partition has files. It is called for suspicious paths only.
    """
    limit = min((length for length in (limits.segment, limits.path) if length is not None), default=None)
    longest = pc.max(pc.binary_length(paths)).as_py() or 0
    suspicious = f"{_SUSPICIOUS}|[{re.escape(limits.forbidden)}]" if limits.forbidden else _SUSPICIOUS
    if (limit is None or longest <= limit) and not pc.any(pc.match_substring_regex(paths, suspicious)).as_py():
        return None
    for position, path in enumerate(paths.to_pylist()):
        if path_fault(path, limits) is not None and ("\0" in path or not exists(path)):
            return position
    return None


def path_fault(path: str, limits: PathLimits) -> str | None:
    """Return why no partition with this path, or this part of a path, can be created, or None if it can.

    A path with NUL, or one that is too long, cannot exist on the storage. Two more kinds of paths could exist but make
    a failed write impossible to roll back: markers are lines, so a path must not contain a line break, and files below
    a directory `.hoodie` could belong to another table. Partitions that exist with such paths stay writable.
    """
    if "\0" in path:
        return "it contains NUL, which no file name can contain"
    widest = max(len(level.encode()) for level in path.split("/"))
    if limits.segment is not None and widest > limits.segment:
        return f"its directory name has {widest:,} bytes, and the file system allows {limits.segment}"
    length = len(path.encode())
    if limits.path is not None and length > limits.path:
        return (
            f"its path has {length:,} bytes, and the storage allows {limits.path:,} below this table, so that the "
            "names of files fit"
        )
    forbidden = [character for character in limits.forbidden if character in path]
    if forbidden:
        return f"it contains {forbidden[0]!r}, which the storage of the table allows in no name"
    if "\n" in path or "\r" in path:
        return "it contains a line break, which the markers of a write cannot hold"
    if _METADATA_FOLDER.search(path):
        return "it contains a directory .hoodie, which is the metadata of a table"
    return None
