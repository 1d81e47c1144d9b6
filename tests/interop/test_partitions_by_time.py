"""Hudi writes on a table that is partitioned by day of a date or timestamp column, into the same partitions."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.table.table import Table
from lakehouse.platform.catalog.declared_tables import create_declared_table
from lakehouse.spec.table.table_spec import parse_spec
from tests.support.hudi import Hudi

SPEC = "table: t\nlocation: {place}\nrecord_key: id\nordering: n\npartition_by: {{at: {{type: TIMESTAMP}}}}\n"


def rows(kind: pa.DataType, **values: datetime) -> pa.Table:
    times = [value.date() if pa.types.is_date(kind) else value for value in values.values()]
    return pa.table({"id": list(values), "n": pa.array(range(len(times)), pa.int64()), "at": pa.array(times, kind)})


@pytest.mark.parametrize("kind", [pa.date32(), pa.timestamp("us", "UTC")], ids=str)
def test_hudi_writes_rows_of_a_day_into_the_partition_of_that_day(
    hudi: Hudi, tmp_path: Path, kind: pa.DataType
) -> None:
    place = str(tmp_path / "t")
    spec = parse_spec(SPEC.format(place=place), source="t.yaml")
    first = rows(kind, a=datetime(2026, 5, 4, 23, 59, tzinfo=UTC), b=datetime(1969, 12, 31, tzinfo=UTC))
    created = create_declared_table(spec, spec.write_options(), Env(storage=LocalStorage(place)), columns=first.schema)
    created.upsert(first)
    keygen = {key: text for key, text in created.config.raw.items() if key.startswith("hoodie.keygen.timebased.")}
    hudi.write(
        place,
        rows(kind, a=datetime(2026, 5, 4, 1, tzinfo=UTC), c=datetime(2026, 5, 5, tzinfo=UTC)),
        {
            "hoodie.table.name": "t",
            "hoodie.datasource.write.operation": "upsert",
            "hoodie.datasource.write.recordkey.field": "id",
            "hoodie.datasource.write.precombine.field": "n",
            "hoodie.datasource.write.partitionpath.field": "at",
            "hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.TimestampBasedKeyGenerator",
            **keygen,
        },
    )
    stored = Table.open(place).scan(["id", "_hoodie_partition_path"]).to_arrow().to_pylist()
    assert len(stored) == 3
    assert {row["id"]: row["_hoodie_partition_path"] for row in stored} == {
        "a": "2026-05-04",
        "b": "1969-12-31",
        "c": "2026-05-05",
    }
