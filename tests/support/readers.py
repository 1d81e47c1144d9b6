"""Try the cells of the matrix of readers (tests/interop/readers.yaml) on small tables with known rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import pyarrow as pa

from docs.generators.readers import Reader
from lakehouse.core.table.table import Table
from tests.support.hudi import Hudi

FIRST = {"k0": "first", "k1": "first", "k2": "first", "k3": "first"}
CHANGED = {"k0": "second"}
LATEST = FIRST | CHANGED
TYPES = ("COPY_ON_WRITE", "MERGE_ON_READ")

_HUDI_OPTIONS = {
    "hoodie.table.name": "six",
    "hoodie.datasource.write.recordkey.field": "id",
    "hoodie.datasource.write.partitionpath.field": "p",
    "hoodie.datasource.write.precombine.field": "ts",
    "hoodie.index.type": "SIMPLE",
    "hoodie.bulkinsert.shuffle.parallelism": "1",
    "hoodie.upsert.shuffle.parallelism": "1",
    "hoodie.metadata.enable": "false",
    "hoodie.clean.automatic": "false",
}


class Query(Enum):
    """What is read of a table."""

    SNAPSHOT = "snapshot"
    READ_OPTIMIZED = "read_optimized"
    #: The rows as of the first commit.
    AS_OF = "as_of"
    #: The rows that the second commit changed.
    INCREMENTAL = "incremental"


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A table that has two commits: the first inserts FIRST, the second updates CHANGED.

    `start` and `end` are the bounds of an incremental read, exclusive and inclusive: requested instant times in version
    6, completion times in later versions.
    """

    version: int
    table_type: str
    location: str
    first: str
    start: str
    end: str


#: Reads the columns id and v of a sample; raises an exception if the reader refuses it.
Read = Callable[[Sample, Query], pa.Table]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """A read that tries one column of the matrix, and its rows."""

    column: str
    query: Query
    table_types: tuple[str, ...]
    rows: Mapping[str, str]


ATTEMPTS = (
    Attempt(column="copy_on_write", query=Query.SNAPSHOT, table_types=TYPES[:1], rows=LATEST),
    Attempt(column="merge_on_read", query=Query.SNAPSHOT, table_types=TYPES[1:], rows=LATEST),
    Attempt(column="read_optimized", query=Query.READ_OPTIMIZED, table_types=TYPES[1:], rows=FIRST),
    Attempt(column="time_travel", query=Query.AS_OF, table_types=TYPES, rows=FIRST),
    Attempt(column="incremental", query=Query.INCREMENTAL, table_types=TYPES, rows=CHANGED),
)


def batch(values: Mapping[str, str], ts: int) -> pa.Table:
    """Return the rows of a commit, in two partitions."""
    keys = list(values)
    parts = ["even" if int(key[1:]) % 2 == 0 else "odd" for key in keys]
    return pa.table({"id": keys, "p": parts, "ts": [ts] * len(keys), "v": list(values.values())})


def samples_of_lakehouse(directory: Path) -> Iterator[Sample]:
    """Write and yield tables of the versions 8 and 9."""
    for version in (8, 9):
        for table_type in TYPES:
            table = Table.create(
                str(directory / f"{table_type}_{version}"),
                name=f"sample_{version}",
                record_key=["id"],
                partition_by=["p"],
                ordering="ts",
                table_type=table_type,
                options={"hoodie.write.table.version": str(version)},
            )
            table.insert(batch(FIRST, 1))
            table.upsert(batch(CHANGED, 2))
            yield _sample(table)


def samples_of_hudi(hudi: Hudi, directory: Path) -> Iterator[Sample]:
    """Write with Hudi 0.15, and yield, tables of version 6."""
    for table_type in TYPES:
        location = str(directory / f"{table_type}_6")
        options = _HUDI_OPTIONS | {"hoodie.datasource.write.table.type": table_type}
        insert = {"hoodie.datasource.write.operation": "bulk_insert"}
        hudi.write(location, batch(FIRST, 1), options | insert, mode="overwrite")
        hudi.write(location, batch(CHANGED, 2), options)
        yield _sample(Table.open(location))


def read_by_hudi(hudi: Hudi) -> Read:
    """Return the reads of a release of Apache Hudi."""

    def read(sample: Sample, query: Query) -> pa.Table:
        if query is Query.AS_OF:
            options = {"as.of.instant": sample.first}
        else:
            options = {"hoodie.datasource.query.type": query.value}
        if query is Query.INCREMENTAL:
            options["hoodie.datasource.read.begin.instanttime"] = sample.start
            options["hoodie.datasource.read.end.instanttime"] = sample.end
        return hudi.collect(sample.location, ("id", "v"), options)

    return read


def contradictions(reader: Reader, samples: Iterable[Sample], read: Read) -> Iterator[str]:
    """Yield one line for each read of a reader whose result is not that of its row in the matrix."""
    for sample in samples:
        for attempt in ATTEMPTS:
            if sample.table_type in attempt.table_types and (difference := _differs(reader, sample, attempt, read)):
                yield f"{reader.name}, {sample.table_type} of version {sample.version}, {attempt.column}: {difference}"


def _differs(reader: Reader, sample: Sample, attempt: Attempt, read: Read) -> str:
    """Return the difference between a read and the matrix; empty if there is none."""
    is_version_read, is_column_read = reader.reads(sample.version), reader.cells[attempt.column].reads
    promised = bool(is_version_read and is_column_read)
    try:
        table = read(sample, attempt.query)
        rows = dict(zip(table.column("id").to_pylist(), table.column("v").to_pylist(), strict=True))
    except Exception as error:
        if promised:
            return f"the matrix says yes, and the read fails: {error}"
        if not is_version_read and not re.search(reader.refusal or r"\Z\A.", str(error)):
            return f"the refusal is not the documented one: {error}"
        return ""
    if not promised:
        return f"the matrix says no, and the read returns {rows}"
    return "" if rows == attempt.rows else f"{rows} instead of {dict(attempt.rows)}"


def _sample(table: Table) -> Sample:
    first, second = (instant for instant, _ in table.commits())
    by_request = table.config.version == 6
    start, end = (instant.requested if by_request else instant.completion for instant in (first, second))
    return Sample(
        version=table.config.version,
        table_type=table.config.table_type,
        location=table.location,
        first=first.requested,
        start=start,
        end=end,
    )
