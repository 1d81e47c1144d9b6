"""Read a bounded sample of a source as an ingestion would, without writing: `lakehouse spec check --sample`.

The beginnings of JSON and CSV files are copied into a temporary folder, where the ingestion reader reads them. So rows,
types and bad records are the same as in an ingestion, and large files are not read completely.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lakehouse.core.engine.adapters import frame_schema
from lakehouse.core.storage.locate import open_storage
from lakehouse.errors import UserError
from lakehouse.model.document import parse_json
from lakehouse.platform.catalog.declared_tables import open_declared_table
from lakehouse.platform.ingest.run import ingest_context, known_columns
from lakehouse.platform.ingest.transform import transformed
from lakehouse.platform.sources.dead_letters import DeadLetterBox
from lakehouse.platform.sources.files.file_listing import FileSelection, list_source
from lakehouse.platform.sources.files.file_reader import open_batch
from lakehouse.platform.sources.registry import open_source
from lakehouse.platform.sources.source import Batch, KnownColumns, Source
from lakehouse.platform.sources.source_context import SourceContext, ingest_of
from lakehouse.platform.suggest.arrow_types import sql_type
from lakehouse.platform.suggest.file_heads import FileHead, HeadReading, copy_head
from lakehouse.platform.suggest.file_samples import SampledFiles, choose_files, share
from lakehouse.platform.suggest.sample import Limits
from lakehouse.spark.csv_dialect import CsvDialect
from lakehouse.spark.sources import Session, ingest_settings, storage_options_of
from lakehouse.spark.versions.choice import spark_version
from lakehouse.spec.contracts.spec_sample import BadSample, SpecSample
from lakehouse.spec.job_command import IngestCommand
from lakehouse.spec.sources.file_source import FileSourceSpec
from lakehouse.spec.sources.interval_path import PLACEHOLDER
from lakehouse.spec.sources.kafka_source import KafkaSourceSpec
from lakehouse.spec.table.location import location_of
from lakehouse.spec.table.table_spec import TableSpec

#: Bad records are counted, and none of them ends the sample.
_NO_LIMIT = 1 << 30
_TEXT_FORMATS = ("json", "csv", "debezium")
_SHOWN_RECORD = 200
#: Reasons why a source's records are not sampled.
_REFUSED = {
    "table": "its rows are those of a table, whose values have types already. `lakehouse table read` shows them",
    "custom": "its class decides how much a run reads, so a sample would have no bound",
    "mysql": "the server declares the types of its columns. `lakehouse spec check` without --sample checks the tables",
    "postgres": "the server declares the types of its columns. `lakehouse spec check` without --sample checks the "
    "tables",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Reading:
    """How a sample is read.

    Attributes:
        read: Reads the records for the duration of a `with` block, given the known columns and a folder for bad ones.
        scope: A sentence about the input.
        place: Returns the location of a bad record, from its file and its content.
    """

    read: Callable[[KnownColumns, DeadLetterBox], AbstractContextManager[Batch | None]] = field(repr=False)
    scope: str
    place: Callable[[Mapping[str, Any]], str]


def sample_ingestion(
    session: Session, spec: TableSpec, environ: Mapping[str, str], limits: Limits, *, shown: int
) -> SpecSample:
    """Return a source's first rows as they would be stored, and the bad records in the sample.

    Args:
        session: The Spark session that reads.
        spec: The spec of the table.
        environ: Environment variables, for `${VAR}` in settings and for connections.
        limits: The sample limits.
        shown: The number of rows and of bad records in the result.

    Raises:
        UserError: The source has no records, or its kind does not support samples.
        RetryableError: The source does not answer.
    """
    kind = ingest_of(spec).source.KIND
    if kind in _REFUSED:
        raise UserError(f"--sample: the source {kind!r} is not sampled: {_REFUSED[kind]}", source=kind)
    section = replace(ingest_of(spec), max_bad_records=_NO_LIMIT)
    spec = replace(spec, location=location_of(spec, environ), ingest=section)
    context = SourceContext(session=session, spec=spec, environ=environ, storage_options=storage_options_of(session))
    with tempfile.TemporaryDirectory(prefix="lakehouse-sample-") as folder, ingest_settings(session):
        place = Path(folder)
        reading = _files(context, place, limits) if kind == FileSourceSpec.KIND else _topic(context, limits)
        return _sampled(context, reading, place / "letters", shown)


def _sampled(context: SourceContext, reading: _Reading, folder: Path, shown: int) -> SpecSample:
    folder.mkdir()
    box = DeadLetterBox(storage=open_storage(str(folder), {}), folder="bad", attempt="sample")
    spec = context.spec
    run = ingest_context(context, IngestCommand(table=spec.table), _NoSource())
    table = open_declared_table(spec, run.options, run.env)
    with (
        reading.read(known_columns(run, table), box) as read,
        transformed(read, spec, table, box) as batch,
    ):
        if batch is None:
            raise UserError(f"table {spec.table}: the sample has no records. {reading.scope}", table=spec.table)
        rows = spark_version().to_arrow(batch.frame.limit(shown))
        schema, count = frame_schema(batch.frame), batch.rows
        good = batch.frame.count() if count is None else count
    bad = list(_bad_records(folder, reading))
    return SpecSample(
        table=spec.ingestion_name,
        scope=reading.scope,
        records=good + len(bad),
        rows=good,
        bad_records=len(bad),
        types={column.name: sql_type(column.type, has_local_times=True) or str(column.type) for column in schema},
        first_rows=tuple(_texts(row) for row in rows.to_pylist()),
        bad=tuple(bad[:shown]),
    )


class _NoSource:
    """The source of a context that is used for the table only."""

    def __getattr__(self, name: str) -> Any:
        raise AssertionError(f"a sample does not use {name} of the source of the context")


def _topic(context: SourceContext, limits: Limits) -> _Reading:
    """Return the reader for a topic's first messages."""
    section = ingest_of(context.spec)
    assert isinstance(section.source, KafkaSourceSpec), "other sources are refused"
    limited = replace(section.source, max_messages=limits.rows, max_bytes=limits.bytes, by_time=False, arrival_s=0)
    context = replace(context, spec=replace(context.spec, ingest=replace(section, source=limited)))
    source: Source[Any] = open_source(context)
    plan = source.plan(None, None, full_refresh=False)
    if not plan.units:
        raise UserError(f"the sample has no records: {plan.reason}", table=context.spec.table)
    return _Reading(
        read=lambda columns, box: source.read(plan, known=columns, dead_letters=box),
        scope=f"{plan.reason}.",
        place=_message_place,
    )


