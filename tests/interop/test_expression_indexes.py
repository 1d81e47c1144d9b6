"""Indexes on expressions both ways: Apache Hudi uses and updates those of lakehouse, and lakehouse those of Hudi."""

from __future__ import annotations

import datetime as dt
import itertools
import shutil
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from lakehouse.core.operations.services.index import Indexed
from lakehouse.core.table.table import Table
from lakehouse.errors import UnsupportedError
from tests.interop.agreement import assert_hudi_reads_the_same
from tests.support.hudi import Hudi, HudiError
from tests.support.metadata_referee import MetadataReferee

pytestmark = pytest.mark.jvm

HOUR, DAY, UPPER = "expr_index_by_hour", "expr_index_by_day", "expr_index_by_id"
#: How Hudi creates each index, and how lakehouse declares it.
STATEMENTS = {
    HOUR: "create index by_hour on {table} using column_stats(at) options(expr='hour')",
    DAY: "create index by_day on {table} using column_stats(ts) options(expr='from_unixtime', format='yyyy-MM-dd')",
    UPPER: "create index by_id on {table} using bloom_filters(id) options(expr='upper')",
}
DECLARATIONS = {
    HOUR: "by_hour=hour(at)",
    DAY: "by_day=from_unixtime(ts, yyyy-MM-dd)",
    UPPER: "by_id=bloom_filters:upper(id)",
}
LOCK = {"hoodie__write__lock__provider": "org.apache.hudi.client.transaction.lock.InProcessLockProvider"}
SKIPPING = {"hoodie__metadata__enable": "true", "hoodie__enable__data__skipping": "true"}
CONDITIONS = (
    "hour(at) = 3",
    "hour(at) in (5, 23)",
    "from_unixtime(ts, 'yyyy-MM-dd') in ('2023-11-14', '2033-05-18')",
    "upper(id) = 'K3'",
)
#: Options of writes of Hudi.
WRITES = {
    "hoodie.table.name": "rides",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.operation": "upsert",
    "hoodie.datasource.write.partitionpath.field": "day",
    "hoodie.table.ordering.fields": "ts",
    "hoodie.metadata.enable": "true",
    "hoodie.metadata.index.column.stats.enable": "true",
    "hoodie.parquet.small.file.limit": "0",
}
_copies = itertools.count(1)

Row = tuple[str, str, int, int | None]


def rides(*rows: Row) -> pa.Table:
    times = [None if row[3] is None else dt.datetime(2024, 1, 1, row[3], 30) for row in rows]
    return pa.table(
        {
            "id": [row[0] for row in rows],
            "day": [row[1] for row in rows],
            "ts": pa.array([row[2] for row in rows], pa.int64()),
            "at": pa.array(times, pa.timestamp("us", "UTC")),
        }
    )


FIRST = rides(*((f"k{n}", "abc"[n % 3], 1_700_000_000 + 86_400 * n, n) for n in range(6)), ("n", "c", 1, None))


def table_of_hudi(hudi: Hudi, folder: Path, kind: str, *names: str, **settings: str) -> str:
    """Return the location of a table that Hudi wrote, with indexes that Hudi created."""
    location = str(folder / "rides")
    options = {**WRITES, "hoodie.datasource.write.table.type": kind, **settings}
    hudi.write(location, FIRST, options, mode="overwrite")
    for name in names:
        hudi.sql(STATEMENTS[name], table=location, **LOCK)
    return location


def table_of_ours(folder: Path, kind: str, *names: str, version: int = 9) -> Table:
    """Return a table that lakehouse wrote, with indexes that it built beside a writer."""
    table = Table.create(
        str(folder / "rides"),
        name="rides",
        record_key="id",
        partition_by="day",
        ordering="ts",
        table_type=kind,
        options={"hoodie.parquet.small.file.limit": "0", "hoodie.write.table.version": str(version)},
    )
    table.upsert(FIRST)
    for name in names:
        table.services.create_expression_index(DECLARATIONS[name])
    table.services.index.schedule()
    table.upsert(rides(("between", "a", 1_700_000_000, 23)))
    assert isinstance(table.services.index.run(), Indexed)
    return table


