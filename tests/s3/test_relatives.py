"""Stores with the interface of S3 and schemes of their own: endpoints, keys, and tables without conditional puts."""

from __future__ import annotations

import itertools
from pathlib import Path

import pyarrow as pa
import pytest
from moto.s3.responses import S3Response

from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.object_options import object_options, parse_object_location
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.doctor.storage_checks import conditional_puts
from lakehouse.spec.contracts.doctor import CheckState
from tests.support.s3 import S3Server

_numbers = itertools.count(1)


@pytest.mark.parametrize(
    ("relative", "options", "endpoint", "region"),
    [
        ("oss", {"fs.oss.endpoint": "oss-cn-hangzhou.aliyuncs.com"}, "b.oss-cn-hangzhou.aliyuncs.com", "cn-hangzhou"),
        ("oss", {"fs.oss.endpoint": "oss-cn-x-internal.aliyuncs.com"}, "b.oss-cn-x-internal.aliyuncs.com", "cn-x"),
        ("oss", {"fs.oss.endpoint": "https://b.oss-cn-x.aliyuncs.com"}, "b.oss-cn-x.aliyuncs.com", "cn-x"),
        ("oss", {"AWS_REGION": "eu-central-1"}, "b.oss-eu-central-1.aliyuncs.com", "eu-central-1"),
        ("cosn", {"fs.cosn.bucket.region": "ap-tokyo"}, "b.cos.ap-tokyo.myqcloud.com", "ap-tokyo"),
        ("cosn", {"fs.cosn.bucket.endpoint_suffix": "cos.x.myqcloud.com"}, "b.cos.x.myqcloud.com", "x"),
        ("obs", {"fs.obs.endpoint": "obs.x.myhuaweicloud.com"}, "b.obs.x.myhuaweicloud.com", "x"),
        ("obs", {"fs.obs.endpoint": "10.0.0.1:9000"}, "10.0.0.1:9000", "us-east-1"),
    ],
)
def test_endpoint_contains_the_bucket_if_the_store_refuses_path_style(
    relative: str, options: dict[str, str], endpoint: str, region: str
) -> None:
    location = parse_object_location("s3", f"{relative}://b/t", relative=relative)
    config = object_options(location, options).config
    assert (config["aws_endpoint_url"], config["aws_region"]) == (f"https://{endpoint}", region)
    assert ("aws_virtual_hosted_style_request" in config) == (".com" in endpoint)


def test_keys_come_from_the_options_of_the_hadoop_connectors() -> None:
    keys = {
        "spark.hadoop.fs.oss.accessKeyId": "oss-id",
        "fs.oss.accessKeySecret": "oss-secret",
        "fs.cosn.userinfo.secretId": "cos-id",
        "fs.cosn.userinfo.secretKey": "cos-secret",
        "fs.obs.access.key": "obs-id",
        "fs.obs.secret.key": "obs-secret",
        "AWS_REGION": "r",
    }
    for relative, lead in (("oss", "oss"), ("cosn", "cos"), ("obs", "obs")):
        config = object_options(parse_object_location("s3", f"{relative}://b", relative=relative), keys).config
        assert (config["aws_access_key_id"], config["aws_secret_access_key"]) == (f"{lead}-id", f"{lead}-secret")
    assert object_options(parse_object_location("s3", "s3://b"), keys).config == {"aws_region": "r"}


def test_missing_endpoint_is_reported_with_the_option_of_the_store() -> None:
    for location, option in (("oss://b/t", "fs.oss.endpoint"), ("cos://b/t", "fs.cosn.bucket.region")):
        with pytest.raises(UserError, match=option):
            open_storage(location)


def test_region_of_r2_is_auto() -> None:
    location = parse_object_location("s3", "s3://b")
    options = object_options(location, {"AWS_ENDPOINT_URL": "https://account.r2.cloudflarestorage.com"})
    assert options.config["aws_region"] == "auto" and options.conditional


