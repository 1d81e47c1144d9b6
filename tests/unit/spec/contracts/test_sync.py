"""Contracts of a metastore sync: each is decoded to the value that was encoded."""

from __future__ import annotations

import pytest

from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.job import JobStatus, ServiceReport
from lakehouse.spec.contracts.services import SyncPlanDocument
from lakehouse.spec.contracts.sync import PartitionChange, SyncedPartition, SyncedTable

TABLE = SyncedTable(table="default.trips", created=True, changes=("columns",), added=2, altered=1, dropped=1)
PARTITIONS = tuple(
    SyncedPartition(table="default.trips", change=change, partition="eu", location=location)
    for change, location in zip(PartitionChange, ("lake/eu", "lake/eu", None), strict=True)
)
SKIPPED = {"a/b": "it does not fit the partition columns"}


@pytest.mark.parametrize(
    "document",
    [
        ServiceReport(status=JobStatus.COMMITTED, table="trips", tables=(TABLE,)),
        SyncPlanDocument(service="sync", metastore="hms", tables=(TABLE,), skipped=SKIPPED, partitions=PARTITIONS),
    ],
    ids=lambda document: type(document).__name__,
)
def test_sync_contract_round_trips_through_json(document: Document) -> None:
    assert type(document).from_json(document.to_json()) == document