def write_with_lakehouse(table: Table, kind: str) -> None:
    """Run each action that changes indexes."""
    table.upsert(rides(("k1", "b", 2_000_000_000, 23), ("new", "d", 1_700_000_000, 12)))
    table.delete(["k2"])
    table.upsert(rides(("k4", "b", 2_000_000_001, None)))
    if kind == "MERGE_ON_READ":
        table.services.compaction.run(force=True)
        table.upsert(rides(("k4", "b", 2_000_000_002, 5)))
    table.insert_overwrite(rides(("over", "c", 9, 3)))
    table.services.clustering.run(force=True)
    table.services.clean.run(force=True)
    table.upsert(rides(("late", "a", 1_700_000_000, 7), ("k1", "b", 2_000_000_009, 22)))


def records_of(referee: MetadataReferee, location: str) -> dict[str, dict[str, Any]]:
    """Return the records of each index partition by their keys."""
    found: dict[str, dict[str, Any]] = {}
    for (partition, key), value in referee.records(location).items():
        found.setdefault(partition, {})[key] = value
    return found


def built_by_hudi(
    hudi: Hudi, referee: MetadataReferee, location: str, names: tuple[str, ...]
) -> dict[str, dict[str, Any]]:
    """Return the records of indexes on the same expressions that Hudi builds on a copy of the table."""
    copy = Path(location).parent / f"copy-{next(_copies)}"
    shutil.copytree(location, copy)
    for name in names:
        hudi.sql(STATEMENTS[name].replace("create index ", "create index other_"), table=str(copy), **LOCK)
    records = records_of(referee, str(copy))
    return {name: records[name.replace("expr_index_", "expr_index_other_")] for name in names}


def assert_records_are_those_of_hudi(hudi: Hudi, referee: MetadataReferee, table: Table, *names: str) -> None:
    """Assert that each index has the records that Hudi builds; those of older files may be there as well."""
    all_stored, all_built = records_of(referee, table.location), built_by_hudi(hudi, referee, table.location, names)
    for name in names:
        stored, built = all_stored[name], all_built[name]
        assert built
        if name == UPPER:
            # Sizes of filters depend on the writer; what they contain is checked by the validation.
            assert built.keys() <= stored.keys()
        else:
            assert {key: stored.get(key) for key in built} == built
    assert_valid(table)


def assert_valid(table: Table) -> None:
    report = table.metadata.validate()
    assert report.ok, [f"{check!r} {check.examples}" for check in report.checks if not check.ok]


def assert_conditions_agree(hudi: Hudi, table: Table) -> None:
    """Assert that Hudi and lakehouse find the same rows by the indexes as Hudi finds in all rows."""
    flags = ", ".join(f"{where} as c{number}" for number, where in enumerate(CONDITIONS))
    everything = hudi.query(f"select id, {flags} from {{table}}", table=table.location).to_pylist()
    for number, where in enumerate(CONDITIONS):
        text = f"select id from {{table}} where {where}"
        theirs = sorted(hudi.query(text, table=table.location, **SKIPPING).column(0).to_pylist())
        ours = sorted(table.scan(["id"], where).to_arrow().column(0).to_pylist())
        assert theirs == ours == sorted(row["id"] for row in everything if row[f"c{number}"]), where


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_indexes_of_hudi_are_maintained_as_hudi_would_build_them(
    kind: str, hudi: Hudi, metadata_referee: MetadataReferee, tmp_path: Path
) -> None:
    names = (HOUR, DAY, UPPER) if kind == "COPY_ON_WRITE" else (HOUR, DAY)
    table = Table.open(table_of_hudi(hudi, tmp_path, kind, *names))
    write_with_lakehouse(table, kind)
    assert_records_are_those_of_hudi(hudi, metadata_referee, table, *names)
    assert_hudi_reads_the_same(hudi, table)
    hudi.write(table.location, rides(("k5", "c", 2_000_000_020, 12), ("hudi", "e", 5, 3)), WRITES)
    table.upsert(rides(("k5", "c", 2_000_000_021, 13)))
    assert_valid(table)
    assert_conditions_agree(hudi, table)


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_hudi_uses_and_updates_indexes_that_lakehouse_built(
    kind: str, hudi: Hudi, metadata_referee: MetadataReferee, tmp_path: Path
) -> None:
    names = (HOUR, DAY, UPPER) if kind == "COPY_ON_WRITE" else (HOUR, DAY)
    table = table_of_ours(tmp_path, kind, *names)
    write_with_lakehouse(table, kind)
    assert_conditions_agree(hudi, table)
    hudi.write(table.location, rides(("k1", "b", 2_000_000_020, 3), ("hudi", "e", 5, 5)), WRITES)
    table.upsert(rides(("late", "a", 2_000_000_000, 3)))
    assert_records_are_those_of_hudi(hudi, metadata_referee, table, *names)
    assert_hudi_reads_the_same(hudi, table)
    assert_conditions_agree(hudi, table)


