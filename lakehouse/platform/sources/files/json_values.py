"""Parse JSON objects with Arrow in Spark tasks, and collect the fields without a column.

Arrow's reader is several times as fast as Spark's `from_json`, and accepts fewer forms of values. A value is parsed
here only if `from_json` gives the same result; every other value gets a null `record`, and Spark parses it or rejects
it. A block of values that Arrow refuses is halved until the refused values are in small pieces.

    {"record":<value>}\\n    one line for each value

Arrow checks neither that an object ends with its line nor that a line contains one object. The enclosing object makes
both certain: after a value, only `}` may follow, so an object cannot continue on the next line. A line can therefore
contain more than one object, but not less. So if there are as many rows as lines, each line is one object.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from lakehouse.platform.sources.unread_fields import UnreadFields
from lakehouse.spark.messages import DECODED, MESSAGES

_RECORD = "record"
#: Minimum number of values in a piece that Arrow parses; Spark parses smaller pieces with a refused value.
_PIECE = 256
#: Number of batches that Spark parses after a batch with mostly refused values.
_SKIPPED = 16
_TIME = r"^[1-8]\d{3}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}(\.\d{1,6})?(Z|[+-]\d{2}:\d{2})$"
#: Integers from this value on are rounded to a double; a larger number may be infinite.
_INEXACT = float(1 << 53)
_DATE = r"^[1-8]\d{3}-\d{2}-\d{2}$"


@dataclass(frozen=True, slots=True, kw_only=True)
class JsonDecoder:
    """Parses message values. It is sent to the workers.

    Attributes:
        messages: Yields batches of `MESSAGES`.
        target: The type of a record.
        paths: Paths in a value, such as `after`; the first one with an object leads to the record.
        parses: Whether records are parsed; otherwise fields are only collected.
        interval_ms: The time range of messages to parse; None for all.
    """

    messages: Any
    target: pa.StructType
    paths: tuple[tuple[str, ...], ...] = ((),)
    parses: bool = True
    interval_ms: tuple[int, int] | None = None

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield the messages with their `record`, and the unread fields in the row that ends a range.

        `problem` is null.
        """
        schema = pa.schema([*MESSAGES, pa.field("record", self.target), *DECODED])
        parser = JsonParser(self.target, self.paths, parses=self.parses)
        for batch in self.messages(batches):
            is_end = len(batch) == 1 and batch.column("is_end")[0].as_py()
            records = pa.nulls(1, self.target) if is_end else parser.parsed(self._own_values(batch))
            unread = parser.take_unread() if is_end else None
            texts = [pa.nulls(len(batch), pa.string()), pa.repeat(pa.scalar(unread, pa.string()), len(batch))]
            yield pa.RecordBatch.from_arrays([*batch.columns, records, *texts], schema=schema)
        unread = parser.take_unread()
        if unread is not None:
            yield pa.RecordBatch.from_pylist([{"is_end": True, "unread": unread}], schema=schema)

    def _own_values(self, batch: pa.RecordBatch) -> pa.Array:
        """Return the values, null for messages outside of the interval."""
        values = batch.column("value")
        if self.interval_ms is None:
            return values
        first, end = (pa.scalar(1000 * bound, pa.int64()).cast(pa.timestamp("us", "UTC")) for bound in self.interval_ms)
        times = batch.column("time")
        inside = pc.and_(pc.greater_equal(times, first), pc.less(times, end))
        return pc.if_else(inside, values, pa.scalar(None, values.type))


