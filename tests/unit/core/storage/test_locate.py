"""From locations and options as people type them to stores."""

from __future__ import annotations

import os

import pytest

from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.object_options import DEFAULT_ATTEMPTS, object_options, parse_object_location
from lakehouse.errors import UserError

S3 = parse_object_location("s3", "s3://lake/a")
AZURE = parse_object_location("az", "abfss://box@account.dfs.core.windows.net/a/b")


@pytest.fixture(autouse=True)
def _no_options_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("AWS_", "GOOGLE_", "AZURE_"))]:
        monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("location", "root"),
    [
        ("/data/lake/", "/data/lake"),
        ("/data/a b%20c", "/data/a b%20c"),
        ("file:/data/lake", "/data/lake"),
        ("file:///data/lake", "/data/lake"),
        ("file://localhost/data/lake", "/data/lake"),
        ("memory://lake", "memory://lake"),
        ("memory://lake/sales/orders/", "memory://lake/sales/orders"),
        ("s3://lake", "s3://lake"),
        ("s3a://lake/sales/orders/", "s3://lake/sales/orders"),
        ("S3://lake/sales", "s3://lake/sales"),
        ("gs://lake/sales", "gs://lake/sales"),
        ("az://box/sales", "az://box/sales"),
        ("abfss://box@account.dfs.core.windows.net/s", "abfss://box@account.dfs.core.windows.net/s"),
        ("abfs://box@account.dfs.core.windows.net", "abfss://box@account.dfs.core.windows.net"),
    ],
)
def test_locations_have_one_root_however_they_are_written(location: str, root: str) -> None:
    assert open_storage(location).root == root


def test_a_relative_path_becomes_absolute() -> None:
    assert open_storage("some/where").root == os.path.join(os.getcwd(), "some/where")
    assert isinstance(open_storage("a:b"), LocalStorage)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("", ["empty"]),
        ("hdfs://node/x", ["hdfs", "s3", "gs", "abfss", "file", "memory"]),
        ("abfsss://box/x", ["'abfsss'", "Did you mean 'abfss'"]),
        ("s3:/lake/x", ["two slashes"]),
        ("s3:///x", ["no bucket"]),
        ("s3://lake/a/../b", ["'..'"]),
        ("s3://lake/a//b", ["'//'"]),
        ("file://node/x", ["'node'", "file:///"]),
        ("abfss://box@account/x", ["abfss://container@account.dfs.core.windows.net/path"]),
    ],
)
def test_locations_that_cannot_be_are_refused_with_the_way_out(location: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        open_storage(location)
    assert [word for word in words if word not in str(caught.value)] == []


def test_a_named_memory_store_is_the_same_store_for_all_and_prefixes_share_it() -> None:
    open_storage("memory://locate-shared/sales").put("orders", b"1")
    assert open_storage("memory://locate-shared").get("sales/orders") == b"1"
    assert isinstance(open_storage("memory://locate-shared"), MemoryStorage)
    assert MemoryStorage().list("") == []


def test_native_locations_are_those_of_spark() -> None:
    assert open_storage("s3://lake/a").native("b/c") == "s3a://lake/a/b/c"
    assert open_storage("gs://lake/a").native("b") == "gs://lake/a/b"
    assert open_storage(AZURE.root).native("c") == "abfss://box@account.dfs.core.windows.net/a/b/c"
    with pytest.raises(UserError, match="abfss://"):
        open_storage("az://box/a").native("c")


def test_options_of_spark_and_of_obstore_mean_the_same() -> None:
    spark = {
        "spark.hadoop.fs.s3a.access.key": "k",
        "fs.s3a.secret.key": "s",
        "fs.s3a.endpoint": "minio:9000",
        "fs.s3a.endpoint.region": "eu-west-1",
        "fs.s3a.connection.ssl.enabled": "false",
        "fs.s3a.attempts.maximum": "2",
        "fs.s3a.path.style.access": "true",
        "fs.s3a.impl": "org.apache.hadoop.fs.s3a.S3AFileSystem",
    }
    plain = {
        "AWS_ACCESS_KEY_ID": "k",
        "aws_secret_access_key": "s",
        "AWS_ENDPOINT_URL": "http://minio:9000",
        "AWS_REGION": "eu-west-1",
        "max_attempts": "2",
    }
    assert object_options(S3, spark) == object_options(S3, plain)
    assert object_options(S3, plain).config == {
        "aws_access_key_id": "k",
        "aws_secret_access_key": "s",
        "aws_endpoint_url": "http://minio:9000",
        "aws_region": "eu-west-1",
    }
    assert object_options(S3, plain).allow_http is True
    assert object_options(S3, plain).attempts == 2


def test_https_and_six_attempts_are_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    assert object_options(S3, {}).allow_http is False
    assert object_options(S3, {"fs.s3a.endpoint": "minio"}).config == {"aws_endpoint_url": "https://minio"}
    assert object_options(S3, {}).attempts == DEFAULT_ATTEMPTS == 6
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    assert object_options(S3, {}).allow_http is True


def test_options_of_other_stores_are_passed_over() -> None:
    options = {"fs.s3a.access.key": "k", "GOOGLE_SERVICE_ACCOUNT": "g", "AZURE_STORAGE_ACCOUNT_KEY": "a"}
    assert object_options(S3, options).config == {"aws_access_key_id": "k"}
    assert object_options(parse_object_location("gs", "gs://lake"), options).config == {"google_service_account": "g"}
    assert object_options(AZURE, options).config == {
        "azure_storage_account_key": "a",
        "azure_storage_account_name": "account",
    }


def test_azure_keys_belong_to_their_account() -> None:
    keys = {
        "fs.azure.account.key.account.dfs.core.windows.net": "right",
        "fs.azure.account.key.other.dfs.core.windows.net": "wrong",
    }
    assert object_options(AZURE, keys).config["azure_storage_account_key"] == "right"


def test_anonymous_access_is_understood() -> None:
    provider = {"fs.s3a.aws.credentials.provider": "org.apache.hadoop.fs.s3a.AnonymousAWSCredentialsProvider"}
    assert object_options(S3, provider).config == {"aws_skip_signature": "true"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"allow_htp": "true"}, "allow_http"),
        ({"AWSACCESS_KEY_ID": "x"}, "AWS_ACCESS_KEY_ID"),
        ({"max_attempts": "0"}, "max_attempts"),
        ({"max_attempts": "many"}, "max_attempts"),
    ],
)
def test_unknown_options_are_refused_with_the_nearest_name(options: dict[str, str], words: str) -> None:
    with pytest.raises(UserError, match=words):
        open_storage("s3://lake/x", options)


def test_options_obstore_does_not_know_are_refused_when_the_store_is_used() -> None:
    store = open_storage("s3://lake/x", {"AWS_NO_SUCH_THING": "1"})
    with pytest.raises(UserError, match=r"(?i)no_such_thing"):
        store.list("")
