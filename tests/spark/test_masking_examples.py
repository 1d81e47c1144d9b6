"""The examples that hide personal data store no text of it: neither in rows nor in any file of the table."""

from __future__ import annotations

import hashlib
import hmac
import json
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.ingest.run import run_ingest
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import load_spec

pytestmark = pytest.mark.spark
EXAMPLES = Path(__file__).parents[2] / "dags" / "examples" / "privacy"
NAMES = ("customer_id", "name", "email", "phone", "street", "city", "born")
CUSTOMERS = [
    ("c1", "Ada Lovelace", "Ada@example.org", "+44123456", "Analytical Way 1", "Turin", "1815-12-10"),
    ("c2", "Bo Diddley", "bo@example.net", "+15559876", "Guitar Lane 2", "Turin", "1928-12-30"),
    ("c3", "Cy Twombly", None, "+15551111", "Canvas Road 3", "Lexington", "1928-04-25"),
]
KEY = "a key of at least 32 random bytes"


def hashed(text: str) -> str:
    """Return the keyed hash of a value."""
    return hmac.new(KEY.encode(), text.lower().encode(), hashlib.sha256).hexdigest()


#: The stored rows by example.
EXPECTED = {
    "customers_by_select": [
        ("c1", "example.org", "+441...", "Turin", 1810),
        ("c2", "example.net", "+155...", "Turin", 1920),
        ("c3", None, "+155...", "Lexington", 1920),
    ],
    "customers_by_sql": [("c1", 1810, "Turin"), ("c2", 1920, "Turin"), ("c3", 1920, "other")],
    "customers_by_function": [
        ("c1", hashed("ada@example.org"), hashed("+44123456"), "Turin", "1815-12-10"),
        ("c2", hashed("bo@example.net"), hashed("+15559876"), "Turin", "1928-12-30"),
        ("c3", None, hashed("+15551111"), "Lexington", "1928-04-25"),
    ],
}


@pytest.mark.parametrize("name", EXPECTED)
def test_example_stores_masked_values_only(
    name: str, spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As --py-files of spark-submit does: the tasks need the module, too.
    spark.sparkContext.addPyFile(str(EXAMPLES / "masking.py"))
    monkeypatch.setenv("MASKING_KEY", KEY)
    landing = tmp_path / "landing" / "customers"
    landing.mkdir(parents=True)
    records = [dict(zip(NAMES, values, strict=True)) for values in CUSTOMERS]
    (landing / "1.json").write_text("\n".join(map(json.dumps, records)))
    spec = load_spec(EXAMPLES / f"{name}.yaml")
    spec = replace(spec, options={**spec.options, "hoodie.parquet.compression.codec": "none"})
    command, environ = IngestCommand(table=name), {"LAKEHOUSE_HOME": str(tmp_path)}
    run_ingest(spark, spec, command, environ=environ)
    rows = Table.open(tmp_path / "lake" / name).scan().to_arrow().to_pylist()
    found = [tuple(value for column, value in row.items() if not column.startswith("_hoodie_")) for row in rows]
    assert (
        sorted(tuple(str(one) if hasattr(one, "isoformat") else one for one in row) for row in found) == EXPECTED[name]
    )
    content = b"".join(path.read_bytes() for path in (tmp_path / "lake").rglob("*") if path.is_file()).lower()
    assert b"turin" in content, "values are in the files as they are"
    for _, person, email, phone, street, *_ in CUSTOMERS:
        assert [text for text in (person, email, phone, street, KEY) if text and text.lower().encode() in content] == []
    (landing / "2.json").write_text(json.dumps({**records[0], "passport": "X123"}))
    with pytest.raises(UserError, match="column 'passport' of the files"):
        run_ingest(spark, spec, command, environ=environ)
