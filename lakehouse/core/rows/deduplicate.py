"""Combine duplicates inside one batch to one row, independent of how the input was partitioned.

The row with the maximum ordering value wins; nulls are lower than all values. Ties are broken by the remaining columns,
so the winner depends on values only, never on the order of arrival. If the table mixes versions of a record (partial
updates, custom merger), the rows of a key are merged in this ascending order.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.arrow_versions import order_nulls_first
from lakehouse.core.rows.absent_columns import LACKS, Groups, bits_of, bits_without, lacking_columns
from lakehouse.core.rows.casting import cast_columns
from lakehouse.core.rows.delta_merge import merge_entries
from lakehouse.core.rows.log_entries import ColumnSets, Control, record_entries
from lakehouse.core.rows.ordering import ordering_columns
from lakehouse.core.rows.record_merge import delete_flags
from lakehouse.errors import UserError
from lakehouse.model.merge import MergeMode, MergeRule, PartialMode

_LOWEST = np.iinfo(np.int64).min


def combine(
    rows: pa.Table, *, keys: tuple[str, ...], rule: MergeRule, lacks: Groups = (), deletes_yield: bool = False
) -> pa.Table:
    """Return `rows` with one row for each distinct tuple of the string columns `keys`.

    Unmerged rows keep their order; rows merged from several versions follow them.

    Args:
        rows: The rows; they need `_hoodie_record_key` if `rule` mixes versions.
        keys: The columns that identify a record.
        rule: How versions are merged.
        lacks: Sets of columns that some rows lack (`rows.absent_columns`). Such a row takes the values of the next
            lower version that provides them.
        deletes_yield: Whether rows that `_hoodie_is_deleted` marks are dropped if the batch has other rows with the
            same key.

    Raises:
        UserError: A custom merger fails.
    """
    codes, distinct = _codes(rows, keys)
    if distinct == rows.num_rows:
        return rows
    if rule.combines_whole:
        rule = replace(rule, partial=PartialMode.NONE)
    deleted = delete_flags(rows) if deletes_yield else None
    if deleted is not None and deleted.any():
        remaining = ~deleted
        remaining |= (np.bincount(codes[remaining], minlength=distinct) == 0)[codes]
        rows, codes = rows.filter(pa.array(remaining)), codes[remaining]
        if distinct == rows.num_rows:
            return rows
    counts = np.bincount(codes, minlength=distinct)
    keep = counts[codes] == 1
    greatest = None if rule.mixes or bits_of(rows).any() else _greatest(rows, codes, distinct, rule)
    if greatest is not None:
        # Fast path: only the maximum can win, and usually each key has only one row with the maximum.
        counts = np.bincount(codes[greatest], minlength=distinct)
        keep = greatest & (counts[codes] == 1)
        repeated = np.flatnonzero(greatest & ~keep)
        if not len(repeated):
            return rows.filter(pa.array(keep))
    else:
        repeated = np.flatnonzero(~keep)
    versions, codes = rows.take(pa.array(repeated)), codes[repeated]
    order = _ascending(versions, codes, keys, rule)
    if rule.mixes or bits_of(versions).any():
        return pa.concat_tables([rows.filter(pa.array(keep)), _folded(versions, codes, order, rule, lacks)])
    ordered = codes[order]
    last_of_key = np.append(ordered[1:] != ordered[:-1], True)
    keep[repeated[order[last_of_key]]] = True
    return rows.filter(pa.array(keep))


def check_orderable(schema: pa.Schema, ordering: str) -> None:
    """Raise UserError if the ordering column is missing or has a type without an order."""
    if ordering not in schema.names:
        raise UserError(f"ordering column {ordering!r} is not in the data; columns: {', '.join(schema.names)}")
    kind = schema.field(ordering).type
    if pa.types.is_nested(kind):
        raise UserError(
            f"ordering column {ordering!r} has type {kind}, which has no order; use a number, time or string"
        )


def _codes(rows: pa.Table, keys: tuple[str, ...]) -> tuple[np.ndarray, int]:
    """Return a number for each row, equal for equal values of the columns `keys`, and the count of distinct numbers."""
    codes, distinct, combined = np.zeros(rows.num_rows, dtype=np.int64), min(rows.num_rows, 1), False
    for key in keys:
        encoded = _encoded(rows.column(key))
        count, indices = len(encoded.dictionary), encoded.indices.to_numpy(zero_copy_only=False)
        if count == rows.num_rows:
            return indices, count
        if count > 1:
            combined = distinct > 1
            codes, distinct = codes * count + indices, distinct * count
    if not combined:
        return codes, distinct
    unique, dense = np.unique(codes, return_inverse=True)
    return dense, len(unique)


def _encoded(column: pa.ChunkedArray) -> pa.DictionaryArray:
    """Return a column with a dictionary that has exactly its values."""
    kind = column.type
    plain = column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column
    # Joined before it is encoded: each chunk of an encoded column gets a dictionary of all values before its end, and
    # Arrow takes four times as long for one such dictionary as for encoding all values together.
    encoded = plain.combine_chunks().dictionary_encode()
    if isinstance(encoded, pa.ChunkedArray):  # Values of more than 2 GB stay in several chunks.
        encoded = encoded.unify_dictionaries().combine_chunks()
    return encoded


def _greatest(rows: pa.Table, codes: np.ndarray, distinct: int, rule: MergeRule) -> np.ndarray | None:
    """Return the mask of rows with the maximum of the first ordering column, or None if that requires sorting."""
    columns = ordering_columns(rows, _by_value(rule))
    values = _integers(columns[0]) if columns else None
    if values is None:
        return None
    greatest = np.full(distinct, _LOWEST)
    np.maximum.at(greatest, codes, values)
    mask: np.ndarray = values == greatest[codes]
    return mask


def _integers(column: pa.Array | pa.ChunkedArray) -> np.ndarray | None:
    """Convert values to integers with the same order, null first. Return None for types without such integers."""
    kind = column.type
    if pa.types.is_uint64(kind) or not (pa.types.is_integer(kind) or pa.types.is_temporal(kind)):
        return None
    if pa.types.is_temporal(kind):
        column = column.cast(pa.int32() if kind.bit_width == 32 else pa.int64())
    return np.asarray(pc.fill_null(column.cast(pa.int64()), _LOWEST).to_numpy())


def _by_value(rule: MergeRule) -> MergeRule:
    # Rows of one batch are ordered by value with commit time ordering too, because they have the same commit time.
    return replace(rule, mode=MergeMode.EVENT_TIME_ORDERING)


def _ascending(rows: pa.Table, codes: np.ndarray, keys: tuple[str, ...], rule: MergeRule) -> np.ndarray:
    """Return the row positions grouped by key, in ascending order of the versions of each key."""
    order_by = {"": pa.array(codes)}
    for number, column in enumerate(ordering_columns(rows, _by_value(rule)) or ()):
        order_by[f"0{number}"] = column
    for name in rows.column_names:
        if name not in keys and name not in rule.ordering:
            order_by.update(_comparable(f"1{name}", rows.column(name)))
    order: np.ndarray = order_nulls_first(pa.table(order_by)).to_numpy()
    return order


def _folded(rows: pa.Table, codes: np.ndarray, order: np.ndarray, rule: MergeRule, lacks: Groups) -> pa.Table:
    _, records = np.unique(codes[order], return_inverse=True)
    versions, sets = rows.take(pa.array(order)), ColumnSets()
    data = versions.drop_columns([LACKS]) if LACKS in versions.column_names else versions
    entries = record_entries(data, rule, provided_sets(versions, lacks, sets), table=data.schema)
    merged = merge_entries(entries, rule, sets, records=records)
    result = cast_columns(merged.select(data.schema.names), data.schema)
    if data is not versions:
        bits = np.array([bits_without(lacks, names) for names in sets.sets], np.int64)
        result = result.append_column(LACKS, pa.array(bits[Control.of(merged).columns]))
    return result


def provided_sets(rows: pa.Table, lacks: Groups, sets: ColumnSets) -> np.ndarray:
    """Return for each row the number in `sets` of its provided columns."""
    distinct, which = np.unique(bits_of(rows), return_inverse=True)
    names = frozenset(rows.column_names)
    lacking = [lacking_columns(lacks, bits) for bits in distinct.tolist()]
    numbers = [sets.number(names - missing if missing else None) for missing in lacking]
    return np.array(numbers, np.int32)[which]


def _comparable(name: str, column: pa.ChunkedArray) -> dict[str, pa.ChunkedArray]:
    kind = column.type
    if pa.types.is_struct(kind):
        parts = [pc.is_valid(column), *(pc.struct_field(column, [i]) for i in range(kind.num_fields))]
        return {k: v for i, part in enumerate(parts) for k, v in _comparable(f"{name}.{i:04d}", part).items()}
    if pa.types.is_nested(kind):
        # Arrow cannot sort lists and maps, so their string form is used. This only concerns rows with duplicate keys
        # whose preceding columns are all equal.
        return {name: pa.chunked_array([pa.array([repr(value) for value in column.to_pylist()], pa.string())])}
    return {name: column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column}
