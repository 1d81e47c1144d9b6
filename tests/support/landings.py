"""Sources of the contract tests, to which tests add records, and the tables that ingest from them."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from itertools import count
from typing import Any

from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.table.table import Table
from lakehouse.platform.ingest.run import CHECKPOINT, IngestContext, ingest
from lakehouse.platform.sources.source import Interval, Source, SourcePlan
from lakehouse.spec.contracts.job import IngestReport
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.sources.ingest import IngestSpec
from lakehouse.spec.table.table_spec import TableSpec
from tests.support.file_ingest import changed_ingest, file_ingest
from tests.support.ingested import BAD, files_source

_numbers = count(1)
START = datetime(2026, 1, 1, tzinfo=UTC)


class Landing:
    """A source to which tests add records, and the table that ingests from it."""

    def __init__(self, by_interval: bool) -> None:
        self.root = f"memory://source-{next(_numbers)}"
        self.by_interval = by_interval

    def spec(self) -> TableSpec:
        """Return the spec of the table. Its operation is insert, so a record that is ingested twice gives two rows."""
        return TableSpec(
            table="t",
            location=f"{self.root}/table",
            record_key=("id",),
            schema={"id": "string", "p": "string", "ts": "bigint"},
            ingest=self.section(),
        )

    def section(self) -> IngestSpec:
        """Return the `ingest` section."""
        raise NotImplementedError

    def source(self) -> Source[Any]:
        """Return the source."""
        raise NotImplementedError

    def put(self, *records: str, hour: int = 0) -> None:
        """Add records to the source. The text of a record is its key; a bad record starts with `BAD`."""
        raise NotImplementedError

    def run(self, hour: int = 0, source: Source[Any] | None = None, *, full_refresh: bool = False) -> IngestReport:
        """Run the ingestion once."""
        bounds = tuple(moment.isoformat() for moment in interval(hour)) if self.by_interval else (None, None)
        spec = self.spec()
        return ingest(
            IngestContext(
                source=source or self.source(),
                spec=spec,
                command=IngestCommand(
                    table="t",
                    interval_start=bounds[0],
                    interval_end=bounds[1],
                    full_refresh=full_refresh,
                ),
                options=spec.write_options(),
                env=Env(storage=open_storage(spec.location)),
                open=open_storage,
            )
        )

    def plan(self, checkpoint: str | None = None, hour: int = 0, *, full_refresh: bool = False) -> SourcePlan:
        """Plan a run without reading."""
        bounds = interval(hour) if self.by_interval else None
        plan: SourcePlan = self.source().plan(checkpoint, bounds, full_refresh=full_refresh)
        return plan

    def checkpoint(self) -> str | None:
        """Return the checkpoint of the newest commit, or None before the first commit."""
        exists = bool(open_storage(f"{self.root}/table").list_dir(".hoodie")[0])
        return Table.open(f"{self.root}/table").last_commit_extra(CHECKPOINT) if exists else None

    def extra(self) -> Mapping[str, str]:
        """Return the extra metadata of the newest commit."""
        return Table.open(f"{self.root}/table").commits()[-1][1].extra

    def rows(self) -> Counter[str]:
        """Return the number of rows of each key."""
        table = Table.open(f"{self.root}/table")
        return Counter(table.scan(columns=["id"]).to_arrow().column("id").to_pylist())


class FilesLanding(Landing):
    """An in-memory landing zone. Each call of `put` writes one file."""

    def __init__(self, by_interval: bool) -> None:
        super().__init__(by_interval)
        self.lake = MemoryStorage(self.root)
        self.lake.put("landing/_here", b"")
        self.written = 0

    def section(self) -> IngestSpec:
        path = f"{self.root}/landing/" + ("{start:%Y-%m-%d-%H}/" if self.by_interval else "")
        missing = "skip" if self.by_interval else None
        return file_ingest(path=path, missing=missing, operation="insert", max_bad_records=9)

    def source(self) -> Source[Any]:
        return files_source(self.spec())

    def put(self, *records: str, hour: int = 0) -> None:
        self.written += 1
        lines = [text if text.startswith(BAD) else json.dumps({"id": text, "p": "p", "ts": 1}) for text in records]
        name = f"landing/{START + timedelta(hours=hour):%Y-%m-%d-%H}/{self.written}.json"
        self.lake.put(name, "".join(f"{line}\n" for line in lines).encode())


class AscendingLanding(FilesLanding):
    """A landing zone of which only names after the checkpoint are listed."""

    def section(self) -> IngestSpec:
        return super().section() if self.by_interval else changed_ingest(super().section(), ascending_names=True)


class NotifiedLanding(FilesLanding):
    """A landing zone whose files are named by notifications; each file has one."""

    def section(self) -> IngestSpec:
        whole = super().section()
        return whole if self.by_interval else changed_ingest(whole, notifications=f"{self.root}-events/")

    def put(self, *records: str, hour: int = 0) -> None:
        super().put(*records, hour=hour)
        newest = max((file.path for file in self.lake.list("landing")), key=lambda path: (len(path), path))
        bucket, _, _ = self.root.partition("://")[2].partition("/")
        found = {"bucket": {"name": bucket}, "object": {"key": newest}}
        event = {"Records": [{"eventName": "ObjectCreated:Put", "s3": found}]}
        MemoryStorage(f"{self.root}-events").put(f"{self.written:04d}.json", json.dumps(event).encode())


def interval(hour: int) -> Interval:
    """Return the data interval of one hour."""
    return START + timedelta(hours=hour), START + timedelta(hours=hour + 1)
