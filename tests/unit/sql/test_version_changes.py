"""CALL lakehouse.upgrade and downgrade: recorded runs for tables of the catalog, which services do not overlap."""

from __future__ import annotations

from pathlib import Path

import pytest

from lakehouse.errors import TableBusyError
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.run_history import RunState
from lakehouse.platform.catalog.run_records import lease_key
from lakehouse.sql.session import SqlSession
from tests.unit.sql.conftest import rows_of

NAME = "p.t"


@pytest.fixture
def old(session: SqlSession) -> SqlSession:
    """Return the session with a table of version 6."""
    session.execute(
        f"CREATE TABLE {NAME} (id INT, v INT) USING hudi "
        "TBLPROPERTIES (primaryKey = 'id', 'hoodie.write.table.version' = '6')"
    )
    session.execute(f"INSERT INTO {NAME} VALUES (1, 10)")
    return session


def test_change_is_recorded_and_waits_for_services(old: SqlSession, catalog: Catalog) -> None:
    call = f"CALL lakehouse.upgrade(table => '{NAME}', version => '9')"
    with (
        catalog.leases.held(lease_key(NAME, "clean"), "busy", 60_000),
        pytest.raises(TableBusyError, match="the run busy of clean is active"),
    ):
        old.execute(call)
    assert catalog.load_table(NAME).config.version == 6
    number = catalog.entry(NAME).id
    # A plan is no run.
    old.execute(f"CALL lakehouse.upgrade(table => '{NAME}', op => 'plan', version => '9')")
    assert catalog.history.runs(number, "upgrade") == ()
    old.execute(call)
    (run,) = catalog.history.runs(number, "upgrade")
    assert (run.state, run.predicted["source"], run.predicted["target"]) == (RunState.COMMITTED, 6, 9)
    assert catalog.load_table(NAME).config.version == 9
    # The aliases of Hudi, with the options of the call.
    old.execute(
        f"CALL downgrade_table(table => '{NAME}', to_version => 'SIX', options => 'hoodie.metadata.enable=false')"
    )
    assert [run.state for run in catalog.history.runs(number, "downgrade")] == [RunState.COMMITTED]
    assert catalog.load_table(NAME).config.version == 6
    assert rows_of(old, f"SELECT id, v FROM {NAME}") == [(1, 10)]


def test_change_of_a_table_at_a_location_is_not_recorded(old: SqlSession, catalog: Catalog, tmp_path: Path) -> None:
    entry = catalog.entry(NAME)
    assert entry.location.startswith(str(tmp_path))
    old.execute(f"CALL lakehouse.upgrade(table => '{entry.location}', version => '9')")
    assert catalog.load_table(NAME).config.version == 9
    assert catalog.history.runs(entry.id, "upgrade") == ()
