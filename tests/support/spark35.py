"""Lets the tests of newer versions of Spark run on Spark 3.5, and skips those that it cannot run."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import DataFrame, DataFrameReader, DataFrameWriter, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema
from pyspark.sql.streaming.readwriter import DataStreamReader, DataStreamWriter

from lakehouse.spark.versions.choice import spark_version
from lakehouse.spark.versions.v35 import _RefusedFormat

NO_DATA_SOURCE = "Spark 3.5 has no Python data source"
needs_byte_limit = pytest.mark.skipif(
    not spark_version().LIMITS_BATCH_BYTES, reason="Spark 3.5 has no limit for the bytes of an Arrow batch"
)


def adapt_tests(monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the session and frames of Spark 3.5 the functions with which tests create and collect rows.

    `toArrow` and DataFrames of Arrow tables came with Spark 4.0. A test that uses `format("lakehouse")` is skipped.
    """
    if spark_version().HAS_DATA_SOURCE:
        return
    create: Any = SparkSession.createDataFrame

    def from_arrow(session: SparkSession, data: Any, schema: Any = None, *rest: Any, **more: Any) -> DataFrame:
        if isinstance(data, pa.Table):
            columns = from_arrow_schema(data.schema) if schema is None else schema
            return spark_version().from_arrow(session, data, columns)
        frame: DataFrame = create(session, data, schema, *rest, **more)
        return frame

    monkeypatch.setattr(SparkSession, "createDataFrame", from_arrow)
    monkeypatch.setattr(DataFrame, "toArrow", spark_version().to_arrow, raising=False)
    for kind in (DataFrameReader, DataFrameWriter, DataStreamReader, DataStreamWriter):
        plain = kind.format._original if isinstance(kind.format, _RefusedFormat) else kind.format
        monkeypatch.setattr(kind, "format", _SkippedFormat(plain, ""))


class _SkippedFormat(_RefusedFormat):
    """Skips a test instead of refusing the format. `register` leaves it in place, as it would the refusal."""

    def __call__(self, instance: Any, source: str) -> Any:
        if source == "lakehouse":
            pytest.skip(NO_DATA_SOURCE)
        return self._original(instance, source)
