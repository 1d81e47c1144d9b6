"""Property test of JSON texts of rows: they parse to the encoded values."""

from __future__ import annotations

import json
from base64 import b64encode
from typing import Any

import pyarrow as pa
from hypothesis import given
from hypothesis import strategies as st

from lakehouse.core.format.json_rows import json_objects
from tests.support.tables import examples

FINITE = {"allow_nan": False, "allow_infinity": False}
COLUMNS: dict[str, tuple[pa.DataType, st.SearchStrategy[Any]]] = {
    "text": (pa.string(), st.text(max_size=6)),
    "long": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "real": (pa.float32(), st.floats(width=32, **FINITE)),
    "double": (pa.float64(), st.floats(**FINITE)),
    "raw": (pa.binary(), st.binary(max_size=7)),
    "flag": (pa.bool_(), st.booleans()),
    "texts": (pa.list_(pa.string()), st.lists(st.none() | st.text(max_size=3), max_size=3)),
    "counts": (pa.map_(pa.string(), pa.int32()), st.dictionaries(st.text(max_size=3), st.none() | st.integers(0, 9))),
}
SCHEMA = pa.struct([(name, kind) for name, (kind, _) in COLUMNS.items()])


def parsed(value: Any, name: str) -> Any:
    """Return the parsed value of a value's JSON."""
    if isinstance(value, bytes):
        return b64encode(value).decode()
    # A float is written with enough digits to distinguish it from other floats, but not from other doubles.
    return pa.scalar(value, pa.float32()).as_py() if name == "real" and value is not None else value


@examples(60)
@given(
    rows=st.lists(
        st.none() | st.fixed_dictionaries({n: st.none() | values for n, (_, values) in COLUMNS.items()}), max_size=6
    ),
    start=st.integers(0, 3),
)
def test_json_texts_parse_to_their_rows(rows: list[dict[str, Any] | None], start: int) -> None:
    made = pa.array([row and {**row, "counts": row["counts"] and list(row["counts"].items())} for row in rows], SCHEMA)
    texts = json_objects(made.slice(start)).to_pylist()
    assert len(texts) == len(rows[start:])
    for text, row in zip(texts, rows[start:], strict=True):
        if row is None or text is None:
            assert text is None and row is None
            continue
        shown = json.loads(text)
        shown["real"] = parsed(shown["real"], "real")
        if row["counts"] == {}:
            row = row | {"counts": shown["counts"]}
            assert shown["counts"] in ({}, None)
        assert shown == {name: parsed(value, name) for name, value in row.items()}