def _message_place(letter: Mapping[str, Any]) -> str:
    if "offset" not in letter:
        return str(letter["source_file"])
    return f"{letter['source_file']}, partition {letter['partition']}, offset {letter['offset']}"


def _files(context: SourceContext, folder: Path, limits: Limits) -> _Reading:
    settings = ingest_of(context.spec).source
    assert isinstance(settings, FileSourceSpec), "the caller checks the kind of the source"
    # A sample reads the files of all intervals.
    path = PLACEHOLDER.sub("*", settings.path)
    files = choose_files(path, limits, context.environ, context.storage_options)
    scope = f"{len(files.sampled):,} of {files.files:,} files at {settings.path}"
    if settings.format not in _TEXT_FORMATS:
        selection = FileSelection(storage=files.storage, files=files.sampled)
        return _Reading(
            read=lambda columns, box: _open(context, selection, columns, box),
            scope=f"all rows of {scope}.",
            place=lambda letter: str(letter["source_file"]),
        )
    heads = _heads(files, settings, folder, limits)
    listing = list_source((str(folder / "files") + "/",), {})
    is_all = "all" if all(head.is_all for head in heads.values()) else "the first"
    records = sum(head.records for head in heads.values())
    dialect = CsvDialect.of(settings.options) if settings.format == "csv" else None

    def place(letter: Mapping[str, Any]) -> str:
        head = heads.get(re.split(r"[/\\]", str(letter["source_file"]))[-1])
        return str(letter["source_file"]) if head is None else head.place(str(letter["record"]), dialect)

    return _Reading(
        read=lambda columns, box: _open(
            context, FileSelection(storage=listing.storage, files=listing.files), columns, box
        ),
        scope=f"{is_all} {records:,} records of {scope}.",
        place=place,
    )


def _heads(files: SampledFiles, settings: FileSourceSpec, folder: Path, limits: Limits) -> dict[str, FileHead]:
    """Copy the beginnings of the files; return them by the names of the copies."""
    target = folder / "files"
    target.mkdir()
    part = share(limits, files.sampled)
    heads = {}
    for number, file in enumerate(files.sampled):
        reading = HeadReading(
            format=settings.format, options=settings.options, number=number, rows=part.rows, bytes=part.bytes
        )
        head = copy_head(files.storage, file, target, reading)
        heads[head.copy.name] = head
    return heads


@contextmanager
def _open(
    context: SourceContext, selection: FileSelection, columns: KnownColumns, box: DeadLetterBox
) -> Iterator[Batch | None]:
    with open_batch(context.session, selection, context.spec, known=columns, dead_letters=box) as batch:
        yield batch


def _bad_records(folder: Path, reading: _Reading) -> Iterator[BadSample]:
    for part in sorted(folder.rglob("part-*")):
        for line in part.read_text(encoding="utf-8").splitlines():
            letter = parse_json(line)
            yield BadSample(
                place=reading.place(letter), reason=str(letter["reason"]), record=str(letter["record"])[:_SHOWN_RECORD]
            )


def _texts(row: Mapping[str, Any]) -> dict[str, Any]:
    """Return a row with JSON values; other types are converted to strings."""
    plain = (str, int, float, bool, type(None))
    return {name: value if isinstance(value, plain) else _text(value) for name, value in row.items()}


def _text(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value)
