"""TBLPROPERTIES of CREATE TABLE: the same tables as `Table.create` and a DataFrame writer with the same options."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.core.table.write_jobs import JobTarget, SaveMode, open_target
from lakehouse.errors import SettingError, UnsupportedError, UserError
from lakehouse.spec.options.hudi.write_job import parse_write_job
from lakehouse.sql.session import SqlSession
from tests.unit.sql.conftest import rows_of

MODEL = "org.apache.hudi.common.model."
SCHEMA = pa.schema(
    [("id", pa.int32()), ("v", pa.string()), ("w", pa.string()), ("ts", pa.int64()), ("Op", pa.string())]
)
COLUMNS = "id INT, v STRING, w STRING, ts BIGINT, Op STRING"
PAYLOADS = (
    "DefaultHoodieRecordPayload",
    "EventTimeAvroPayload",
    "OverwriteWithLatestAvroPayload",
    "OverwriteNonDefaultsWithLatestAvroPayload",
    "PartialUpdateAvroPayload",
    "AWSDmsAvroPayload",
)
NAMES = ("payloadClass", "hoodie.datasource.write.payload.class", "hoodie.compaction.payload.class")


def merge_properties(table: Table) -> dict[str, str]:
    """Return the stored properties about merging."""
    words = ("merge", "payload", "ordering", "partial")
    return {key: value for key, value in table.config.raw.items() if any(word in key for word in words)}


@pytest.mark.parametrize("payload", PAYLOADS)
def test_payload_classes_are_declared_alike_by_every_way_to_create_a_table(
    payload: str, session: SqlSession, tmp_path: Path
) -> None:
    declared = merge_properties(
        Table.create(
            tmp_path / "a",
            name="t",
            record_key="id",
            ordering="ts",
            schema=SCHEMA,
            payload_class=MODEL + payload,
        )
    )
    job = parse_write_job(
        {
            "hoodie.table.name": "t",
            "hoodie.datasource.write.recordkey.field": "id",
            "hoodie.table.ordering.fields": "ts",
            "hoodie.datasource.write.payload.class": MODEL + payload,
        }
    )
    target = open_target(str(tmp_path / "b"), job, SaveMode.APPEND, SCHEMA)
    assert isinstance(target, JobTarget)
    assert merge_properties(target.table) == declared
    for number, name in enumerate(NAMES):
        properties = f"primaryKey = 'id', orderingFields = 'ts', '{name}' = '{MODEL}{payload}'"
        session.execute(f"CREATE TABLE x.t{number} ({COLUMNS}) USING hudi TBLPROPERTIES ({properties})")
        assert merge_properties(session.names.open(("x", f"t{number}"))) == declared
    session.execute("INSERT INTO x.t0 VALUES (1, 'a', 'b', 2, 'I')")
    session.execute("SET hoodie.spark.sql.insert.into.operation = upsert")
    session.execute("INSERT INTO x.t0 VALUES (1, 'c', NULL, 1, 'D')")
    merged = {
        "DefaultHoodieRecordPayload": [("a", "b", 2)],
        "EventTimeAvroPayload": [("a", "b", 2)],
        "OverwriteWithLatestAvroPayload": [("c", None, 1)],
        "OverwriteNonDefaultsWithLatestAvroPayload": [("c", "b", 1)],
        "PartialUpdateAvroPayload": [("a", "b", 2)],
        "AWSDmsAvroPayload": [],
    }
    assert rows_of(session, "SELECT v, w, ts FROM x.t0") == merged[payload]


@pytest.mark.parametrize(
    ("properties", "message"),
    [
        ("'payloadClass' = 'com.acme.Mine'", "code of the JVM"),
        ("'payloadClass' = 'PartialUpdateAvroPayload'", f"write {MODEL}PartialUpdateAvroPayload"),
        (f"payloadClass = '{MODEL}DefaultHoodieRecordPayload'", "needs an ordering column"),
        (f"payloadClass = '{MODEL}X', 'hoodie.compaction.payload.class' = 'y'", "contradict each other"),
        ("preCombineField = 'ts', orderingFields = 'v'", "contradict each other"),
        ("recordMergeMode = 'EVENT'", "EVENT"),
        ("'hoodie.datasource.write.operation' = 'insert'", "SET hoodie.spark.sql.insert.into.operation"),
        ("'hoodie.table.name' = 'other'", "contradicts the name t"),
        ("'hoodie.datasource.write.keygenerator.class' = 'com.acme.Gen'", "key generator that cannot run here"),
        ("'hoodie.clean.comits.retained' = '3'", "hoodie.clean.commits.retained"),
        ("'fs.s3a.secret.key' = 'x'", "unknown property"),
    ],
)
def test_properties_that_a_table_cannot_have_are_refused(session: SqlSession, properties: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        session.execute(f"CREATE TABLE x.t ({COLUMNS}) USING hudi TBLPROPERTIES (primaryKey = 'id', {properties})")
    assert rows_of(session, "SHOW TABLES") == []


def test_options_that_are_arguments_are_refused_with_the_argument(tmp_path: Path) -> None:
    options = {"hoodie.compaction.payload.class": MODEL + "PartialUpdateAvroPayload"}
    with pytest.raises(SettingError, match=r"give payload_class=\.\.\. to Table\.create"):
        Table.create(tmp_path / "t", name="t", record_key="id", schema=SCHEMA, options=options)
    with pytest.raises(UnsupportedError, match="code of the JVM"):
        Table.create(tmp_path / "t", name="t", record_key="id", schema=SCHEMA, payload_class="com.acme.Mine")
