"""Open a storage from the location and the options of a user."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from lakehouse.core.storage import locate
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
def test_locations_are_normalised_to_one_root(location: str, root: str) -> None:
    assert open_storage(location).root == root


def test_relative_path_becomes_absolute() -> None:
    assert open_storage("some/where").root == os.path.join(os.getcwd(), "some/where")
    assert isinstance(open_storage("a:b"), LocalStorage)


@pytest.mark.parametrize(
    ("location", "words"),
    [
        ("", ["empty"]),
        ("ftp://node/x", ["ftp", "s3", "gs", "abfss", "file", "memory", "hdfs"]),
        ("hdfs://anna@node/x", ["HADOOP_USER_NAME"]),
        ("hdfs://node/a/../b", ["'..'"]),
        ("abfsss://box/x", ["'abfsss'", "Did you mean 'abfss'"]),
        ("s3:/lake/x", ["two slashes"]),
        ("s3:///x", ["no bucket"]),
        ("s3://lake/a/../b", ["'..'"]),
        ("s3://lake/a//b", ["'//'"]),
        ("file://node/x", ["'node'", "file:///"]),
        ("abfss://box@account/x", ["abfss://container@account.dfs.core.windows.net/path"]),
    ],
)
def test_invalid_locations_are_refused_with_a_hint(location: str, words: list[str]) -> None:
    with pytest.raises(UserError) as caught:
        open_storage(location)
    assert [word for word in words if word not in str(caught.value)] == []


def test_named_memory_storage_is_shared_by_locations_with_its_name() -> None:
    open_storage("memory://locate-shared/sales").put("orders", b"1")
    assert open_storage("memory://locate-shared").get("sales/orders") == b"1"
    assert isinstance(open_storage("memory://locate-shared"), MemoryStorage)
    assert MemoryStorage().list("") == []


def test_native_locations_use_the_schemes_of_spark() -> None:
    assert open_storage("s3://lake/a").native("b/c") == "s3a://lake/a/b/c"
    assert open_storage("gs://lake/a").native("b") == "gs://lake/a/b"
    assert open_storage(AZURE.root).native("c") == "abfss://box@account.dfs.core.windows.net/a/b/c"
    with pytest.raises(UserError, match="abfss://"):
        open_storage("az://box/a").native("c")


def test_spark_options_and_obstore_options_are_equivalent() -> None:
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


def test_default_options_are_https_and_six_attempts(monkeypatch: pytest.MonkeyPatch) -> None:
    assert object_options(S3, {}).allow_http is False
    assert object_options(S3, {"fs.s3a.endpoint": "minio"}).config == {"aws_endpoint_url": "https://minio"}
    assert object_options(S3, {}).attempts == DEFAULT_ATTEMPTS == 6
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://minio:9000")
    assert object_options(S3, {}).allow_http is True


def test_options_of_other_object_stores_are_ignored() -> None:
    options = {"fs.s3a.access.key": "k", "GOOGLE_SERVICE_ACCOUNT": "g", "AZURE_STORAGE_ACCOUNT_KEY": "a"}
    assert object_options(S3, options).config == {"aws_access_key_id": "k"}
    assert object_options(parse_object_location("gs", "gs://lake"), options).config == {"google_service_account": "g"}
    assert object_options(AZURE, options).config == {
        "azure_storage_account_key": "a",
        "azure_storage_account_name": "account",
    }


def test_azure_key_of_the_matching_account_is_used() -> None:
    keys = {
        "fs.azure.account.key.account.dfs.core.windows.net": "right",
        "fs.azure.account.key.other.dfs.core.windows.net": "wrong",
    }
    assert object_options(AZURE, keys).config["azure_storage_account_key"] == "right"


def test_anonymous_credentials_provider_skips_signatures() -> None:
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


def test_options_unknown_to_obstore_are_refused_at_the_first_request() -> None:
    store = open_storage("s3://lake/x", {"AWS_NO_SUCH_THING": "1"})
    with pytest.raises(UserError, match=r"(?i)no_such_thing"):
        store.list("")


def test_documentation_lists_all_schemes() -> None:
    pages = Path(__file__).resolve().parents[4] / "docs" / "how-to"
    text = "".join((pages / f"{name}.md").read_text() for name in ("use-s3", "use-hdfs"))
    assert [scheme for scheme in locate._KNOWN if scheme != "memory" and f"`{scheme}:/" not in text] == []
