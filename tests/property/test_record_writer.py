"""Property tests of the writer of single Avro records: it gives the bytes of fastavro."""

from __future__ import annotations

import io
from typing import Any

import fastavro
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.avro.record_writer import UnsupportedSchemaError, record_writer
from lakehouse.core.format.timeline import schemas
from tests.support.tables import examples

#: Archived entries define the same record twice, as in Hudi, which fastavro refuses; tests of the archive have them.
SCHEMAS = {
    name: value
    for name, value in vars(schemas).items()
    if isinstance(value, dict) and "fields" in value and name != "ARCHIVED_ENTRY"
}
PLAIN = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(1 << 31), (1 << 31) - 1),
    "long": st.integers(-(1 << 63), (1 << 63) - 1),
    "float": st.floats(width=32, allow_nan=False),
    "double": st.floats(allow_nan=False),
    "bytes": st.binary(max_size=70),
    "string": st.text(st.characters(codec="utf-8"), max_size=70),
}


def values(schema: Any, named: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Return values of a schema; records have some of their fields with defaults."""
    if isinstance(schema, list):
        return st.one_of([values(branch, named) for branch in schema])
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return values(kind, named)
    if kind in PLAIN:
        return PLAIN[kind]
    if kind == "array":
        return st.lists(values(schema["items"], named), max_size=2)
    if kind == "map":
        return st.dictionaries(st.text(st.characters(codec="utf-8"), max_size=3), values(schema["values"], named))
    record = schema if kind == "record" else named[kind]
    named[record["name"]] = record
    needed, optional = {}, {}
    for field in record["fields"]:
        (optional if "default" in field else needed)[field["name"]] = values(field["type"], named)
    return st.fixed_dictionaries(needed, optional=optional)


def test_all_schemas_of_the_timeline_are_tested() -> None:
    assert {"COMMIT_METADATA", "REPLACE_COMMIT_METADATA", "COMPACTION_PLAN", "CLEANER_PLAN"} <= SCHEMAS.keys()


@pytest.mark.parametrize("name", sorted(SCHEMAS))
@examples(25)
@given(data=st.data())
def test_record_has_the_bytes_of_fastavro(name: str, data: st.DataObject) -> None:
    schema = SCHEMAS[name]
    record = data.draw(values(schema, {}))
    expected = io.BytesIO()
    fastavro.schemaless_writer(expected, fastavro.parse_schema(schema), record)
    assert record_writer(schema)(record) == expected.getvalue()


@pytest.mark.parametrize("kind", [["null", "int", "long"], ["int", "string"], "unknown", {"type": "enum", "name": "e"}])
def test_writer_refuses_schemas_whose_values_do_not_determine_their_types(kind: Any) -> None:
    with pytest.raises(UnsupportedSchemaError):
        record_writer({"type": "record", "name": "r", "fields": [{"name": "f", "type": kind}]})


def test_writer_refuses_numbers_of_more_than_64_bits() -> None:
    write = record_writer({"type": "record", "name": "r", "fields": [{"name": "f", "type": "long"}]})
    with pytest.raises(ValueError, match="more than 64 bits"):
        write({"f": 1 << 63})
