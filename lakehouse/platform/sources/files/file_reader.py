"""Read chosen files into rows, and write the records that cannot become rows to the dead letters.

The number of bad records must be known before the write: it decides whether the run continues, and the commit records
it. Counting takes one pass over the records and the write takes another. JSON, CSV and Avro are therefore parsed once
and cached (in memory, then on the workers' disks) while they are counted, which costs less than parsing them twice.
Parquet and ORC are not cached.

Records that do not parse with the known types may parse with wider types. The types are then inferred once more, and
the files are read again if the schema policy allows the change.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

from lakehouse.core.rows.absent_columns import grouped
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UserError
from lakehouse.model.drift import BatchColumns, ColumnDrift, Drift
from lakehouse.platform.sources.dead_letters import DeadLetterBox, set_aside
from lakehouse.platform.sources.files.file_columns import (
    ReadPlan,
    check_format,
    file_source_of,
    plan_columns,
    widened_plan,
)
from lakehouse.platform.sources.files.file_listing import FileSelection
from lakehouse.platform.sources.files.file_probe import Probe, by_names, probe_files
from lakehouse.platform.sources.source import Batch, KnownColumns
from lakehouse.platform.sources.source_context import ingest_of
from lakehouse.spark.bad_records import (
    REASON,
    count_records,
    good_rows,
    mark_bad_records,
    pin,
    select_columns,
    selected,
    unpin,
)
from lakehouse.spark.event_files import read_events
from lakehouse.spark.sources import (
    INTERNAL,
    FileSet,
    Session,
    read_files,
    with_simple_lines,
)
from lakehouse.spec.sources.debezium import DEBEZIUM_FORMATS
from lakehouse.spec.sources.file_source import FileSourceSpec
from lakehouse.spec.table.table_spec import TableSpec

log = logging.getLogger(__name__)


@contextmanager
def open_batch(
    session: Session, files: FileSelection, spec: TableSpec, *, known: KnownColumns, dead_letters: DeadLetterBox
) -> Iterator[Batch | None]:
    """Read the files for the duration of a `with` block; None if they contain no records.

    Columns and types come from the spec, then from earlier runs, then from inference. A warning lists inferred columns.

    Args:
        session: The Spark session that reads.
        files: The files and their storage.
        spec: The spec of the table.
        known: The columns that are known before the files are read.
        dead_letters: The folder for bad records.

    Raises:
        UserError: Before anything is written to the table, for files that cannot be read, a `select` that does not fit,
            a missing key, partition or ordering column, column drift that the policy refuses, and more bad records than
            the spec allows.
    """
    settings = file_source_of(spec)
    check_format(spec)
    probes = probe_files(files.storage, files.files, settings.format, settings.options)
    if not probes:
        log.info("table %s: the files are empty", spec.table)
        yield None
        return
    sets = with_simple_lines(session, _file_sets(files.storage, probes, settings))
    plan = plan_columns(session, sets, spec, known)
    reading = _Reading(session, spec, plan)
    try:
        log.info("table %s: reading %s files", spec.table, len(probes))
        if reading.bad and not settings.declares_types and known.schema is not None:
            wider = widened_plan(session, plan, spec, known.policy)
            if wider is not plan:
                reading.close()
                reading = _Reading(session, spec, wider)
        log.info("table %s: %s records, %s of them bad", spec.table, sum(reading.records), reading.bad)
        allowed = ingest_of(spec).max_bad_records
        set_aside(reading.marked, reading.bad, spec.table, dead_letters, allowed=allowed)
        yield reading.batch(known)
    finally:
        reading.close()


class _Reading:
    """The counted records of one read plan; parsed records are cached until `close`."""

    def __init__(self, session: Session, spec: TableSpec, plan: ReadPlan) -> None:
        self._spec, self._plan, self._ingest = spec, plan, ingest_of(spec)
        settings = file_source_of(spec)
        read = read_events if settings.format in DEBEZIUM_FORMATS else read_files
        self._frame = read(session, [one.files for one in plan.sets], plan.schema)
        # A transform may compute the key, so it is checked after the transform.
        key = spec.record_key if self._ingest.transform is None else ()
        self.marked = mark_bad_records(select_columns(self._frame, self._ingest.select), key)
        self._pinned = settings.format not in ("parquet", "orc")
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
        """Release the cached records."""
        if self._pinned:
            unpin(self.marked)

    def batch(self, known_columns: KnownColumns) -> Batch:
        """Return the rows and, without a transform, the facts about their columns that the write needs."""
        if self._ingest.transform is not None:
            drift = BatchColumns(rows=sum(self._good), drift=self._plan.drift(self._good))
            return Batch(
                frame=good_rows(self.marked),
                rows=sum(self._good),
                bad_records=self.bad,
                schema=self._plan.schema,
                columns=drift,
            )
        lacking = self._lacking(known_columns)
        rows, columns = sum(self._good), frozenset(c for c in self.marked.columns if c not in (*INTERNAL, REASON))
        lacking_by_set = [names for names, good in zip(lacking, self._good, strict=True) if good]
        everywhere = frozenset.intersection(*lacking_by_set) if lacking_by_set else frozenset()
        # A table that this run creates has all declared columns.
        absent = everywhere - self._required if known_columns.is_stored else frozenset()
        counts = {
            name: sum(good for names, good in zip(lacking, self._good, strict=True) if name in names)
            for name in columns - absent
        }
        sparse = self._sparse()
        if not known_columns.is_stored:
            counts = {name: counts.get(name, 0) + sparse.get(name, 0) for name in (*counts, *sparse)}
        keeps = known_columns.policy.missing == "keep" and self._ingest.operation == "upsert"
        groups, bits = grouped([names - absent for names in lacking]) if keeps else ((), ())
        batch_columns = BatchColumns(
            rows=rows,
            lacks=groups,
            lacking_rows={name: count for name, count in counts.items() if count},
            nulled_rows=sparse if known_columns.is_stored else {},
            drift=(*self._plan.drift(self._good), *(() if known_columns.is_stored else _nulled(counts))),
        )
        frame = good_rows(self.marked, without=absent, bits=bits)
        return Batch(
            frame=frame,
            rows=rows,
            bad_records=self.bad,
            schema=self._plan.schema,
            columns=batch_columns,
            selected_from=self._plan.schema,
        )

    def _sparse(self) -> dict[str, int]:
        """Return the number of rows, by column, that lack a column of other records in their file.

        The number is an upper bound if there are bad records.
        """
        counts: dict[str, int] = {}
        keys = {name.split(".")[0] for name in self._spec.record_key}
        for one, good in zip(self._plan.sets, self._good, strict=True):
            for name, count in one.absent.items():
                read = {name} & set(self._plan.schema.names)
                for column in selected(self._frame, self._ingest.select, read) - keys:
                    counts[column] = counts.get(column, 0) + min(count, good)
        return {name: count for name, count in counts.items() if count and name in self.marked.columns}

    @property
    def _required(self) -> frozenset[str]:
        names = (*self._spec.record_key, *(column.name for column in self._spec.partition_by), *self._spec.ordering)
        return frozenset(name.split(".")[0] for name in names)

    def _lacking(self, known_columns: KnownColumns) -> list[frozenset[str]]:
        """Return the columns that are missing in each set of files.

        Raises UserError for files without a partition or ordering column: no stored value can replace them.
        """
        lacking = []
        required = self._required - {name.split(".")[0] for name in self._spec.record_key}
        for number, one in enumerate(self._plan.sets):
            names = selected(self._frame, self._ingest.select, self._plan.lacking(number))
            absent = sorted(names & required)
            if absent and known_columns.policy.missing != "null" and self._good[number]:
                file = one.files.address(one.files.paths[0])
                raise UserError(
                    f"table {self._spec.table}: {file} lacks the column {absent[0]!r}, a partition or ordering column. "
                    "Repair the file, or set missing_column: null in 'ingest' to write null",
                    column=absent[0],
                )
            # Rows without a key are bad records.
            lacking.append(names - {name.split(".")[0] for name in self._spec.record_key})
        return lacking


def _nulled(counts: Mapping[str, int]) -> Iterator[ColumnDrift]:
    """Return the columns that are missing in some rows of a new table."""
    return (ColumnDrift(column=c, change=Drift.NULLED, rows=n) for c, n in sorted(counts.items()) if n)


def _file_sets(storage: Storage, probes: Sequence[Probe], settings: FileSourceSpec) -> tuple[FileSet, ...]:
    is_csv = settings.format == "csv"
    groups = by_names(probes) if is_csv else {(): tuple(probe.file for probe in probes)}
    return tuple(
        FileSet(
            storage=storage,
            paths=tuple(file.path for file in files),
            format=settings.format,
            header=names if is_csv else (),
            options=settings.options,
            bytes=sum(file.size_bytes for file in files),
        )
        for names, files in groups.items()
    )
