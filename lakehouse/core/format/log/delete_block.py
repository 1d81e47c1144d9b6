"""Read and write delete blocks: record keys with the ordering values of their deletes (DATA-4.4, DATA-5.2).

    int32 3 | int32 bytes | Avro array: count, entries, 00         version 3; versions 1 and 2: see delete_objects.py
    entry   = [null, string] key | [null, string] partition | branch of the union of ordering values | value

                                 branch                value
    02 0e TXN-002                 0 null               -
    02 12 region=us               1 Boolean            1 byte
    04 00                         2 Int, 8 Date        varint (Date: days)
                                  3 Long               varint; 10 TimeMicros and 11 TimestampMicros likewise
                                  4 Float, 5 Double    4, 8 bytes
                                  6 Bytes, 7 String    varint length, bytes
                                  9 Decimal            like Bytes: the number in units of 1e-15
                                 12 Array              several ordering columns: 02, count, (branch, value) each, 00

Int 0 means "no ordering value". Such a delete applies to each older record, whatever ordering value it has (a
commit-time delete). A value with a different Java class than the ordering column has the same effect, because Hudi
cannot compare the two.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.avro.varints import MARGIN, Window
from lakehouse.core.format.log.delete_entries import Flags, Wrapper, find_entries
from lakehouse.core.format.log.delete_java_values import ordering_of_values
from lakehouse.core.format.log.delete_objects import decode_objects
from lakehouse.core.format.log.delete_values import encode_values, joined, ordering_columns, texts, varints, written_as
from lakehouse.errors import CorruptTableError, UnsupportedError, UserError

VERSION = 3
_FRAME = struct.Struct(">ii")
_NO_ORDERING = bytes((Wrapper.INT << 1, 0))
_TEXT = b"\x02"
_END = b"\x00"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedKeys:
    """Entries of a delete block in its order, as columns with one item per entry.

    `keys` and `partitions` are string arrays. `default` has a flag for each entry without an ordering value that can be
    compared with the ordering columns. `ordering` has one array per ordering column, of the column's type, with null
    where the flag is set.
    """

    keys: pa.Array
    partitions: pa.Array
    ordering: tuple[pa.Array, ...]
    default: Flags


def decode_deletes(content: bytes, ordering: Sequence[pa.DataType]) -> DeletedKeys:
    """Return the entries of a delete block; `ordering` has the types of the table's ordering columns, if any.

    Raises UnsupportedError for an ordering column of an unsupported type and for Java objects of an unknown class.
    Raises CorruptTableError if the entries do not fill the content exactly, have no key, or have an invalid value.
    """
    if len(content) < _FRAME.size:
        raise CorruptTableError(f"a delete block has {len(content)} bytes; expected at least {_FRAME.size}")
    version, length = _FRAME.unpack_from(content)
    if version not in (1, 2, VERSION) or length != len(content) - _FRAME.size:
        raise CorruptTableError(
            f"a delete block of version {version} has {len(content)} bytes, but declares {_FRAME.size} + {length};"
            f" expected version 1 to {VERSION} and equal sizes"
        )
    if version != VERSION:
        return _of_objects(content[_FRAME.size :], version, ordering)
    if content.endswith(_END) and length == len(_END):
        # File groups of the metadata table begin with a block without entries.
        empty = pa.array([], pa.string())
        columns = tuple(pa.array([], kind) for kind in ordering)
        return DeletedKeys(keys=empty, partitions=empty, ordering=columns, default=np.zeros(0, bool))
    window = Window(np.frombuffer(content, np.uint8, offset=_FRAME.size))
    stop = MARGIN + length
    entries = find_entries(window, stop)
    default, columns = ordering_columns(window, entries, tuple(ordering), stop)
    return DeletedKeys(
        keys=texts(window, entries.key, entries.key_length),
        partitions=texts(window, entries.partition, entries.partition_length),
        ordering=columns,
        default=default,
    )


def encode_deletes(keys: pa.Array, partition: str, ordering: pa.Array | None = None) -> bytes:
    """Return the content of a version 3 delete block.

    Args:
        keys: Record keys of one partition, strings without nulls.
        partition: The partition path.
        ordering: The ordering value of each delete, in the type of the ordering column, or a struct for several ones.
            None writes commit-time deletes. An integer 0 has the same meaning, so the format has no delete with the
            ordering value 0.

    Raises:
        UserError: A key or ordering value is null, or the lengths differ.
        UnsupportedError: The type is not supported for ordering values, or the block would be larger than 2 GB.
    """
    if keys.null_count:
        raise UserError(f"{keys.null_count} of {len(keys)} keys to delete are null; a delete needs a record key")
    count = len(keys)
    branch, values = _NO_ORDERING, None
    if ordering is not None:
        if len(ordering) != count:
            raise UserError(f"{count} keys to delete have {len(ordering)} ordering values; expected one per key")
        wrapper = Wrapper.ARRAY if pa.types.is_struct(ordering.type) else written_as(ordering.type)
        branch, values = bytes((wrapper << 1,)), encode_values(ordering)
    place = partition.encode()
    tail = _TEXT + _number(len(place)) + place + branch
    text = keys.cast(pa.binary())
    sizes = pc.binary_length(text).to_numpy(zero_copy_only=False).astype(np.int64)
    total = int(sizes.sum()) + count * (len(tail) + 8) + (0 if values is None else values.nbytes)
    if total > np.iinfo(np.int32).max:
        raise UnsupportedError(
            f"{count} deletes have {total} bytes; a delete block has at most 2 GB, so write several blocks"
        )
    if count == 0:
        return _FRAME.pack(VERSION, len(_END)) + _END
    pieces = [_TEXT, varints(sizes), text, tail]
    entries = joined(*pieces) if values is None else joined(*pieces, values)
    payload = b"".join((_number(count), _bytes_of(entries), _END))
    return _FRAME.pack(VERSION, len(payload)) + payload


def _of_objects(payload: bytes, version: int, ordering: Sequence[pa.DataType]) -> DeletedKeys:
    objects = decode_objects(payload, version)
    default, columns = ordering_of_values(objects.values, ordering)
    return DeletedKeys(
        keys=pa.array(objects.keys, pa.string()),
        partitions=pa.array(objects.partitions, pa.string()),
        ordering=columns,
        default=default,
    )


def _number(value: int) -> bytes:
    encoded: bytes = varints(np.array([value], np.int64))[0].as_py()
    return encoded


def _bytes_of(values: pa.Array) -> memoryview:
    """Return the concatenated bytes of all values."""
    offsets = np.frombuffer(values.buffers()[1], np.int32)[values.offset : values.offset + len(values) + 1]
    return memoryview(values.buffers()[2])[offsets[0] : offsets[-1]]
