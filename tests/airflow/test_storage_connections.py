"""Airflow connections of storages become environment variables of jobs, never arguments."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lakehouse.errors import UserError
from lakehouse.spec.contracts.job import JobStatus, ServiceReport
from lakehouse_airflow.job_environment import connection_variables
from lakehouse_airflow.spark_environment import cluster_settings, spark_environment
from lakehouse_airflow.storage_connections import storage_variables
from tests.airflow.runs import run_context
from tests.airflow.test_cluster import service_task
from tests.support.fake_submit import FakeSubmit

SECRET = "sentinel-3f0c"


def connection(kind: str, **fields: Any) -> Any:
    extra = fields.pop("extra", {})
    values = {"conn_id": f"my_{kind}", "host": None, "login": None, "password": None, **fields}
    return SimpleNamespace(conn_type=kind, extra_dejson=extra, **values)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        (
            connection("aws", login="key", password=SECRET, extra={"region_name": "eu-1", "aws_session_token": "t"}),
            {
                "AWS_ACCESS_KEY_ID": "key",
                "AWS_SECRET_ACCESS_KEY": SECRET,
                "AWS_SESSION_TOKEN": "t",
                "AWS_REGION": "eu-1",
            },
        ),
        (
            connection("aws", extra={"service_config": {"s3": {"endpoint_url": "http://store:9000"}}}),
            {"AWS_ENDPOINT_URL": "http://store:9000", "AWS_ALLOW_HTTP": "true"},
        ),
        (
            connection("aws", extra={"service_config": {"glue": {"endpoint_url": "https://glue.internal"}}}),
            {"AWS_ENDPOINT_URL_GLUE": "https://glue.internal"},
        ),
        (connection("aws"), {}),
        (
            connection("google_cloud_platform", extra={"keyfile_dict": {"private_key": SECRET}}),
            {"GOOGLE_SERVICE_ACCOUNT_KEY": json.dumps({"private_key": SECRET})},
        ),
        (
            connection("google_cloud_platform", extra={"extra__google_cloud_platform__keyfile_dict": "{}"}),
            {"GOOGLE_SERVICE_ACCOUNT_KEY": "{}"},
        ),
        (
            connection("wasb", login="lake", password=SECRET),
            {"AZURE_STORAGE_ACCOUNT_NAME": "lake", "AZURE_STORAGE_ACCOUNT_KEY": SECRET},
        ),
        (
            connection("wasb", extra={"connection_string": f"AccountName=lake;AccountKey={SECRET}==;X=1"}),
            {"AZURE_STORAGE_ACCOUNT_NAME": "lake", "AZURE_STORAGE_ACCOUNT_KEY": f"{SECRET}=="},
        ),
        (
            connection(
                "wasb", host="https://lake.blob.core.windows.net", login="c", password=SECRET, extra={"tenant_id": "t"}
            ),
            {
                "AZURE_STORAGE_ACCOUNT_NAME": "lake",
                "AZURE_STORAGE_TENANT_ID": "t",
                "AZURE_STORAGE_CLIENT_ID": "c",
                "AZURE_STORAGE_CLIENT_SECRET": SECRET,
            },
        ),
        (
            connection("azure_data_lake", login="c", password=SECRET, extra={"tenant": "t", "account_name": "lake"}),
            {
                "AZURE_STORAGE_ACCOUNT_NAME": "lake",
                "AZURE_STORAGE_TENANT_ID": "t",
                "AZURE_STORAGE_CLIENT_ID": "c",
                "AZURE_STORAGE_CLIENT_SECRET": SECRET,
            },
        ),
        (
            connection("hdfs", login="etl", extra={"ticket_cache": "/tmp/krb"}),
            {"HADOOP_USER_NAME": "etl", "KRB5CCNAME": "/tmp/krb"},
        ),
    ],
    ids=lambda value: getattr(value, "conn_type", None),
)
def test_connection_becomes_the_variables_of_its_storage(given: Any, expected: dict[str, str]) -> None:
    assert storage_variables([given]) == expected


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ([connection("postgres")], "has the type 'postgres', which gives no access to a storage"),
        ([connection("aws", extra={"role_arn": "arn:x"})], "has role_arn, which a job cannot use: give it an access"),
        ([connection("google_cloud_platform", extra={"key_path": "/none"})], "its key_path /none cannot be read"),
        ([connection("google_cloud_platform", extra={"key_secret_name": "s"})], "key_secret_name, which a job cannot"),
        (
            [connection("wasb", login="a", password="1"), connection("adls", host="a", password="2")],
            "'my_wasb' and 'my_adls' both set AZURE_STORAGE_ACCOUNT_KEY",
        ),
    ],
)
def test_connection_without_usable_credentials_is_refused(given: list[Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        storage_variables(given)


def test_variables_of_the_environment_are_inherited(monkeypatch: pytest.MonkeyPatch) -> None:
    text = json.dumps({"conn_type": "aws", "login": "key", "password": SECRET})
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", text)
    listed = {"LAKEHOUSE_STORAGE_CONNECTIONS": "lake"}
    assert connection_variables(listed) == {"AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": SECRET}
    assert "AWS_ACCESS_KEY_ID" not in connection_variables({**listed, "AWS_ACCESS_KEY_ID": "own"})


def test_job_on_a_cluster_gets_archive_and_credentials_without_arguments(
    submit: FakeSubmit, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.touch()
    spark = {
        "conn_type": "spark",
        "host": "spark://m:7077",
        "extra": json.dumps({"lakehouse": {"archive": str(archive)}}),
    }
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(spark))
    monkeypatch.setenv("AIRFLOW_CONN_LAKE", json.dumps({"conn_type": "aws", "login": "key", "password": SECRET}))
    monkeypatch.setenv("LAKEHOUSE_STORAGE_CONNECTIONS", "lake")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.delenv(name, raising=False)
    submit.plan(report=ServiceReport(status=JobStatus.COMMITTED, table="a.b", instant="20260101000000001").to_json())
    task = service_task()
    task.execute(run_context(task))
    assert f"spark.archives={archive}#environment" in submit.argv
    assert "spark.pyspark.python=./environment/bin/python" in submit.argv
    assert f"spark.pyspark.driver.python={submit.home}/bin/python" in submit.argv
    assert SECRET not in " ".join(submit.argv)
    assert submit.environment["AWS_SECRET_ACCESS_KEY"] == SECRET


def test_settings_of_a_cluster_follow_master_and_deploy_mode(tmp_path: Path) -> None:
    archive = tmp_path / "a.tar.gz"
    archive.touch()
    environ = {"LAKEHOUSE_SPARK_ARCHIVE": str(archive), "LAKEHOUSE_SPARK_HOME": "/opt/spark-env"}
    assert cluster_settings(connection("spark", host="local[2]"), environ, is_cluster_mode=False) == {}
    client = cluster_settings(connection("spark", host="yarn"), environ, is_cluster_mode=False)
    cluster = cluster_settings(connection("spark", host="yarn"), environ, is_cluster_mode=True)
    assert client["spark.pyspark.driver.python"] == "/opt/spark-env/bin/python"
    assert "spark.pyspark.driver.python" not in cluster
    assert cluster["spark.yarn.appMasterEnv.PYSPARK_PYTHON"] == "./environment/bin/python"
    assert "account[.]key" in cluster_settings(None, {}, is_cluster_mode=True)["spark.redaction.regex"]
    remote = {"LAKEHOUSE_SPARK_ARCHIVE": "s3://b/a.tar.gz"}
    settings = cluster_settings(connection("spark", host="yarn"), remote, is_cluster_mode=True)
    assert settings["spark.archives"] == "s3://b/a.tar.gz#environment"


@pytest.mark.parametrize(
    ("archive", "message"),
    [("/none/a.tar.gz", "does not exist on this host.*environment pack"), ("s3://b/a.tar.gz#env", "leave out #env")],
)
def test_archive_that_executors_cannot_use_is_refused(archive: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        cluster_settings(connection("spark"), {"LAKEHOUSE_SPARK_ARCHIVE": archive}, is_cluster_mode=False)


def test_spark_submit_of_the_cluster_is_used(submit: FakeSubmit, tmp_path: Path) -> None:
    environ = {"LAKEHOUSE_SPARK_HOME": str(submit.home)}
    assert spark_environment(environ).binary == f"{submit.home}/bin/spark-submit"
    own = tmp_path / "cluster" / "bin" / "spark-submit"
    own.parent.mkdir(parents=True)
    own.touch()
    assert spark_environment({**environ, "SPARK_HOME": str(tmp_path / "cluster")}).binary == str(own)
    assert spark_environment({**environ, "LAKEHOUSE_SPARK_SUBMIT": str(own)}).binary == str(own)
    with pytest.raises(UserError, match="LAKEHOUSE_SPARK_SUBMIT=/none is not a file"):
        spark_environment({**environ, "LAKEHOUSE_SPARK_SUBMIT": "/none"})
