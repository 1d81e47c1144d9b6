"""What the report of the demo shows: tables, partitions, commits, clusterings and runs, as values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

import pyarrow.compute as pc

from demo.chapters import Chapter
from demo.runs import DagRun
from lakehouse.core.operations.read.scan import Scan
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Action, Instant
from lakehouse.spec.table.location import location_of
from lakehouse.spec.table.table_spec import TableSpec

_PARTITION = "_hoodie_partition_path"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionFacts:
    """One partition of a table: rows, file groups and bytes."""

    name: str
    rows: int
    files: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CommitFacts:
    """One completed commit; `at` is its completion. A clustering rewrites rows, and does not insert them."""

    table: str
    instant: str
    at: datetime
    operation: str
    inserted: int
    updated: int
    rewritten: int
    files: int
    size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusteringFacts:
    """The newest clustering of a table: its files before and after, and those that a query with a filter reads."""

    table: str
    instant: str
    files: tuple[int, int]
    size: tuple[int, int]
    query: str
    query_files: tuple[int, int]
    query_size: tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class TableFacts:
    """One table; commits are in the order of their instants."""

    name: str
    location: str
    kind: str
    partitions: tuple[PartitionFacts, ...]
    commits: tuple[CommitFacts, ...]
    clustering: ClusteringFacts | None

    @property
    def rows(self) -> int:
        """The number of rows."""
        return sum(partition.rows for partition in self.partitions)

    @property
    def files(self) -> int:
        """The number of file groups."""
        return sum(partition.files for partition in self.partitions)

    @property
    def size(self) -> int:
        """The size of the newest files in bytes."""
        return sum(partition.size for partition in self.partitions)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoFacts:
    """The result of the demo.

    `runs` are in the order of their starts; `database` describes Airflow's database; `chapters` tell what changed.
    """

    tables: tuple[TableFacts, ...]
    runs: tuple[DagRun, ...]
    database: str
    made_at: datetime
    chapters: tuple[Chapter, ...] = ()


def table_of(spec: TableSpec, environ: Mapping[str, str]) -> Table | None:
    """Return the table of a spec; None before its first ingestion."""
    try:
        return Table.open(location_of(spec, environ), options=spec.call_options(), allowed_functions=spec.functions)
    except UserError:
        return None


def commits_of(table: Table | None) -> tuple[CommitFacts, ...]:
    """Return the commits of a table; none before its first ingestion."""
    if table is None:
        return ()
    return tuple(_commit(table.name, instant, metadata) for instant, metadata in table.commits())


def table_facts(table: Table, query: str | None) -> TableFacts:
    """Read what the report shows of a table.

    Args:
        table: The table.
        query: A condition on rows, if any. The report compares the files that it reads before and after clustering.
    """
    counted = table.scan(columns=[_PARTITION]).to_arrow().column(_PARTITION)
    rows = {entry["values"]: entry["counts"] for entry in pc.value_counts(counted).to_pylist()}
    summary = table.describe()
    return TableFacts(
        name=table.name,
        location=table.location,
        kind=summary.type,
        partitions=tuple(
            PartitionFacts(
                name=partition.partition,
                rows=rows.get(partition.partition, 0),
                files=partition.file_groups,
                size=partition.base_bytes + partition.log_bytes,
            )
            for partition in summary.partitions
        ),
        commits=commits_of(table),
        clustering=None if query is None else _clustering(table, query),
    )


def _clustering(table: Table, query: str) -> ClusteringFacts | None:
    commits = [instant for instant, _ in table.commits()]
    positions = [
        position
        for position, instant in enumerate(commits)
        if position and instant.action in (Action.REPLACECOMMIT, Action.CLUSTERING)
    ]
    if not positions:
        return None
    before, after = commits[positions[-1] - 1], commits[positions[-1]]
    whole = [_slices(table, instant, None) for instant in (before, after)]
    chosen = [_slices(table, instant, query) for instant in (before, after)]
    return ClusteringFacts(
        table=table.name,
        instant=after.requested,
        files=(len(whole[0]), len(whole[1])),
        size=(_size(whole[0]), _size(whole[1])),
        query=query,
        query_files=(len(chosen[0]), len(chosen[1])),
        query_size=(_size(chosen[0]), _size(chosen[1])),
    )


def _slices(table: Table, instant: Instant, where: str | None) -> Sequence[FileSlice]:
    scan = table.scan(where=where, as_of=instant.requested).plan()
    assert isinstance(scan, Scan)
    return scan.plan.slices


def _size(slices: Sequence[FileSlice]) -> int:
    return sum((part.base.size_bytes if part.base else 0) + part.total_log_bytes for part in slices)


def _commit(table: str, instant: Instant, metadata: CommitMetadata) -> CommitFacts:
    sums = Counter({"inserted": 0, "updated": 0, "size": 0})
    for stat in metadata.stats:
        sums.update(inserted=stat.num_inserts, updated=stat.num_updates, size=stat.size_bytes)
    operation = str(metadata.operation)
    rewrites = operation.lower() == "cluster"
    return CommitFacts(
        table=table,
        instant=instant.requested,
        at=_moment(instant.completion),
        operation=operation,
        inserted=0 if rewrites else sums["inserted"],
        updated=sums["updated"],
        rewritten=sums["inserted"] if rewrites else 0,
        files=len(metadata.stats),
        size=sums["size"],
    )


def _moment(digits: str) -> datetime:
    """Return the time of an instant; tables of the demo write UTC."""
    return datetime.strptime(digits.ljust(17, "0") + "000", "%Y%m%d%H%M%S%f").replace(tzinfo=UTC)
