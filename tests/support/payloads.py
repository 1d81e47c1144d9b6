"""Batches for tables with Hudi's payload classes, and the rows that Apache Hudi 1.2 has after each batch.

The results were recorded with Hudi's Spark writer. They are equal for copy-on-write and merge-on-read tables and for
the table versions 8 and 9, except for OverwriteNonDefaultsWithLatestAvroPayload, which does not mix the rows of one
batch in version 8. `-` is null, `?` is Debezium's value for "not available".
"""

from __future__ import annotations

import pyarrow as pa

from lakehouse.model.merge import UNAVAILABLE

_MODEL = "org.apache.hudi.common.model."
PAYLOADS = {
    "overwrite": f"{_MODEL}OverwriteWithLatestAvroPayload",
    "default": f"{_MODEL}DefaultHoodieRecordPayload",
    "eventtime": f"{_MODEL}EventTimeAvroPayload",
    "nondefaults": f"{_MODEL}OverwriteNonDefaultsWithLatestAvroPayload",
    "partial": f"{_MODEL}PartialUpdateAvroPayload",
    "dms": f"{_MODEL}AWSDmsAvroPayload",
    "mysql": f"{_MODEL}debezium.MySqlDebeziumAvroPayload",
    "postgres": f"{_MODEL}debezium.PostgresDebeziumAvroPayload",
}
_TYPES = {"id": pa.string(), "ts": pa.int64(), "_event_lsn": pa.int64(), "_event_pos": pa.int64()}


def rows(text: str) -> pa.Table:
    """Return the rows of a text, each `id ts a b`, and `D` for a delete of a change log; separated by `;`."""
    columns: dict[str, list[object]] = {}
    for row in text.split(";"):
        key, time, a, b, *marks = row.split()
        values = {
            "id": key,
            "ts": int(time),
            "a": _value(a),
            "b": _value(b),
            "Op": "D" if marks else "U",
            "_change_operation_type": "d" if marks else "u",
            "_event_lsn": int(time),
            "_event_seq": f"000001.{time}",
            "_event_bin_file": "000001",
            "_event_pos": int(time),
        }
        for name, value in values.items():
            columns.setdefault(name, []).append(value)
    return pa.table({name: pa.array(values, _TYPES.get(name, pa.string())) for name, values in columns.items()})


def _value(text: str) -> str | None:
    return {"-": None, "?": UNAVAILABLE}.get(text, text)


