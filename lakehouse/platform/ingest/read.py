"""From chosen files to rows that can be written, with what could not become a row set aside.

The number of bad records must be known before anything is written: it decides whether the run goes on, and the commit
carries it. Counting needs a pass over the records, and the write needs another. JSON and CSV are therefore parsed
once and pinned (in memory, beyond that on the workers' disks) while they are counted, which costs less than parsing
them again. Parquet is not pinned: its count reads the key columns alone.

Records that do not parse by the known types may do so by wider ones. Types are then inferred once more, and the files
are read again if the policy allows the change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lakehouse.core.rows.absent_columns import grouped
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UserError
from lakehouse.model.drift import BatchColumns, ColumnDrift, Drift
from lakehouse.platform.ingest.columns import ReadPlan, plan_columns, widened_plan
from lakehouse.platform.sources.file_checkpoint import SourceFile
from lakehouse.platform.sources.file_probe import Probe, by_names, probe_files
from lakehouse.spark.bad_records import (
    REASON,
    count_records,
    first_bad_record,
    good_rows,
    mark_bad_records,
    pin,
    select_columns,
    selected,
    unpin,
    write_dead_letters,
)
from lakehouse.spark.sources import (
    INTERNAL,
    FileSet,
    Frame,
    Schema,
    Session,
    check_reader_options,
    read_files,
)
from lakehouse.spec.ingest import IngestSpec
from lakehouse.spec.options.schema import SchemaPolicy
from lakehouse.spec.table import TableSpec

log = logging.getLogger(__name__)

#: The try whose letters no commit names, because there were too many of them.
REFUSED = "refused"
_RECORD_IN_MESSAGE = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetterBox:
    """Where bad records of some files go: a folder of a storage, which lies outside every table.

        <folder>/<attempt>/part-*.json    of one try to ingest the files; the commit that it makes names this folder
        <folder>/refused/part-*.json      of the last try that found more than the spec allows

    Every try has a folder of its own, so the letters of a commit are whole, each is there once, and no other try, dead
    or alive, ever touches them.
    """

    storage: Storage
    folder: str
    attempt: str

    @property
    def url(self) -> str:
        """The folder of this try as a person types it."""
        return self.url_of(self.attempt)

    def url_of(self, attempt: str) -> str:
        """The folder of some try as a person types it."""
        return f"{self.storage.root.rstrip('/')}/{self.folder}/{attempt}"

    def path_of(self, attempt: str) -> str:
        """The folder of some try below the storage."""
        return f"{self.folder}/{attempt}"

    def others(self) -> tuple[str, ...]:
        """Return the other tries to ingest these files that left letters."""
        return tuple(name for name in self.storage.list_dir(self.folder)[1] if name != self.attempt)

    def empty(self, attempt: str) -> None:
        """Delete the letters of a try."""
        self.storage.delete_many([file.path for file in self.storage.list(self.path_of(attempt))])


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """The rows of a run: `frame` to write, `rows` in it, `bad_records` set aside, `schema` by which files were read.

    `columns` says which rows lack which columns, and what was not read.
    """

    frame: Frame
    rows: int
    bad_records: int
    schema: Schema
    columns: BatchColumns | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What is known of the columns before files are read: the policy, and of the table what earlier runs read.

    `schema` is None where nothing is known; `is_stored` says that there is a table.
    """

    policy: SchemaPolicy
    schema: Schema | None = None
    is_stored: bool = False


@contextmanager
def open_batch(
    session: Session,
    storage: Storage,
    files: Sequence[SourceFile],
    spec: TableSpec,
    *,
    known: Known,
    dead_letters: DeadLetterBox,
) -> Iterator[Batch | None]:
    """Read the files for the time of a `with` block; None when they hold nothing.

    Columns and types are those that the spec declares, then those that earlier runs read, then inferred, with a warning
    that says them. Raises UserError, before anything is written to the table, for files that cannot be read, a `select`
    that does not fit, a missing key, partition or ordering column, drift that the policy refuses, and more bad records
    than the spec allows.
    """
    ingest = ingest_of(spec)
    check_reader_options(ingest.options, ingest.format)
    probes = probe_files(storage, files, ingest.format, ingest.options)
    if not probes:
        log.info("table %s: the files are empty", spec.table)
        yield None
        return
    plan = plan_columns(session, _file_sets(storage, probes, ingest), spec, known.schema, known.policy)
    reading = _Reading(session, spec, plan)
    try:
        log.info("table %s: reading %s files", spec.table, len(probes))
        if reading.bad and ingest.format != "parquet" and known.schema is not None:
            wider = widened_plan(session, plan, spec, known.policy)
            if wider is not plan:
                reading.close()
                reading = _Reading(session, spec, wider)
        log.info("table %s: %s records, %s of them bad", spec.table, sum(reading.records), reading.bad)
        _set_aside(reading.marked, reading.bad, spec, dead_letters)
        yield reading.batch(known)
    finally:
        reading.close()