@dataclass(frozen=True, slots=True, kw_only=True)
class FieldCollector:
    """Collects the fields of lines that `target` lacks. It is sent to the workers.

    Attributes:
        target: The type of a record.
        paths: Paths in a line; the first one with an object leads to the record.
    """

    target: pa.StructType
    paths: tuple[tuple[str, ...], ...] = ((),)

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Yield one row with the fields as JSON; the first column of the batches contains the lines."""
        parser = JsonParser(self.target, self.paths, parses=False)
        for batch in batches:
            parser.parsed(batch.column(0))
        yield pa.RecordBatch.from_arrays([pa.array([parser.take_unread()], pa.string())], names=["unread"])


class JsonParser:
    """Parses arrays of JSON objects (see the module) as records of the type `target`."""

    def __init__(self, target: pa.StructType, paths: tuple[tuple[str, ...], ...] = ((),), *, parses: bool = True):
        self._target, self._paths = target, paths
        self._read = _read_type(target) if parses else None
        self._unread, self._has_unread, self._skip = UnreadFields(target), False, 0

    def take_unread(self) -> str | None:
        """Return the fields found since the last call, serialized for the driver."""
        text, self._unread = self._unread.to_json(), UnreadFields(self._target)
        return text

    def parsed(self, values: pa.Array) -> pa.Array:
        """Return the records of binary or string values, null if Spark has to parse the value."""
        if self._skip:
            self._skip -= 1
            self._collect(values)
            return pa.nulls(len(values), self._target)
        # A line break inside of a value would split it into two lines.
        lines = pc.if_else(pc.match_substring_regex(values.cast(pa.binary()), "[\n\r]"), None, values.cast(pa.binary()))
        pieces = list(self._pieces(lines, values))
        result = pa.concat_arrays(pieces) if pieces else pa.nulls(0, self._target)
        if self._read is not None and result.null_count > len(values) // 2:
            self._skip = _SKIPPED
        return result

    def _pieces(self, lines: pa.Array, values: pa.Array) -> Iterator[pa.Array]:
        waiting = [(0, len(lines))] if len(lines) else []
        while waiting:
            start, end = waiting.pop()
            piece = lines.slice(start, end - start)
            records = self._try(piece)
            if records is not None:
                if piece.null_count:
                    self._collect(values.slice(start, end - start).filter(piece.is_null()))
                yield records
            elif end - start <= _PIECE:
                self._collect(values.slice(start, end - start))
                yield pa.nulls(end - start, self._target)
            else:
                middle = (start + end) // 2
                waiting += [(middle, end), (start, middle)]

    def _try(self, lines: pa.Array) -> pa.Array | None:
        """Return the records of lines, None if Arrow refuses one of them."""
        records = None
        if self._read is not None and not self._has_unread:
            # If there are no further fields, this is sufficient; further fields are an error.
            records = _records(lines, self._read, "error")
        if records is None:
            records = _records(lines, self._read, "infer")
            if records is None:
                return None
            self._has_unread = True
            self._add(records)
        if self._read is None:
            return pa.nulls(len(lines), self._target)
        try:
            return _conformed(records, self._target)
        except pa.ArrowInvalid:
            return None

    def _collect(self, values: pa.Array) -> None:
        """Collect fields from values that Arrow does not parse, one by one."""
        for value in values.drop_null().to_pylist():
            try:
                record = json.loads(value)
            except (ValueError, RecursionError):
                continue
            for path in self._paths:
                row = record
                for name in path:
                    row = row.get(name) if isinstance(row, dict) else None
                if isinstance(row, dict):
                    self._unread.add_values([row])
                    break

    def _add(self, values: pa.Array) -> None:
        """Collect the fields of records: in each value, the first path with a record is used."""
        is_left = values.is_valid()
        for path in self._paths:
            records = _at(values, path)
            if records is not None:
                own = pc.and_(is_left, records.is_valid())
                self._unread.add_array(records if path == () else records.filter(own))
                is_left = pc.and_not(is_left, own)


def _records(lines: pa.Array, read: pa.StructType | None, unexpected: str) -> pa.Array | None:
    """Return the object of each line, null for a line that is null; None if Arrow refuses a line.

    Invalid UTF-8 and the value `null` are refused: Spark has a rule for them.
    """
    filled = pc.fill_null(lines, b"null")
    text = pc.binary_join_element_wise(b'{"' + _RECORD.encode() + b'":', filled, b"}\n", b"")
    data = pa.py_buffer(text.buffers()[2]).slice(*_extent(text))
    explicit = None if read is None else pa.schema([pa.field(_RECORD, read)])
    try:
        text.cast(pa.string())
        table = pj.read_json(
            pa.BufferReader(data),
            read_options=pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
            parse_options=pj.ParseOptions(explicit_schema=explicit, unexpected_field_behavior=unexpected),
        )
        records = table.column(_RECORD).combine_chunks()
        if table.column_names != [_RECORD] or len(records) != len(lines) or records.null_count != lines.null_count:
            return None
        if not pa.types.is_struct(records.type):
            return None
        return records
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _extent(text: pa.Array) -> tuple[int, int]:
    """Return the offset and length of an array's bytes."""
    first, last = text.offset, text.offset + len(text)
    width = pa.int64() if pa.types.is_large_binary(text.type) else pa.int32()
    offsets = pa.Array.from_buffers(width, last + 1, [None, text.buffers()[1]])
    start, end = offsets[first].as_py(), offsets[last].as_py()
    return start, end - start


