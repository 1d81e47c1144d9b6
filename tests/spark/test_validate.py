"""Validation on Spark has the same findings as on threads."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from tests.support.killed import BASE, batch, create


@pytest.mark.spark
def test_deep_validation_on_spark_equals_validation_on_threads(spark: Any, tmp_path: Path) -> None:
    storage = open_storage(str(tmp_path / "t"))
    table = create(storage, "LOGS_BUCKET")
    table.bulk_insert(batch(BASE))
    table.upsert(batch({("a", "a1"): 2, ("b", "b1"): 2}))
    table = Table.open(table.location)
    whole = table.validate(deep=True, spark=spark)
    assert whole.findings == () and whole.rows == len(BASE) + 2
    log = next(file for file in storage.list("") if ".log." in file.name and not file.path.startswith(".hoodie/"))
    storage.put(log.path, b"\x07" * log.size_bytes)
    broken = table.validate(deep=True, spark=spark)
    assert broken == table.validate(deep=True)
    assert {finding.invariant for finding in broken.corrupt} == {"log.readable"}
