"""Contracts of a catalog: each is decoded to the value that was encoded."""

from __future__ import annotations

import pytest

from lakehouse.spec.contracts.catalog import (
    CatalogTable,
    CatalogTables,
    DroppedTable,
    PolicyChange,
    SpecFiles,
    SpecFileStatus,
    SpecHistory,
    SpecState,
    SpecVersion,
    TableLocation,
    TimelineInstant,
    TimelineInstants,
    UpdatedSpec,
    UpgradedCatalog,
)
from lakehouse.spec.contracts.document import Document
from lakehouse.spec.contracts.policies import (
    DeadPolicy,
    DeadPolicyReason,
    PolicyOrigin,
    PolicySetting,
    ServicePolicy,
    TablePolicies,
)

STATUSES = tuple(SpecFileStatus(table="a.b", state=state, changes=("x: 1 -> 2",)) for state in SpecState)


@pytest.mark.parametrize(
    "document",
    [
        CatalogTables(
            tables=(CatalogTable(table="a.b", type="MERGE_ON_READ", spec_version=1, author=None, location="lake/b"),)
        ),
        SpecFiles(specs=STATUSES),
        SpecHistory(table="a.b", versions=(SpecVersion(spec_version=1, at="2026-01-01", author="ada"),)),
        TableLocation(table="a.b", location="lake/b", table_version=8),
        UpdatedSpec(table="a.b", spec_version=2),
        PolicyChange(scope="a.b", service="clean", pattern="dt=.*", changed=True),
        UpgradedCatalog(catalog="sqlite:///lake.db", schema_revision="0007"),
        DroppedTable(table="a.b", files_deleted=True, kept=("lake/b/other",)),
        TablePolicies(
            table="a.b",
            policies=(
                ServicePolicy(
                    service="clean",
                    enabled=True,
                    priority=1.0,
                    options={"k": "10"},
                    settings=(
                        PolicySetting(setting="enabled", value="true", origin=PolicyOrigin.PATTERN, pattern="x"),
                    ),
                ),
            ),
            dead=(
                DeadPolicy(
                    service="clean",
                    setting="enabled",
                    origin=PolicyOrigin.TABLE,
                    reason=DeadPolicyReason.OVERRIDDEN,
                    text="why",
                ),
            ),
        ),
        TimelineInstants(
            instants=(TimelineInstant(requested="1", completed=None, action="commit", state="REQUESTED"),)
        ),
    ],
    ids=lambda document: type(document).__name__,
)
def test_catalog_contract_round_trips_through_json(document: Document) -> None:
    assert type(document).from_json(document.to_json()) == document
