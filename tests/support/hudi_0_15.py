"""Tables of version 6 that Apache Hudi 0.15, Hudi 1.2 and lakehouse write in turn."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.operations.write import write
from lakehouse.core.table.table import Table
from tests.support.fixture_tables import canonical_rows, load_fixture_tables
from tests.support.hudi import Hudi, find_older_jar
from tests.support.hudi_rs import like
from tests.support.shared import fixtures
from tests.support.version_6 import V6

TYPE = "hoodie.datasource.write.table.type"
OPERATION = "hoodie.datasource.write.operation"
KINDS = ("COPY_ON_WRITE", "MERGE_ON_READ")
BUCKET = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "2"}
#: Options of Hudi's writers. Hudi 0.15 maintains its metadata table by default.
OF_WRITER = {
    "hoodie.table.name": "t",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.datasource.write.partitionpath.field": "p",
    OPERATION: "upsert",
}
WITHOUT_METADATA = {"hoodie.metadata.enable": "false"}
#: Options with which Hudi 1.2 leaves the version of a table.
OF_1_2_WRITER = V6 | {"hoodie.write.auto.upgrade": "false"}


@pytest.fixture(scope="module")
def hudi_0_15(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hudi]:
    """Yield Apache Hudi 0.15 on Spark; tests that use it have the marker `jvm`."""
    process = Hudi(find_older_jar("0.15.0"), tmp_path_factory.mktemp("hudi-0.15"))
    yield process
    process.close()


def same_rows(ours: pa.Table, others: Mapping[str, pa.Table]) -> dict[str, str]:
    """Assert that the rows of other readers equal ours, with meta columns; return v by id, if there is a column v."""
    wanted = canonical_rows(ours, with_meta=True)
    for name, rows in others.items():
        assert canonical_rows(like(rows, ours.schema), with_meta=True) == wanted, name
    return {row["id"]: row["v"] for row in ours.to_pylist()} if "v" in ours.column_names else {}


class Killed(BaseException):
    """Ends a write before its commit, as a killed process does."""


def killed_at_commit(monkeypatch: pytest.MonkeyPatch, table: Table, rows: pa.Table) -> None:
    """Upsert rows; the process ends before the commit and cleans nothing up."""
    with monkeypatch.context() as patch:
        patch.setattr(write, "complete_commit", lambda *_: (_ for _ in ()).throw(Killed()))
        patch.setattr(write, "abandon", lambda *_: False)
        with pytest.raises(Killed):
            table.upsert(rows)


def fixture_tables() -> list[str]:
    """Return the names of the tables of version 6 that this package writes."""
    names = [
        table.name
        for table in load_fixture_tables()
        if table.version == 6
        and table.has_meta_fields
        and table.entry["record_key_fields"]
        and table.entry["snapshot"]["rows"]
    ]
    stored = json.loads(fixtures("hudi_v6/expected.json").read_text())["tables"]
    return [*names, *(name for name in stored if "_v6_" in name)]


def unpacked(name: str, directory: Path) -> str:
    """Return the location of a fixture's table, unpacked in the directory."""
    for fixture in load_fixture_tables():
        if fixture.name == name:
            return str(fixture.unpack(directory))
    with zipfile.ZipFile(fixtures(f"hudi_v6/{name}.zip")) as archive:
        archive.extractall(directory)
    return str(directory / name)
