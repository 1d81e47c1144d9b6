"""Chapters about the tables that Airflow ingests or clusters: publication, late events, a bad record, an alarm."""

from __future__ import annotations

import json
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

import pyarrow.compute as pc

from demo.chapters import Chapter
from demo.facts import ClusteringFacts
from demo.texts import size_text
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError
from lakehouse.platform.catalog.alarms import Alarm
from lakehouse.platform.ingest.commit_reports import BAD_RECORDS
from lakehouse.platform.metastore.memory import MemoryMetastore
from lakehouse.platform.publish.job import PublishJob
from lakehouse.platform.publish.publication_plan import PublishRequest
from lakehouse.platform.publish.run import run
from lakehouse.spec.table.publish import PublishSpec

_DATABASE = "rides"
_BAD_FILE = "upload-by-hand.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedDay:
    """A partition that was published: its path, the instant of its version, and its rows then."""

    partition: str
    instant: str
    rows: int


def publish_day(table: Table, day: datetime) -> PublishedDay:
    """Publish the partition of a day at the newest version. A metastore in memory stands for the Hive Metastore.

    Raises:
        LakehouseError: The partition was not published.
    """
    job = PublishJob(
        table=table,
        policies=table.services.policies,
        spec=PublishSpec(database=_DATABASE, table=table.name.rpartition(".")[2], ready=("signal",)),
        metastore=MemoryMetastore(),
        place=open_storage(f"{table.location}_published"),
    )
    (partition,) = [name for name in table.partitions() if f"{day:%Y-%m-%d}" in name]
    report = run(job, PublishRequest(names=(f"{day:%Y-%m-%d}",), force=True, newest=True))
    if not report.published:
        raise LakehouseError(f"the partition {partition} of {table.name} was not published: {report}")
    newest = table.commits()[-1][0]
    return PublishedDay(
        partition=partition, instant=newest.requested, rows=_rows(table, f"{day:%Y-%m-%d}", newest.requested)
    )


def published_chapters(table: Table, published: PublishedDay, day: datetime) -> list[Chapter]:
    """Return the chapters about a published partition, and about the events of its day that arrived later."""
    text = f"{day:%Y-%m-%d}"
    now, shown = _rows(table, text, None), _rows(table, text, published.instant)
    changed, replaced = _late(table, text, published.instant)
    return [
        Chapter(
            title="Publication",
            table=table.name,
            measure=f"rows that readers of {text} see",
            before="0",
            after=f"{shown:,}",
            text=f"The partition is pinned to commit {published.instant}. The table has {now:,} rows of this day since "
            "the next run, and readers of the partition see none of these changes.",
        ),
        Chapter(
            title="Late events",
            table=table.name,
            measure=f"orders of {text} with events of the next day",
            before="0",
            after=f"{changed:,}",
            text=f"{replaced} rows were replaced by an older event, because the column 'updated_at' decides.",
        ),
    ]


def land_bad_record(landing: Path, day: datetime) -> None:
    """Write a file with one good and one bad record of an order into the landing zone."""
    target = landing / f"{day:%Y-%m-%d}" / _BAD_FILE
    if target.exists():
        return
    order = {"order_id": "o-by-hand", "rider_id": "r1", "zone": "zone-001", "status": "requested", "fare": 12.5}
    times = {"created_at": f"{day:%Y-%m-%d}T10:00:00Z", "updated_at": f"{day:%Y-%m-%d}T10:00:00Z"}
    good = {**order, **times, "order_date": f"{day:%Y-%m-%d}"}
    bad = {**good, "order_id": "o-by-hand-2", "fare": "twelve"}
    target.parent.mkdir(parents=True, exist_ok=True)
    partial = target.with_name(f".{target.name}.tmp")
    partial.write_text(f"{json.dumps(good)}\n{json.dumps(bad)}\n", encoding="utf-8")
    partial.rename(target)


def bad_record_chapter(table: Table) -> Chapter | None:
    """Return the chapter about bad records; None without one."""
    commits = [(instant, int(metadata.extra.get(BAD_RECORDS, 0))) for instant, metadata in table.commits()]
    bad_commits = [(instant, bad) for instant, bad in commits if bad]
    if not bad_commits:
        return None
    instant, bad = bad_commits[-1]
    stored_rows = table.scan(where="order_id = 'o-by-hand'").count()
    return Chapter(
        title="Bad record",
        table=table.name,
        measure="records with a fare that is no number",
        before=f"{bad} in the landing zone",
        after=f"{bad} dead letter",
        text=f"Commit {instant.requested} has all other records, {stored_rows} of them from the same file. "
        "`lakehouse ingest replay` reads the letter again after its cause is corrected.",
    )


def clustering_chapters(facts: ClusteringFacts) -> list[Chapter]:
    """Return the chapters about a clustering: files of the table, and files of a query."""
    return [
        Chapter(
            title="Small files",
            table=facts.table,
            measure="files",
            before=f"{facts.files[0]} ({size_text(facts.size[0])})",
            after=f"{facts.files[1]} ({size_text(facts.size[1])})",
            text=f"The scheduler found the clustering due, and Airflow ran it as commit {facts.instant}.",
        ),
        Chapter(
            title="Query",
            table=facts.table,
            measure=f"files to open where {facts.query}",
            before=f"{facts.query_files[0]}",
            after=f"{facts.query_files[1]}",
            text=f"The query reads {size_text(facts.query_size[1])} instead of {size_text(facts.query_size[0])}.",
        ),
    ]


def alarm_chapter(alarm: Alarm) -> Chapter:
    """Return the chapter about an alarm that was resolved."""
    assert alarm.resolved_ms is not None, "the caller looked"
    seconds = (alarm.resolved_ms - alarm.raised_ms) / 1000
    return Chapter(
        title="Alarm",
        table=alarm.table,
        measure=f"open alarms of rule {alarm.rule}",
        before="1",
        after="0",
        text=f"It said: {alarm.text}. After the clustering, {timedelta(seconds=round(seconds))} later, it resolved.",
    )


def _rows(table: Table, day: str, instant: str | None) -> int:
    return table.scan(where=f"order_date = '{day}'", as_of=instant).count()


def _late(table: Table, day: str, instant: str) -> tuple[int, int]:
    """Return the number of rows of a day that changed since an instant, and of those with an older event."""
    columns, where = ["order_id", "updated_at"], f"order_date = '{day}'"
    before = table.scan(columns=columns, where=where, as_of=instant).to_arrow()
    joined = (
        table.scan(columns=columns, where=where)
        .to_arrow()
        .join(before.rename_columns(["order_id", "earlier"]), "order_id", join_type="left outer")
    )
    newer = pc.not_equal(joined["updated_at"], joined["earlier"])
    older = pc.less(joined["updated_at"], joined["earlier"])
    return pc.sum(pc.fill_null(newer, True)).as_py() or 0, pc.sum(pc.fill_null(older, False)).as_py() or 0
