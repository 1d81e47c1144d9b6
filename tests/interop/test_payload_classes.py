"""Tables with payload classes: Apache Hudi 1.2 and lakehouse write them in turn, and both have the recorded rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.core.table.write_jobs import JobTarget, SaveMode, open_target
from lakehouse.spec.options.hudi.write_job import parse_write_job
from tests.support.hudi import Hudi
from tests.support.payloads import BATCHES, options, ordered, result

pytestmark = pytest.mark.jvm

TABLES = [
    ("postgres", "MERGE_ON_READ", "9"),
    ("mysql", "COPY_ON_WRITE", "9"),
    ("mysql", "MERGE_ON_READ", "8"),
    ("nondefaults", "COPY_ON_WRITE", "8"),
    ("partial", "MERGE_ON_READ", "9"),
    ("dms", "MERGE_ON_READ", "8"),
]


@pytest.mark.parametrize("first", ["hudi", "lakehouse"])
@pytest.mark.parametrize(("name", "table_type", "version"), TABLES)
def test_both_continue_a_table_with_a_payload_class(
    name: str, table_type: str, version: str, first: str, hudi: Hudi, tmp_path: Path
) -> None:
    location, declared = str(tmp_path / "t"), options(name, table_type, version)

    def by_lakehouse(batch: pa.Table) -> None:
        target = open_target(location, parse_write_job(declared), SaveMode.APPEND, batch.schema)
        assert isinstance(target, JobTarget)
        target.write(batch)

    def by_hudi(batch: pa.Table) -> None:
        hudi.write(location, batch, declared)

    writers = [by_hudi, by_lakehouse] if first == "hudi" else [by_lakehouse, by_hudi]
    for number, batch in enumerate(BATCHES):
        writers[number % 2](batch)
        expected = result(name, version, number)
        assert ordered(Table.open(location).scan().to_arrow()) == expected
        assert ordered(hudi.collect(location, ["id", "ts", "a", "b"], {})) == expected
