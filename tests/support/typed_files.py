"""Write tables as files of formats with declared types."""

from __future__ import annotations

import io
import json

import fastavro
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from lakehouse.core.format.avro.schema import arrow_to_avro


def typed_file(table: pa.Table, format: str, codec: str = "deflate") -> bytes:
    """Return a file of parquet, orc or avro; `codec` is that of Avro."""
    if format == "avro":
        out = io.BytesIO()
        schema = json.loads(arrow_to_avro(table.schema, table="landed"))
        fastavro.writer(out, schema, table.to_pylist(), codec=codec)
        return out.getvalue()
    sink = pa.BufferOutputStream()
    (orc if format == "orc" else pq).write_table(table, sink)
    return sink.getvalue().to_pybytes()
