"""Tables with Hudi's payload classes: batches written here give the rows that Apache Hudi 1.2 recorded."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.core.table.write_jobs import JobTarget, SaveMode, open_target
from lakehouse.spec.options.hudi.write_job import parse_write_job
from tests.support.payloads import BATCHES, PAYLOADS, options, ordered, result


@pytest.mark.parametrize("version", ["9", "8"])
@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
@pytest.mark.parametrize("name", PAYLOADS)
def test_payload_class_merges_as_in_hudi(name: str, table_type: str, version: str, tmp_path: Path) -> None:
    job = parse_write_job(options(name, table_type, version))
    for number, batch in enumerate(BATCHES):
        target = open_target(str(tmp_path / "t"), job, SaveMode.APPEND, batch.schema)
        assert isinstance(target, JobTarget)
        target.write(batch)
        assert ordered(target.table.scan().to_arrow()) == result(name, version, number)
    if table_type == "MERGE_ON_READ":
        target.table.services.compaction.run()
        assert ordered(target.table.scan().to_arrow()) == result(name, version, 2)
