"""Change data: what a change log records, its Avro schema, and the rows readers get (DATA-6).

    OP_KEY_ONLY         op, record_key
    DATA_BEFORE         op, record_key, before
    DATA_BEFORE_AFTER   op, ts_ms, before, after

Images are whole rows without meta columns. `ts_ms` is the requested time of the commit, as an instant's text.
"""

from __future__ import annotations

import json
from enum import StrEnum
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.model.document import parse_json

OP, TS, BEFORE, AFTER, RECORD_KEY = "op", "ts_ms", "before", "after", "record_key"
#: What the name of a change log ends with.
CDC_SUFFIX = ".cdc"
_TEXT = ["null", "string"]


class CdcMode(StrEnum):
    """How much a change log holds; what it lacks is read from the file slices before and after the commit."""

    OP_KEY_ONLY = "OP_KEY_ONLY"
    DATA_BEFORE = "DATA_BEFORE"
    DATA_BEFORE_AFTER = "DATA_BEFORE_AFTER"

    @property
    def has_before(self) -> bool:
        """Whether rows are logged as they were before the change."""
        return self is not CdcMode.OP_KEY_ONLY

    @property
    def has_after(self) -> bool:
        """Whether rows are logged as they are after the change."""
        return self is CdcMode.DATA_BEFORE_AFTER


class Op(StrEnum):
    """What happened to a row, as `op` spells it."""

    INSERT = "i"
    UPDATE = "u"
    DELETE = "d"


def cdc_avro_schema(mode: CdcMode, avro_schema: str) -> str:
    """Return the Avro JSON of a change log's records; `avro_schema` is that of the table's data columns."""
    if mode is CdcMode.OP_KEY_ONLY:
        fields = [{"name": name, "type": ["string", "null"]} for name in (OP, RECORD_KEY)]
        return json.dumps({"type": "record", "name": "Record", "fields": fields}, separators=(",", ":"))
    table = parse_json(avro_schema)
    second = TS if mode.has_after else RECORD_KEY
    fields = [_field(OP, _TEXT), _field(second, _TEXT), _field(BEFORE, ["null", table])]
    if mode.has_after:
        # A record is declared once; from then on it goes by its name.
        fields.append(_field(AFTER, ["null", table["name"]]))
    record = {"type": "record", "name": "CDC", "namespace": table.get("namespace", ""), "doc": "", "fields": fields}
    return json.dumps(record, separators=(",", ":"))


def change_schema(images: pa.Schema) -> pa.Schema:
    """Return the columns of a read of changes; `images` are the columns of rows before and after.

    op string | ts_ms string | before struct<images> (null: inserted) | after struct<images> (null: deleted)
    """
    image = image_type(images)
    return pa.schema([(OP, pa.string()), (TS, pa.string()), (BEFORE, image), (AFTER, image)])


def image_type(images: pa.Schema) -> pa.StructType:
    """Return the type of a row's image: every column nullable, because the image itself may be null."""
    return pa.struct([field.with_nullable(True).remove_metadata() for field in images])


def image(rows: pa.Table, kind: pa.StructType, position: pa.Array | None = None) -> pa.StructArray:
    """Return rows as one array of structs of `kind`; with `position` those at these row numbers, null where it is."""
    chosen = rows.select([field.name for field in kind])
    if position is not None:
        chosen = chosen.take(position)
    columns = [_whole(chosen.column(number), field.type) for number, field in enumerate(kind)]
    mask = None if position is None or not position.null_count else pc.is_null(position)
    return pa.StructArray.from_arrays(columns, fields=list(kind), mask=mask)


def rows_of(images: pa.StructArray | pa.ChunkedArray) -> pa.Table:
    """Return images as a table of their columns, without those that are null."""
    whole = images.combine_chunks() if isinstance(images, pa.ChunkedArray) else images
    held = whole.drop_null()
    columns = [pc.struct_field(held, [number]) for number in range(held.type.num_fields)]
    return pa.Table.from_arrays(columns, schema=pa.schema(list(held.type)))


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "doc": "", "default": None}


def _whole(column: pa.ChunkedArray, kind: pa.DataType) -> pa.Array:
    chunks = [chunk.dictionary_decode() if pa.types.is_dictionary(chunk.type) else chunk for chunk in column.chunks]
    array = pa.concat_arrays([*chunks, pa.array([], column.type if not chunks else chunks[0].type)])
    return array if array.type == kind else array.cast(kind)
