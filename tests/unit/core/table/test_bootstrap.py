"""`Table.bootstrap`: tables that are made from folders of Parquet files, by metadata or with copied rows."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pytest

from lakehouse import Table, UnsupportedError, UserError
from lakehouse.core.env import Env
from lakehouse.core.operations.create.declare import TableDeclaration
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.rows.stored_names import is_skeleton
from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.system.process_state import ProcessState
from lakehouse.core.table import bootstrap as module
from lakehouse.core.table.bootstrap import BootstrapRequest, bootstrap
from tests.support.parquet_folders import orders, regions, write_folders
from tests.support.tables import SteadyClock

OPTIONS = {"hoodie.metadata.enable": "false"}


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return regions(tmp_path / "source")


def _make(tmp_path: Path, source: Path, **arguments: object) -> Table:
    defaults = {"name": "orders", "record_key": "id", "ordering": "ts", "options": OPTIONS}
    return Table.bootstrap(tmp_path / "table", source=source, **{**defaults, **arguments})  # type: ignore[arg-type]


def _amounts(table: Table) -> dict[str, int]:
    rows = table.scan(columns=["id", "amount"]).to_arrow()
    return dict(zip(rows.column("id").to_pylist(), rows.column("amount").to_pylist(), strict=True))


def _skeletons(table: Table) -> int:
    bases = load_slices(table.refresh()).bases()
    return sum(is_skeleton(base.name) for base in bases)


EXPECTED = {f"k{number:04d}": number for number in range(100)}


@pytest.mark.parametrize("version", ["6", "8", "9"])
@pytest.mark.parametrize("table_type", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_metadata_table_has_the_rows_of_its_source(tmp_path: Path, source: Path, version: str, table_type: str) -> None:
    options = {**OPTIONS, "hoodie.write.table.version": version}
    table = _make(tmp_path, source, table_type=table_type, options=options)
    assert _amounts(table) == EXPECTED and _skeletons(table) == 3
    south = table.scan(where="region = 'south' and amount < 62").to_arrow()
    assert south.select(["id", "region"]).to_pylist() == [
        {"id": "k0060", "region": "south"},
        {"id": "k0061", "region": "south"},
    ]
    assert not table.validate().findings
    table.upsert(orders(10, 12, region="north").set_column(1, "amount", pa.array([-1, -2], pa.int64())))
    table.delete(pa.table({"id": ["k0070"], "region": ["south"]}))
    expected = {key: value for key, value in EXPECTED.items() if key != "k0070"} | {"k0010": -1, "k0011": -2}
    assert _amounts(Table.open(table.location)) == expected
    assert not table.validate().findings


def test_partitions_by_pattern_are_copied(tmp_path: Path, source: Path) -> None:
    table = _make(tmp_path, source, mode="full", partition_pattern="region=n.*")
    assert _amounts(table) == EXPECTED and _skeletons(table) == 1
    assert next(iter(table.timeline)).requested == "00000000000001"
    assert (tmp_path / "source/region=north/a.parquet").exists()


def test_full_table_does_not_need_its_source(tmp_path: Path, source: Path) -> None:
    table = _make(tmp_path, source, mode="full")
    source.rename(tmp_path / "elsewhere")
    assert _amounts(Table.open(table.location)) == EXPECTED and _skeletons(table) == 0


def test_services_rewrite_skeleton_files_and_keep_sources(tmp_path: Path, source: Path) -> None:
    table = _make(tmp_path, source, table_type="MERGE_ON_READ", options={"hoodie.clean.commits.retained": "1"})
    table.upsert(orders(0, 5, region="north"))
    plan = table.services.compaction.plan(force=True)
    assert [operation.source for operation in plan.operations] == [f"file:{source}/region=north/a.parquet"]
    table.services.compaction.run(force=True)
    assert _skeletons(table) == 2
    table.services.clustering.run(force=True)
    assert _skeletons(table) == 0
    for number in range(3):
        table.upsert(orders(number, number + 1, region="north"))
    table.services.clean.run(force=True)
    assert not list((tmp_path / "table").rglob("*_00000000000001.parquet"))
    assert len(list(source.rglob("*.parquet"))) == 3
    source.rename(tmp_path / "elsewhere")
    assert _amounts(Table.open(table.location)) == EXPECTED
    assert not table.validate().findings


def test_metadata_table_of_bootstrapped_table_skips_files(tmp_path: Path, source: Path) -> None:
    options = {"hoodie.metadata.index.column.stats.enable": "true", "hoodie.metadata.record.index.enable": "true"}
    table = _make(tmp_path, source, options=options)
    assert table.metadata.validate().ok
    slices = table.scan(where="amount >= 95").plan().plan.slices
    assert [piece.partition for piece in slices] == ["region=south"]
    table.upsert(orders(61, 62, region="south"))
    assert _amounts(table) == EXPECTED and table.metadata.validate().ok


class Killed(BaseException):
    """Ends a run like a signal: no handler for errors sees it."""


def _request(source: Path, mode: str) -> BootstrapRequest:
    declaration = TableDeclaration(name="orders", record_key=("id",), ordering="ts", options=OPTIONS)
    return BootstrapRequest(source=str(source), mode=mode, partition_pattern="", declaration=declaration)


def test_killed_bootstrap_is_invisible_and_continues(tmp_path: Path, source: Path) -> None:
    class Dying(FaultyStorage):
        left = 0

        def step(self, name, call):  # type: ignore[no-untyped-def]
            if type(self).left == 0:
                raise Killed(name)
            type(self).left -= 1
            return call()

    location, kills, clock = str(tmp_path / "table"), 0, SteadyClock()
    while True:
        Dying.left = kills
        try:
            # Each run is a process of its own, with its own locks.
            env = Env(storage=Dying(LocalStorage(location)), process_state=ProcessState(), clock=clock)
            bootstrap(env, _request(source, "metadata"))
            break
        except Killed:
            kills += 1
        if not (tmp_path / "table/.hoodie/hoodie.properties").exists():
            with pytest.raises(UserError, match="is not a Hudi table"):
                Table.open(location)
    assert _amounts(Table.open(location)) == EXPECTED
    assert kills > 20


def test_copy_of_partitions_continues_after_an_error(
    tmp_path: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_COPY_BYTES", 1)
    fault = orders(60, 61).set_column(0, "id", pa.array([None], pa.string()))
    write_folders(source, {"region=west/a.parquet": fault})
    env = Env(storage=LocalStorage(str(tmp_path / "table")))
    with pytest.raises(UserError, match="null or empty record key"):
        bootstrap(env, _request(source, "full"))
    assert not (tmp_path / "table/.hoodie/hoodie.properties").exists()
    write_folders(source, {"region=west/a.parquet": orders(100, 110)})
    result = bootstrap(env, _request(source, "full"))
    assert result.full_rows == 10 and result.full_partitions == 3
    table = Table.open(tmp_path / "table")
    assert len(table.timeline.writes()) == 3 and len(_amounts(table)) == 110


def test_unfinished_bootstrap_refuses_other_arguments(tmp_path: Path, source: Path) -> None:
    class Dying(FaultyStorage):
        def step(self, name, call):  # type: ignore[no-untyped-def]
            if name.endswith(".parquet"):
                raise Killed(name)
            return call()

    location = str(tmp_path / "table")
    with pytest.raises(Killed):
        bootstrap(Env(storage=Dying(LocalStorage(location))), _request(source, "metadata"))
    with pytest.raises(UserError, match="unfinished bootstrap with other arguments"):
        bootstrap(Env(storage=LocalStorage(location)), _request(source, "full"))


def test_folders_without_names_need_partition_columns(tmp_path: Path) -> None:
    source = write_folders(tmp_path / "source", {"north/a.parquet": orders(0, 10, region="north")})
    with pytest.raises(UserError, match="does not show the name of the partition column"):
        _make(tmp_path, source)
    table = _make(tmp_path, source, partition_by="region")
    assert table.scan(columns=["_hoodie_partition_path"]).to_arrow().column(0).unique().to_pylist() == ["north"]


def test_rows_of_another_partition_are_refused(tmp_path: Path) -> None:
    source = write_folders(tmp_path / "source", {"north/a.parquet": orders(0, 10, region="south")})
    with pytest.raises(UserError, match=r"north/a\.parquet has rows .* the partition 'south'"):
        _make(tmp_path, source, partition_by="region")


def test_escaped_folders_make_an_encoding_table(tmp_path: Path) -> None:
    source = write_folders(tmp_path / "source", {"region=a%2Fb/x.parquet": orders(0, 10)})
    table = _make(tmp_path, source)
    assert table.scan(columns=["region"]).to_arrow().column(0).unique().to_pylist() == ["a/b"]
    table.upsert(orders(3, 4, region="a/b"))
    assert table.scan().to_arrow().num_rows == 10


def test_source_without_partitions_is_one_partition(tmp_path: Path) -> None:
    source = write_folders(tmp_path / "source", {"a.parquet": orders(0, 10), "_SUCCESS": orders(0, 1)})
    table = _make(tmp_path, source)
    assert table.scan().to_arrow().num_rows == 10 and not table.config.is_partitioned


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"mode": "metdata"}, UserError, "Did you mean 'metadata'"),
        ({"record_key": "idd"}, UserError, "have no column 'idd'"),
        ({"partition_pattern": "("}, UserError, "is not a regular expression"),
        ({"partition_by": "region:TIMESTAMP"}, UserError, "give the column alone"),
        ({"record_key": ()}, UnsupportedError, "need a record key from columns"),
        ({"options": {"hoodie.index.type": "BUCKET"}}, UnsupportedError, "choose another index"),
    ],
)
def test_bootstrap_refuses_arguments_by_name(
    tmp_path: Path, source: Path, arguments: dict[str, object], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        _make(tmp_path, source, **arguments)
    assert not (tmp_path / "table/.hoodie/hoodie.properties").exists()


def test_bootstrap_refuses_existing_tables_and_overlaps(tmp_path: Path, source: Path) -> None:
    table = _make(tmp_path, source)
    with pytest.raises(UserError, match="is already a table"):
        _make(tmp_path, source)
    with pytest.raises(UserError, match="contain each other"):
        Table.bootstrap(source / "table", source=source, name="orders", record_key="id")
    with pytest.raises(UserError, match="is a table of Hudi"):
        Table.bootstrap(tmp_path / "other", source=table.location, name="orders", record_key="id")
    with pytest.raises(UserError, match="has no Parquet files"):
        (tmp_path / "empty").mkdir()
        Table.bootstrap(tmp_path / "other", source=tmp_path / "empty", name="orders", record_key="id")


def test_incremental_read_contains_the_rows_of_the_bootstrap(tmp_path: Path, source: Path) -> None:
    table = _make(tmp_path, source)
    rows = table.incremental(begin="earliest").to_arrow()
    assert rows.num_rows == 100 and pc.sum(rows.column("amount")).as_py() == sum(range(100))
    assert table.health().small_files == 3
