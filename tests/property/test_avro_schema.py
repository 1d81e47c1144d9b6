"""Property test of table schemas: each schema that Avro can represent round trips."""

from __future__ import annotations

import json

import fastavro
import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.avro.schema import arrow_to_avro, avro_to_arrow

NAMES = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,5}", fullmatch=True)
LEAVES = st.sampled_from(
    [
        pa.bool_(),
        pa.int32(),
        pa.int64(),
        pa.float32(),
        pa.float64(),
        pa.string(),
        pa.binary(),
        pa.binary(16),
        pa.date32(),
        pa.time32("ms"),
        pa.time64("us"),
        pa.timestamp("us", "UTC"),
        pa.timestamp("ms", "UTC"),
        pa.timestamp("us"),
    ]
) | st.integers(1, 38).flatmap(lambda p: st.integers(0, p).map(lambda s: pa.decimal128(p, s)))


def structs_of(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[list[pa.Field]]:
    fields = st.builds(pa.field, NAMES, kinds, nullable=st.booleans())
    return st.lists(fields, min_size=1, max_size=4, unique_by=lambda f: f.name)


def nested(kinds: st.SearchStrategy[pa.DataType]) -> st.SearchStrategy[pa.DataType]:
    elements = st.builds(pa.field, st.just("element"), kinds, nullable=st.booleans())
    values = st.builds(pa.field, st.just("value"), kinds, nullable=st.booleans())
    return elements.map(pa.list_) | values.map(lambda f: pa.map_(pa.string(), f)) | structs_of(kinds).map(pa.struct)


TYPES = st.recursive(LEAVES, nested, max_leaves=5)


@given(structs_of(TYPES))
def test_table_schemas_round_trip_through_avro(fields: list[pa.Field]) -> None:
    schema = pa.schema(fields)
    text = arrow_to_avro(schema, table="t")
    fastavro.parse_schema(json.loads(text))  # valid Avro; in particular, no name is declared twice
    assert avro_to_arrow(text) == schema
