"""Ingestion without Spark: `lakehouse.platform.ingest.run` with JSON files in memory that Arrow reads.

Every record and every invalid line has a unique name, so tests can count them.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import Any, TypeVar

import pyarrow as pa

from lakehouse.core.env import Env
from lakehouse.core.storage.fault_injection import FaultyStorage
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.platform.ingest.run import DEAD_LETTERS, IngestContext, ingest
from lakehouse.platform.sources.dead_letters import DeadLetterBox
from lakehouse.platform.sources.files.file_listing import FileSelection
from lakehouse.platform.sources.files.file_source import FilesSource
from lakehouse.platform.sources.source import Batch, Source
from lakehouse.spec.contracts.job import IngestReport
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.table.table_spec import PartitionField, TableSpec
from tests.support.file_ingest import file_ingest, files_of
from tests.support.killed import Host

T = TypeVar("T")
BAD = "bad"


class Beside(FaultyStorage):
    """A second store of the same process. Its calls count as steps of the first store."""

    def __init__(self, inner: Storage, owner: FaultyStorage) -> None:
        super().__init__(inner)
        self.owner = owner

    def step(self, name: str, call: Callable[[], T]) -> T:
        """Execute the call as a step of the first store."""
        return self.owner.step(f"{name} (letters)", call)


@contextmanager
def read_lines(
    files: FileSelection, spec: TableSpec, *, known: object, dead_letters: DeadLetterBox
) -> Iterator[Batch | None]:
    """Read files as `open_batch` does, without Spark."""
    lines = [line for file in files.files for line in files.storage.get(file.path).decode().splitlines()]
    letters = [line for line in lines if line.startswith(BAD)]
    rows = [json.loads(line) for line in lines if not line.startswith(BAD)]
    for number, letter in enumerate(letters):
        path = f"{dead_letters.path_of(dead_letters.attempt)}/part-{number}.json"
        dead_letters.storage.put(path, letter.encode())
    schema = pa.schema({"id": pa.string(), "p": pa.string(), "ts": pa.int64()})
    frame: Any = pa.Table.from_pylist(rows, schema)
    read: Any = schema
    yield Batch(frame=frame, rows=len(rows), bad_records=len(letters), schema=read)


def files_source(spec: TableSpec) -> FilesSource:
    """Return the files source of a spec, with `read_lines` as its reader."""
    return FilesSource(spec=spec, settings=files_of(spec.ingest), storage_options={}, reader=read_lines)


@dataclass
class Landing:
    """A lake in memory: landing files, a table and dead letters, with the processes that ingest.

    `landed` and `letters` count the valid records and the invalid lines of the landing files by name.
    """

    name: str
    operation: str = "insert"
    table_type: str = "COPY_ON_WRITE"
    by_interval: bool = False
    options: dict[str, str] = field(default_factory=dict)
    landed: Counter[str] = field(default_factory=Counter)
    letters: Counter[str] = field(default_factory=Counter)
    last_pid: int = 100
    dead: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.lake = MemoryStorage(f"memory://{self.name}")
        self.lake.delete_many([file.path for file in self.lake.list("")])
        # The landing folder has to exist before the first file.
        self.lake.put("landing/_here", b"")

    @property
    def location(self) -> str:
        """The location of the table."""
        return f"memory://{self.name}/table"

    @property
    def spec(self) -> TableSpec:
        """The spec of the table and its source."""
        path = "/{start:%Y-%m-%d}/" if self.by_interval else "/"
        return TableSpec(
            table="t",
            location=self.location,
            record_key=("id",),
            partition_by=(PartitionField(name="p"),),
            ordering=("ts",),
            type=self.table_type,
            options=self.options,
            schema={"id": "string", "p": "string", "ts": "bigint"},
            ingest=file_ingest(
                path=f"memory://{self.name}/landing{path}", operation=self.operation, max_bad_records=10**6
            ),
        )

    def source(self) -> Source[Any]:
        """Return the source of a run."""
        return files_source(self.spec)

    def land(self, name: str, rows: int, bad: int, day: int = 0) -> None:
        """Create a landing file with `rows` valid records and `bad` invalid lines."""
        ids = [f"{name}-{number}" for number in range(rows)]
        lines = [json.dumps({"id": key, "p": f"p{number % 2}", "ts": 1}) for number, key in enumerate(ids)]
        letters = [f"{BAD} {name}-{number}" for number in range(bad)]
        self.lake.put(f"landing/{_text(day)}/{name}.json", "".join(f"{line}\n" for line in [*lines, *letters]).encode())
        self.landed.update(ids)
        self.letters.update(letters)

    def run(
        self,
        storage: FaultyStorage | None = None,
        *,
        day: int = 0,
        run_id: str = "run",
        pid: int | None = None,
        dead: Iterable[int] | None = None,
        full_refresh: bool = False,
    ) -> IngestReport:
        """Run one ingestion as a new process; `storage` is the store through which this process sees the table."""
        self.last_pid += 1
        faulty = storage or FaultyStorage(self.store)
        ended = frozenset(self.dead if dead is None else dead)
        command = IngestCommand(
            table="t",
            run_id=run_id,
            full_refresh=full_refresh,
            interval_start=_text(day) if self.by_interval else None,
            interval_end=_text(day + 1) if self.by_interval else None,
        )
        return ingest(
            IngestContext(
                source=self.source(),
                spec=self.spec,
                command=command,
                options=self.spec.write_options(),
                env=Env(storage=faulty, processes=Host(pid or self.last_pid, ended)),
                open=lambda place: Beside(open_storage(place), faulty),
            )
        )

    @property
    def store(self) -> Storage:
        """The store of the table."""
        return open_storage(self.location)

    @property
    def table(self) -> Table:
        """The table as a process without faults sees it."""
        return Table.open(self.location, env=Env(storage=self.store, processes=Host(999)))

    def rows(self) -> Counter[str]:
        """The number of rows in the table by record name."""
        # Before the first commit, the table may not exist or have no columns.
        if not self.store.list_dir(".hoodie")[0] or not len(self.table.schema):
            return Counter()
        return Counter(self.table.scan(columns=["id"]).to_arrow().column("id").to_pylist())

    def named_letters(self) -> Counter[str]:
        """The number of dead letters by text, in the folders that commits name."""
        boxes = [extra for _, metadata in self.table.commits() if (extra := metadata.extra.get(DEAD_LETTERS))]
        found: Counter[str] = Counter()
        for box in boxes:
            store = open_storage(box)
            found.update(store.get(file.path).decode() for file in store.list(""))
        return found

    def all_letters(self) -> Counter[str]:
        """The number of dead letters by text, in all folders."""
        store = open_storage(f"{self.location}_dead_letters")
        return Counter(store.get(file.path).decode() for file in store.list(""))


def _text(day: int) -> str:
    return str(date(2026, 1, 1) + timedelta(days=day))
