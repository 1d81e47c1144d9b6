"""`lakehouse doctor table`: each finding, from the properties of a job of Hudi and the state of a table."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.cli.main import main
from lakehouse.core.storage.local import LocalStorage
from lakehouse.errors import UserError
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.doctor.table_checks import TABLE_CHECKS, TableFacts, check_lock
from lakehouse.platform.doctor.table_examine import examine_table
from lakehouse.platform.doctor.table_writers import hudi_writer, our_writer, read_writer_properties
from lakehouse.spec.contracts.table_doctor import Risk, TableDoctorReport, TableFinding
from lakehouse.spec.options.policies import Policies

_LOCKS = "org.apache.hudi.client.transaction.lock."
PROVIDER = "hoodie.write.lock.provider"
OURS = {"hoodie.write.concurrency.mode": "OPTIMISTIC_CONCURRENCY_CONTROL"}
#: A job of Hudi without a finding beside `OURS` on a table of version 6.
SAFE = {
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    PROVIDER: _LOCKS + "FileSystemBasedLockProvider",
    "hoodie.clean.automatic": "false",
    "hoodie.archive.automatic": "false",
    "hoodie.compact.inline": "false",
    "hoodie.datasource.compaction.async.enable": "false",
    "hoodie.metadata.enable": "true",
    "hoodie.write.auto.upgrade": "false",
}
ZOOKEEPER = {
    PROVIDER: _LOCKS + "ZookeeperBasedLockProvider",
    "hoodie.write.lock.zookeeper.url": "zk2,zk1",
    "hoodie.write.lock.zookeeper.base_path": "/hudi/",
}
EARLY = "hoodie.write.concurrency.early.conflict.detection.enable"


def made(place: Path, version: str = "6", **more: Any) -> Table:
    """Create a table with the time zone UTC and one write."""
    options = {"hoodie.write.table.version": version, **more.pop("options", {})}
    table = Table.create(str(place / "t"), name="t", record_key="id", ordering="ts", options=options, **more)
    table.insert(pa.table({"id": ["a", "b"], "ts": [1, 1], "p": ["x", "y"]}))
    return table


def findings(
    table: Table, *jobs: Mapping[str, str], services: tuple[str, ...] | None = ("clean", "compaction"), **ours: str
) -> dict[str, TableFinding]:
    """Return the first finding of each check; `ours` are options of lakehouse with `__` for dots."""
    options = OURS | {name.replace("__", "."): value for name, value in ours.items()}
    writers = {f"job{number}": job for number, job in enumerate(jobs)}
    report = examine_table(Table.open(table.location, options=options), writers, services=services)
    return {finding.check: finding for finding in reversed(report.findings)}


def test_jobs_with_one_lock_and_services_in_one_program_have_no_finding(tmp_path: Path) -> None:
    table = made(tmp_path)
    assert findings(table, SAFE, SAFE) == {}
    assert findings(table) == {}, "one writer is safe with any setting"


@pytest.mark.parametrize(
    ("check", "changes", "problem"),
    [
        ("concurrency", {"hoodie.write.concurrency.mode": ""}, "SINGLE_WRITER, the default"),
        (
            "concurrency",
            {"hoodie.write.concurrency.mode": "non_blocking_concurrency_control"},
            "NON_BLOCKING_CONCURRENCY_CONTROL on a table of version 6",
        ),
        ("lock", {PROVIDER: ""}, "hoodie.write.lock.provider is not set"),
        ("lock", {PROVIDER: _LOCKS + "InProcessLockProvider"}, "in the memory of one process"),
        ("lock", ZOOKEEPER, "different locks: lakehouse: filesystem "),
        ("lock", {PROVIDER: "org.apache.hudi.aws.transaction.lock.DynamoDBBasedLockProvider"}, "DynamoDBBased"),
        ("lock", {"hoodie.write.lock.filesystem.path": "/locks/t"}, "job0: filesystem /locks/t"),
        ("lock", {"hoodie.write.lock.filesystem.expire": "5"}, "Hudi does not renew its lock"),
        ("lock", {PROVIDER: _LOCKS + "StorageBasedLockProvider"}, "different locks: lakehouse: filesystem "),
        (
            "failed_writes",
            {"hoodie.write.concurrency.mode": "", "hoodie.clean.failed.writes.policy": "LAZY"},
            "is a name that Hudi 0.15 ignores",
        ),
        ("failed_writes", {"hoodie.write.concurrency.mode": ""}, "rolled back eagerly"),
        ("heartbeats", {"hoodie.client.heartbeat.interval_in_ms": "600000"}, "lakehouse counts a heartbeat as expired"),
        ("services", {"hoodie.clean.automatic": ""}, "clean runs in job0, by default, and here"),
        ("version", {"hoodie.write.auto.upgrade": ""}, "auto.upgrade is true, the default"),
        ("version", {"hoodie.write.table.version": "8"}, "hoodie.write.table.version=8, but the table has version 6"),
        (
            "merge",
            {"hoodie.datasource.write.precombine.field": "p"},
            "different ordering columns: the table ts, job0 p",
        ),
        (
            "merge",
            {"hoodie.datasource.write.payload.class": "org.apache.hudi.common.model.OverwriteWithLatestAvroPayload"},
            "different payload class: the table DefaultHoodieRecordPayload, job0 OverwriteWithLatestAvroPayload",
        ),
        ("index", {"hoodie.index.type": "BUCKET"}, "different indexes: lakehouse simple, job0 bucket"),
        ("early_detection", {EARLY: "true"}, "is on in job0 only"),
    ],
)
def test_setting_of_a_job_is_a_finding(check: str, changes: dict[str, str], problem: str, tmp_path: Path) -> None:
    finding = findings(made(tmp_path), SAFE | changes)[check]
    assert problem in finding.problem
    assert finding.consequence and finding.advice
    assert finding.writers


def test_two_names_of_lazy_rollbacks_and_equal_locks_are_accepted(tmp_path: Path) -> None:
    table = made(tmp_path)
    lazy = {"hoodie.write.concurrency.mode": "", "hoodie.cleaner.policy.failed.writes": "LAZY"}
    assert "failed_writes" not in findings(table, SAFE | lazy)
    ours = {
        "hoodie__write__lock__provider": "zookeeper",
        "hoodie__write__lock__zookeeper__url": "zk1:2181,zk2:2181",
        "hoodie__write__lock__zookeeper__base_path": "hudi",
        "hoodie__write__lock__zookeeper__lock_key": "t",
    }
    # Hudi's key is the name of the table if none is set.
    assert findings(table, SAFE | ZOOKEEPER | {"hoodie.table.name": "t"}, **ours) == {}
    other = findings(table, SAFE | ZOOKEEPER | {"hoodie.write.lock.zookeeper.lock_key": "u"}, **ours)["lock"]
    assert "zk1:2181,zk2:2181/hudi/u" in other.problem and other.risk is Risk.UNSAFE
    assert (
        "needs hoodie.write.lock.zookeeper.url"
        in findings(table, SAFE | {PROVIDER: _LOCKS + "ZookeeperBasedLockProvider"}, **ours)["lock"].problem
    )


def test_locks_that_do_not_work_on_a_storage_are_findings(tmp_path: Path) -> None:
    table = made(tmp_path)
    loaded = table.loaded

    def problems(root: str, provider: str) -> list[str]:
        hudi = hudi_writer("job", SAFE | {PROVIDER: _LOCKS + provider}, loaded.config, root)
        ours = our_writer(Policies(), loaded.config, root, ())
        facts = TableFacts(config=loaded.config, root=root, name=root, ours=ours, hudis=(hudi,))
        return [finding.problem for finding in check_lock(facts)]

    assert "FileSystemBasedLockProvider on s3" in problems("s3://lake/t", "FileSystemBasedLockProvider")
    assert "StorageBasedLockProvider at hdfs://n/t" in problems("hdfs://n/t", "StorageBasedLockProvider")
    assert problems("hdfs://n/t", "FileSystemBasedLockProvider") == []


def test_services_that_are_disabled_here_may_run_in_one_job(tmp_path: Path) -> None:
    table = made(tmp_path, table_type="MERGE_ON_READ", partition_by="p")
    job = SAFE | {"hoodie.compact.inline": "", "hoodie.clean.automatic": "true"}
    assert "services" not in findings(table, job, services=())
    shared = findings(table, job, job, services=())["services"]
    assert (shared.risk, shared.writers) == (Risk.WARNING, ("job0", "job1"))
    assert findings(table, job)["services"].risk is Risk.UNSAFE
    unregistered = findings(table, SAFE | {"hoodie.compact.inline": ""}, services=None)["services"]
    assert (unregistered.risk, unregistered.problem) == (Risk.WARNING, "compaction runs in job0, and here")


def test_compaction_of_a_stream_is_a_warning_and_a_negated_default_is_inline(tmp_path: Path) -> None:
    table = made(tmp_path, table_type="MERGE_ON_READ")
    stream = findings(table, SAFE | {"hoodie.datasource.compaction.async.enable": ""})["services"]
    assert stream.risk is Risk.WARNING
    assert stream.problem == "compaction runs in job0 by default, if it is a stream, and here"
    inline = findings(table, SAFE | {"hoodie.compact.inline": ""})["services"]
    assert (inline.risk, inline.problem) == (Risk.UNSAFE, "compaction runs in job0, and here")


def test_port_option_of_zookeeper_does_not_count_for_hudi(tmp_path: Path) -> None:
    table, options = made(tmp_path), ZOOKEEPER | {"hoodie.write.lock.zookeeper.port": "2182", "hoodie.table.name": "t"}
    ours = {name.replace(".", "__"): value for name, value in options.items() if ".lock." in name}
    ours |= {"hoodie__write__lock__zookeeper__lock_key": "t", "hoodie__write__lock__provider": "zookeeper"}
    problem = findings(table, SAFE | options, **ours)["lock"].problem
    assert problem == (
        "the writers use different locks: lakehouse: zookeeper zk1:2182,zk2:2182/hudi/t; job0: zookeeper "
        "zk1:2181,zk2:2181/hudi/t"
    )


def test_metadata_table_of_one_writer_only_is_a_finding(tmp_path: Path) -> None:
    table = made(tmp_path, "9")
    safe = SAFE | {"hoodie.write.table.version": "9", "hoodie.metadata.enable": "true"}
    assert findings(table, safe) == {}
    deleting = findings(table, safe, safe | {"hoodie.metadata.enable": "false"})["metadata"]
    assert deleting.risk is Risk.UNSAFE
    assert deleting.problem == "hoodie.metadata.enable=false in job1, but the table has a metadata table"
    without = made(tmp_path / "without", "9", options={"hoodie.metadata.enable": "false"})
    building = findings(without, safe, safe | {"hoodie.metadata.enable": "false"})["metadata"]
    assert building.problem == "hoodie.metadata.enable=false in job1, but job0 builds one"


def test_older_version_without_target_is_upgraded_by_a_job(tmp_path: Path) -> None:
    unset = SAFE | {"hoodie.write.auto.upgrade": "true", "hoodie.metadata.enable": "true"}
    assert "version" in findings(made(tmp_path, "8"), unset)
    assert "version" not in findings(made(tmp_path / "pinned", "8"), unset | {"hoodie.write.table.version": "8"})
    assert "version" not in findings(made(tmp_path / "newest", "9"), unset)


def test_wrong_numbers_of_buckets_are_findings(tmp_path: Path) -> None:
    bucket = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
    table = made(tmp_path, options=bucket)
    assert findings(table, SAFE | bucket) == {}
    default = findings(table, SAFE | {"hoodie.index.type": "BUCKET"})["buckets"]
    assert default.problem == "different numbers of buckets: lakehouse 2, job0 256"
    fewer = examine_table(
        Table.open(table.location, options=OURS), {"job": SAFE | bucket | {"hoodie.bucket.index.num.buckets": "1"}}
    )
    assert "job uses 1 buckets, but the table has files of bucket 1" in [f.problem for f in fewer.findings]
    hashed = bucket | {"hoodie.bucket.index.hash.field": "p"}
    columns = findings(table, SAFE | bucket, SAFE | hashed)["buckets"]
    assert columns.problem == "different hash columns: lakehouse id, job0 id, job1 p"
    unhashed = findings(table, SAFE)["index"]
    assert unhashed.risk is Risk.UNSAFE and "job0 simple" in unhashed.problem


def test_global_index_beside_another_one_is_a_finding_for_partitions_only(tmp_path: Path) -> None:
    job = SAFE | {"hoodie.index.type": "GLOBAL_SIMPLE"}
    assert "index" not in findings(made(tmp_path), job)
    assert (
        "inserts their keys a second time" in findings(made(tmp_path / "p", partition_by="p"), job)["index"].consequence
    )


def test_time_zone_and_instants_in_the_future_are_findings(tmp_path: Path) -> None:
    table = made(tmp_path)
    properties = Path(table.location, ".hoodie/hoodie.properties")
    text = properties.read_text()
    properties.write_text(text.replace("hoodie.table.timeline.timezone=UTC", "hoodie.table.timeline.timezone=LOCAL"))
    assert "instants are local times" in findings(table, SAFE)["time_zone"].problem
    assert findings(table) == {}
    properties.write_text(text)
    Path(table.location, ".hoodie/20990101000000000.commit.requested").touch()
    ahead = findings(table)["time_zone"]
    assert ahead.risk is Risk.UNSAFE and "minutes ahead of this host" in ahead.problem


def test_pending_write_without_heartbeat_and_recorded_lock_are_findings(tmp_path: Path) -> None:
    table = made(tmp_path)
    folder = Path(table.location, ".hoodie")
    (folder / "20260101000000000.commit.requested").touch()
    pending = findings(table, SAFE)["timeline"]
    assert pending.problem == "pending writes without a heartbeat: 20260101000000000"
    (folder / ".heartbeat").mkdir(exist_ok=True)
    (folder / ".heartbeat/20260101000000000").touch()
    assert "timeline" not in findings(table, SAFE)
    LocalStorage(table.location).put(".hoodie/shared_lock.json", json.dumps({"lock": "zookeeper zk:1/a"}).encode())
    assert "earlier writers of lakehouse used the lock 'zookeeper zk:1/a'" in findings(table, SAFE)["lock"].problem


def test_command_ends_with_64_for_losses_and_prints_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LAKEHOUSE_CATALOG", f"sqlite:///{tmp_path}/catalog.db")
    table = made(tmp_path)
    (tmp_path / "base.properties").write_text("".join(f"{key}={value}\n" for key, value in SAFE.items()))
    (tmp_path / "job.properties").write_text("include=base.properties\nhoodie.clean.automatic=true\n")
    with load_catalog() as catalog:
        catalog.register_table("sales.t", table.location, options=OURS)
    words = ["doctor", "table", "sales.t", "--writer-properties", str(tmp_path / "job.properties")]
    assert main([*words, "--output", "json"]) == UserError.exit_code
    printed = capsys.readouterr()
    report = TableDoctorReport.from_json(printed.out)
    assert (report.table, report.table_version, report.writers[0]) == ("sales.t", 6, "lakehouse")
    assert [(f.check, f.risk) for f in report.findings] == [("services", Risk.UNSAFE)]
    assert report.checks == tuple(TABLE_CHECKS)
    assert "1 finding by which rows or versions can be lost: services" in printed.err
    assert main(["policy", "set", "--table", "sales.t", "--service", "clean", "--set", "enabled=false"]) == 0
    assert main(words) == 0
    assert "no finding of 13 checks" in capsys.readouterr().out


def test_command_without_a_table_or_with_a_wrong_file_says_what_is_missing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["doctor", "table"]) == UserError.exit_code
    assert "give the table to check" in capsys.readouterr().err
    table = made(tmp_path)
    assert main(["doctor", "table", table.location, "--writer-properties", "/none/x"]) == UserError.exit_code
    assert "/none/x: the file cannot be read: No such file" in capsys.readouterr().err
    (tmp_path / "loop").write_text("include=loop\n")
    with pytest.raises(UserError, match="includes itself"):
        read_writer_properties(str(tmp_path / "loop"))
    with pytest.raises(UserError, match=r"heartbeat\.interval_in_ms='soon' is not a number"):
        findings(table, SAFE | {"hoodie.client.heartbeat.interval_in_ms": "soon"})