BATCHES = (
    rows(";".join(f"{number} 10 a{number} b{number}" for number in range(1, 9))),
    rows(
        "1 20 n1 -; 2 5 o2 o2b; 3 10 e3 -; 4 20 a4 b4 D; 5 5 a5 b5 D; 6 20 ? x; 7 5 ? -; 9 20 d9 d9 D; 10 20 i10 -; "
        "8 20 x1 -; 8 30 - x2"
    ),
    rows("2 7 m2 -; 1 30 - nb; 4 15 late4 late4; 5 30 z5 -; 10 20 - eq10; 6 20 q ?; 7 40 ? ?"),
)
#: The rows after the second and the third batch.
RESULTS = {
    "overwrite": (
        "1 20 n1 -; 2 5 o2 o2b; 3 10 e3 -; 4 20 a4 b4; 5 5 a5 b5; "
        "6 20 ? x; 7 5 ? -; 8 30 - x2; 9 20 d9 d9; 10 20 i10 -",
        "1 30 - nb; 2 7 m2 -; 3 10 e3 -; 4 15 late4 late4; 5 30 z5 -; "
        "6 20 q ?; 7 40 ? ?; 8 30 - x2; 9 20 d9 d9; 10 20 - eq10",
    ),
    "default": (
        "1 20 n1 -; 2 10 a2 b2; 3 10 e3 -; 4 20 a4 b4; 5 10 a5 b5; "
        "6 20 ? x; 7 10 a7 b7; 8 30 - x2; 9 20 d9 d9; 10 20 i10 -",
        "1 30 - nb; 2 10 a2 b2; 3 10 e3 -; 4 20 a4 b4; 5 30 z5 -; "
        "6 20 q ?; 7 40 ? ?; 8 30 - x2; 9 20 d9 d9; 10 20 - eq10",
    ),
    "nondefaults": (
        "1 20 n1 b1; 2 5 o2 o2b; 3 10 e3 b3; 4 20 a4 b4; 5 5 a5 b5; "
        "6 20 ? x; 7 5 ? b7; 8 30 x1 x2; 9 20 d9 d9; 10 20 i10 -",
        "1 30 n1 nb; 2 7 m2 o2b; 3 10 e3 b3; 4 15 late4 late4; 5 30 z5 b5; "
        "6 20 q ?; 7 40 ? ?; 8 30 x1 x2; 9 20 d9 d9; 10 20 i10 eq10",
    ),
    "nondefaults-8": (
        "1 20 n1 b1; 2 5 o2 o2b; 3 10 e3 b3; 4 20 a4 b4; 5 5 a5 b5; "
        "6 20 ? x; 7 5 ? b7; 8 30 a8 x2; 9 20 d9 d9; 10 20 i10 -",
        "1 30 n1 nb; 2 7 m2 o2b; 3 10 e3 b3; 4 15 late4 late4; 5 30 z5 b5; "
        "6 20 q ?; 7 40 ? ?; 8 30 a8 x2; 9 20 d9 d9; 10 20 i10 eq10",
    ),
    "partial": (
        "1 20 n1 b1; 2 10 a2 b2; 3 10 e3 b3; 4 20 a4 b4; 5 10 a5 b5; "
        "6 20 ? x; 7 10 a7 b7; 8 30 x1 x2; 9 20 d9 d9; 10 20 i10 -",
        "1 30 n1 nb; 2 10 a2 b2; 3 10 e3 b3; 4 20 a4 b4; 5 30 z5 b5; "
        "6 20 q ?; 7 40 ? ?; 8 30 x1 x2; 9 20 d9 d9; 10 20 i10 eq10",
    ),
    "dms": (
        "1 20 n1 -; 2 5 o2 o2b; 3 10 e3 -; 6 20 ? x; 7 5 ? -; 8 30 - x2; 10 20 i10 -",
        "1 30 - nb; 2 7 m2 -; 3 10 e3 -; 4 15 late4 late4; 5 30 z5 -; 6 20 q ?; 7 40 ? ?; 8 30 - x2; 10 20 - eq10",
    ),
    "mysql": (
        "1 20 n1 -; 2 10 a2 b2; 3 10 e3 -; 5 10 a5 b5; 6 20 ? x; 7 10 a7 b7; 8 30 - x2; 10 20 i10 -",
        "1 30 - nb; 2 10 a2 b2; 3 10 e3 -; 4 15 late4 late4; 5 30 z5 -; 6 20 q ?; 7 40 ? ?; 8 30 - x2; 10 20 - eq10",
    ),
    "postgres": (
        "1 20 n1 -; 2 10 a2 b2; 3 10 e3 -; 5 10 a5 b5; 6 20 a6 x; 7 10 a7 b7; 8 30 - x2; 10 20 i10 -",
        "1 30 - nb; 2 10 a2 b2; 3 10 e3 -; 4 15 late4 late4; 5 30 z5 -; 6 20 q x; 7 40 a7 b7; 8 30 - x2; 10 20 - eq10",
    ),
}
RESULTS["eventtime"] = RESULTS["default"]


def options(name: str, table_type: str, version: str) -> dict[str, str]:
    """Return the options of a Hudi job that writes such a table."""
    ordering = {"mysql": "_event_bin_file,_event_pos" if version == "9" else "_event_seq", "postgres": "_event_lsn"}
    return {
        "hoodie.table.name": "t",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.precombine.field": ordering.get(name, "ts"),
        "hoodie.datasource.write.payload.class": PAYLOADS[name],
        "hoodie.datasource.write.table.type": table_type,
        "hoodie.write.table.version": version,
        "hoodie.write.auto.upgrade": "false",
        "hoodie.metadata.enable": "false",
        "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.NonpartitionedKeyGenerator",
    }


def result(name: str, version: str, batch: int) -> list[dict[str, object]]:
    """Return the rows of Hudi after a batch, by key."""
    if batch == 0:
        return ordered(BATCHES[0])
    texts = RESULTS["nondefaults-8" if (name, version) == ("nondefaults", "8") else name]
    return ordered(rows(texts[batch - 1]))


def ordered(table: pa.Table) -> list[dict[str, object]]:
    """Return the compared columns of rows, by key."""
    compared: list[dict[str, object]] = table.select(["id", "ts", "a", "b"]).sort_by("id").to_pylist()
    return compared
