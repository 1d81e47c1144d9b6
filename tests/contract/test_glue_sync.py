"""Sync of AWS Glue on moto's server: tables have the form in which Hudi's AwsGlueCatalogSyncTool declares them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import boto3
import pyarrow as pa
import pytest
from moto.server import ThreadedMotoServer

from lakehouse import Table
from lakehouse.errors import RetryableError, UserError
from lakehouse.platform.metastore.glue import GlueMetastore
from lakehouse.platform.metastore.open import open_metastore
from lakehouse.platform.metastore.protocol import Metastore
from lakehouse.platform.publish.sync import plan, sync
from lakehouse.platform.publish.sync_plan import LAST_COMMIT
from lakehouse.platform.services.metastore_sync import Synced
from lakehouse.platform.services.registry import table_service

TOOL = "hoodie.meta.sync.client.tool.class"
GLUE = {TOOL: "org.apache.hudi.aws.sync.AwsGlueCatalogSyncTool", "hoodie.aws.glue.region": "eu-west-1"}
DATABASE = "hoodie.datasource.hive_sync.database"
META = ["commit_time", "commit_seqno", "record_key", "partition_path", "file_name"]


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """Run moto's server; return its address."""
    running = ThreadedMotoServer("127.0.0.1", port=0, verbose=False)
    running.start()
    yield "http://{}:{}".format(*running.get_host_and_port())
    running.stop()


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "test")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "test")


@pytest.fixture
def options(server: str, request: pytest.FixtureRequest) -> dict[str, str]:
    """Return the options of a sync to a database of this test."""
    return {**GLUE, "hoodie.aws.glue.endpoint": server, DATABASE: request.node.name.partition("[")[0][:100]}


@pytest.fixture
def client(server: str) -> Any:
    return boto3.client("glue", region_name="eu-west-1", endpoint_url=server)


def opened(table: Table) -> Metastore:
    return open_metastore(table.services_as_loaded.policies.sync)


def synced(table: Table) -> bool:
    """Sync the table with a new client; return whether the sync changed more than the commit."""
    with closing(opened(table)) as metastore:
        return sync(table, metastore).did_something


def make(place: Path, options: dict[str, str], days: int = 2, **declared: Any) -> Table:
    """Return a table with one partition per day of a year."""
    hive_style = {"hoodie.datasource.write.hive_style_partitioning": "true"}
    table = Table.create(
        str(place / "trips"), name="trips", record_key=["id"], partition_by=["day"], options=hive_style, **declared
    )
    table.insert(rows(range(days)))
    return table.with_options(options)


def rows(days: Any, **more: Any) -> pa.Table:
    names = [f"{day:03d}" for day in days]
    return pa.table({"id": names, "day": names, **{name: [value] * len(names) for name, value in more.items()}})


def test_table_has_the_form_of_hudis_sync(tmp_path: Path, options: dict[str, str], client: Any) -> None:
    table = make(tmp_path, options)
    assert synced(table) and not synced(table)
    stored = client.get_table(DatabaseName=options[DATABASE], Name="trips")["Table"]
    newest = table.timeline.writes().by_completion()[-1]
    fields = [(f"_hoodie_{name}", "string") for name in META] + [("id", "string"), ("day", "string")]
    schema = ",".join(f'{{"name":"{n}","type":"{kind}","nullable":true,"metadata":{{}}}}' for n, kind in fields)
    columns = [{"Name": name, "Type": kind, "Comment": ""} for name, kind in fields[:-1]]
    descriptor = {
        "Columns": columns,
        "Location": table.location,
        "InputFormat": "org.apache.hudi.hadoop.HoodieParquetInputFormat",
        "OutputFormat": "org.apache.hadoop.hive.ql.io.parquet.MapredParquetOutputFormat",
        "SerdeInfo": {
            "SerializationLibrary": "org.apache.hadoop.hive.ql.io.parquet.serde.ParquetHiveSerDe",
            "Parameters": {
                "serialization.format": "1",
                "hoodie.query.as.ro.table": "false",
                "path": table.location,
            },
        },
    }
    assert stored["TableType"] == "EXTERNAL_TABLE" and stored["StorageDescriptor"] == descriptor
    assert stored["PartitionKeys"] == [{"Name": "day", "Type": "string", "Comment": ""}]
    assert stored["Parameters"] == {
        "EXTERNAL": "TRUE",
        "hudi.metadata-listing-enabled": "FALSE",
        "spark.sql.sources.provider": "hudi",
        "spark.sql.sources.schema.numParts": "1",
        "spark.sql.sources.schema.part.0": f'{{"type":"struct","fields":[{schema}]}}',
        "spark.sql.sources.schema.numPartCols": "1",
        "spark.sql.sources.schema.partCol.0": "day",
        "last_commit_time_sync": newest.requested,
        "last_commit_completion_time_sync": newest.completion,
    }
    partitions = client.get_partitions(DatabaseName=options[DATABASE], TableName="trips")["Partitions"]
    assert [(p["Values"], p["Parameters"], p["StorageDescriptor"]) for p in partitions] == [
        ([day], {}, {**descriptor, "Location": f"{table.location}/day={day}"}) for day in ("000", "001")
    ]


