"""Indexings and secondary indexes both ways: Apache Hudi uses those of lakehouse, and lakehouse maintains Hudi's."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pyarrow as pa
import pytest

from lakehouse.core.operations.services.index import Indexed
from lakehouse.core.table.table import Table
from tests.interop.agreement import assert_hudi_reads_the_same
from tests.support.hudi import Hudi
from tests.support.metadata_referee import MetadataReferee
from tests.support.shared import fixtures

pytestmark = pytest.mark.jvm

INDEX = "secondary_index_by_city"
USES_INDEX = {"hoodie.metadata.enable": "true", "hoodie.enable.data.skipping": "true"}


def rides(*rows: tuple[str, str, int, str | None]) -> pa.Table:
    names = ("ride", "day", "at", "city")
    return pa.table({name: [row[number] for row in rows] for number, name in enumerate(names)})


def indexed_table(folder: Path, kind: str) -> Table:
    table = Table.create(
        str(folder / "rides"),
        name="rides",
        record_key="ride",
        partition_by="day",
        ordering="at",
        table_type=kind,
        options={"hoodie.parquet.small.file.limit": "0"},
    )
    table.upsert(rides(*((f"r{n}", f"d{n % 2}", 1, f"city {n % 5}") for n in range(20))))
    table.services.create_index("city", name="by_city")
    table.services.index.schedule()
    table.upsert(rides(("r1", "d1", 2, "Oslo"), ("r30", "d0", 1, None)))
    assert isinstance(table.services.index.run(), Indexed)
    table.upsert(rides(("r2", "d0", 3, "Oslo"), ("r31", "d1", 1, "a$b\\c"), ("r32", "d1", 1, "")))
    table.delete(["r7"])
    return table


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_hudi_reads_our_indexings_and_uses_our_secondary_index(
    kind: str, hudi: Hudi, metadata_referee: MetadataReferee, tmp_path: Path
) -> None:
    table = indexed_table(tmp_path, kind)
    assert_hudi_reads_the_same(hudi, table)
    entries = {key for partition, key in metadata_referee.records(table.location) if partition == INDEX}
    rows = table.scan(["ride", "city"]).to_arrow().to_pylist()
    assert len(entries) == len(rows) == table.scan().count()
    for city in ("Oslo", "city 3", "a$b\\c", "", "nowhere"):
        found = hudi.read(table.location, **{key.replace(".", "__"): value for key, value in USES_INDEX.items()})
        expected = sorted(row["ride"] for row in rows if row["city"] == city)
        assert sorted(row["ride"] for row in found.to_pylist() if row["city"] == city) == expected
        escaped = city.replace("\\", "\\\\")
        asked = hudi.query(
            f"select ride from {{table}} where city = '{escaped}'",
            table=table.location,
            **{key.replace(".", "__"): value for key, value in USES_INDEX.items()},
        )
        assert sorted(asked.column("ride").to_pylist()) == expected


def test_secondary_index_stays_right_after_writes_of_hudi(hudi: Hudi, tmp_path: Path) -> None:
    table = indexed_table(tmp_path, "COPY_ON_WRITE")
    options = {
        "hoodie.table.name": "rides",
        "hoodie.datasource.write.recordkey.field": "ride",
        "hoodie.datasource.write.partitionpath.field": "day",
        "hoodie.datasource.write.operation": "upsert",
        "hoodie.table.ordering.fields": "at",
        "hoodie.metadata.enable": "true",
        "hoodie.metadata.global.record.level.index.enable": "true",
        "hoodie.metadata.index.column.stats.enable": "true",
    }
    hudi.write(table.location, rides(("r1", "d1", 9, "Rome"), ("r40", "d0", 1, "Oslo")), options)
    table.upsert(rides(("r40", "d0", 2, "Bern")))
    report = table.metadata.validate()
    assert INDEX in {check.partition for check in report.checks}
    assert report.ok, [f"{check!r} {check.examples}" for check in report.checks if not check.ok]
    assert_hudi_reads_the_same(hudi, table)


def test_indexes_of_all_kinds_that_hudi_made_are_maintained(
    hudi: Hudi, metadata_referee: MetadataReferee, tmp_path: Path
) -> None:
    with zipfile.ZipFile(fixtures("hudi_metadata") / "tables" / "cow_all_indexes.zip") as archive:
        archive.extractall(tmp_path)
    table = Table.open(str(tmp_path / "cow_all_indexes"))
    rows = table.scan().to_arrow()
    changed = rows.select([n for n in rows.column_names if not n.startswith("_hoodie")]).slice(0, 1)
    changed = changed.set_column(changed.column_names.index("name"), "name", pa.array(["renamed"]))
    changed = changed.set_column(changed.column_names.index("ts"), "ts", pa.array([99], pa.int64()))
    table.upsert(changed)
    entries = {key for name, key in metadata_referee.records(table.location) if name == "secondary_index_name_idx"}
    key = changed.column("id")[0].as_py().replace("$", "\\$")
    assert f"renamed${key}" in entries and len(entries) == rows.num_rows
    report = table.metadata.validate()
    assert report.ok, [f"{check!r} {check.examples}" for check in report.checks if not check.ok]
    assert_hudi_reads_the_same(hudi, table)
