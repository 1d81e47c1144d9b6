"""A month of published days, read by Spark SQL through a real Hive Metastore during writes and archiving."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.platform.metastore.hive import HiveMetastore
from lakehouse.platform.publish.job import PublishJob
from lakehouse.platform.publish.publication_plan import PublishRequest
from lakehouse.platform.publish.run import run, signal
from lakehouse.spark.file_sources import PlannedFiles
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.table.publish import parse_publish
from tests.support.hive_spark import HiveSpark

pytestmark = pytest.mark.spark

DAYS, ARCHIVED = 30, 23
OPTIONS = {
    "hoodie.payload.event.time.field": "at",
    "lakehouse.event_time.lateness": "2h",
    "hoodie.write.concurrency.mode": "optimistic_concurrency_control",
    "hoodie.write.lock.provider": "filesystem",
    "hoodie.clean.commits.retained": "1",
}
START = datetime(2025, 3, 1)
SQL = "SELECT dt, count(*), sum(v) FROM {} WHERE dt <= '2025-03-30' GROUP BY dt ORDER BY dt"
_names = count(1)


@dataclass
class Month:
    """A table of accounts that changes all day, and its rows at the end of each day."""

    job: PublishJob
    days: dict[str, dict[str, int]]

    @property
    def expected(self) -> list[list[object]]:
        """Return the expected result of the query."""
        return [[day, len(state), sum(state.values())] for day, state in sorted(self.days.items())]


def _rows(changes: dict[str, tuple[datetime, int]]) -> pa.Table:
    return pa.table(
        {
            "id": list(changes),
            "at": pa.array([at for at, _ in changes.values()], pa.timestamp("us")),
            "v": [value for _, value in changes.values()],
        }
    )


@pytest.fixture(scope="module")
def month(hive_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Month]:
    """The month of a copy-on-write table."""
    yield from _month(hive_uri, tmp_path_factory.mktemp("month"), "COPY_ON_WRITE")


@pytest.fixture(scope="module")
def merged_month(hive_uri: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Month]:
    """The month of a merge-on-read table."""
    yield from _month(hive_uri, tmp_path_factory.mktemp("month"), "MERGE_ON_READ")


def _month(hive_uri: str, tmp_path: Path, kind: str) -> Iterator[Month]:
    """Thirty days, two commits each and on every third day events that come an hour late; each day is published."""
    name = f"accounts_{next(_names)}"
    table = Table.create(
        str(tmp_path / "table"), name=name, record_key=["id"], ordering="at", options=OPTIONS, table_type=kind
    )
    metastore = HiveMetastore(hive_uri)
    spec = parse_publish(f"bank.{name}", {"database": "bank", "partitions": "date"})
    job = PublishJob(
        table=table,
        policies=parse_options(OPTIONS),
        spec=spec,
        metastore=metastore,
        place=open_storage(str(tmp_path / "published")),
    )
    state: dict[str, int] = {}
    found = Month(job=job, days={})
    for day in range(DAYS + 1):
        midnight = START + timedelta(days=day)
        batches = [
            {f"k{n}": (midnight + timedelta(hours=10), 1000 * day + n) for n in range(day, day + 40)},
            {f"k{n}": (midnight + timedelta(hours=20), 2000 * day + n) for n in range(day, day + 20)},
        ]
        if day % 3 == 1:
            # Arrives after midnight with an event time of the day before; a new key, so no newer version replaces it.
            late = {f"late{day}": (midnight - timedelta(hours=1), 7)}
            batches.insert(0, {**late, f"k{day}": (midnight + timedelta(minutes=30), 5)})
        for batch in batches:
            table.upsert(_rows(batch))
            state.update({key: value for key, (_, value) in batch.items()})
            if min(at for at, _ in batch.values()) < midnight:
                found.days[f"{midnight - timedelta(days=1):%Y-%m-%d}"] = dict(state)
        found.days[f"{midnight:%Y-%m-%d}"] = dict(state)
        run(job)
    del found.days[f"{START + timedelta(days=DAYS):%Y-%m-%d}"]
    yield found
    metastore.close()


def test_month_has_the_same_rows_before_during_and_after_archiving(month: Month, hive_spark: HiveSpark) -> None:
    job = month.job
    target = job.target
    table = target.rpartition(".")[2]
    assert len(month.days) == DAYS
    assert hive_spark.rows(SQL.format(table), view=target) == month.expected

    stop, errors = threading.Event(), []

    def ingest() -> None:
        at = START + timedelta(days=DAYS + 1)
        try:
            while not stop.is_set():
                at += timedelta(minutes=1)
                job.table.upsert(_rows({"k1": (at, 1), "k2": (at, 2)}))
                Table.open(job.table.location, options=OPTIONS).services.clean.run(force=True)
        except Exception as error:
            errors.append(error)

    def archive() -> None:
        try:
            for day in range(ARCHIVED):
                run(
                    job,
                    PublishRequest(names=(f"{START + timedelta(days=day):%Y-%m-%d}",), archive=True),
                    engine=LocalEngine(),
                )
        except Exception as error:
            errors.append(error)

    ingesting, archiving = threading.Thread(target=ingest), threading.Thread(target=archive)
    ingesting.start()
    archiving.start()
    during = 0
    while archiving.is_alive():
        assert hive_spark.rows(SQL.format(table), view=target) == month.expected
        during += 1
    stop.set()
    ingesting.join()
    assert not errors
    assert during > 0, "the month was read during archiving"
    assert hive_spark.rows(SQL.format(table), view=target) == month.expected
    states = [p.parameters["lakehouse.state"] for p in job.metastore.partitions(*target.split("."), _names_of(job))]
    assert states[:DAYS] == ["copy"] * ARCHIVED + ["pointer"] * (DAYS - ARCHIVED)


def test_plain_hive_reads_archived_partitions_and_files_of_pointers(month: Month, hive_spark: HiveSpark) -> None:
    job = month.job
    for day in range(3):
        run(job, PublishRequest(names=(f"{START + timedelta(days=day):%Y-%m-%d}",), archive=True), engine=LocalEngine())
    text = f"SELECT dt, count(*), sum(v) FROM {job.target} WHERE dt <= '2025-03-03' GROUP BY dt ORDER BY dt"
    assert hive_spark.rows(text) == month.expected[:3], "no code of this package is involved"
    (pointer,) = job.metastore.partitions(*job.target.split("."), ["dt=2025-03-27"])
    files = hive_spark.splits(pointer.location, pointer.format.input_format)
    assert files, "Hive's own class reads the manifest"
    rows = pa.concat_tables([pq.read_table(file.removeprefix("file:"), columns=["v"]) for file in files])
    assert [rows.num_rows, pc.sum(rows["v"]).as_py()] == month.expected[26][1:]


def test_data_source_reads_pointers_and_archived_partitions(month: Month, hive_spark: HiveSpark) -> None:
    run(month.job, PublishRequest(names=("2025-03-01",), archive=True), engine=LocalEngine())
    assert hive_spark.source(SQL.format("source"), month.job.target) == month.expected
    text = "SELECT dt, count(*), max(v) FROM source WHERE dt IN ('2025-03-01', '2025-03-30') GROUP BY dt ORDER BY dt"
    first, last = month.expected[0], month.expected[-1]
    days = [month.days["2025-03-01"], month.days["2025-03-30"]]
    assert hive_spark.source(text, month.job.target) == [
        [first[0], first[1], max(days[0].values())],
        [last[0], last[1], max(days[1].values())],
    ]


def test_condition_of_the_data_source_excludes_partitions(month: Month, hive_uri: str, hive_spark: HiveSpark) -> None:
    job, where = month.job, "dt = '2025-03-30' AND v > 2000"
    run(job, PublishRequest(names=("2025-03-01",), archive=True), engine=LocalEngine())
    values = sorted(value for value in month.days["2025-03-30"].values() if value > 2000)
    text = "SELECT v FROM source ORDER BY v"
    assert hive_spark.source(text, job.target, where=where) == [[value] for value in values]
    schema = pa.schema([("id", pa.string()), ("v", pa.int64()), ("dt", pa.string())])
    options = {"published": job.target, "hoodie.datasource.hive_sync.metastore.uris": hive_uri}

    def partitions(**condition: str) -> set[str]:
        tasks = PlannedFiles({**options, **condition}, schema).tasks()
        return {task.values["dt"] for task in tasks}

    assert partitions(where=where) == {"2025-03-30"}
    assert partitions(where="v > 2000 AND dt IN ('2025-03-01', '2025-03-30')") == {"2025-03-01", "2025-03-30"}
    assert len(partitions(where="dt = '2025-03-30' OR v > 0")) == len(partitions()) >= DAYS
    with pytest.raises(UserError, match="'at' is not among the columns of the read: id, v, dt"):
        partitions(where="at IS NULL")


def test_condition_on_the_partition_prunes_other_partitions(month: Month, hive_spark: HiveSpark) -> None:
    job = month.job
    run(job, PublishRequest(names=("2025-03-01",), archive=True), engine=LocalEngine())
    table = job.target.rpartition(".")[2]
    plan = hive_spark.explain(f"SELECT sum(v) FROM {table} WHERE dt = '2025-03-28'", view=job.target)
    assert plan.count("Relation [") == 2, "the pointer, and the copies, of which Spark prunes all"
    assert "= 2025-03-28)" in plan
    whole = hive_spark.explain(f"SELECT sum(v) FROM {table}", view=job.target)
    states = [p.parameters["lakehouse.state"] for p in job.metastore.partitions(*job.target.split("."), _names_of(job))]
    assert whole.count("Relation [") == states.count("pointer") + ("copy" in states), "one scan for all copies"


def _names_of(job: PublishJob) -> tuple[str, ...]:
    return job.metastore.partition_names(*job.target.split("."))


def test_days_of_a_merge_on_read_table_are_published_as_copies(merged_month: Month, hive_spark: HiveSpark) -> None:
    job = merged_month.job
    run(job, engine=LocalEngine())
    assert hive_spark.rows(SQL.format(job.target)) == merged_month.expected, "every engine reads the merged copies"
    at = START + timedelta(days=DAYS + 1)
    for minute in range(3):
        job.table.upsert(_rows({"k1": (at + timedelta(minutes=minute), 1)}))
        job.table.services.compaction.run(force=True)
        job.table.services.clean.run(force=True)
        run(job, engine=LocalEngine())
        assert hive_spark.rows(SQL.format(job.target)) == merged_month.expected


def test_readers_see_values_with_reserved_characters(hive_uri: str, hive_spark: HiveSpark, tmp_path: Path) -> None:
    """Test slashes, blanks, equals and percent signs, and quotes in pointers, copies and conditions."""
    values = ["a/b", "c d=e", "50%", "it's", 'say "so"', "ünï"]
    name = f"reserved_{next(_names)}"
    table = Table.create(str(tmp_path / "table"), name=name, record_key=["id"], partition_by=["kind"])
    table.insert(pa.table({"id": [str(n) for n in range(6)], "kind": values, "v": list(range(6))}))
    with closing(HiveMetastore(hive_uri)) as metastore:
        job = PublishJob(
            table=table,
            policies=parse_options({}),
            spec=parse_publish(f"bank.{name}", {"database": "bank", "ready": "signal"}),
            metastore=metastore,
            place=open_storage(str(tmp_path / "published")),
        )
        names = signal(job, table.partitions())
        assert len(run(job).published) == 6
        assert len(run(job, PublishRequest(names=names[:3], archive=True), engine=LocalEngine()).archived) == 3
        expected = sorted([kind, number] for number, kind in enumerate(values))
        for read in (hive_spark.rows, hive_spark.source):
            options = {"view": job.target} if read == hive_spark.rows else {"published": job.target}
            view = name if read == hive_spark.rows else "source"
            assert read(f"SELECT kind, v FROM {view} ORDER BY kind", **options) == expected
            assert read(f"SELECT v FROM {view} WHERE kind = 'c d=e'", **options) == [[1]]
            assert read(f"SELECT v FROM {view} WHERE kind = 'it\\'s'", **options) == [[3]]
