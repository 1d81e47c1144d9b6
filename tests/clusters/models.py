"""The tables of the tests and the dicts that they are compared with."""

from __future__ import annotations

import json
from pathlib import Path

from lakehouse import Table
from tests.support.spark_cluster import REPOSITORY

JOBS = str(REPOSITORY / "tests" / "clusters" / "jobs.py")
Rows = dict[str, int]


def create_table(place: Path, **options: str) -> Table:
    """Create a table with the columns of the jobs."""
    return Table.create(str(place), name="t", record_key=["id"], partition_by=["day"], ordering="ts", **options)


def rows(begin: int, end: int, factor: int) -> Rows:
    """Return the rows that a job upserts."""
    return {str(number): number * factor for number in range(begin, end)}


def check(place: Path | str, expected: Rows) -> None:
    """Compare the rows of a table with a dict, and validate all its files."""
    table = Table.open(str(place))
    columns = table.scan(columns=["id", "v"]).to_arrow().to_pydict()
    assert len(columns["id"]) == len(set(columns["id"])), "a key occurs twice"
    assert dict(zip(columns["id"], columns["v"], strict=True)) == expected
    report = table.validate(deep=True)
    assert report.findings == ()
    assert not table.timeline.where(pending=True)


def printed(output: str) -> dict[str, object]:
    """Return the line of JSON that a job printed last."""
    line = [text for text in output.splitlines() if text.startswith("{")][-1]
    document: dict[str, object] = json.loads(line)
    return document
