"""Write jobs: save modes, agreement with the stored table, and options that the table stores."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse import Table
from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.write.frame_staging import FrameStaging, delete_expired_frames
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.write_jobs import JobTarget, SaveMode, open_target
from lakehouse.errors import RetryableError, SettingError, UserError
from lakehouse.spec.options.hudi.write_job import parse_write_job

OPTIONS = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.partitionpath.field": "day",
}
OPERATION = "hoodie.datasource.write.operation"


def batch(*rows: tuple[str, int, str]) -> pa.Table:
    names = ("id", "ts", "day")
    return pa.table({name: [row[place] for row in rows] for place, name in enumerate(names)})


def save(location: str, rows: pa.Table, mode: str = "append", **more: str) -> Any:
    job = parse_write_job({**OPTIONS, **{key.replace("__", "."): value for key, value in more.items()}})
    target = open_target(location, job, SaveMode.of(mode), rows.schema)
    return target.write(rows) if isinstance(target, JobTarget) else target


def stored(location: str) -> list[tuple[str, int]]:
    rows = Table.open(location).scan(columns=["id", "ts"]).to_arrow().to_pylist()
    return sorted((row["id"], row["ts"]) for row in rows)


@pytest.fixture
def location(tmp_path: Path) -> str:
    return str(tmp_path / "t")


def test_save_modes(location: str) -> None:
    save(location, batch(("a", 1, "mon")), "error")
    with pytest.raises(UserError, match="there is a table"):
        save(location, batch(("b", 1, "mon")), "errorifexists")
    assert isinstance(save(location, batch(("b", 1, "mon")), "ignore"), NothingToDo)
    save(location, batch(("b", 1, "mon")))
    assert stored(location) == [("a", 1), ("b", 1)]
    save(location, batch(("c", 1, "tue"), ("c", 2, "tue")), "overwrite")
    assert stored(location) == [("c", 2)]
    with pytest.raises(UserError, match=r"save mode 'apend'.*Did you mean 'append'"):
        save(location, batch(("b", 1, "mon")), "apend")


def test_overwrite_by_insert_does_not_combine_rows(location: str) -> None:
    save(location, batch(("a", 1, "mon")))
    save(location, batch(("c", 1, "tue"), ("c", 2, "tue")), "overwrite", **{OPERATION: "insert"})
    assert stored(location) == [("c", 1), ("c", 2)]


def test_delete_needs_a_table_and_the_mode_append(location: str) -> None:
    with pytest.raises(UserError, match="there is no table"):
        save(location, batch(("a", 1, "mon")), **{OPERATION: "delete"})
    save(location, batch(("a", 1, "mon"), ("b", 1, "mon")))
    with pytest.raises(UserError, match="needs mode 'append'"):
        save(location, batch(("a", 1, "mon")), "overwrite", **{OPERATION: "delete"})
    generator = {"hoodie.datasource.write.keygenerator.class": "org.apache.hudi.keygen.GlobalDeleteKeyGenerator"}
    save(location, batch(("a", 1, "mon")), **{OPERATION: "delete"}, **generator)
    assert stored(location) == [("b", 1)]


def test_partitions_are_replaced_and_deleted(location: str) -> None:
    save(location, batch(("a", 1, "mon"), ("b", 1, "tue")))
    save(location, batch(("c", 1, "tue")), **{OPERATION: "insert_overwrite"})
    assert stored(location) == [("a", 1), ("c", 1)]
    with pytest.raises(UserError, match=r"partitions\.to\.delete"):
        save(location, batch(), **{OPERATION: "delete_partition"})
    save(location, batch(), **{OPERATION: "delete_partition", "hoodie.datasource.write.partitions.to.delete": "mon"})
    assert stored(location) == [("c", 1)]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hoodie.table.name", "other"),
        ("hoodie.datasource.write.recordkey.field", "ts"),
        ("hoodie.datasource.write.partitionpath.field", ""),
        ("hoodie.datasource.write.precombine.field", "id"),
        ("hoodie.datasource.write.table.type", "MERGE_ON_READ"),
        ("hoodie.datasource.write.keygenerator.class", "org.apache.hudi.keygen.ComplexKeyGenerator"),
        ("hoodie.datasource.write.hive_style_partitioning", "true"),
        ("hoodie.datasource.write.hive_style_partitioning", "flase"),
        ("hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled", "true"),
        ("hoodie.table.cdc.enabled", "true"),
        ("hoodie.table.cdc.enabled", "flase"),
        ("hoodie.table.cdc.supplemental.logging.mode", "DATA_BEFORE"),
        ("hoodie.record.merge.mode", "COMMIT_TIME_ORDERING"),
        ("hoodie.datasource.write.payload.class", "org.apache.hudi.common.model.PartialUpdateAvroPayload"),
    ],
)
def test_options_that_contradict_the_table_are_refused(location: str, key: str, value: str) -> None:
    save(location, batch(("a", 1, "mon")))
    with pytest.raises(UserError, match="contradicts the table"):
        save(location, batch(("b", 1, "mon")), **{key: value})
    assert stored(location) == [("a", 1)]


def test_new_table_needs_a_name_and_a_key(location: str) -> None:
    for key in ("hoodie.table.name", "hoodie.datasource.write.recordkey.field"):
        given = {name: value for name, value in OPTIONS.items() if name != key}
        job = parse_write_job({**given, OPERATION: "upsert"})
        with pytest.raises(UserError, match=key):
            open_target(location, job, SaveMode.APPEND)


@pytest.mark.parametrize(
    "name", ["FirstValueAvroPayload", "org.apache.spark.sql.hudi.command.payload.ExpressionPayload"]
)
def test_payload_classes_without_known_semantics_are_refused(location: str, name: str) -> None:
    with pytest.raises(UserError, match=f"payload class {name} .*merger"):
        save(location, batch(("a", 1, "mon")), **{"hoodie.datasource.write.payload.class": name})


def test_options_of_services_are_stored_by_a_new_table_and_logged_otherwise(
    location: str, caplog: pytest.LogCaptureFixture
) -> None:
    retained = {"hoodie.cleaner.commits.retained": "3", "hoodie.write.concurrency.mode": "SINGLE_WRITER"}
    save(location, batch(("a", 1, "mon")), **retained)
    assert Table.open(location)._policies.clean.commits_retained == 3
    job = parse_write_job({**OPTIONS, "hoodie.clean.commits.retained": "4", "hoodie.embed.timeline.server": "true"})
    target = open_target(location, job, SaveMode.APPEND)
    assert isinstance(target, JobTarget)
    with caplog.at_level(logging.WARNING):
        target.log_unused()
    (line,) = caplog.messages
    assert "hoodie.clean.commits.retained: the service clean" in line
    assert "hoodie.embed.timeline.server: there is no timeline server" in line


def test_create_stores_its_options_and_refuses_secrets(location: str) -> None:
    options = {"hoodie.clean.commits.retained": "7", "hoodie.write.num.retries.on.conflict.failures": "2"}
    Table.create(location, name="t", record_key="id", options=options)
    policies = Table.open(location)._policies
    assert (policies.clean.commits_retained, policies.transaction.conflict_retries) == (7, 2)
    other = Table.open(location, options={"hoodie.clean.commits.retained": "5"})
    assert other._policies.clean.commits_retained == 5
    Table.create(location + "2", name="t", record_key="id", options=options, store_options=False)
    assert Table.open(location + "2")._policies.clean.commits_retained == 10
    secret = {"hoodie.write.lock.provider": "sqlalchemy", "lakehouse.lock.sqlalchemy.url": "postgresql://u:secret@h/d"}
    with pytest.raises(SettingError, match="is a secret"):
        Table.create(location + "3", name="t", record_key="id", options=secret)


def test_staged_rows_of_killed_writes_are_deleted_after_a_day(tmp_path: Path) -> None:
    storage, ids = open_storage(str(tmp_path / "t")), Env(storage=open_storage(str(tmp_path))).ids
    staging = FrameStaging(storage, ids.uuid())
    rows = batch(("a", 1, "mon"))
    staged = staging.write(rows.to_batches(), ids.uuid, lambda size: None)
    assert staged is not None
    assert staging.reader([staged], rows.schema).read_all() == rows
    (file,) = storage.list(staging.directory)
    delete_expired_frames(storage, file.modified_ms + 3_600_000)
    assert storage.list(staging.directory) == [file]
    delete_expired_frames(storage, file.modified_ms + 25 * 3_600_000)
    assert storage.list(staging.directory) == []
    with pytest.raises(RetryableError, match="are gone"):
        staging.reader([staged], rows.schema).read_all()


def test_rows_above_the_limit_leave_no_file(tmp_path: Path) -> None:
    storage, ids = open_storage(str(tmp_path / "t")), Env(storage=open_storage(str(tmp_path))).ids

    def check(size: int) -> None:
        raise UserError("too many rows")

    with pytest.raises(UserError, match="too many"):
        FrameStaging(storage, ids.uuid()).write(batch(("a", 1, "mon")).to_batches(), ids.uuid, check)
    assert storage.list("") == []


def test_options_of_services_in_a_call_are_refused(location: str) -> None:
    table = Table.create(location, name="t", record_key="id")
    with pytest.raises(SettingError, match=r"used by the service clean only.*Table\.create"):
        table.upsert(batch(("a", 1, "mon")), options={"hoodie.cleaner.commits.retained": "3"})
    assert table.commits() == ()


def test_job_without_a_record_key_inserts_rows_with_generated_keys(location: str) -> None:
    job = parse_write_job({"hoodie.table.name": "t"})
    for _ in range(2):
        rows = batch(("a", 1, "mon"))
        target = open_target(location, job, SaveMode.APPEND, rows.schema)
        assert isinstance(target, JobTarget)
        target.write(rows)
    assert stored(location) == [("a", 1), ("a", 1)]


def test_inserts_drop_stored_keys_by_the_option_of_hudi(location: str) -> None:
    save(location, batch(("a", 1, "mon")))
    insert = {OPERATION: "insert", "hoodie.datasource.write.insert.drop.duplicates": "true"}
    save(location, batch(("a", 2, "mon"), ("b", 1, "mon")), **insert)
    assert stored(location) == [("a", 1), ("b", 1)]


def test_new_table_without_change_logs_refuses_an_unknown_content_of_them(location: str) -> None:
    with pytest.raises(UserError, match="change logs hold OP_KEY_ONLY, DATA_BEFORE, DATA_BEFORE_AFTER, not 'BEFORE'"):
        save(location, batch(("a", 1, "mon")), **{"hoodie.table.cdc.supplemental.logging.mode": "before"})


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hoodie.datasource.write.hive_style_partitioning", "false"),
        ("hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled", "False"),
        ("hoodie.table.cdc.enabled", "false"),
        ("hoodie.write.table.version", "9"),
        ("lakehouse.readers", "hudi 1.2"),
    ],
)
def test_options_that_agree_with_the_table_are_accepted(location: str, key: str, value: str) -> None:
    save(location, batch(("a", 1, "mon")))
    save(location, batch(("b", 1, "mon")), **{key: value})
    assert stored(location) == [("a", 1), ("b", 1)]