class _Reading:
    """The records of a run by one plan, counted; text is parsed once and pinned until `close`."""

    def __init__(self, session: Session, spec: TableSpec, plan: ReadPlan) -> None:
        self._spec, self._plan, self._ingest = spec, plan, ingest_of(spec)
        self._frame = read_files(session, [one.files for one in plan.sets], plan.schema)
        self.marked = mark_bad_records(select_columns(self._frame, self._ingest.select), spec.record_key)
        self._pinned = self._ingest.format != "parquet"
        if self._pinned:
            pin(self.marked)
        try:
            counts = count_records(self.marked, len(plan.sets))
        except BaseException:
            self.close()
            raise
        self.records = tuple(records for records, _ in counts)
        self.bad = sum(bad for _, bad in counts)
        self._good = tuple(records - bad for records, bad in counts)

    def close(self) -> None:
        """Release what is pinned."""
        if self._pinned:
            unpin(self.marked)

    def batch(self, known: Known) -> Batch:
        """Return the rows, and what the write has to know of their columns."""
        lacking = self._lacking(known)
        rows, columns = sum(self._good), frozenset(c for c in self.marked.columns if c not in (*INTERNAL, REASON))
        brought = [names for names, good in zip(lacking, self._good, strict=True) if good]
        everywhere = frozenset.intersection(*brought) if brought else frozenset()
        # A table that is made by this run has all columns that are declared.
        absent = everywhere - self._required if known.is_stored else frozenset()
        counts = {
            name: sum(good for names, good in zip(lacking, self._good, strict=True) if name in names)
            for name in columns - absent
        }
        sparse = self._sparse()
        if not known.is_stored:
            counts = {name: counts.get(name, 0) + sparse.get(name, 0) for name in (*counts, *sparse)}
        keeps = known.policy.missing == "keep" and self._ingest.operation == "upsert"
        groups, bits = grouped([names - absent for names in lacking]) if keeps else ((), ())
        told = BatchColumns(
            rows=rows,
            lacks=groups,
            lacking_rows={name: count for name, count in counts.items() if count},
            nulled_rows=sparse if known.is_stored else {},
            drift=(*self._plan.drift(self._good), *(() if known.is_stored else _nulled(counts))),
        )
        frame = good_rows(self.marked, without=absent, bits=bits)
        return Batch(frame=frame, rows=rows, bad_records=self.bad, schema=self._plan.schema, columns=told)

    def _sparse(self) -> dict[str, int]:
        """Return how many rows lack a column that other records of their file have; at most, where records are bad."""
        found: dict[str, int] = {}
        keys = {name.split(".")[0] for name in self._spec.record_key}
        for one, good in zip(self._plan.sets, self._good, strict=True):
            for name, count in one.absent.items():
                read = {name} & set(self._plan.schema.names)
                for column in selected(self._frame, self._ingest.select, read) - keys:
                    found[column] = found.get(column, 0) + min(count, good)
        return {name: count for name, count in found.items() if count and name in self.marked.columns}

    @property
    def _required(self) -> frozenset[str]:
        names = (*self._spec.record_key, *(column.name for column in self._spec.partition_by), *self._spec.ordering)
        return frozenset(name.split(".")[0] for name in names)

    def _lacking(self, known: Known) -> list[frozenset[str]]:
        """Return the columns of the rows that each set of files lacks.

        Raises UserError for files without a partition or ordering column: nothing that is stored says what to write.
        """
        found = []
        required = self._required - {name.split(".")[0] for name in self._spec.record_key}
        for number, one in enumerate(self._plan.sets):
            names = selected(self._frame, self._ingest.select, self._plan.lacking(number))
            gone = sorted(names & required)
            if gone and known.policy.missing != "null" and self._good[number]:
                file = one.files.address(one.files.paths[0])
                raise UserError(
                    f"table {self._spec.table}: {file} lacks the column {gone[0]!r}, by which rows are partitioned or "
                    "ordered. Mend the file, or set missing_column: null in 'ingest' to "
                    "write null",
                    column=gone[0],
                )
            # Rows without a key are bad records.
            found.append(names - {name.split(".")[0] for name in self._spec.record_key})
        return found


def _nulled(counts: Mapping[str, int]) -> Iterator[ColumnDrift]:
    """Yield the columns of a new table that some of its first rows lack."""
    return (ColumnDrift(column=c, change=Drift.NULLED, rows=n) for c, n in sorted(counts.items()) if n)


def ingest_of(spec: TableSpec) -> IngestSpec:
    """Return the `ingest` part of a spec; raise UserError if it has none."""
    if spec.ingest is None:
        raise UserError(
            f"table {spec.table} declares no ingestion: add 'ingest' with a path to {spec.source or 'its spec'}",
            table=spec.table,
        )
    return spec.ingest


def _file_sets(storage: Storage, probes: Sequence[Probe], ingest: IngestSpec) -> tuple[FileSet, ...]:
    is_csv = ingest.format == "csv"
    groups = by_names(probes) if is_csv else {(): tuple(probe.file for probe in probes)}
    return tuple(
        FileSet(
            storage=storage,
            paths=tuple(file.path for file in files),
            format=ingest.format,
            header=names if is_csv else (),
            options=ingest.options,
        )
        for names, files in groups.items()
    )


def _set_aside(marked: Frame, bad: int, spec: TableSpec, box: DeadLetterBox) -> None:
    """Write the dead letters; raise UserError when there are more than the spec allows."""
    allowed = ingest_of(spec).max_bad_records
    if not bad:
        return
    if bad <= allowed:
        write_dead_letters(marked, box.storage, box.path_of(box.attempt))
        log.warning("table %s: %s bad records were set aside in %s", spec.table, bad, box.url)
        return
    box.empty(REFUSED)
    write_dead_letters(marked, box.storage, box.path_of(REFUSED))
    reason, source_file, record = first_bad_record(marked)
    raise UserError(
        f"table {spec.table}: {bad} bad record{'s' if bad > 1 else ''}, max_bad_records is {allowed}; nothing was "
        f"written to the table. One of them: {reason}, in {source_file}: {record[:_RECORD_IN_MESSAGE]!r}. "
        f"All are in {box.url_of(REFUSED)}",
        bad_records=bad,
        dead_letters=box.url_of(REFUSED),
    )
