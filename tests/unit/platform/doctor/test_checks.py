"""The checks of `lakehouse doctor` in Spark's environment: what they find in good and in broken deployments."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest
from sqlalchemy import create_engine

from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.errors import UserError
from lakehouse.platform.catalog.connect import Database, upgrade
from lakehouse.platform.doctor import catalog_checks, environment_checks, service_checks, storage_checks
from lakehouse.platform.doctor.deployment import Deployment
from lakehouse.platform.doctor.examine import FUNCTIONS, examine, result_of
from lakehouse.platform.doctor.finding import Finding, combined, failed, ok, skipped, warning
from lakehouse.spark.versions import choice
from lakehouse.spec.contracts.doctor import CHECKS, CheckedEnvironment, CheckState, DoctorReport
from tests.support.postgresql import server
from tests.support.s3 import S3Server
from tests.support.unconditional import UnconditionalStorage

SPEC = "table: sales.{name}\nlocation: {location}\nrecord_key: id\n{more}"


def write_spec(folder: Path, name: str, location: object, more: str = "") -> None:
    folder.mkdir(exist_ok=True)
    (folder / f"{name}.yaml").write_text(SPEC.format(name=name, location=location, more=more))


def deployment(folder: Path, **variables: str) -> Deployment:
    return Deployment({"LAKEHOUSE_SPECS": str(folder / "specs"), **variables})


def test_every_description_of_spark_has_a_function_in_the_same_order() -> None:
    described = [c.name for c in CHECKS.values() if c.environment is CheckedEnvironment.SPARK]
    assert list(FUNCTIONS) == described
    assert all(c.meaning.endswith(".") and c.advice.endswith(".") for c in CHECKS.values())


def test_report_survives_its_encoding_and_tells_failures() -> None:
    results = tuple(result_of(name, finding) for name, finding in (("java", failed("no Java")), ("python", ok("3"))))
    report = DoctorReport(lakehouse_version="1", python_version="3.11", checks=results)
    assert DoctorReport.from_json(report.to_json()) == report
    assert [check.name for check in report.failures] == ["java"]


def test_one_broken_check_stops_no_other_and_a_late_one_fails_at_its_limit() -> None:
    release = threading.Event()

    def raises(_: Deployment) -> Finding:
        raise KeyError("postgresql://me:hunter22@db/x")

    def waits(_: Deployment) -> Finding:
        release.wait()
        return ok("late")

    def refuses(_: Deployment) -> Finding:
        raise UserError("wrong value")

    functions = {"java": raises, "storage": waits, "specs": refuses, "python": lambda _: ok("fine")}
    try:
        report = examine(Deployment({}), functions=functions, limit_s=0.05)
    finally:
        release.set()
    found = {check.name: check for check in report.checks}
    assert [check.state for check in report.checks] == [CheckState.FAILED] * 3 + [CheckState.OK]
    assert "KeyError" in found["java"].found
    assert "hunter22" not in report.to_json()
    assert found["storage"].found == "no answer within 0.05 s"
    assert found["specs"].found == "UserError: wrong value"
    assert found["specs"].advice == CHECKS["specs"].advice
    assert found["python"].advice == ""


def test_combined_findings_have_the_worst_state_and_its_advice() -> None:
    found = combined([ok("a"), failed("b", "do b"), warning("c", "do c")], "nothing")
    assert (found.state, found.found, found.advice) == (CheckState.FAILED, "b; c; a", "do b")
    assert combined([], "nothing") == skipped("nothing")


def test_this_environment_has_python_packages_and_spark_of_one_version() -> None:
    here = Deployment(dict(os.environ) | {"SPARK_HOME": ""})
    for name in ("python", "packages", "pyspark", "spark_jars"):
        assert FUNCTIONS[name](here).state is CheckState.OK


def test_spark_home_with_another_spark_fails_with_both_versions(tmp_path: Path) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.13-3.4.1.jar").touch()
    found = environment_checks.check_spark_jars(Deployment({"SPARK_HOME": str(tmp_path)}))
    assert found.state is CheckState.FAILED
    assert "Spark 3.4.1" in found.found
    assert "but pyspark is " in found.found
    absent = environment_checks.check_spark_jars(Deployment({"SPARK_HOME": str(tmp_path / "absent")}))
    assert "cannot be listed" in absent.found


def test_spark_home_with_a_build_of_a_vendor_passes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "jars").mkdir()
    (tmp_path / "jars" / "spark-core_2.12-3.5.6-amzn-0.jar").touch()
    monkeypatch.setattr(environment_checks, "_version", {"pyspark": "3.5.9"}.get)
    vendor = environment_checks.check_spark_jars(Deployment({"SPARK_HOME": str(tmp_path)}))
    assert (vendor.state, vendor.found) == (CheckState.OK, f"Spark 3.5.6-amzn-0 in {tmp_path}")
    assert tuple(choice._MODULES) == environment_checks._PYSPARK


def test_pyspark_files_of_another_package_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "version.py").write_text('__version__: str = "4.0.1"\n')
    monkeypatch.setattr(environment_checks, "_pyspark_folder", lambda: tmp_path)
    found = environment_checks.check_pyspark(Deployment({}))
    assert found.state is CheckState.FAILED
    assert "have version 4.0.1" in found.found
    versions = {"pyspark": "4.1.4", "pyspark-client": "4.2.0"}
    monkeypatch.setattr(environment_checks, "_version", versions.get)
    overwritten = environment_checks.check_pyspark(Deployment({}))
    assert overwritten.state is CheckState.FAILED
    assert "pyspark-client" in overwritten.found


@pytest.mark.parametrize(
    ("line", "state"),
    [
        ('openjdk version "17.0.15" 2025-04-15', CheckState.OK),
        ('java version "1.8.0_392"', CheckState.FAILED),
        ("no version at all", CheckState.FAILED),
    ],
)
def test_java_is_judged_by_its_version(tmp_path: Path, line: str, state: CheckState) -> None:
    (tmp_path / "bin").mkdir()
    java = tmp_path / "bin" / "java"
    java.write_text(f"#!/bin/sh\necho '{line}' >&2\n")
    java.chmod(0o755)
    assert environment_checks.check_java(Deployment({"JAVA_HOME": str(tmp_path)})).state is state


def test_missing_java_fails_with_its_path(tmp_path: Path) -> None:
    found = environment_checks.check_java(Deployment({"JAVA_HOME": str(tmp_path)}))
    assert found.state is CheckState.FAILED
    assert f"{tmp_path}/bin/java is not found" in found.found


def test_folder_of_reports_must_be_a_private_folder(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    here = Deployment({"LAKEHOUSE_REPORTS": str(reports)})
    assert environment_checks.check_reports(here).state is CheckState.WARNING
    assert not reports.exists()
    reports.mkdir(mode=0o700)
    assert environment_checks.check_reports(here).state is CheckState.OK
    reports.chmod(0o755)
    found = environment_checks.check_reports(here)
    assert (found.state, found.advice) == (CheckState.WARNING, f"chmod 700 {reports}")
    reports.rmdir()
    reports.touch()
    assert environment_checks.check_reports(here).state is CheckState.FAILED


def test_specs_with_errors_or_unset_variables_are_named(tmp_path: Path) -> None:
    write_spec(tmp_path / "specs", "good", tmp_path / "good")
    assert environment_checks.check_specs(deployment(tmp_path)).state is CheckState.OK
    write_spec(tmp_path / "specs", "unset", "${NO_SUCH_VARIABLE}/x")
    write_spec(tmp_path / "specs", "wrong", "/x", "tabel: y\n")
    found = environment_checks.check_specs(deployment(tmp_path))
    assert found.state is CheckState.FAILED
    assert "wrong.yaml" in found.found
    assert "NO_SUCH_VARIABLE" in found.found
    absent = environment_checks.check_specs(deployment(tmp_path / "absent"))
    assert absent.state is CheckState.FAILED
    assert environment_checks.check_specs(Deployment({})).state is CheckState.SKIPPED


def test_missing_module_of_a_merger_is_named(tmp_path: Path) -> None:
    write_spec(tmp_path / "specs", "a", "/x", "merge_mode: CUSTOM\nmerger: no_such_module:merge\n")
    found = environment_checks.check_modules(deployment(tmp_path, LAKEHOUSE_MODULES=str(tmp_path)))
    assert found.state is CheckState.FAILED
    assert "there is no module no_such_module" in found.found


def test_embedded_catalog_is_not_created_by_its_check(tmp_path: Path) -> None:
    here = Deployment({"LAKEHOUSE_CATALOG": f"sqlite:///{tmp_path}/catalog.db"})
    missing = catalog_checks.check_catalog(here)
    assert missing.state is CheckState.WARNING
    assert "create the connection lakehouse_catalog in Airflow" in missing.advice
    assert catalog_checks.check_migrations(here).state is CheckState.SKIPPED
    assert here.places == ()
    assert list(tmp_path.iterdir()) == []
    Database(f"sqlite:///{tmp_path}/catalog.db").close()
    assert "answers" in catalog_checks.check_catalog(here).found
    assert catalog_checks.check_database_clock(here).state is CheckState.SKIPPED


def test_unreachable_catalog_fails_with_its_address_and_without_password(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        port = closed.getsockname()[1]
    url = f"postgresql+psycopg://me:hunter22@127.0.0.1:{port}/lake"
    report = examine(Deployment({"LAKEHOUSE_CATALOG": url}), ("catalog", "migrations"))
    assert [check.state for check in report.checks] == [CheckState.FAILED] * 2
    assert f"127.0.0.1:{port}" in report.checks[0].found
    assert "hunter22" not in report.to_json()


def test_shared_catalog_without_schema_fails_until_it_is_upgraded() -> None:
    with server() as running:
        here = Deployment({"LAKEHOUSE_CATALOG": running.url})
        found = catalog_checks.check_migrations(here)
        assert found.state is CheckState.FAILED
        assert "has schema revision none" in found.found
        assert catalog_checks.check_catalog(here).state is CheckState.OK
        assert catalog_checks.check_database_clock(here).state is CheckState.OK
        engine = create_engine(running.url)
        upgrade(engine)
        engine.dispose()
        assert catalog_checks.check_migrations(here).state is CheckState.OK


@pytest.mark.s3
def test_object_store_is_tested_for_conditions_and_its_clock(
    tmp_path: Path, s3_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables = {
        "AWS_ACCESS_KEY_ID": "key",
        "AWS_SECRET_ACCESS_KEY": "secret",
        "AWS_REGION": "us-east-1",
        "AWS_ENDPOINT_URL": s3_server.endpoint,
        "AWS_ALLOW_HTTP": "true",
    }
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    write_spec(tmp_path / "specs", "orders", f"s3://{s3_server.bucket}/doctor/orders")
    report = examine(deployment(tmp_path), ("storage", "storage_clock"))
    assert [check.state for check in report.checks] == [CheckState.OK] * 2
    assert s3_server.client().list_objects_v2(Bucket=s3_server.bucket, Prefix="doctor").get("Contents") is None


def test_clock_that_leases_do_not_tolerate_fails() -> None:
    assert catalog_checks.judge_skew(60_000, "db").state is CheckState.FAILED
    assert catalog_checks.judge_skew(-1_000, "db").state is CheckState.OK


def test_metastore_without_answer_fails_with_its_address(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as closed:
        uri = f"thrift://127.0.0.1:{closed.getsockname()[1]}"
    found = service_checks.check_metastore(deployment(tmp_path, LAKEHOUSE_METASTORE=uri))
    assert found.state is CheckState.FAILED
    assert uri in found.found
    assert service_checks.check_metastore(deployment(tmp_path)).state is CheckState.SKIPPED


def test_running_metastore_is_ok(tmp_path: Path, hive_uri: str) -> None:
    found = service_checks.check_metastore(deployment(tmp_path, LAKEHOUSE_METASTORE=hive_uri))
    assert found.state is CheckState.OK


def test_storage_that_ignores_conditions_fails_and_keeps_no_file() -> None:
    storage = UnconditionalStorage()
    found = storage_checks.conditional_puts(storage, table="t")
    assert found.state is CheckState.FAILED
    assert "If-None-Match" in found.found
    assert storage.list("") == []


def test_storage_with_conditions_is_ok_and_keeps_no_file() -> None:
    storage = MemoryStorage()
    assert storage_checks.conditional_puts(storage, table="t").state is CheckState.OK
    assert storage.list("") == []


def test_one_storage_is_tested_once_for_many_tables_and_no_folder_is_created(tmp_path: Path) -> None:
    for name in ("a", "b", "c"):
        write_spec(tmp_path / "specs", name, tmp_path / "lake" / name)
    here = deployment(tmp_path)
    assert len(storage_checks.representatives(here)) == 1
    found = storage_checks.check_storage(here)
    assert found.state is CheckState.OK
    assert "of sales.a" in found.found
    assert sorted(path.name for path in tmp_path.iterdir()) == ["specs"]


def test_storage_that_cannot_be_written_fails_and_the_next_one_is_tested(tmp_path: Path) -> None:
    write_spec(tmp_path / "specs", "near", tmp_path / "lake")
    write_spec(tmp_path / "specs", "wrong", "ftp://host/x")
    found = storage_checks.check_storage(deployment(tmp_path))
    assert found.state is CheckState.FAILED
    assert "ftp" in found.found
    assert "of sales.near" in found.found


def test_spark_without_the_connector_of_a_table_gets_the_package_of_its_hadoop(tmp_path: Path) -> None:
    jars = tmp_path / "spark" / "jars"
    jars.mkdir(parents=True)
    (jars / "hadoop-client-api-3.4.2.jar").touch()
    here = deployment(tmp_path, SPARK_HOME=str(tmp_path / "spark"))
    write_spec(tmp_path / "specs", "near", tmp_path / "lake")
    assert storage_checks.check_connectors(deployment(tmp_path)).state is CheckState.SKIPPED
    write_spec(tmp_path / "specs", "far", "s3://bucket/far")
    write_spec(tmp_path / "specs", "wrong", "ftp://host/x")
    without = storage_checks.check_connectors(here)
    assert without.state is CheckState.WARNING
    assert "s3a://" in without.found
    assert "--packages org.apache.hadoop:hadoop-aws:3.4.2" in without.advice
    (tmp_path / "spark" / "conf").mkdir()
    conf = tmp_path / "spark" / "conf" / "spark-defaults.conf"
    conf.write_text("spark.jars.packages org.apache.hadoop:hadoop-aws:3.4.2\n")
    here = deployment(tmp_path, SPARK_HOME=str(tmp_path / "spark"))
    assert str(conf) in storage_checks.check_connectors(here).found
    (jars / "hadoop-aws-3.4.2.jar").touch()
    assert storage_checks.check_connectors(here).found.startswith("hadoop-aws-*.jar")


def test_lock_provider_without_its_client_fails_with_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock = {
        "hoodie.write.lock.provider": "zookeeper",
        "hoodie.write.lock.zookeeper.url": "zk",
        "hoodie.write.lock.zookeeper.base_path": "/locks",
        "hoodie.write.lock.zookeeper.lock_key": "t",
    }
    options = "options:\n" + "".join(f"  {key}: {value}\n" for key, value in lock.items())
    write_spec(tmp_path / "specs", "a", tmp_path / "a", options)
    assert service_checks.check_lock_clients(deployment(tmp_path)).state is CheckState.OK
    monkeypatch.setattr(service_checks, "find_spec", lambda name: None)
    found = service_checks.check_lock_clients(deployment(tmp_path))
    assert found.state is CheckState.FAILED
    assert found.advice == "pip install 'lakehouse-tables[zookeeper]'"
