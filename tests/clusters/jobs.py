"""Applications that the tests submit: `jobs.py NAME ARGUMENTS`. The driver prints what a test compares."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

from lakehouse.cli.main import main
from lakehouse.core.env import Env
from lakehouse.core.operations.write import staged
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.spark.session import job_session
from lakehouse.spark.stream import sink

# Executors write the files, as for larger ones.
staged._REWRITTEN_HERE = staged._SEARCHED_HERE = staged._KEYS_HERE = -1


def frame_of(spark: Any, begin: int, end: int, factor: int) -> Any:
    """Return the rows `begin` to `end`: value and ordering value follow from a factor."""
    columns = ("cast(id AS string) id", "cast(id % 4 AS string) day", f"id * {factor} v", f"{factor}L ts")
    return spark.range(begin, end, 1, 4).selectExpr(*columns)


def upsert(place: str, *numbers: str) -> None:
    """Upsert rows, and print the number of rows and the sum of their values as a scan on Spark reads them."""
    spark = job_session("upsert")
    Table.open(place).upsert(frame_of(spark, *map(int, numbers)))
    rows = Table.open(place).scan(columns=["id", "v"]).to_spark(spark).collect()
    print(json.dumps({"rows": len(rows), "sum": sum(row.v for row in rows)}), flush=True)


def paused_upsert(place: str, *numbers: str) -> None:
    """Upsert rows by workers whose attempts the test holds."""
    from tests.support.paused_storage import PausedStorage

    spark = job_session("paused upsert")
    Table.open(place, env=Env(storage=PausedStorage(place))).upsert(frame_of(spark, *map(int, numbers)))


def paused_merge(place: str, *numbers: str) -> None:
    """Merge the same rows with conditions; each row of the table with a match has a lower ordering value."""
    from tests.support.paused_storage import PausedStorage

    spark = job_session("paused merge")
    merge = Table.open(place, env=Env(storage=PausedStorage(place))).merge(
        frame_of(spark, *map(int, numbers)), "source.id = target.id AND source.day = target.day"
    )
    merge = merge.when_matched_update({"v": "source.v", "ts": "source.ts"}, "source.ts > target.ts")
    merge = merge.when_not_matched_insert_all("source.v >= 0")
    merge.execute(options={"lakehouse.statement.driver.bytes": "0"})


def journey(spec: str, place: str, landing: str) -> None:
    """Ingest, upsert, compact, cluster and follow a stream."""
    spark = job_session("journey")
    assert main(["ingest", "run", "--table", spec]) == 0
    table = Table.open(place)
    # Updates only: new rows would be merged into the small base files, and compaction needs logs.
    table.upsert(frame_of(spark, 20, 50, 3))
    assert main(["compaction", "run", "--table", spec, "--force"]) == 0
    sorting = "hoodie.clustering.plan.strategy.sort.columns=id"
    assert main(["clustering", "run", "--table", spec, "--force", "--option", sorting]) == 0
    frame = spark.readStream.schema("id string, day string, v long, ts long").json(f"{landing}-stream")
    query = (
        frame.writeStream.foreachBatch(sink(Table.open(place), "upsert"))
        .option("checkpointLocation", f"{landing}-checkpoint")
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(240)


def allocated(place: str) -> None:
    """Upsert, wait until all executors are idle and removed, and upsert again. Print the numbers of executors."""
    spark = job_session("allocated")
    status = spark.sparkContext._jsc.sc()
    counts = []
    for factor in (2, 5):
        Table.open(place).upsert(frame_of(spark, 0, 60, factor))
        counts.append(status.getExecutorMemoryStatus().size() - 1)
        deadline = time.monotonic() + 120
        while status.getExecutorMemoryStatus().size() > 1 and time.monotonic() < deadline:
            time.sleep(0.2)
        counts.append(status.getExecutorMemoryStatus().size() - 1)
    print(json.dumps({"executors": counts}), flush=True)


def with_secret(place: str, go: str) -> None:
    """Upsert into a table on an object store, scan it with both readers, and wait for the test."""
    spark = job_session("with secret")
    table = Table.open(place)
    table.upsert(frame_of(spark, 0, 40, 2))
    total = Table.open(place).scan(columns=["id", "v"]).to_spark(spark).groupBy().sum("v").collect()[0][0]
    rows = spark.read.format("lakehouse").load(place).count()
    context = spark.sparkContext
    print(json.dumps({"sum": total, "rows": rows, "ui": context.uiWebUrl, "id": context.applicationId}), flush=True)
    assert open_storage(place).find(".hoodie/hoodie.properties") is not None
    deadline = time.monotonic() + 240
    while not Path(go).exists() and time.monotonic() < deadline:
        time.sleep(0.1)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
