"""Encode Arrow columns as the Avro records of a log block, the inverse of `decode.py` (DATA-4.4).

A column becomes a few binary arrays, its *pieces*, with one entry per row. A nullable string has three: the branch of
the union, the length and the bytes. A record is the concatenation of its entries in all pieces, which Arrow computes in
one pass. The items of lists are encoded like rows. They are adjacent, so a list is a longer slice of the same bytes.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lakehouse.core.format.arrow_versions import size_bytes
from lakehouse.core.format.avro.nodes import MAX_RECORD_BYTES, AvroNode, avro_nodes
from lakehouse.core.format.avro.varints import I64, U8, encode_varints
from lakehouse.core.format.spread import spread
from lakehouse.errors import UserError

#: The version of the log blocks that this package writes.
VERSION = 3

#: Maximum number of rows, and average number of bytes in memory, that are encoded together.
_BATCH_ROWS = 65_536
_BATCH_BYTES = 64 << 20
_EMPTY = pa.scalar(b"", pa.large_binary())

#: A large binary array without nulls.
Piece: TypeAlias = Any


def encode_avro_rows(rows: pa.Table, schema: str) -> bytes:
    """Return the content of an AVRO_DATA or CDC_DATA block of version 3 with `rows` as its records.

    `schema` is the Avro JSON of the records.
    Columns are matched by name; records have the order of the rows. As in Java, lists and maps are written as one block
    and decimals in bytes are as short as possible.

    Raises UserError if a column is missing, is not in the schema, has a null that the schema does not allow, or has a
    value that does not fit its Avro type. Raises the errors of `avro_nodes`, too.
    """
    root = avro_nodes(schema)
    names = [field.name for field in root.arrow]
    if len(set(rows.column_names)) != rows.num_columns or set(rows.column_names) != set(names):
        unlike = sorted(set(rows.column_names) ^ set(names))
        raise UserError(f"the rows do not have exactly the columns of their Avro schema; see {unlike}", columns=unlike)
    header = np.array([VERSION, rows.num_rows], ">i4").tobytes()
    return b"".join([header, *(_records(root, batch) for batch in _batches(rows))])


def encode_avro_values(values: pa.Array, node: AvroNode) -> pa.Array:
    """Return the encoded form of each array value, as a large binary array.

    The array has the Arrow type of the node, which may contain unions of several types. A value of such a union is a
    struct in which at most one field has a value; this field determines the branch.
    """
    return _concatenation(_value(node, values))


def _batches(rows: pa.Table) -> Iterator[pa.Table]:
    mean_bytes = size_bytes(rows) // max(1, rows.num_rows) + 1
    step = max(1, min(_BATCH_ROWS, _BATCH_BYTES // mean_bytes))
    for first in range(0, rows.num_rows, step):
        yield rows.slice(first, step)


def _records(root: AvroNode, rows: pa.Table) -> memoryview:
    """Return the encoded records of `rows`, each preceded by its length."""
    pieces: list[Piece] = []
    for node in root.children:
        pieces += _value(node, _typed(rows.column(node.path), node))
    lengths = np.zeros(rows.num_rows, np.int64)
    for piece in pieces:
        lengths += _lengths(piece)
    if lengths.max(initial=0) > MAX_RECORD_BYTES:
        raise UserError(f"a row has {lengths.max()} bytes in Avro; a record of a log block has at most 2 GiB")
    heads = _constant_width(lengths.astype(">i4").view(np.uint8), 4, rows.num_rows)
    return memoryview(_concatenated([heads, *pieces]))


def _typed(column: pa.ChunkedArray, node: AvroNode) -> Any:
    """Return the column as one array of the Arrow type that corresponds to its Avro type."""
    stored = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    # Refuse casts that Arrow allows but that change values: parsing strings and rounding doubles.
    if _is_text(stored) != _is_text(node.arrow) or (pa.types.is_float64(stored) and pa.types.is_float32(node.arrow)):
        raise UserError(
            f"column {node.path!r} has type {stored}, but its Avro schema needs {node.arrow}; cast it", column=node.path
        )
    try:
        if column.type != node.arrow:
            column = column.cast(node.arrow)
        array = pa.concat_arrays(column.chunks) if column.num_chunks != 1 else column.chunk(0)
    except pa.ArrowException as error:
        raise UserError(
            f"column {node.path!r} of type {column.type} cannot be written as {node.arrow}: {error}", column=node.path
        ) from error
    return array


def _is_text(kind: pa.DataType) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _value(node: AvroNode, array: Any) -> list[Piece]:
    """Return the pieces of all values, with the branches of their unions."""
    has_value = None
    if array.null_count:
        if node.null_branch is None:
            raise UserError(
                f"column {node.path!r} has {array.null_count} nulls, but its Avro type allows none", column=node.path
            )
        has_value = np.asarray(array.is_valid())
        array = array.drop_null()
    pieces = _plain(node, array)
    if node.value_branch is None:
        return pieces
    branch = np.uint8(2 * node.value_branch)
    if has_value is None:
        return [_constant_width(np.full(len(array), branch), 1, len(array)), *pieces]
    branches = np.where(has_value, branch, np.uint8(2 * (node.null_branch or 0)))
    return [
        _constant_width(branches, 1, len(branches)),
        *(spread(piece, has_value, nullable=False) for piece in pieces),
    ]


def _plain(node: AvroNode, array: Any) -> list[Piece]:
    """Return the pieces of values without nulls, without the branches of unions."""
    count = len(array)
    match node.kind:
        case "boolean":
            return [_constant_width(np.asarray(array.cast(pa.uint8())), 1, count)]
        case "int" | "long":
            return [_varints(np.asarray(array.view(pa.int32() if node.kind == "int" else pa.int64())))]
        case "float" | "double":
            return [_constant_width(np.asarray(array).view(np.uint8), node.size, count)]
        case "enum":
            return [_varints(_numbers(node, array))]
        case "record":
            return [
                piece
                for child, part in zip(node.children, array.flatten(), strict=True)
                for piece in _value(child, part)
            ]
        case "union":
            return _union(node, array)
        case "array" | "map":
            return _items(node, array)
        case "fixed" if pa.types.is_fixed_size_binary(node.arrow):
            return [_constant_width(_memory(array, node.size), node.size, count)]
    if pa.types.is_decimal(node.arrow):
        return _decimals(node, array)
    payload = array.cast(pa.large_binary())
    return [_varints(_lengths(payload)), payload]


def _union(node: AvroNode, array: Any) -> list[Piece]:
    branches = np.full(len(array), 2 * (node.null_branch or 0), np.uint8)
    pieces = []
    for number, child, part in zip(node.branches, node.children, array.flatten(), strict=True):
        if part.null_count == len(part):
            continue
        has_value = np.asarray(part.is_valid())
        branches[has_value] = 2 * number
        pieces += [spread(piece, has_value, nullable=False) for piece in _plain(child, part.drop_null())]
    return [_constant_width(branches, 1, len(branches)), *pieces]


def _items(node: AvroNode, array: Any) -> list[Piece]:
    """Return the pieces of lists or maps: item count, items and end marker; an empty list has only the marker."""
    offsets = np.asarray(array.offsets).astype(np.int64)
    parts = (array.keys, array.items) if node.kind == "map" else (array.values,)
    first, last = int(offsets[0]), int(offsets[-1])
    pieces = []
    for child, values in zip(node.children, parts, strict=True):
        pieces += _value(child, values.slice(first, last - first))
    counts = np.diff(offsets)
    items = _concatenation(pieces)
    bounds = _offsets(items)[offsets - first]
    lists = _binary(bounds, items.buffers()[2])
    heads = spread(_varints(counts[counts > 0]), counts > 0, nullable=False)
    return [heads, lists, _constant_width(np.zeros(len(array), np.uint8), 1, len(array))]


def _numbers(node: AvroNode, array: Any) -> I64:
    numbers = pc.index_in(array, pa.array(node.symbols, pa.string()))
    if numbers.null_count:
        wrong = array.filter(numbers.is_null())[0].as_py()
        raise UserError(
            f"column {node.path!r} has value {wrong!r}; its enum allows {', '.join(node.symbols)}", column=node.path
        )
    return np.asarray(numbers).astype(np.int64)


def _decimals(node: AvroNode, array: Any) -> list[Piece]:
    """Return the pieces of big-endian two's complement numbers, of the fixed size or as short as possible."""
    digits = np.ascontiguousarray(_memory(array, 16).reshape(-1, 16)[:, ::-1])
    sizes = _needed_bytes(digits)
    if node.kind == "fixed":
        if sizes.max(initial=0) > node.size:
            wrong = array[int(sizes.argmax())].as_py()
            raise UserError(
                f"column {node.path!r} has value {wrong}, which does not fit {node.size} bytes", column=node.path
            )
        return [_constant_width(digits[:, 16 - node.size :].reshape(-1), node.size, len(array))]
    is_used = np.arange(16) >= 16 - sizes[:, None]
    return [_varints(sizes), _binary(_sums(sizes), pa.py_buffer(digits[is_used]))]


