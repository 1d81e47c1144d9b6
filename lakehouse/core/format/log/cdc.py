"""Define change data: the records of a change log, their Avro schema, and the rows that readers return (DATA-6).

    OP_KEY_ONLY         op, record_key
    DATA_BEFORE         op, record_key, before
    DATA_BEFORE_AFTER   op, ts_ms, before, after

`before` and `after` are *images*: complete rows without meta columns. `ts_ms` is the requested time of the commit, as a
string.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.model.document import parse_json

OP, TS, BEFORE, AFTER, RECORD_KEY = "op", "ts_ms", "before", "after", "record_key"
#: The suffix of a change log's file name.
CDC_SUFFIX = ".cdc"
_TEXT = ["null", "string"]


class CdcMode(StrEnum):
    """The images in a change log. Missing images are read from the file slices before and after the commit."""

    OP_KEY_ONLY = "OP_KEY_ONLY"
    DATA_BEFORE = "DATA_BEFORE"
    DATA_BEFORE_AFTER = "DATA_BEFORE_AFTER"

    @property
    def has_before(self) -> bool:
        """Whether the log contains rows from before the change."""
        return self is not CdcMode.OP_KEY_ONLY

    @property
    def has_after(self) -> bool:
        """Whether the log contains rows from after the change."""
        return self is CdcMode.DATA_BEFORE_AFTER


class Op(StrEnum):
    """The kind of a change, with the values of the column `op`."""

    INSERT = "i"
    UPDATE = "u"
    DELETE = "d"


def cdc_avro_schema(mode: CdcMode, avro_schema: str) -> str:
    """Return the Avro JSON of a change log's records; `avro_schema` is the Avro JSON of the table's data columns."""
    if mode is CdcMode.OP_KEY_ONLY:
        fields = [{"name": name, "type": ["string", "null"]} for name in (OP, RECORD_KEY)]
        return json.dumps({"type": "record", "name": "Record", "fields": fields}, separators=(",", ":"))
    table = parse_json(avro_schema)
    second = TS if mode.has_after else RECORD_KEY
    fields = [_field(OP, _TEXT), _field(second, _TEXT), _field(BEFORE, ["null", table])]
    if mode.has_after:
        # Avro declares a record once and then refers to it by its name.
        fields.append(_field(AFTER, ["null", table["name"]]))
    record = {"type": "record", "name": "CDC", "namespace": table.get("namespace", ""), "doc": "", "fields": fields}
    return json.dumps(record, separators=(",", ":"))


def change_schema(images: pa.Schema) -> pa.Schema:
    """Return the schema of the rows that a read of changes returns; `images` is the schema of an image.

    op string | ts_ms string | before struct<images> (null: inserted) | after struct<images> (null: deleted)
    """
    image = image_type(images)
    return pa.schema([(OP, pa.string()), (TS, pa.string()), (BEFORE, image), (AFTER, image)])


def image_type(images: pa.Schema) -> pa.StructType:
    """Return the struct type of an image; every column is nullable, because the image itself may be null."""
    return pa.struct([field.with_nullable(True).remove_metadata() for field in images])


def image(rows: pa.Table, kind: pa.StructType, position: pa.Array | None = None) -> pa.StructArray:
    """Return rows as one array of images with the type `kind`.

    With `position` the array has the rows at these row numbers, and null where `position` is null.
    """
    chosen = rows.select([field.name for field in kind])
    if position is not None:
        chosen = chosen.take(position)
    columns = [_whole(chosen.column(number), field.type) for number, field in enumerate(kind)]
    mask = None if position is None or not position.null_count else pc.is_null(position)
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


def rows_of(images: pa.StructArray | pa.ChunkedArray) -> pa.Table:
    """Return the images that are not null as a table with one column per field."""
    whole = images.combine_chunks() if isinstance(images, pa.ChunkedArray) else images
    valid = whole.drop_null() if whole.null_count else whole
    columns = [pc.struct_field(valid, [number]) for number in range(valid.type.num_fields)]
    return pa.Table.from_arrays(columns, schema=pa.schema(list(valid.type)))


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "doc": "", "default": None}


def _whole(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    chunks = [chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk for chunk in column.chunks]
    array = pa.concat_arrays([*chunks, pa.array([], column.type if not chunks else chunks[0].type)])
    return array if array.type == kind else array.cast(kind)
