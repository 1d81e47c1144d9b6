"""Contract of metastores, run on a Hive Metastore over Thrift, on moto's AWS Glue and on the in-memory metastore."""

from __future__ import annotations

import itertools
import socket
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from moto.server import ThreadedMotoServer
from pymetastore.hive_metastore import ThriftHiveMetastore
from thrift.transport.TTransport import TTransportException

from lakehouse.errors import RetryableError, UserError
from lakehouse.platform.metastore.glue import open_glue
from lakehouse.platform.metastore.hive import HiveMetastore
from lakehouse.platform.metastore.memory import MemoryMetastore
from lakehouse.platform.metastore.names import partition_name, partition_values, same_location
from lakehouse.platform.metastore.protocol import Column, Format, HivePartition, HiveTable, Metastore
from lakehouse.spec.options.sync import SyncPolicy

PARQUET = Format(
    input_format="org.apache.hadoop.hive.ql.io.parquet.MapredParquetInputFormat",
    output_format="org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat",
    serde="org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe",
    serde_properties={"path": "somewhere"},
)
COLUMNS = (Column(name="id", type="bigint"), Column(name="note", type="struct<a:int,b:array<string>>", comment="why"))
DAY_HOUR = (Column(name="dt", type="string"), Column(name="hour", type="string"))
ODD = ("a=b/c:d%e", "ü ö'\"#[]{}^?*\\", "2025-03-01 00:00:00.0", "x\ty")
_numbers = itertools.count(1)


@pytest.fixture(scope="module")
def glue_url() -> Iterator[str]:
    """Run moto's server; return its address."""
    server = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    server.start()
    yield "http://{}:{}".format(*server.get_host_and_port())
    server.stop()