def _read_type(kind: pa.DataType) -> Any:
    """Return the type with which Arrow reads values of a type; None if `from_json` gives other values."""
    if pa.types.is_struct(kind):
        fields = [(field.name, _read_type(field.type)) for field in kind]
        return None if any(one is None for _, one in fields) else pa.struct(fields)
    if pa.types.is_list(kind):
        element = _read_type(kind.value_type)
        return None if element is None else pa.list_(element)
    if pa.types.is_date32(kind) or (pa.types.is_timestamp(kind) and kind.tz is not None):
        return pa.string()
    is_plain = pa.types.is_integer(kind) or pa.types.is_float64(kind) or pa.types.is_boolean(kind)
    return kind if is_plain or pa.types.is_decimal(kind) or pa.types.is_string(kind) else None


def _conformed(array: pa.Array, target: pa.DataType) -> pa.Array:
    """Cast an array to the type `target`, without fields that `target` lacks.

    Raises ArrowInvalid for a date or time unless `from_json` and Arrow read its form equally.
    """
    if pa.types.is_struct(target):
        children = [_conformed(pc.struct_field(array, [field.name]), field.type) for field in target]
        return pa.StructArray.from_arrays(children, fields=list(target), mask=array.is_null())
    if pa.types.is_list(target):
        # A list without values has the offsets of its neighbours.
        lengths = pc.fill_null(pc.list_value_length(array), 0)
        ends = pc.cumulative_sum(lengths.cast(pa.int32()))
        offsets = pa.concat_arrays([pa.array([0], pa.int32()), ends])
        elements = _conformed(pc.list_flatten(array), target.value_type)
        return pa.ListArray.from_arrays(offsets, elements, type=target, mask=array.is_null())
    if pa.types.is_temporal(target):
        form = _DATE if pa.types.is_date32(target) else _TIME
        if not pc.all(pc.match_substring_regex(array, form)).as_py() and len(array) > array.null_count:
            raise pa.ArrowInvalid(f"a value is not a {target} in ISO 8601")
    if pa.types.is_floating(target) and pc.any(pc.greater_equal(pc.abs(array), _INEXACT)).as_py():
        raise pa.ArrowInvalid(f"a value may not be held exactly by a {target}")
    return array if array.type.equals(target) else array.cast(target)


def _at(records: pa.Array, path: tuple[str, ...]) -> pa.Array | None:
    """Return the objects at a path, None if there are none."""
    for name in path:
        if not pa.types.is_struct(records.type) or records.type.get_field_index(name) < 0:
            return None
        records = pc.struct_field(records, [name])
    return records if pa.types.is_struct(records.type) else None