def test_merge_on_read_tables_and_own_names(tmp_path: Path, options: dict[str, str], client: Any) -> None:
    own = {
        "hoodie.datasource.meta.sync.glue.database_name": "other",
        "hoodie.datasource.meta.sync.glue.table_name": "rides",
        "hoodie.datasource.meta.sync.glue.metadata_file_listing": "true",
    }
    table = make(tmp_path, {**options, **own}, table_type="MERGE_ON_READ")
    done = table_service(table.services, "sync").run()
    assert isinstance(done, Synced) and done.metastore == f"AWS Glue at {options['hoodie.aws.glue.endpoint']}"
    tables = {table["Name"]: table for table in client.get_tables(DatabaseName="other")["TableList"]}
    assert sorted(tables) == ["rides", "rides_ro", "rides_rt"]
    assert {table["Parameters"]["hudi.metadata-listing-enabled"] for table in tables.values()} == {"TRUE"}


def test_requests_have_the_catalog_and_use_the_region_but_not_the_endpoint_of_the_storage(
    tmp_path: Path, options: dict[str, str], client: Any, server: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The variables of an Airflow connection whose storage is at another address.
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
    monkeypatch.setenv("AWS_ENDPOINT_URL_GLUE", server)
    for name in ("hoodie.aws.glue.region", "hoodie.aws.glue.endpoint"):
        options.pop(name)
    other = {"hoodie.datasource.meta.sync.glue.catalogId": "210987654321"}
    table = make(tmp_path, {**options, **other})
    sent: list[dict[str, Any]] = []
    metastore = open_metastore(table.services_as_loaded.policies.sync)
    assert isinstance(metastore, GlueMetastore)
    metastore._client.meta.events.register(
        "before-call.glue", lambda params, **_: sent.append(json.loads(params["body"]))
    )
    with closing(metastore):
        assert sync(table, metastore).did_something
        assert metastore.table_names(options[DATABASE]) == ("trips",)
    assert len(sent) > 5
    assert {request["CatalogId"] for request in sent} == {"210987654321"}
    assert client.get_table(DatabaseName=options[DATABASE], Name="trips")["Table"]["Name"] == "trips"


def test_new_columns_reach_all_partitions_and_dropped_partitions_go(
    tmp_path: Path, options: dict[str, str], client: Any
) -> None:
    table = make(tmp_path, options, days=230)
    synced(table)
    table.delete_partitions([f"day={day:03d}" for day in range(60)])
    table.insert(rows([300], tip=0.5))
    assert synced(table) and not synced(table)
    pages = client.get_partitions(DatabaseName=options[DATABASE], TableName="trips")["Partitions"]
    assert sorted(p["Values"][0] for p in pages) == [f"{day:03d}" for day in (*range(60, 230), 300)]
    assert {p["StorageDescriptor"]["Columns"][-1]["Name"] for p in pages} == {"tip"}


def test_table_that_hudi_declared_with_other_fields_is_continued(
    tmp_path: Path, options: dict[str, str], client: Any
) -> None:
    table = make(tmp_path, options)
    synced(table)
    compared = ("Name", "TableType", "PartitionKeys", "Parameters", "StorageDescriptor")
    stored = client.get_table(DatabaseName=options[DATABASE], Name="trips")["Table"]
    hudis = {name: stored[name] for name in compared} | {"Description": "made by Hudi", "Owner": "etl", "Retention": 7}
    client.update_table(DatabaseName=options[DATABASE], TableInput=hudis)
    assert plan(table, opened(table)).is_empty
    table.insert(rows([7]))
    synced(table)
    after = client.get_table(DatabaseName=options[DATABASE], Name="trips")["Table"]
    assert (after["Description"], after["Owner"], after["Retention"]) == ("made by Hudi", "etl", 7)
    assert after["Parameters"][LAST_COMMIT] > hudis["Parameters"][LAST_COMMIT]


def test_next_sync_completes_after_a_failure_at_any_request(
    tmp_path: Path, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    table = make(tmp_path, {**options, "hoodie.datasource.hive_sync.batch_num": "1"})
    call = GlueMetastore._call
    number, finished = 0, False
    while not finished:
        number += 1
        own = table.with_options({DATABASE: f"{options[DATABASE]}_{number}"})
        sent = iter(range(1, 1000))

        def dying(self: GlueMetastore, request: Any, *, sent: Any = sent, last: int = number, **arguments: Any) -> Any:
            answer = call(self, request, **arguments)
            if next(sent) == last:
                raise RetryableError("the reply was lost")
            return answer

        with monkeypatch.context() as lossy:
            lossy.setattr(GlueMetastore, "_call", dying)
            try:
                synced(own)
                finished = True
            except RetryableError:
                pass
        synced(own)
        metastore = opened(own)
        assert metastore.partition_names(f"{options[DATABASE]}_{number}", "trips") == ("day=000", "day=001")
        assert plan(own, metastore).is_empty
    assert number > 10


def test_missing_region_credentials_and_server_are_errors_with_a_way_out(
    tmp_path: Path, options: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("AWS_DEFAULT_REGION", "AWS_REGION", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_CONFIG_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "none"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    table = make(tmp_path, {TOOL: GLUE[TOOL]})
    with pytest.raises(UserError, match=r"no region is configured: set the option hoodie\.aws\.glue\.region"):
        opened(table)
    down = table.with_options({**GLUE, "hoodie.aws.glue.endpoint": "http://127.0.0.1:1"})
    with pytest.raises(RetryableError, match=r"127\.0\.0\.1:1"):
        synced(down)
    monkeypatch.delenv("AWS_ACCESS_KEY_ID")
    monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
    with pytest.raises(UserError, match="set AWS_ACCESS_KEY_ID"):
        synced(table.with_options(options))
