"""Parse the records in dead letters again, as the table's source parses its records."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass

import pyarrow as pa

from lakehouse.core.storage.locate import open_storage
from lakehouse.errors import UserError
from lakehouse.platform.sources.dead_letters import DeadLetterBox, set_aside
from lakehouse.platform.sources.files.file_checkpoint import SourceFile
from lakehouse.platform.sources.files.file_columns import file_source_of, with_columns_of
from lakehouse.platform.sources.files.file_probe import probe_files
from lakehouse.platform.sources.files.json_values import FieldCollector
from lakehouse.platform.sources.kafka.kafka_formats import message_format
from lakehouse.platform.sources.kafka.kafka_source import kafka_source_of
from lakehouse.platform.sources.new_fields import unread_drift, value_columns
from lakehouse.platform.sources.source import Batch, KnownColumns
from lakehouse.platform.sources.source_context import SourceContext, ingest_of
from lakehouse.platform.sources.unread_fields import UnreadField, merged
from lakehouse.spark.bad_records import good_rows, mark_bad_records, pin, select_columns, unpin
from lakehouse.spark.letters import (
    decoded_messages,
    letter_lines,
    letter_messages,
    letter_records,
    letter_sources,
    read_letters,
    replay_counts,
    split_ends,
    unread_texts,
)
from lakehouse.spark.messages import without_metadata
from lakehouse.spark.sources import FileSet, Frame, Schema, declared_schema, schema_of, to_arrow
from lakehouse.spec.sources.kafka_connection import kafka_settings
from lakehouse.spec.sources.kafka_source import KafkaSourceSpec

#: Dead letters are bad records that were allowed already.
_NO_LIMIT = 1 << 62


class NothingReplayedError(Exception):
    """No letter can be parsed yet; `bad` is the number of letters."""

    def __init__(self, bad: int) -> None:
        super().__init__(f"none of the {bad} dead letters becomes a row yet; they stay dead letters")
        self.bad = bad


@dataclass(frozen=True, slots=True, kw_only=True)
class _Parsed:
    """Records from letters with the columns of `mark_bad_records`, their columns, and the fields that were not read."""

    marked: Frame
    schema: Schema
    unread: Callable[[], tuple[UnreadField, ...]]


@contextmanager
def open_letters(
    context: SourceContext, files: FileSet, *, known: KnownColumns, dead_letters: DeadLetterBox
) -> Iterator[Batch]:
    """Parse the letters in files for the duration of a `with` block; bad letters become dead letters again.

    Raises NothingReplayedError if all are still bad, and UserError if it is unknown how to parse them.
    """
    spec = context.spec
    letters = read_letters(context.session, files)
    is_kafka = isinstance(ingest_of(spec).source, KafkaSourceSpec)
    parsed = (_messages if is_kafka else _file_records)(context, letters, known)
    marked = parsed.marked
    pin(marked)
    try:
        counts = replay_counts(marked)
        good, bad = counts["good"], counts["bad"]
        if not good:
            raise NothingReplayedError(bad)
        set_aside(marked, bad, spec.table, dead_letters, allowed=_NO_LIMIT)
        frame = good_rows(marked)
        unread = unread_drift(parsed.unread(), good)
        yield Batch(frame=frame, rows=good, bad_records=bad, schema=parsed.schema, columns=unread)
    finally:
        unpin(marked)


def _messages(context: SourceContext, letters: Frame, known_columns: KnownColumns) -> _Parsed:
    spec, settings = context.spec, kafka_source_of(context.spec)
    client = kafka_settings(settings.connection, settings.options, context.environ)
    schema = value_columns(spec, known_columns)
    given = message_format(spec, schema, client, _unchanged, storage_options=context.storage_options)
    messages = letter_messages(letters)
    if given.record is not None:
        messages = decoded_messages(messages, given.read, given.record)
    selected = without_metadata(select_columns(given.records(messages), ingest_of(spec).select), settings.metadata)
    marked, texts = split_ends(mark_bad_records(selected, _key(context)))
    return _Parsed(marked=marked, schema=schema, unread=lambda: merged(texts))


def _file_records(context: SourceContext, letters: Frame, known_columns: KnownColumns) -> _Parsed:
    spec, settings = context.spec, file_source_of(context.spec)
    schema = _file_columns(context, known_columns)
    sources = letter_sources(letters)
    if settings.format in ("json", "debezium"):
        sets = [_file_set(context, sources, ())] if sources else []
    else:
        sets = [_file_set(context, paths, header) for header, paths in _by_header(context, sources).items()]
    records = letter_records(letters, sets, schema, ingest_of(spec).select)

    def unread() -> tuple[UnreadField, ...]:
        if settings.format != "json":
            return ()
        return merged(unread_texts(letter_lines(letters), FieldCollector(target=pa.struct(list(to_arrow(schema))))))

    return _Parsed(marked=mark_bad_records(records, _key(context)), schema=schema, unread=unread)


def _key(context: SourceContext) -> tuple[str, ...]:
    # A transform may compute the key, so it is checked after the transform.
    return context.spec.record_key if ingest_of(context.spec).transform is None else ()


def _file_columns(context: SourceContext, known_columns: KnownColumns) -> Schema:
    """Return the columns in the spec, and the columns with which earlier runs read files."""
    declared = declared_schema(context.spec.schema)
    names = {name.lower() for name in declared.names}
    earlier = known_columns.schema or known_columns.table or ()
    schema = schema_of([*declared, *(one for one in earlier if one.name.lower() not in names)])
    if not schema.names:
        raise UserError(
            f"table {context.spec.table} has no columns yet, so the types of the letters are unknown: add 'schema' to "
            f"{context.spec.source or 'its spec'}",
            table=context.spec.table,
        )
    return schema


def _file_set(context: SourceContext, paths: Iterable[str], header: tuple[str, ...]) -> FileSet:
    settings = file_source_of(context.spec)
    storage = open_storage("/", context.storage_options)
    files = FileSet(
        storage=storage,
        paths=tuple(paths),
        format=settings.format,
        header=header,
        options=settings.options,
        checks_keys=settings.format == "json",
    )
    return with_columns_of(files, context.spec)


def _by_header(context: SourceContext, sources: Iterable[str]) -> Mapping[tuple[str, ...], list[str]]:
    """Group CSV files by the names in their headers, which the letters do not contain.

    Raises UserError for a file that no longer exists.
    """
    settings = file_source_of(context.spec)
    groups: dict[tuple[str, ...], list[str]] = {}
    for address in sources:
        folder, _, name = address.rpartition("/")
        storage = open_storage(folder or "/", context.storage_options)
        matches = [file for file in storage.list_dir("")[0] if file.name == name]
        if not matches:
            raise UserError(
                f"{address} is gone, and its header is needed to parse its dead letters: restore the file, or correct "
                "the records by hand",
                path=address,
            )
        file = SourceFile(url=address, path=name, size_bytes=matches[0].size_bytes, modified_ms=matches[0].modified_ms)
        (probe,) = probe_files(storage, [file], settings.format, settings.options)
        groups.setdefault(probe.names, []).append(address)
    return groups


def _unchanged(batches: Iterable[pa.RecordBatch]) -> Iterable[pa.RecordBatch]:
    """Yield messages that are already in a DataFrame."""
    return batches
