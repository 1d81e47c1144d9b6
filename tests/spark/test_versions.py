"""One wheel on several versions of Spark: the choice of the module, `lakehouse.spark.read`, and the end of a stream."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyspark
import pytest
from pyspark.sql import functions as F

from lakehouse import Table
from lakehouse.errors import UserError
from lakehouse.spark import read, register
from lakehouse.spark.json_text import has_repeated_key
from lakehouse.spark.sources import ingest_settings
from lakehouse.spark.versions import choice, v35
from lakehouse.spark.versions.choice import minor_of, require_classic, require_same_minor, version_module

pytestmark = pytest.mark.spark

ROOT = Path(__file__).resolve().parents[2]
SCHEMA = pa.schema([("id", pa.int64()), ("v", pa.string()), ("ts", pa.int64())])
QUERY_TYPE, BEGIN = "hoodie.datasource.query.type", "hoodie.datasource.read.begin.instanttime"
FORMAT = "hoodie.datasource.query.incremental.format"
#: JSON objects and whether one repeats a key.
OBJECTS = {
    '{"a": 1, "b": {"c": 1}}': False,
    '{"a": 1, "a": 2}': True,
    '{"a": {"b": 1, "b": 2}}': True,
    '{"a": {"b": {"c": 1, "\\u0063": 2}}}': True,
    '{"a": {"b": "{\\"c\\": 1, \\"c\\": 2}"}}': False,
    '{"a": [{"b": 1}, {"b": 2}], "c": {}}': False,
    '{"a": [{"b": [1, {"c": 1, "c": 1}]}]}': True,
    '{"a": {"}": 1, "{": {"x": "\\"{"}}, "b": {}}': False,
    '{"a": {"x": 1}, "b": {"x": 1}, "a": 2}': True,
    "{'a': {'b}': 1, 'b}': 2}}": True,
    '{"d": {"d": {"d": {"d": {"e": 1, "e": 2}}}}}': True,
}
JOB = """
from lakehouse.spark import job_session
session = job_session("home")
print("result", session.version, session.sparkContext.parallelize(range(4), 2).map(lambda one: one * 2).sum())
"""


def rows(count: int, ts: int) -> pa.Table:
    return pa.table({"id": range(count), "v": [str(ts)] * count, "ts": [ts] * count}, schema=SCHEMA)


def test_spark_35_refuses_the_format_with_the_call_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    class Reader:
        def format(self, source: str) -> str:
            return f"reader of {source}"

    monkeypatch.setattr(v35, "_WAYS", {Reader: "lakehouse.spark.read(spark, path, options)"})
    monkeypatch.setattr(v35, "set_worker_python", lambda spark: None)
    session: Any = None
    v35.register(session)
    v35.register(session)
    assert Reader().format("parquet") == "reader of parquet"
    with pytest.raises(UserError, match=r"Spark 3\.5 has no format.*lakehouse\.spark\.read"):
        Reader().format("Lakehouse")
    with pytest.raises(UserError, match="foreachBatch"):
        version_module("4.0.1").require_stream_writer()


@pytest.mark.parametrize(
    ("version", "minor"),
    [("3.5.9", "3.5"), ("3.5.6-amzn-0", "3.5"), ("3.5.2.dataproc-3", "3.5"), ("3.5.0.cloudera", "3.5"), ("4.1", "4.1")],
)
def test_builds_of_vendors_have_the_module_of_their_minor_version(version: str, minor: str) -> None:
    assert minor_of(version) == minor
    if minor == minor_of(pyspark.__version__):
        assert version_module(version) is choice.spark_version()


@pytest.mark.parametrize("version", ["3.4.4", "2.4.8", "5.0.0", "35", "unknown"])
def test_other_version_is_refused_with_the_supported_ones(version: str) -> None:
    with pytest.raises(UserError, match=rf"Spark {version} is not supported: this release runs on Spark 3.5, 4.0, 4.1"):
        version_module(version)


def test_jvm_of_another_minor_version_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(choice.pyspark, "__version__", "3.5.9")
    require_same_minor("3.5.6-amzn-0")
    require_same_minor("3.5.1")
    with pytest.raises(UserError, match=r"4\.1\.4 and Python's pyspark 3\.5\.9: install pyspark 4\.1 .*SPARK_HOME"):
        require_same_minor("4.1.4")


def test_session_of_spark_connect_is_refused_with_the_way_out() -> None:
    session = type("SparkSession", (), {"__module__": "pyspark.sql.connect.session"})()
    for call in (require_classic, register, lambda value: read(value, "/tmp/t")):
        with pytest.raises(UserError, match=r"Spark Connect.*spark-submit"):
            call(session)


def test_job_uses_the_spark_of_spark_home(tmp_path: Path) -> None:
    # The folder of pyspark has the layout of an unpacked Spark.
    home = tmp_path / "spark"
    home.symlink_to(Path(pyspark.__file__).parent)
    inherited = {name: os.environ[name] for name in ("PATH", "JAVA_HOME") if name in os.environ}
    done = subprocess.run(
        [sys.executable, "-c", JOB],
        env={**inherited, "PYTHONPATH": str(ROOT), "SPARK_HOME": str(home)},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    assert f"result {pyspark.__version__} 12" in done.stdout


@pytest.mark.parametrize("module", [None, v35], ids=("installed version", "Spark 3.5"))
def test_repeated_keys_are_seen_at_any_depth(spark: Any, monkeypatch: pytest.MonkeyPatch, module: Any) -> None:
    if module is not None:
        monkeypatch.setattr("lakehouse.spark.json_text.spark_version", lambda: module)
    with ingest_settings(spark):
        frame = spark.createDataFrame([(text,) for text in OBJECTS], "text string")
        marked = frame.select("text", has_repeated_key(F.col("text"), {}).alias("repeats")).collect()
    assert {row.text: row.repeats for row in marked} == OBJECTS


@pytest.mark.parametrize("module", [None, v35], ids=("installed version", "Spark 3.5"))
def test_ingestion_has_ansi_mode_unless_the_user_turned_it_off(
    spark: Any, monkeypatch: pytest.MonkeyPatch, module: Any
) -> None:
    if module is not None:
        monkeypatch.setattr("lakehouse.spark.sources.spark_version", lambda: module)
    name = "spark.sql.ansi.enabled"
    default = spark.conf.get(name)
    for _ in range(2):
        with ingest_settings(spark):
            assert spark.conf.get(name) == "true"
        assert spark.conf.get(name) == default
    spark.conf.set(name, "false")
    try:
        with ingest_settings(spark):
            assert spark.conf.get(name) == "false"
        assert spark.conf.get(name) == "false"
    finally:
        spark.conf.unset(name)


def test_functions_of_the_installed_version_have_equal_results(spark: Any) -> None:
    installed = choice.spark_version()
    texts = [b"ok \xc3\xa9", b"bad \xff", b"\xed\xa0\x80", b"", None]
    frame = spark.createDataFrame([(text,) for text in texts], "b binary").select(F.col("b").cast("string").alias("t"))
    valid = frame.select(installed.is_valid_utf8(F.col("t")).alias("valid")).collect()
    assert [row.valid for row in valid] == [True, False, False, True, None]
    numbers = spark.createDataFrame([("7",), ("x",), (None,)], "t string")
    spark.conf.set("spark.sql.ansi.enabled", "true")
    try:
        cast = numbers.select(installed.try_cast(F.col("t"), "int").alias("n")).collect()
    finally:
        spark.conf.unset("spark.sql.ansi.enabled")
    assert [row.n for row in cast] == [7, None, None]
    schema = spark.createDataFrame([], "id long, v string, ts long").schema
    for module in (installed, v35):
        made = module.from_arrow(spark, rows(3, 1), schema)
        assert sorted(row.id for row in made.collect()) == [0, 1, 2]
    assert installed.to_arrow(made).schema.equals(SCHEMA)
    assert installed.to_ddl(schema).replace("`", "") == "id BIGINT,v STRING,ts BIGINT"
    assert installed.parsed_type("array<int>").simpleString() == "array<int>"


def test_read_returns_each_query_of_the_format(spark: Any, tmp_path: Path) -> None:
    table = Table.create(
        str(tmp_path / "t"),
        name="t",
        record_key="id",
        ordering="ts",
        table_type="MERGE_ON_READ",
        cdc="data_before_after",
    )
    first = table.upsert(rows(4, 1))
    table.upsert(rows(2, 2))
    begin = {BEGIN: first.instant.completion}  # type: ignore[union-attr]

    def stored(options: dict[str, str] | None = None, **arguments: Any) -> list[tuple[int, str]]:
        frame = read(spark, table.location, options, **arguments)
        return sorted((row.id, row.v) for row in frame.collect())

    assert stored() == [(0, "2"), (1, "2"), (2, "1"), (3, "1")]
    assert stored(where="id >= 3", columns=["id", "v"]) == [(3, "1")]
    assert stored({QUERY_TYPE: "read_optimized"}) == [(n, "1") for n in range(4)]
    assert stored({"as.of.instant": first.instant.requested}) == [(n, "1") for n in range(4)]  # type: ignore[union-attr]
    assert stored({QUERY_TYPE: "incremental", **begin}) == [(0, "2"), (1, "2")]
    changes = read(spark, table.location, {FORMAT: "cdc", **begin}, columns=["op", "after"])
    assert changes.columns == ["op", "after"]
    assert sorted(row.op for row in changes.collect()) == ["u", "u"]
    before = read(spark, table.location)
    table.upsert(rows(9, 3))
    assert before.count() == 4, "a DataFrame keeps its version"
    with pytest.raises(UserError, match="'wher' is unknown"):
        read(spark, table.location, {"wher": "id = 1"})
    with pytest.raises(UserError, match="'where' is an argument and an option"):
        read(spark, table.location, {"Where": "id = 1"}, where="id = 2")
    with pytest.raises(UserError, match="column 'w' is not in the table"):
        read(spark, table.location, columns=["w"])


def test_available_now_stream_ends_after_one_batch_while_commits_arrive(spark: Any, tmp_path: Path) -> None:
    register(spark)
    table = Table.create(str(tmp_path / "t"), name="t", record_key="id", ordering="ts", schema=SCHEMA)
    batches: list[tuple[int, int]] = []

    def write(batch: Any, number: int) -> None:
        # A commit during the batch belongs to the next run: the run must not follow the table.
        batches.append((number, batch.count()))
        table.upsert(rows(3, 100 + number))

    def run() -> None:
        stream = spark.readStream.format("lakehouse").load(table.location).writeStream.foreachBatch(write)
        query = stream.option("checkpointLocation", str(tmp_path / "checkpoint")).trigger(availableNow=True).start()
        try:
            # The number of batches is the bound; the time is a guard for a query that never ends.
            assert query.awaitTermination(300)
        finally:
            query.stop()

    run()
    table.upsert(rows(5, 20))
    run()
    run()
    assert len(batches) <= 3, "a run has one batch"
    assert [number for number, _ in batches] == list(range(len(batches)))
    assert batches[1][1] == 5
    assert batches[2][1] == 3
