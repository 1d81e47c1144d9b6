"""The tables of the demo's story: small files, a backlog of log files, late records, a new column and a bad write.

The engine without Spark writes them in this process, in a few seconds. Each is registered in the catalog, so that the
scheduler of services and the pages see it:

    rides.gps_points         240 small files; the scheduler clusters them, which resolves their alarm
    rides.driver_positions   merge-on-read; its log files are compacted while a writer commits
    rides.trip_ratings       gets a column, and a bad write that is rolled back
    rides.app_events         160 small files that no policy clusters: for a *Request* on its page
"""

from __future__ import annotations

import shutil
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from demo.chapters import Chapter, read_chapters, write_chapters
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.table.table import Table
from lakehouse.platform.catalog.alarms import Alarm, AlarmState
from lakehouse.platform.catalog.catalog import Catalog

NAMESPACE = "rides"
GPS, POSITIONS, RATINGS, EVENTS = (
    f"{NAMESPACE}.{name}" for name in ("gps_points", "driver_positions", "trip_ratings", "app_events")
)
#: A query that a clustered table answers with fewer files.
GPS_QUERY = "zone = 'zone-003'"
_AUTHOR = "demo"
_DISTRICTS = 10
_GPS_COMMITS, _EVENTS_COMMITS, _ROWS = 24, 16, 2_000
_DRIVERS, _POSITION_COMMITS = 2_000, 16
#: New rows get files of their own: that is how a table gets small files.
_SMALL_FILES = {"hoodie.parquet.small.file.limit": "0"}
#: The number of files of a clustered table: one per district.
CLUSTERED = _DISTRICTS
#: The scheduler clusters the points; no number of commits makes a clustering of the other tables due.
_POLICIES: Mapping[str, Mapping[str, Any]] = {
    GPS: {"sort_columns": "zone,at"},
    EVENTS: {"max_commits": 100_000},
    POSITIONS: {"max_commits": 100_000},
}


@dataclass(slots=True)
class Story:
    """The tables of the story below a folder, and the chapters so far.

    `kept` is the file of the chapters, and `is_written` says that an earlier run of the demo wrote it.
    """

    lake: Path
    catalog: Catalog
    kept: Path
    chapters: list[Chapter] = field(default_factory=list)
    is_written: bool = False

    def write(self) -> None:
        """Write the tables, register them, and add the chapters that need no Airflow."""
        self._clear()
        self._append(GPS, _GPS_COMMITS, {"zone": _zones, "speed": _numbers})
        self._append(EVENTS, _EVENTS_COMMITS, {"zone": _zones, "screen": _screens})
        self._positions()
        self._ratings()
        for name, settings in _POLICIES.items():
            self.catalog.set_policy(name, "clustering", dict(settings), author=_AUTHOR)

    def table(self, name: str) -> Table:
        """Return a table of the story."""
        return self.catalog.load_table(name)

    def files(self, name: str) -> int:
        """Return the number of files of a table."""
        return self.table(name).health().file_groups

    def open_alarms(self, name: str) -> tuple[Alarm, ...]:
        """Return the open alarms of a table."""
        return self.catalog.alarms.find(tables=(name,))

    def resolved_alarms(self, name: str) -> tuple[Alarm, ...]:
        """Return the resolved alarms of a table."""
        return self.catalog.alarms.find(tables=(name,), state=AlarmState.RESOLVED)

    def keep(self, chapters: Sequence[Chapter]) -> None:
        """Write all chapters, for a second run of the demo."""
        write_chapters(self.kept, chapters)

    def _create(self, name: str, **settings: Any) -> Table:
        location = str(self.lake / name.rpartition(".")[2])
        table = Table.create(location, name=name, ordering="at", **settings)
        self.catalog.register_table(name, location, author=_AUTHOR)
        return table

    def _append(self, name: str, commits: int, columns: Mapping[str, Any]) -> None:
        """Write one small file per district and commit, as a stream does that commits each minute."""
        made = self._create(name, record_key="id", partition_by="district").with_options(_SMALL_FILES)
        for number in range(commits):
            rng = np.random.default_rng(number)
            rows = {
                "id": [f"{number:03d}-{row:06d}" for row in range(_ROWS)],
                "district": [f"district-{row % _DISTRICTS + 1}" for row in range(_ROWS)],
                "at": np.full(_ROWS, number, dtype=np.int64),
            }
            made.insert(pa.table({**rows, **{column: values(rng) for column, values in columns.items()}}))

    def _positions(self) -> None:
        made = self._create(POSITIONS, record_key="driver", partition_by="city", table_type="MERGE_ON_READ")
        for at in range(_POSITION_COMMITS):
            made.upsert(_positions(at + 100))
        before = made.health()
        added = self._compact_beside_a_writer(made)
        after = made.health()
        self._add(
            "Log backlog",
            POSITIONS,
            "log files that each query merges",
            f"{before.log_files} ({before.log_bytes:,} bytes)",
            f"{after.log_files} ({after.log_bytes:,} bytes)",
            f"A compaction merged them into base files; {added} commits of a writer completed meanwhile, none waited.",
        )
        newest = _by_driver(made)
        late = pa.concat_tables([_positions(5), _positions(6, first=_DRIVERS, drivers=50)])
        made.upsert(late)
        stored = _by_driver(made)
        replaced = sum(stored[driver] != at for driver, at in newest.items())
        self._add(
            "Late data",
            POSITIONS,
            "drivers with a position",
            f"{len(newest):,}",
            f"{len(stored):,}",
            f"{late.num_rows:,} records arrived late: {replaced} of them replaced a newer row, and "
            f"{len(stored) - len(newest)} are new.",
        )

    def _compact_beside_a_writer(self, table: Table) -> int:
        """Compact the table while another writer commits, and return the number of its commits meanwhile."""
        table.services.compaction.schedule(force=True)
        writer = Table.open(table.location)
        compacted, first = threading.Event(), threading.Event()
        written: list[object] = []
        failures: list[BaseException] = []

        def write() -> None:
            try:
                while not written or not (compacted.is_set() or len(written) >= 3):
                    written.append(writer.upsert(_positions(200 + len(written), drivers=40)))
                    first.set()
            except BaseException as error:
                failures.append(error)
                first.set()

        thread = threading.Thread(target=write, name="writer of the demo")  # noqa: TID251 -- a real concurrent writer
        thread.start()
        try:
            # The plan is on the timeline, and the first commit follows it.
            first.wait()
            table.services.compaction.run()
        finally:
            compacted.set()
            thread.join()
        if failures:
            raise failures[0]
        return len(written)

    def _ratings(self) -> None:
        made = self._create(RATINGS, record_key="trip")
        made.insert(_ratings(0, 3_000))
        columns = len(_data_columns(made))
        wider = _ratings(3_000, 1_000)
        made.upsert(wider.append_column("comment", pa.array(["fine"] * wider.num_rows)))
        rows = made.scan(columns=["comment"]).to_arrow()
        self._add(
            "Schema change",
            RATINGS,
            "columns",
            str(columns),
            str(len(_data_columns(made))),
            f"A writer added the column 'comment'; {rows.num_rows - rows['comment'].null_count:,} rows have it, and "
            f"{rows['comment'].null_count:,} older rows read as null. No file was rewritten for it.",
        )
        good = _mean(made)
        bad = _ratings(0, 4_000).set_column(1, "stars", pa.array(np.full(4_000, 500, dtype=np.int64)))
        outcome = made.upsert(bad.set_column(2, "at", pa.array(np.full(4_000, 9, dtype=np.int64))))
        worst = _mean(made)
        assert isinstance(outcome, Committed), "the rows are new"
        made.rollback(outcome.instant.requested)
        self._add(
            "Bad write",
            RATINGS,
            "average of 1 to 5 stars",
            f"{worst:.2f}",
            f"{_mean(made):.2f}",
            f"A job wrote 500 stars for each trip. The rollback of its commit restored {good:.2f}, as before.",
        )

    def _clear(self) -> None:
        """Remove the tables of a run that was interrupted."""
        for name in (GPS, POSITIONS, RATINGS, EVENTS):
            if self.catalog.table_exists(name):
                self.catalog.drop_table(name)
            shutil.rmtree(self.lake / name.rpartition(".")[2], ignore_errors=True)

    # parameters: the fields of a chapter
    def _add(self, title: str, table: str, measure: str, before: str, after: str, text: str) -> None:
        self.chapters.append(Chapter(title=title, table=table, measure=measure, before=before, after=after, text=text))