def _needed_bytes(digits: U8) -> I64:
    """Return how many of its 16 bytes each number needs; leading bytes that only extend the sign are not needed."""
    signs = (digits.view(np.int8) >> 7).view(np.uint8)
    is_needed = digits[:, :-1] != signs[:, 1:]
    is_needed |= (digits[:, :-1] != 0) & (digits[:, :-1] != 0xFF)
    first = np.where(is_needed.any(axis=1), is_needed.argmax(axis=1), 15)
    return (16 - first).astype(np.int64)


def _varints(values: NDArray[Any]) -> Piece:
    data, sizes = encode_varints(values.astype(np.int64, copy=False))
    return _binary(_sums(sizes), pa.py_buffer(data))


def _constant_width(data: U8, width: int, count: int) -> Piece:
    return _binary(np.arange(count + 1) * width, pa.py_buffer(np.ascontiguousarray(data)))


def _concatenation(pieces: list[Piece]) -> Piece:
    return pc.binary_join_element_wise(*pieces, _EMPTY) if len(pieces) > 1 else pieces[0]


def _concatenated(pieces: list[Piece]) -> Any:
    """Return the entries of all pieces as one buffer, row by row."""
    joined = _concatenation(pieces)
    offsets = _offsets(joined)
    return joined.buffers()[2].slice(int(offsets[0]), int(offsets[-1] - offsets[0]))


def _binary(offsets: I64, data: Any) -> Piece:
    buffers = [None, pa.py_buffer(np.ascontiguousarray(offsets)), data if data is not None else pa.py_buffer(b"")]
    return pa.Array.from_buffers(pa.large_binary(), len(offsets) - 1, buffers)


def _offsets(piece: Piece) -> I64:
    offsets: I64 = np.frombuffer(piece.buffers()[1], np.int64)[piece.offset : piece.offset + len(piece) + 1]
    return offsets


def _lengths(piece: Piece) -> I64:
    return np.diff(_offsets(piece))


def _sums(counts: NDArray[Any]) -> I64:
    sums = np.zeros(len(counts) + 1, np.int64)
    np.cumsum(counts, out=sums[1:])
    return sums


def _memory(array: Any, width: int) -> U8:
    """Return the bytes of an array whose values have `width` bytes each."""
    data = np.frombuffer(array.buffers()[1], np.uint8)
    values: U8 = data[array.offset * width : (array.offset + len(array)) * width]
    return values