def test_hudi_skips_files_by_an_index_that_lakehouse_built(hudi: Hudi, tmp_path: Path) -> None:
    table = table_of_ours(tmp_path, "COPY_ON_WRITE", HOUR)
    (other,) = (Path(table.location) / "c").glob("*.parquet")
    other.rename(other.with_suffix(".gone"))
    found = hudi.query("select id from {table} where hour(at) = 23", table=table.location, **SKIPPING)
    assert found.column(0).to_pylist() == ["between"]
    with pytest.raises(HudiError):
        hudi.query("select id from {table} where hour(at) = 5", table=table.location, **SKIPPING)


def test_write_to_a_table_with_an_index_of_hudi_on_an_unknown_pattern_is_refused(hudi: Hudi, tmp_path: Path) -> None:
    location = table_of_hudi(hudi, tmp_path, "COPY_ON_WRITE")
    options = "expr='regexp_extract', pattern='(?i)K', idx='0'"
    hudi.sql(f"create index tail on {{table}} using column_stats(id) options({options})", table=location, **LOCK)
    table = Table.open(location)
    with pytest.raises(
        UnsupportedError, match=r"expr_index_tail.*'\(\?i\)K'.*is not supported.*`lakehouse index drop`"
    ):
        table.upsert(rides(("k0", "a", 2_000_000_000, 1)))
    table.services.drop_index("tail")
    table.upsert(rides(("k0", "a", 2_000_000_000, 1)))
    assert_hudi_reads_the_same(hudi, table)


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_indexes_of_version_8_tables_are_built_and_maintained(
    kind: str, hudi: Hudi, metadata_referee: MetadataReferee, tmp_path: Path
) -> None:
    # Hudi 1.2 fails on an index on a function of a timestamp in a table of version 8, also on its own.
    table = table_of_ours(tmp_path, kind, DAY, version=8)
    table.services.create_index("ts")
    assert isinstance(table.services.index.run(), Indexed)
    write_with_lakehouse(table, kind)
    assert_conditions_agree(hudi, table)
    assert_records_are_those_of_hudi(hudi, metadata_referee, table, DAY)
    assert_hudi_reads_the_same(hudi, table)
    for value in (9, 2_000_000_009):
        found = hudi.query(f"select id from {{table}} where ts = {value}", table=table.location, **SKIPPING)
        scan = table.scan(["id"], f"ts = {value}")
        assert scan.explain().step("secondary_index")
        assert found.column(0).to_pylist() == scan.to_arrow().column(0).to_pylist() != []


@pytest.mark.parametrize("kind", ["COPY_ON_WRITE", "MERGE_ON_READ"])
def test_index_of_a_session_in_another_time_zone_hides_no_rows_and_excludes_none(
    kind: str, hudi: Hudi, tmp_path: Path
) -> None:
    location = table_of_hudi(hudi, tmp_path, kind)
    zone = {"spark__sql__session__timeZone": "America/New_York"}
    hudi.sql(STATEMENTS[HOUR], table=location, **LOCK, **zone)
    table = Table.open(location)

    def found(hour: int) -> list[str]:
        scan = table.scan(["id"], f"hour(at) = {hour}")
        excluded = [step.reason for step in scan.explain() if "results of functions" in step.reason]
        assert excluded and all(" exclude 0 " in reason for reason in excluded), excluded
        return sorted(scan.to_arrow().column(0).to_pylist())

    # In New York the hours of these rows are 19 to 23, and 0.
    assert [found(hour) for hour in (0, 3, 5, 19, 23)] == [["k0"], ["k3"], ["k5"], [], []]
    table.upsert(rides(("k3", "a", 2_000_000_000, 4), ("late", "c", 1, 3)))
    assert [found(hour) for hour in (3, 4)] == [["late"], ["k3", "k4"]]
    table.upsert(rides(("own", "own", 1, 7)))
    # The insert replaced the file of partition c. The update of a is in a new base file, or in a log.
    unknown = {"COPY_ON_WRITE": 1, "MERGE_ON_READ": 2}[kind]
    for hour, matching in ((7, 1), (8, 0)):
        steps = table.scan(["id"], f"hour(at) = {hour}").explain()
        assert steps.step("expression_partitions").partitions == unknown + matching
    assert_valid(table)