def open_story(home: Path, catalog: Catalog) -> Story:
    """Return the story of the demo in a home, with the chapters of an earlier run."""
    path = home / "story.json"
    chapters = read_chapters(path)
    return Story(lake=home / "lake", catalog=catalog, kept=path, chapters=list(chapters), is_written=bool(chapters))


def _zones(rng: np.random.Generator) -> pa.Array:
    return pa.array([f"zone-{number:03d}" for number in rng.integers(1, 120, _ROWS)])


def _numbers(rng: np.random.Generator) -> pa.Array:
    return pa.array(rng.random(_ROWS).round(3) * 60)


def _screens(rng: np.random.Generator) -> pa.Array:
    return pa.array([("map", "order", "pay", "rate")[number] for number in rng.integers(0, 4, _ROWS)])


def _positions(at: int, *, first: int = 0, drivers: int = _DRIVERS) -> pa.Table:
    numbers = np.arange(first, first + drivers)
    return pa.table(
        {
            "driver": [f"d{number:05d}" for number in numbers],
            "city": [f"city-{number % 4 + 1}" for number in numbers],
            "at": np.full(drivers, at, dtype=np.int64),
            "lat": 52 + numbers / 10_000 + at / 1_000,
            "lon": 13 + numbers / 10_000,
        }
    )


def _ratings(first: int, rows: int) -> pa.Table:
    numbers = np.arange(first, first + rows)
    return pa.table({"trip": [f"t{number:06d}" for number in numbers], "stars": numbers % 5 + 1, "at": numbers * 0 + 1})


def _data_columns(table: Table) -> list[str]:
    return [name for name in table.scan().to_arrow().schema.names if not name.startswith("_hoodie")]


def _by_driver(table: Table) -> dict[str, int]:
    rows = table.scan(columns=["driver", "at"]).to_arrow()
    return dict(zip(rows["driver"].to_pylist(), rows["at"].to_pylist(), strict=True))


def _mean(table: Table) -> float:
    return float(pc.mean(table.scan(columns=["stars"]).to_arrow()["stars"]).as_py())