@pytest.mark.parametrize(
    ("spellings", "root", "native"),
    [
        (("s3://b/t", "s3a://b/t", "s3n://b/t/"), "s3://b/t", "s3a://b/t"),
        (("cosn://b/t", "cos://b/t"), "cosn://b/t", "cosn://b/t"),
        (("oss://b/t", "OSS://b/t"), "oss://b/t", "oss://b/t"),
        (
            (
                "abfss://c@a.dfs.core.windows.net/t",
                "abfs://c@a.dfs.core.windows.net/t",
                "wasbs://c@a.blob.core.windows.net/t",
                "wasb://c@a.blob.core.windows.net/t",
            ),
            "abfss://c@a.dfs.core.windows.net/t",
            "abfss://c@a.dfs.core.windows.net/t",
        ),
        (("gs://b/t", "gcs://b/t"), "gs://b/t", "gs://b/t"),
    ],
)
def test_spellings_of_spark_open_the_same_table(spellings: tuple[str, ...], root: str, native: str) -> None:
    stores = [open_storage(spelling, {"AWS_REGION": "r"}) for spelling in spellings]
    assert {store.root for store in stores} == {root}
    assert {store.native("") for store in stores} == {native}


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("webhdfs://node:9870/t", ["hdfs://host:8020"]),
        ("https://bucket.s3.amazonaws.com/t", ["s3://bucket/path"]),
        ("ossn://b/t", ["unknown scheme", "'oss'"]),
        ("hdsf://node/t", ["Did you mean 'hdfs'"]),
    ],
)
def test_other_schemes_are_refused_with_the_right_one(location: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        open_storage(location)
    assert [word for word in words if word not in str(caught.value)] == []


def test_location_of_databricks_is_its_mount_or_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lakehouse.core.storage.locate._DBFS_MOUNT", str(tmp_path / "dbfs"))
    with pytest.raises(UserError, match=r"mount .*/dbfs.*abfss://"):
        open_storage("dbfs:/lake/t")
    (tmp_path / "dbfs").mkdir()
    assert open_storage("dbfs:/lake/t").root == open_storage("dbfs:///lake/t").root == f"{tmp_path}/dbfs/lake/t"


@pytest.fixture
def refusing(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
    """Return options of a server that answers conditional puts with 501, as OSS does."""
    put = S3Response.put_object

    def put_object(response: S3Response) -> object:
        if "If-None-Match" in response.headers or "If-Match" in response.headers:
            return 501, {}, "<Error><Code>NotImplemented</Code></Error>"
        return put(response)

    monkeypatch.setattr(S3Response, "put_object", put_object)
    return {
        "fs.oss.endpoint": s3_server.endpoint,
        "fs.oss.accessKeyId": "key",
        "fs.oss.accessKeySecret": "secret",
        "max_attempts": "2",
    }


def on(server: S3Server, refusing: dict[str, str]) -> tuple[str, Storage]:
    location = f"oss://{server.bucket}/relative-{next(_numbers)}/t"
    return location, open_storage(location, refusing)


@pytest.mark.s3
def test_store_without_conditional_puts_compares_before_it_writes(
    s3_server: S3Server, refusing: dict[str, str]
) -> None:
    _, storage = on(s3_server, refusing)
    assert storage.create("a", b"one") is True
    assert storage.create("a", b"two") is False
    tag = storage.get_tagged("a")[1]
    assert storage.replace_if("a", b"three", "other") is None
    new = storage.replace_if("a", b"three", tag)
    assert storage.get_tagged("a") == (b"three", new)
    assert storage.replace_if("a", b"four", tag) is None
    assert storage.replace_if("b", b"new", None) == storage.get_tagged("b")[1]
    assert storage.replace_if("c", b"new", tag) is None


@pytest.mark.s3
def test_table_of_a_store_without_conditional_puts_needs_a_lock_elsewhere(
    s3_server: S3Server, refusing: dict[str, str], tmp_path: Path
) -> None:
    location, storage = on(s3_server, refusing)
    rows = pa.table({"id": ["a"], "v": [1]})
    table = Table.create(location, name="t", record_key=["id"], storage_options=refusing)
    table.upsert(rows)
    many = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
    inside = Table.open(location, storage_options=refusing, options={**many, "hoodie.write.lock.provider": "storage"})
    with pytest.raises(UserError, match=r"no conditional puts.*sqlalchemy, zookeeper or hivemetastore"):
        inside.upsert(rows)
    outside = {
        **many,
        "hoodie.write.lock.provider": "sqlalchemy",
        "lakehouse.lock.sqlalchemy.url": f"sqlite:///{tmp_path}/locks.db",
    }
    Table.open(location, storage_options=refusing, options=outside).upsert(pa.table({"id": ["b"], "v": [2]}))
    assert Table.open(location, storage_options=refusing).scan(["id"]).to_arrow()["id"].to_pylist() == ["a", "b"]
    finding = conditional_puts(storage, table="t")
    assert finding.state is CheckState.WARNING and "sqlalchemy" in finding.advice


@pytest.mark.s3
def test_conditional_puts_can_be_switched_on_and_off(s3_server: S3Server) -> None:
    options = {**s3_server.options, "AWS_CONDITIONAL_PUT": "disabled"}
    plain = open_storage(f"s3://{s3_server.bucket}/relative-{next(_numbers)}", options)
    assert conditional_puts(plain, table="t").state is CheckState.WARNING
    location = parse_object_location("s3", "oss://b", relative="oss")
    assert object_options(location, {"AWS_REGION": "r"}).conditional is False
    assert object_options(location, {"AWS_REGION": "r", "AWS_CONDITIONAL_PUT": "etag"}).conditional is True
