"""Exports that stop at each storage step, and exports that race: readers always get a complete version."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.core.files.base.base_reader import MissingFileError
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.fault_injection import FaultMode, FaultyStorage, SimulatedCrash
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import LakehouseError
from lakehouse.platform.export.export import ExportedView, run_export
from lakehouse.platform.export.formats import VIEW_FORMATS
from lakehouse.spec.options.export import ExportPolicy
from tests.support.tables import make_env
from tests.support.views import FORMATS, check_view, export, exported_paths, read_view, rows_of

POLICY = ExportPolicy(retained_versions=2)


def orders(location: str, **options: Any) -> Table:
    """Return a table with two partitions and three versions."""
    return Table.create(
        location, name="orders", record_key=["id"], partition_by=["day"], options=options, env=make_env(location)
    )


def rows(*ids: int, amount: int = 1) -> pa.Table:
    return pa.table({"id": [*ids], "day": [f"d{i % 2}" for i in ids], "amount": [amount for _ in ids]})


def export_on(table: Table, storage: Storage, name: str) -> ExportedView | NothingToDo:
    """Export through another store."""
    loaded = table.services.table.refresh()
    return run_export(replace(loaded, env=replace(loaded.env, storage=storage)), VIEW_FORMATS[name], POLICY)


def base_table(home: Path, name: str, versions: int) -> Table:
    """Return a table with exported versions and a change that is not exported yet."""
    table = orders(f"{home}/orders")
    table.upsert(rows(1, 2, 3))
    for number in range(versions):
        export(table, name, policy=POLICY)
        table.upsert(rows(1, 10 + number, amount=number))
    return table


MODES = (FaultMode.CRASH_BEFORE, FaultMode.CRASH_AFTER, FaultMode.LOSE_REPLY)


@pytest.mark.parametrize("versions", [0, 1, 9])
@pytest.mark.parametrize("name", FORMATS)
def test_export_that_stops_at_any_step_leaves_a_readable_view(name: str, versions: int, tmp_path: Path) -> None:
    table, location = base_table(tmp_path, name, versions), f"{tmp_path}/orders"
    before = rows_of(read_view(location, name)) if versions else None
    after = rows_of(table.scan().to_arrow())
    shutil.copytree(location, tmp_path / "copy")
    watched = FaultyStorage(open_storage(location))
    export_on(table, watched, name)
    # The export after nine versions writes a checkpoint of Delta, and removes expired files of Iceberg.
    verbs = ("put", "create", "delete", "delete_many")
    steps = [n for n, step in enumerate(watched.trace, 1) if step.split()[0] in verbs]
    assert len(steps) > 1 or name == "delta"
    for step, mode in product(steps, MODES):
        shutil.rmtree(location)
        shutil.copytree(tmp_path / "copy", location)
        with suppress(SimulatedCrash, LakehouseError):
            export_on(table, FaultyStorage(open_storage(location), fail_at=step, mode=mode), name)
        if versions:
            assert rows_of(read_view(location, name)) in (before, after), watched.trace[step - 1]
        export(table, name, policy=POLICY)
        check_view(table, name)
        assert isinstance(export(table, name, policy=POLICY), NothingToDo)


class Overtaken:
    """A store on which another exporter commits before the first file is created."""

    def __init__(self, inner: Storage, other: Any) -> None:
        self._inner, self._other, self.raced = inner, other, False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._inner, name)

    def create(self, path: str, data: bytes, *, unique: bool = False) -> bool:
        if not self.raced:
            self.raced = True
            self._other()
        return self._inner.create(path, data, unique=unique)


@pytest.mark.parametrize("name", FORMATS)
def test_export_that_loses_a_race_continues_from_the_version_of_the_winner(name: str, tmp_path: Path) -> None:
    table = base_table(tmp_path, name, 1)

    def other() -> None:
        export(table, name, policy=POLICY)
        table.upsert(rows(30))

    outcome = export_on(table, Overtaken(open_storage(f"{tmp_path}/orders"), other), name)  # type: ignore[arg-type]
    assert isinstance(outcome, ExportedView) and (outcome.added, outcome.removed) == (1, 1)
    check_view(table, name)


@pytest.mark.parametrize("name", FORMATS)
def test_export_that_another_one_did_already_finds_nothing_to_do(name: str, tmp_path: Path) -> None:
    table = base_table(tmp_path, name, 1)
    store = Overtaken(open_storage(f"{tmp_path}/orders"), lambda: export(table, name, policy=POLICY))
    assert isinstance(export_on(table, store, name), NothingToDo)  # type: ignore[arg-type]
    check_view(table, name)


@pytest.mark.parametrize("name", FORMATS)
def test_export_whose_files_a_clean_removes_plans_again(name: str, tmp_path: Path) -> None:
    table = base_table(tmp_path, name, 1)
    planned = table.services.table.refresh()
    for number in range(3):
        table.upsert(rows(1, 10, 2, 3, amount=50 + number))
    options = {"hoodie.clean.commits.retained": "1"}
    cleaned = Table.open(f"{tmp_path}/orders", options=options).services.clean.run(force=True)
    assert not isinstance(cleaned, NothingToDo) and cleaned.files > 0
    outcome = run_export(planned, VIEW_FORMATS[name], POLICY)
    assert isinstance(outcome, ExportedView) and outcome.instant == table.commits()[-1][0].requested
    check_view(table, name)
    (tmp_path / "orders" / exported_paths(table, name)[0]).unlink()
    with pytest.raises(MissingFileError):
        export(table, name, force=True)


@pytest.mark.parametrize("name", FORMATS)
def test_stale_exporter_does_not_bring_back_a_removed_version(name: str, tmp_path: Path) -> None:
    table = base_table(tmp_path, name, 1)

    def others() -> None:
        for number in range(25):
            export(table, name, policy=POLICY)
            table.upsert(rows(1, amount=100 + number))
        export(table, name, policy=POLICY)

    export_on(table, Overtaken(open_storage(f"{tmp_path}/orders"), others), name)  # type: ignore[arg-type]
    check_view(table, name)
    assert isinstance(export(table, name, policy=POLICY), NothingToDo)


@pytest.mark.parametrize("name", FORMATS)
def test_export_of_one_changed_partition_lists_nothing_and_needs_few_requests(name: str, tmp_path: Path) -> None:
    table = orders(f"{tmp_path}/orders", **{"hoodie.parquet.small.file.limit": "0"})
    days = [f"d{number:03d}" for number in range(120)]
    table.bulk_insert(pa.table({"id": [*range(120)], "day": days, "amount": [0] * 120}))
    first = export(table, name)
    assert isinstance(first, ExportedView) and first.added == 120
    costs = []
    for _ in range(2):
        table.upsert(pa.table({"id": [7], "day": ["d007"], "amount": [1]}))
        store = CountingStorage(open_storage(f"{tmp_path}/orders"))
        outcome = export_on(table, store, name)
        assert isinstance(outcome, ExportedView) and (outcome.added, outcome.removed) == (1, 1)
        assert set(store.listed_data()) <= {"_delta_log"}
        costs.append(sum(store.counts().values()))
    assert max(costs) <= 25, costs
    check_view(table, name)