@pytest.fixture(params=["memory", "hive", "glue"])
def metastore(request: pytest.FixtureRequest) -> Iterator[Metastore]:
    """Return each metastore, with pages of three partitions."""
    made: Metastore
    if request.param == "memory":
        made = MemoryMetastore(page=3)
    elif request.param == "glue":
        for name, value in {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test"}.items():
            request.getfixturevalue("monkeypatch").setenv(name, value)
        url = request.getfixturevalue("glue_url")
        made = open_glue(SyncPolicy(glue_region="eu-west-1", glue_endpoint=url, batch=3, timeout_s=30))
    else:
        made = HiveMetastore(request.getfixturevalue("hive_uri"), timeout_s=30, page=3)
    yield made
    made.close()


@pytest.fixture
def table(metastore: Metastore, tmp_path: Path) -> HiveTable:
    """Create a table that is partitioned by day and hour, in a new database."""
    wanted = HiveTable(
        database=f"sales_{next(_numbers)}",
        name="orders",
        columns=COLUMNS,
        partition_columns=DAY_HOUR,
        location=str(tmp_path / "orders"),
        format=PARQUET,
        parameters={"made.by": "us"},
    )
    assert metastore.create_database(wanted.database)
    assert metastore.create_table(wanted)
    return wanted


def test_databases_and_tables_are_listed(metastore: MemoryMetastore | HiveMetastore, table: HiveTable) -> None:
    assert table.database in metastore.databases()
    assert metastore.table_names(table.database) == (table.name,)
    assert metastore.table_names(f"{table.database}_missing") == ()


def part(table: HiveTable, *values: str, columns: tuple[Column, ...] = COLUMNS) -> HivePartition:
    """Return a partition whose location follows from its name."""
    names = [column.name for column in table.partition_columns]
    return HivePartition(
        values=values,
        location=f"{table.location}/{partition_name(names, values)}",
        format=PARQUET,
        columns=columns,
        parameters={"ready": "yes"},
    )


def test_create_database_returns_false_if_it_exists(metastore: Metastore) -> None:
    name = f"once_{next(_numbers)}"
    assert metastore.create_database(name)
    assert not metastore.create_database(name)


def test_created_table_round_trips(metastore: Metastore, table: HiveTable) -> None:
    found = metastore.table(table.database, table.name)
    assert found is not None
    assert (found.columns, found.partition_columns, found.format) == (COLUMNS, DAY_HOUR, PARQUET)
    assert same_location(found.location, table.location)
    assert {"made.by": "us", "EXTERNAL": "TRUE"}.items() <= found.parameters.items()


def test_table_names_are_case_insensitive(metastore: Metastore, table: HiveTable) -> None:
    found = metastore.table(table.database.upper(), "Orders")
    assert found is not None and found.name == "orders"
    assert not metastore.create_table(replace(table, name="ORDERS"))


def test_create_table_does_not_change_an_existing_table(metastore: Metastore, table: HiveTable) -> None:
    assert not metastore.create_table(replace(table, columns=COLUMNS[:1]))
    found = metastore.table(table.database, table.name)
    assert found is not None and found.columns == COLUMNS


def test_missing_table_is_none(metastore: Metastore, table: HiveTable) -> None:
    assert metastore.table(table.database, "other") is None
    assert metastore.table("nowhere", "orders") is None


def test_create_table_without_its_database_raises_user_error(metastore: Metastore, table: HiveTable) -> None:
    with pytest.raises(UserError, match=r"nowhere\.orders cannot be created"):
        metastore.create_table(replace(table, database="nowhere"))


def test_calls_on_a_missing_table_raise_user_error_with_its_name(metastore: Metastore, table: HiveTable) -> None:
    missing = (table.database, "other")
    for call in (
        lambda: metastore.partition_names(*missing),
        lambda: metastore.partitions(*missing, ["dt=1/hour=2"]),
        lambda: metastore.add_partitions(*missing, [part(table, "1", "2")]),
        lambda: metastore.alter_partitions(*missing, [part(table, "1", "2")]),
        lambda: metastore.drop_partitions(*missing, ["dt=1/hour=2"]),
        lambda: metastore.alter_table(replace(table, name="other")),
    ):
        with pytest.raises(UserError, match=rf"there is no table {table.database}\.other"):
            call()


def test_alter_table_cascades_new_columns_to_partitions(metastore: Metastore, table: HiveTable) -> None:
    metastore.add_partitions(table.database, table.name, [part(table, "1", "2")])
    wider = (*COLUMNS, Column(name="price", type="decimal(10,2)"))
    metastore.alter_table(replace(table, columns=wider, parameters={"seen": "yes"}))
    found = metastore.table(table.database, table.name)
    assert found is not None and found.columns == wider
    assert found.parameters["seen"] == "yes" and "made.by" not in found.parameters
    (partition,) = metastore.partitions(table.database, table.name, ["dt=1/hour=2"])
    assert partition.columns == wider


def test_drop_table_keeps_files(metastore: Metastore, table: HiveTable) -> None:
    kept = Path(table.location) / "kept"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("rows")
    assert metastore.drop_table(table.database, table.name)
    assert not metastore.drop_table(table.database, table.name)
    assert metastore.table(table.database, table.name) is None
    assert kept.read_text() == "rows"


def test_partitions_are_returned_in_the_requested_order(metastore: Metastore, table: HiveTable) -> None:
    wanted = [part(table, f"2025-03-0{day}", "07") for day in range(1, 9)]
    metastore.add_partitions(table.database, table.name, wanted)
    names = metastore.partition_names(table.database, table.name)
    assert names == tuple(f"dt=2025-03-0{day}/hour=07" for day in range(1, 9))
    requested = [*reversed(names), "dt=2026-01-01/hour=00"]
    found = metastore.partitions(table.database, table.name, requested)
    assert [partition.values for partition in found] == [one.values for one in reversed(wanted)]
    assert found[-1].columns == COLUMNS and found[-1].format == PARQUET
    assert same_location(found[-1].location, wanted[0].location)
    assert found[-1].parameters["ready"] == "yes"


@pytest.mark.parametrize("value", ODD)
def test_reserved_characters_in_values_round_trip(metastore: Metastore, table: HiveTable, value: str) -> None:
    metastore.add_partitions(table.database, table.name, [part(table, value, "0")])
    (name,) = metastore.partition_names(table.database, table.name)
    assert name == partition_name(["dt", "hour"], [value, "0"])
    assert partition_values(name) == (value, "0")
    (found,) = metastore.partitions(table.database, table.name, [name])
    assert found.values == (value, "0")
    metastore.drop_partitions(table.database, table.name, [name])
    assert metastore.partition_names(table.database, table.name) == ()


def test_empty_value_becomes_the_default_partition(metastore: Metastore, table: HiveTable) -> None:
    name = partition_name(["dt", "hour"], ["", "0"])
    metastore.add_partitions(table.database, table.name, [part(table, "__HIVE_DEFAULT_PARTITION__", "0")])
    assert metastore.partition_names(table.database, table.name) == (name,)


def test_add_partitions_does_not_change_existing_partitions(metastore: Metastore, table: HiveTable) -> None:
    one, two = part(table, "1", "0"), part(table, "2", "0")
    metastore.add_partitions(table.database, table.name, [one])
    elsewhere = replace(one, location=f"{table.location}/elsewhere")
    metastore.add_partitions(table.database, table.name, [elsewhere, two])
    found = metastore.partitions(table.database, table.name, ["dt=1/hour=0", "dt=2/hour=0"])
    assert len(found) == 2 and same_location(found[0].location, one.location)


def test_alter_partitions_replaces_location_and_parameters(metastore: Metastore, table: HiveTable) -> None:
    wanted = [part(table, str(day), "0") for day in range(5)]
    metastore.add_partitions(table.database, table.name, wanted)
    moved = [replace(one, location=f"{one.location}_2", parameters={"ready": "again"}) for one in wanted]
    metastore.alter_partitions(table.database, table.name, moved)
    found = metastore.partitions(table.database, table.name, metastore.partition_names(table.database, table.name))
    assert all(same_location(one.location, other.location) for one, other in zip(found, moved, strict=True))
    assert {one.parameters["ready"] for one in found} == {"again"}


def test_alter_of_a_missing_partition_is_retryable_and_changes_nothing(metastore: Metastore, table: HiveTable) -> None:
    one = part(table, "1", "0")
    metastore.add_partitions(table.database, table.name, [one])
    moved = replace(one, location=f"{one.location}_2")
    with pytest.raises(RetryableError, match="dt=2/hour=0 does not exist any more"):
        metastore.alter_partitions(table.database, table.name, [moved, part(table, "2", "0")])
    (found,) = metastore.partitions(table.database, table.name, ["dt=1/hour=0"])
    assert same_location(found.location, one.location)


def test_drop_partitions_ignores_missing_ones_and_keeps_files(metastore: Metastore, table: HiveTable) -> None:
    wanted = [part(table, str(day), "0") for day in range(5)]
    metastore.add_partitions(table.database, table.name, wanted)
    kept = Path(wanted[0].location) / "kept"
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text("rows")
    metastore.drop_partitions(table.database, table.name, ["dt=0/hour=0", "dt=9/hour=0"])
    metastore.drop_partitions(table.database, table.name, [f"dt={day}/hour=0" for day in range(4)])
    assert metastore.partition_names(table.database, table.name) == ("dt=4/hour=0",)
    assert kept.read_text() == "rows"


def test_add_of_a_partition_with_too_few_values_raises_user_error(metastore: Metastore, table: HiveTable) -> None:
    short = replace(part(table, "1", "2"), values=("1",))
    with pytest.raises(UserError, match="cannot be added"):
        metastore.add_partitions(table.database, table.name, [short])


def test_unreachable_metastore_raises_retryable_error() -> None:
    with pytest.raises(RetryableError, match=r"thrift://127\.0\.0\.1:1"):
        HiveMetastore("thrift://127.0.0.1:1").table("sales", "orders")


def test_slow_metastore_raises_retryable_error() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        uri = f"thrift://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(RetryableError, match=uri):
            HiveMetastore(uri, timeout_s=0.2).partition_names("sales", "orders")


def test_retry_after_a_lost_reply_succeeds(hive_uri: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    metastore = HiveMetastore(hive_uri, timeout_s=30)
    database = f"lossy_{next(_numbers)}"
    wanted = HiveTable(
        database=database,
        name="orders",
        columns=COLUMNS,
        partition_columns=DAY_HOUR,
        location=str(tmp_path / "orders"),
        format=PARQUET,
    )
    metastore.create_database(database)
    metastore.create_table(wanted)
    receive = ThriftHiveMetastore.Client.recv_add_partitions_req

    def lose(self: ThriftHiveMetastore.Client) -> None:
        receive(self)
        raise TTransportException(message="the reply was lost")

    with monkeypatch.context() as lossy:
        lossy.setattr(ThriftHiveMetastore.Client, "recv_add_partitions_req", lose)
        with pytest.raises(RetryableError, match="the reply was lost"):
            metastore.add_partitions(database, "orders", [part(wanted, "1", "2")])
    metastore.add_partitions(database, "orders", [part(wanted, "1", "2")])
    assert metastore.partition_names(database, "orders") == ("dt=1/hour=2",)
    metastore.close()


def test_second_server_is_used_if_the_first_is_unreachable(hive_uri: str) -> None:
    metastore = HiveMetastore(f"thrift://127.0.0.1:1, {hive_uri}", timeout_s=30)
    assert metastore.table("nowhere", "orders") is None
    metastore.close()


def test_invalid_address_raises_user_error() -> None:
    with pytest.raises(UserError, match=r"hive_sync\.metastore\.uris"):
        HiveMetastore("http://one:9083")
