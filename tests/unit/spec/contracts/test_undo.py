"""Contracts of rollback, savepoint and restore: each is decoded to the value that was encoded."""

from __future__ import annotations

import pytest

from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.undo import (
    FailedWritesResult,
    RestoreResult,
    RevertedWrite,
    RollbackResult,
    SavepointDeletion,
    SavepointInfo,
    SavepointResult,
    Savepoints,
)

SAVEPOINT = SavepointInfo(instant="1", at="2026-01-01 00:00:00", by="ann", comment="why", partitions=1, files=2)


@pytest.mark.parametrize(
    "document",
    [
        RollbackResult(dry_run=True, target="1", action="commit", files=("a", "b")),
        RollbackResult(dry_run=False, target=None, reason="it was rolled back already"),
        FailedWritesResult(dry_run=False, rolled_back=("1",), active=("2",), refused=("3",)),
        SavepointResult(dry_run=False, savepoint=SAVEPOINT),
        SavepointResult(dry_run=False, savepoint=None, reason="it exists"),
        SavepointDeletion(dry_run=True, instant="1"),
        Savepoints(savepoints=(SAVEPOINT,)),
        RestoreResult(
            dry_run=False, target="1", instant="4", reverted=(RevertedWrite(instant="2", action="commit", files=1),)
        ),
    ],
    ids=lambda document: type(document).__name__,
)
def test_undo_contract_round_trips_through_json(document: Document) -> None:
    assert type(document).from_json(document.to_json()) == document
