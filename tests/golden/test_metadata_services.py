"""Services of lakehouse on metadata tables that Apache Hudi wrote: the merged records stay the same."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakehouse.core.env import Env
from lakehouse.core.metadata.definitions import read_definitions
from lakehouse.core.metadata.place import METADATA, listed_partitions
from lakehouse.core.metadata.services.clean import clean
from lakehouse.core.metadata.services.compaction import COMPACTION, LOG_COMPACTION
from lakehouse.core.metadata.services.rewrite import rewrite
from lakehouse.core.metadata.services.run import compaction_time, log_compaction_is_due
from lakehouse.core.metadata.services.state import ServiceState, compaction_policy
from lakehouse.core.operations.load.metadata import metadata_of
from lakehouse.core.operations.load.table import LoadedTable, load_table
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.core.timeline.table_properties import read_properties
from lakehouse.spec.options.metadata import MetadataPolicy
from lakehouse.spec.options.transaction import TransactionPolicy
from tests.support.shared import fixture_names, fixtures

OFTEN = compaction_policy(MetadataPolicy(compaction_delta_commits=1, log_compaction_blocks=1))
#: Version 6 is not written.
TABLES = [name for name in fixture_names("hudi_metadata/tables", "*.zip") if name != "mor_v6.zip"]


@pytest.fixture
def root(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    with zipfile.ZipFile(fixtures(f"hudi_metadata/tables/{request.param}")) as archive:
        archive.extractall(tmp_path)
    found = {path.parent.parent for path in tmp_path.rglob("hoodie.properties")}
    (table,) = [path for path in found if path.name != "metadata"]
    return table


def loaded(root: Path) -> LoadedTable:
    return load_table(Env(storage=LocalStorage(str(root))))


def records(root: Path) -> dict[str, pa.Table]:
    """Return the merged records of each usable partition, sorted."""
    metadata = metadata_of(loaded(root))
    assert metadata is not None
    found = {name: metadata.records(name) for name in metadata.usable}
    return {
        name: rows.take(pc.sort_indices(rows, [(c, "ascending") for c in sort_columns(rows)]))
        for name, rows in found.items()
    }


def sort_columns(rows: pa.Table) -> list[str]:
    return [name for name in ("key", "name") if name in rows.column_names]


def live(found: dict[str, pa.Table]) -> dict[str, pa.Table]:
    """Return the records without tombstones: a compaction of Hudi and a reader drop them."""
    return {
        name: rows.filter(pc.invert(rows["deleted"])) if "deleted" in rows.column_names else rows
        for name, rows in found.items()
    }


def state_of(root: Path) -> ServiceState:
    table = loaded(root)
    usable, _ = listed_partitions(read_properties(table.env.storage) or {})
    store = table.metadata
    return ServiceState(
        store=store,
        names=usable,
        definitions=read_definitions(table.env.storage),
        timeline=store.timeline_store.load(),
        data=table.timeline,
    )


@pytest.mark.parametrize("root", TABLES, indirect=True)
def test_compaction_keeps_the_records_that_hudi_wrote(root: Path) -> None:
    before = records(root)
    state = state_of(root)
    time = compaction_time(state, OFTEN)
    if time is None:
        pytest.fail("no compaction is possible")
    with table_lock(state.store.env, TransactionPolicy()) as lock:
        done = rewrite(state, COMPACTION, OFTEN, lock, time)
    assert done is not None and done.is_completed
    after = records(root)
    assert live(after).keys() == live(before).keys()
    for name, rows in live(before).items():
        assert live(after)[name].equals(rows), name
    bases = [path for path in (root / METADATA).rglob(f"*_{done.requested}.hfile")]
    assert {path.parent.name for path in bases} == set(state.names)
    with table_lock(state.store.env, TransactionPolicy()) as lock:
        clean(state_of(root), lock)
    for name, rows in live(before).items():
        assert live(records(root))[name].equals(rows), name


@pytest.mark.parametrize("root", TABLES, indirect=True)
def test_log_compaction_keeps_the_records_that_hudi_wrote(root: Path) -> None:
    before = records(root)
    state = state_of(root)
    if root.name == "mor_crashed_ahead":
        # A delta commit whose data instant is pending must stay removable.
        assert not log_compaction_is_due(state, OFTEN)
        return
    with table_lock(state.store.env, TransactionPolicy()) as lock:
        done = rewrite(state, LOG_COMPACTION, OFTEN, lock)
    assert done is not None
    for name, rows in live(before).items():
        assert live(records(root))[name].equals(rows), name
