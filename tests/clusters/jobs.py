"""Applications that the tests submit: `jobs.py NAME ARGUMENTS`. The driver prints what a test compares."""

from __future__ import annotations

import json
import sys

from lakehouse.core.table.table import Table
from lakehouse.spark.session import job_session

COLUMNS = "cast(id AS string) id, cast(id % 3 AS string) day, id * {factor} v, {ts}L ts"


def upsert(place: str, *numbers: str) -> None:
    """Upsert the rows `begin` to `end` with values of a factor."""
    begin, end, factor = map(int, numbers)
    spark = job_session("upsert")
    frame = spark.range(begin, end, 1, 4).selectExpr(*COLUMNS.format(factor=factor, ts=factor).split(", "))
    Table.open(place).upsert(frame)
    rows = Table.open(place).scan(columns=["id", "v"]).to_spark(spark).collect()
    print(json.dumps({"rows": len(rows), "sum": sum(row.v for row in rows)}), flush=True)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
