"""The readers in the options of a new table choose its version."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.core.table.write_jobs import SaveMode, open_target
from lakehouse.errors import UserError
from lakehouse.platform.catalog.declared_tables import declared_table
from lakehouse.spec.options.hudi.write_job import parse_write_job
from lakehouse.spec.table.table_spec import TableSpec, load_spec

READERS, VERSION = "lakehouse.readers", "hoodie.write.table.version"
ROWS = pa.table({"id": ["a", "b"], "v": [1, 2]})


def made(path: Path, **options: str) -> Table:
    return Table.create(str(path / "t"), name="t", record_key="id", options=options)


@pytest.mark.parametrize(
    ("readers", "version"),
    [
        ("hudi 0.15", 6),
        ("Apache Hudi 1.2,  TRINO", 6),
        ("amazon athena", 6),
        ("hudi 1.0, hudi-rs 0.5", 8),
        ("hudi 1.1", 9),
        ("", 9),
    ],
)
def test_readers_choose_the_greatest_version_that_all_of_them_read(readers: str, version: int, tmp_path: Path) -> None:
    table = made(tmp_path, **{READERS: readers})
    assert table.config.version == version
    assert isinstance(table.insert(ROWS), Committed)
    assert Table.open(table.location).scan(["id"]).to_arrow().column("id").to_pylist() == ["a", "b"]


def test_version_that_all_readers_read_may_be_given(tmp_path: Path) -> None:
    assert made(tmp_path, **{READERS: "hudi 1.2", VERSION: "8"}).config.version == 8


@pytest.mark.parametrize(
    ("options", "reason"),
    [
        ({READERS: "hudi 0.51"}, "reader 'hudi 0.51' is not known. Did you mean 'hudi 0.15'"),
        ({READERS: "hudi 1.2, hudi 0.15", VERSION: "9"}, "version=9 is not read by hudi 0.15 .* set it to 6"),
    ],
)
def test_unknown_readers_and_contradictions_are_refused(options: dict[str, str], reason: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=reason):
        made(tmp_path, **options)
    assert not (tmp_path / "t").exists()


def spec_of(path: Path, readers: str) -> TableSpec:
    file = path / "spec.yaml"
    file.write_text(
        f"table: t\nlocation: {path}/t\nrecord_key: id\nschema: {{id: string}}\n"
        f"options: {{lakehouse.readers: '{readers}'}}\n"
    )
    return load_spec(file)


def test_spec_whose_readers_cannot_read_the_stored_table_is_refused(tmp_path: Path) -> None:
    env = Env(storage=open_storage(str(tmp_path / "t")))
    table = declared_table(spec_of(tmp_path, "hudi 1.0"), env, create=True)
    assert table is not None and table.config.version == 8
    assert declared_table(spec_of(tmp_path, "hudi 1.2, hudi-rs 0.5"), env, create=True) is not None
    reason = r"readers .hudi 1.2, trino.*version=8, which not all of them read"
    with pytest.raises(UserError, match=reason):
        declared_table(spec_of(tmp_path, "hudi 1.2, trino"), env, create=True)


def test_write_job_whose_readers_cannot_read_the_stored_table_is_refused(tmp_path: Path) -> None:
    named = {
        "hoodie.table.name": "t",
        "hoodie.datasource.write.recordkey.field": "id",
        "hoodie.datasource.write.operation": "upsert",
    }
    open_target(str(tmp_path / "t"), parse_write_job({**named, READERS: "hudi 1.0"}), SaveMode.APPEND, ROWS.schema)
    assert Table.open(str(tmp_path / "t")).config.version == 8
    job = parse_write_job({**named, READERS: "hudi 0.15"})
    with pytest.raises(UserError, match=r"hudi 0.15 cannot read the table at .*, which has version 8"):
        open_target(str(tmp_path / "t"), job, SaveMode.APPEND, ROWS.schema)
