"""Tables that lakehouse or Apache Hudi upgrades or downgrades: Hudi 0.15, Hudi 1.2, hudi-rs and lakehouse continue."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.core.operations.services.archive import Archived
from lakehouse.core.operations.version.version_plan import VersionPlan
from lakehouse.core.table.table import Table
from tests.support import hudi_rs
from tests.support.archived import eager
from tests.support.hudi import Hudi
from tests.support.hudi_0_15 import KINDS, OF_WRITER, TYPE, WITHOUT_METADATA, same_rows
from tests.support.version_6 import batch

pytestmark = pytest.mark.jvm

#: Hudi 0.15 maintains its metadata table by default.
OF_0_15 = OF_WRITER
#: Findings of a table that lakehouse downgraded and Hudi upgraded.
EQUAL_TIMES = frozenset({"timeline.completions"})
NO_METADATA = {"hoodie__metadata__enable": "false"}


def rows_of(location: str, allowed: frozenset[str] = frozenset(), **readers: Hudi) -> dict[str, str]:
    """Assert that lakehouse, hudi-rs and the given releases of Hudi return the same rows; return v by id."""
    others = {"rs": hudi_rs.read(location)} | {name: hudi.read(location) for name, hudi in readers.items()}
    rows = same_rows(Table.open(location).scan().to_arrow(), others)
    findings = {finding.invariant for finding in Table.open(location).validate(deep=True).findings}
    # An upgrade by Hudi takes the times of files as completion times; those of a copied timeline are equal.
    assert findings <= allowed
    return rows


def changed(location: str, verb: str, to: int) -> VersionPlan:
    """Upgrade or downgrade a table without grace time."""
    plan = getattr(Table.open(location), verb)(to, grace_s=0)
    assert isinstance(plan, VersionPlan) and plan.is_done
    assert Table.open(location).config.version == to
    return plan


@pytest.mark.parametrize("kind", KINDS)
def test_table_of_hudi_0_15_goes_to_version_9_and_back(kind: str, hudi: Hudi, hudi_0_15: Hudi, tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    options = OF_0_15 | {TYPE: kind}
    hudi_0_15.write(location, batch(["a1", "a2", "b1"], 1, "x"), options, mode="overwrite")
    hudi_0_15.write(location, batch(["a1", "b2"], 2, "y"), options)
    hudi_0_15.write(location, batch(["a1"], 3, "z"), options)
    expected = {"a1": "z", "a2": "x", "b1": "x", "b2": "y"}
    plan = changed(location, "upgrade", 9)
    assert "Apache Hudi 0.15" in plan.readers_lost and plan.dropped_partitions
    assert rows_of(location, hudi_1_2=hudi) == expected
    hudi.write(location, batch(["a1", "b3"], 4, "1.2"), OF_0_15 | {TYPE: kind})
    Table.open(location).upsert(batch(["a2", "b3"], 5, "ours"))
    Table.open(location).delete(batch(["b2"], 6, "").select(["id", "p"]))
    expected = {"a1": "1.2", "a2": "ours", "b1": "x", "b3": "ours"}
    assert rows_of(location, hudi_1_2=hudi) == expected
    changed(location, "downgrade", 6)
    assert rows_of(location, hudi_1_2=hudi, hudi_0_15=hudi_0_15) == expected
    without = options | WITHOUT_METADATA
    hudi_0_15.write(location, batch(["a1", "b4"], 7, "0.15"), without)
    Table.open(location).upsert(batch(["b1", "b4"], 8, "ours"))
    hudi_0_15.write(location, batch(["b4"], 9, "0.15"), without)
    expected |= {"a1": "0.15", "b1": "ours", "b4": "0.15"}
    assert rows_of(location, hudi_1_2=hudi, hudi_0_15=hudi_0_15) == expected
    # Hudi 1.2 upgrades the table that lakehouse downgraded, and downgrades it again.
    hudi.write(location, batch(["a1"], 10, "1.2"), without)
    expected["a1"] = "1.2"
    assert Table.open(location).config.version == 9
    assert rows_of(location, EQUAL_TIMES, hudi_1_2=hudi) == expected
    Table.open(location).upsert(batch(["a2"], 11, "ours"))
    hudi.sql("CALL downgrade_table(table => '{table}', to_version => 'SIX')", table=location, **NO_METADATA)
    expected["a2"] = "ours"
    assert Table.open(location).config.version == 6
    assert rows_of(location, EQUAL_TIMES, hudi_1_2=hudi, hudi_0_15=hudi_0_15) == expected


def archived_by_hudi(hudi: Hudi, location: str) -> set[str]:
    """Return the commits that Hudi reads from the archive."""
    text = "CALL show_archived_commits(table => '{table}', limit => 100, start_ts => '2020', end_ts => '2099')"
    return set(hudi.query(text, table=location, **NO_METADATA).column("commit_time").to_pylist())


@pytest.mark.parametrize("version", [6, 9])
def test_hudi_reads_and_continues_an_archive_that_was_copied(version: int, hudi: Hudi, tmp_path: Path) -> None:
    location, other = str(tmp_path / "table"), 15 - version
    options = {"hoodie.write.table.version": str(version), **WITHOUT_METADATA}
    table = Table.create(location, name="t", record_key="id", partition_by="p", ordering="ts", options=options)
    for number in range(8):
        table.upsert(batch(["a1", f"b{number % 3}"], number, f"{number}"))
    eager(table).services.clean.run(force=True)
    assert isinstance(eager(table).services.archive.run(force=True), Archived)
    archived = {instant.requested for instant in table.archived()}
    changed(location, "upgrade" if version < other else "downgrade", other)
    assert archived_by_hudi(hudi, location) == archived
    # Hudi copies the archive back; its downgrade drops every eleventh action.
    verb = "downgrade_table" if version < other else "upgrade_table"
    word = {6: "SIX", 9: "NINE"}[version]
    hudi.sql(f"CALL {verb}(table => '{{table}}', to_version => '{word}')", table=location, **NO_METADATA)
    again = Table.open(location)
    assert again.config.version == version
    assert {instant.requested for instant in again.archived()} == archived
    commits = again.refresh().store.commits(again.archived())
    assert sorted(metadata.stats[0].num_writes > 0 for _, metadata in commits) == [True] * len(archived)
    rows_of(location, EQUAL_TIMES, hudi_1_2=hudi)
