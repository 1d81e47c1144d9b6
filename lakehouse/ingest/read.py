"""From chosen files to rows that can be written, with what could not become a row set aside.

The number of bad records must be known before anything is written: it decides whether the run goes on, and the commit
carries it. Counting needs a pass over the records, and the write needs another. JSON and CSV are therefore parsed
once and pinned (in memory, beyond that on the workers' disks) while they are counted, which costs less than parsing
them again. Parquet is not pinned: its count reads the key columns alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from lakehouse.errors import UserError
from lakehouse.ingest.checkpoint import SourceFile
from lakehouse.ingest.probe import Probe, by_names, probe_files
from lakehouse.spark.bad_records import (
    count_records,
    first_bad_record,
    good_rows,
    mark_bad_records,
    pin,
    select_columns,
    unpin,
    write_dead_letters,
)
from lakehouse.spark.sources import (
    FileSet,
    Frame,
    Schema,
    Session,
    check_reader_options,
    declared_schema,
    describe,
    infer_schema,
    read_files,
)
from lakehouse.spec.ingest import IngestSpec
from lakehouse.spec.table import TableSpec
from lakehouse.storage.protocol import Storage

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
    """The rows of a run: `frame` to write, `rows` in it, `bad_records` set aside, `schema` by which files were read."""

    frame: Frame
    rows: int
    bad_records: int
    schema: Schema


@contextmanager
def open_batch(
    session: Session,
    storage: Storage,
    files: Sequence[SourceFile],
    spec: TableSpec,
    *,
    known_schema: Schema | None,
    dead_letters: DeadLetterBox,
) -> Iterator[Batch | None]:
    """Read the files for the time of a `with` block; None when they hold nothing.

    Columns and types are those that the spec declares, else `known_schema`, else inferred, with a warning that says
    them. Raises UserError, before anything is written to the table, for files that cannot be read, a `select` that does
    not fit, a missing key column, and more bad records than the spec allows.
    """
    ingest = ingest_of(spec)
    check_reader_options(ingest.options, ingest.format)
    probes = probe_files(storage, files, ingest.format, ingest.options)
    if not probes:
        log.info("table %s: the files are empty", spec.table)
        yield None
        return
    sets = _file_sets(storage, probes, ingest)
    schema = _schema(session, sets, spec, known_schema)
    _warn_of_ignored(spec, schema, probes)
    marked = mark_bad_records(select_columns(read_files(session, sets, schema), ingest.select), spec.record_key)
    pinned = ingest.format != "parquet"
    if pinned:
        pin(marked)
    try:
        log.info("table %s: reading %s files", spec.table, len(probes))
        records, bad = count_records(marked)
        log.info("table %s: %s records, %s of them bad", spec.table, records, bad)
        _set_aside(marked, bad, spec, dead_letters)
        yield Batch(frame=good_rows(marked), rows=records - bad, bad_records=bad, schema=schema)
    finally:
        if pinned:
            unpin(marked)


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


def _schema(session: Session, sets: Sequence[FileSet], spec: TableSpec, known: Schema | None) -> Schema:
    if spec.schema:
        return declared_schema(spec.schema)
    if known is not None:
        return known
    schema = infer_schema(session, sets)
    if ingest_of(spec).format == "parquet":
        return schema
    log.warning(
        "table %s: columns and types were inferred from %s files; declare them in 'schema' of the spec to be sure: %s",
        spec.table,
        sum(len(files.paths) for files in sets),
        describe(schema),
    )
    return schema


def _warn_of_ignored(spec: TableSpec, schema: Schema, probes: Sequence[Probe]) -> None:
    known = {name.lower() for name in schema.names}
    ignored = sorted({name for probe in probes for name in probe.names if name.lower() not in known})
    if ignored:
        log.warning(
            "table %s: the files have columns that the schema does not have, and they are left out: %s. "
            "Declare them in 'schema' of the spec to keep them",
            spec.table,
            ", ".join(ignored),
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
