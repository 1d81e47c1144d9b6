"""Measures of a table: services that only rewrite rows do not make it fresh."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse import NothingToDo, Table


def moment_ms(completion: str) -> int:
    whole = datetime.strptime(completion[:14], "%Y%m%d%H%M%S").replace(tzinfo=UTC)
    return round(whole.timestamp()) * 1000 + int(completion[14:17])


@pytest.mark.parametrize("version", ["6", "9"])
@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_newest_write_is_no_compaction_clustering_or_expiry(tmp_path: Path, kind: str, version: str) -> None:
    table = Table.create(
        str(tmp_path / "t"),
        name="t",
        record_key="id",
        partition_by="p",
        table_type=kind,
        options={"hoodie.write.table.version": version, "lakehouse.ttl.max.partitions": "1"},
    )
    assert table.health().newest_commit_ms is None
    days = ["2026-01-01", "2026-01-02"]
    for first in ("a", "c"):
        # Two file groups for each partition, which a clustering joins.
        table.bulk_insert(pa.table({"id": [first, f"{first}2"], "p": days, "v": [0, 0]}))
    table.upsert(pa.table({"id": ["a", "a2"], "p": days, "v": [1, 1]}))
    written = table.refresh().timeline.writes().by_completion()[-1]
    assert table.health().newest_commit_ms == moment_ms(written.completion)
    for service in (*(["compaction"] if kind == "MERGE_ON_READ" else []), "clustering", "ttl"):
        assert not isinstance(table.services.named(service).run(force=True), NothingToDo), service
    assert table.refresh().timeline.writes().by_completion()[-1] != written
    assert table.health().newest_commit_ms == moment_ms(written.completion)
    table.upsert(pa.table({"id": ["a2"], "p": ["2026-01-02"], "v": [9]}))
    newest = table.refresh().timeline.writes().by_completion()[-1]
    assert table.health().newest_commit_ms == moment_ms(newest.completion)
