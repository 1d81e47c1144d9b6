"""The table id in hoodie.properties: Apache Hudi ignores the key, and keeps it when it rewrites the file."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.catalog.catalog import load_catalog
from tests.interop.agreement import assert_hudi_reads_the_same
from tests.interop.test_writes_to_hudi_tables import BASE, PARTITIONED
from tests.support.hudi import Hudi
from tests.support.tables import batch, row

pytestmark = pytest.mark.jvm

NAME = "sales.events"
_SIX = "table => '{table}', to_version => 'SIX'"
ROWS = batch([row(f"k{i}", p="abc"[i % 3]) for i in range(6)])


def test_hudi_keeps_the_id_through_writes_changes_of_the_schema_upgrade_and_downgrade(
    hudi: Hudi, tmp_path: Path
) -> None:
    location = str(tmp_path / "table")
    eight = {"hoodie.write.table.version": "8"}
    hudi.write(location, ROWS, BASE | PARTITIONED | eight | {"hoodie.write.auto.upgrade": "false"}, mode="overwrite")
    with load_catalog(f"sqlite:///{tmp_path}/catalog.db") as catalog:
        assigned = catalog.register_table(NAME, location).config
        assert assigned.version == 8 and assigned.identity.id
        changes = {
            "write": (9, lambda: hudi.write(location, ROWS, BASE | PARTITIONED)),
            "alter": (9, lambda: hudi.sql("ALTER TABLE {table} ADD COLUMNS (added STRING)", table=location)),
            "downgrade": (6, lambda: hudi.sql(f"CALL downgrade_table({_SIX})", table=location)),
        }
        for name, (version, change) in changes.items():
            change()
            table = catalog.load_table(NAME)
            assert table.config.identity == assigned.identity, name
            assert (table.config.version, table.scan().count()) == (version, len(ROWS)), name


def test_table_that_hudi_overwrites_is_another_table(hudi: Hudi, tmp_path: Path) -> None:
    location = str(tmp_path / "table")
    hudi.write(location, ROWS, BASE | PARTITIONED, mode="overwrite")
    with load_catalog(f"sqlite:///{tmp_path}/catalog.db") as catalog:
        registered = catalog.register_table(NAME, location)
        assert_hudi_reads_the_same(hudi, registered)
        hudi.write(location, ROWS, BASE | PARTITIONED, mode="overwrite")
        with pytest.raises(UserError, match="and none is stored there"):
            catalog.load_table(NAME)
        assert catalog.accept_table(NAME).config.identity.id != registered.config.identity.id
        assert Table.open(location).scan().count() == len(ROWS)
