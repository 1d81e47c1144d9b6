"""Sample the files of a path: detect the format and the dialect, and infer the columns."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from lakehouse.core.planning.schema import Promotion, normalise, promotion
from lakehouse.errors import UserError
from lakehouse.platform.sources.files.file_probe import HEADER_REMEDY, check_text
from lakehouse.platform.suggest.arrow_types import sql_type
from lakehouse.platform.suggest.change_events import event_columns, is_change_event
from lakehouse.platform.suggest.csv_guess import CsvGuess, guess_csv, values_of
from lakehouse.platform.suggest.file_samples import (
    HEAD_BYTES,
    SampledFiles,
    choose_files,
    encoding_of_file,
    format_of,
    share,
    text_records,
    typed_columns_of,
    typed_rows,
)
from lakehouse.platform.suggest.json_columns import JsonRows, json_columns
from lakehouse.platform.suggest.sample import Limits, Sample, SampledColumn, shown
from lakehouse.platform.suggest.text_columns import epoch_notes, typed_columns
from lakehouse.spark.csv_dialect import CsvDialect
from lakehouse.spark.lines import TextLayout
from lakehouse.spec.sources.file_source import TYPED
from lakehouse.spec.sources.interval_path import PLACEHOLDER

#: File formats that a suggestion reads.
FORMATS = ("csv", "json", *TYPED)
_NO_VALUES = "Files of other formats need another program to become CSV or JSON lines"
#: The minimum share of records with equally many values to detect CSV in a file without a CSV suffix.
_LEAST_FITTING = 0.9


@dataclass(slots=True)
class _Problems:
    """The number of bad records, and the first of them."""

    records: int = 0
    first: str = ""

    def add(self, place: str, reason: str, record: str) -> None:
        self.records += 1
        self.first = self.first or f"{place}: {reason}: {shown(record, 60)}"

    def notes(self, rows: int) -> tuple[str, ...]:
        if not self.records:
            return ()
        return (
            f"{self.records:,} of {rows + self.records:,} sampled records are bad: {self.first}",
            "set max_bad_records to the number that a run may copy to dead letters; a run fails with more",
        )


@dataclass(slots=True)
class _Rows:
    """Rows of strings from files with possibly different headers, in columns by name."""

    names: dict[str, str] = field(default_factory=dict)
    columns: dict[str, list[str | None]] = field(default_factory=dict)
    rows: int = 0

    def declare(self, header: Iterable[str]) -> list[str]:
        """Add the columns of a file; return their keys in order."""
        keys = []
        for name in header:
            key = name.lower()
            self.names.setdefault(key, name)
            self.columns.setdefault(key, [None] * self.rows)
            keys.append(key)
        return keys

    def add(self, keys: list[str], values: Iterable[str | None]) -> None:
        """Add one row; columns that its file lacks are null."""
        row = dict(zip(keys, values, strict=True))
        for key, column in self.columns.items():
            column.append(row.get(key))
        self.rows += 1


def sample_files(
    path: str,
    format: str,
    limits: Limits,
    environ: Mapping[str, str],
    storage_options: Mapping[str, str],
) -> Sample:
    """Return a sample of the files of a path.

    Args:
        path: A file, a folder or a pattern, as in `ingest.path`.
        format: One of `FORMATS`; empty to detect it.
        limits: The sample limits.
        environ: Environment variables, for `${VAR}` in the path.
        storage_options: Options of the storage that contains the files.

    Raises:
        UserError: There are no files with data, the format is unknown, or no record can be read.
    """
    # A path by data interval is sampled over all intervals.
    files = choose_files(PLACEHOLDER.sub("*", path), limits, environ, storage_options)
    format = format or format_of(files)
    if format in TYPED:
        return _typed(path, format, files, limits)
    for file in files.sampled:
        check_text(files.storage, file)
    encoding, notes = _encoding(files)
    format = format or _format_of_text(files, encoding)
    sample = (_json if format == "json" else _csv)(path, files, limits, encoding)
    return replace(sample, notes=(*notes, *sample.notes))


def _format_of_text(files: SampledFiles, encoding: str) -> str:
    """Return `json` or `csv` for files without a known suffix; raise UserError for other content."""
    first = files.sampled[0]
    head = _head(files, encoding)
    if head.lstrip().startswith(("{", "[")):
        return "json"
    guess = guess_csv(head)
    if guess.values > 1 and guess.fitting >= _LEAST_FITTING:
        return "csv"
    raise UserError(
        f"{first.url} is not JSON, and its lines do not have the same number of values with any usual separator. Give "
        f"--format if it is one of {', '.join(FORMATS)}. {_NO_VALUES}",
        path=first.url,
    )


def _encoding(files: SampledFiles) -> tuple[str, tuple[str, ...]]:
    """Return the encoding of the sampled files, and notes if they have several.

    If they have several, the result is UTF-8, so the records of other files are bad records: reading a UTF-8 file in
    another encoding gives wrong strings without an error. Raises UserError for UTF-16 mixed with others, because their
    line breaks differ.
    """
    examples: dict[str, str] = {}
    for file in files.sampled:
        examples.setdefault(encoding_of_file(files.storage, file), file.url)
    wide = "UTF-16" in examples
    if not wide:
        examples.pop("US-ASCII", None)
    if len(examples) < 2:
        return next(iter(examples), "UTF-8"), ()
    listed = ", ".join(f"{url} is {encoding}" for encoding, url in examples.items())
    remedy = "put the files of each encoding into a folder of their own, with an input of the spec for each"
    if wide:
        raise UserError(f"the files have several encodings, of which a source reads one: {listed}. {remedy}")
    note = (
        f"not sure: the files have several encodings, of which a source reads one: {listed}. As UTF-8, records of the "
    )
    return "UTF-8", (f"{note}others are bad records; {remedy}",)


def _head(files: SampledFiles, encoding: str) -> str:
    layout = TextLayout(encoding=encoding)
    return "\n".join(text_records(files.storage, files.sampled[0].path, layout, HEAD_BYTES)) + "\n"


def _csv(path: str, files: SampledFiles, limits: Limits, encoding: str) -> Sample:
    guess = guess_csv(_head(files, encoding))
    options = {**({} if encoding == "UTF-8" else {"encoding": encoding}), **guess.options}
    rows, problems = _Rows(), _Problems()
    part = share(limits, files.sampled)
    size, is_cut = 0, False
    for file in files.sampled:
        layout = TextLayout(encoding=encoding, dialect=CsvDialect.of(options))
        records = text_records(files.storage, file.path, layout, part.bytes)
        header = _names(next(records, ""), guess, file.url) if guess.has_header else None
        keys = rows.declare(header or [f"column_{number + 1}" for number in range(guess.values)])
        length, count = _add_records(records, keys, rows, (guess, problems, file.url, part.rows))
        size, is_cut = size + length, is_cut or count >= part.rows or length >= part.bytes
    if not rows.rows:
        reason = problems.first or "they have a header only"
        raise UserError(
            f"{path}: no record of the sampled files is CSV with {guess.values} values: {reason}", path=path
        )
    columns = typed_columns(list(rows.names.values()), list(rows.columns.values()))
    notes = [*_dialect_notes(guess, encoding), *columns.notes, *problems.notes(rows.rows)]
    return Sample(
        name=table_name(path),
        columns=columns.columns,
        rows=rows.rows,
        ingest=_section(path, "csv", {**options, **columns.options}),
        scope=_scope(path, files, rows.rows, size, is_cut=is_cut),
        notes=tuple(notes),
    )


def _add_records(
    records: Iterable[str], keys: list[str], rows: _Rows, reading: tuple[CsvGuess, _Problems, str, int]
) -> tuple[int, int]:
    """Add a file's rows; return the numbers of characters and records that were read."""
    guess, problems, url, most = reading
    size, number, ends = 0, 0, re.escape(guess.separator)
    quoted_empty = re.compile(rf"(?:^|{ends}){re.escape(guess.quote * 2)}(?:$|{ends})" if guess.quote else r"(?!)")
    for number, record in enumerate(records, 1):
        size += len(record)
        values = values_of(record, guess)
        place = f"{url}, record {number:,}"
        if "\ufffd" in record:
            problems.add(place, "bytes that are not text in the encoding", record)
        elif values is None:
            problems.add(place, "a quote is not closed, or text follows a closing quote", record)
        elif len(values) != len(keys):
            problems.add(place, f"{len(values)} values instead of {len(keys)}", record)
        else:
            has_quoted = quoted_empty.search(record) is not None
            rows.add(keys, (value if value or has_quoted else None for value in values))
        if number >= most:
            break
    return size, number


def _names(record: str, guess: CsvGuess, url: str) -> list[str]:
    names = [name.strip() for name in values_of(record, guess) or []]
    lower = [name.lower() for name in names]
    if not names or not all(names) or len(set(lower)) < len(lower):
        raise UserError(
            f"the header of {url} has a column twice or without a name: {shown(record, 200)}. {HEADER_REMEDY}", path=url
        )
    return names


def _dialect_notes(guess: CsvGuess, encoding: str) -> list[str]:
    notes = []
    if encoding not in ("UTF-8", "UTF-16"):
        notes.append(f"the files are not UTF-8; {encoding} is a guess, check whether names and strings are right")
    if guess.open_quote:
        notes.append(
            f"not sure: values begin with a double quote that is not closed, such as {shown(guess.open_quote)}, so the "
            f"quote is {guess.quote or 'none'!r}; for files with a damaged record remove quote and escape from options"
        )
    if guess.has_header and not guess.is_header_proven:
        notes.append(
            "not sure that the first record has the names of the columns, because all values are texts: if it is a "
            "row, write options: {header: 'false'} and other names"
        )
    if not guess.has_header:
        notes.append("the first record looks like a row, so the names of the columns are invented: rename them")
    return notes


def _json(path: str, files: SampledFiles, limits: Limits, encoding: str) -> Sample:
    part, rows, problems = share(limits, files.sampled), JsonRows(), _Problems()
    size, is_whole, is_cut = 0, False, False
    for file in files.sampled:
        records = text_records(files.storage, file.path, TextLayout(encoding=encoding), part.bytes)
        before = len(rows.rows)
        length = rows.add_file(
            records,
            part.rows,
            lambda number, reason, record, url=file.url: problems.add(  # type: ignore[misc]
                f"{url}, line {number:,}", reason, record
            ),
        )
        size, is_whole = size + length, is_whole or rows.spans_lines
        is_cut |= len(rows.rows) - before >= part.rows or length >= part.bytes
    if not rows.rows:
        reason = problems.first or "they are blank"
        raise UserError(f"{path}: no record of the sampled files is JSON: {reason}", path=path)
    options = {} if encoding == "UTF-8" else {"encoding": encoding}
    if is_whole:
        options["multiLine"] = "true"
    sample = Sample(
        name=table_name(path),
        columns=(),
        rows=len(rows.rows),
        ingest=_section(path, "json", options),
        scope=_scope(path, files, len(rows.rows), size, is_cut=is_cut),
        notes=problems.notes(len(rows.rows)),
    )
    if not is_whole and all(is_change_event(record) for record in rows.rows):
        return _events(sample, rows)
    columns, notes = json_columns(rows)
    return replace(sample, columns=columns, notes=(*notes, *sample.notes))


def _events(sample: Sample, rows: JsonRows) -> Sample:
    """Return the sample of Debezium change events."""
    columns, count, facts = event_columns(rows.rows)
    return replace(
        sample,
        columns=columns,
        rows=count,
        ingest={**sample.ingest, "format": "debezium"},
        notes=(*facts.notes, *sample.notes),
        ordering=facts.ordering,
        ordering_note="the place of a change in the log of the source",
        facts=facts.columns,
        settings=facts.settings,
        changes_rows=True,
    )


def _typed(path: str, format: str, files: SampledFiles, limits: Limits) -> Sample:
    columns, rows, is_cut = typed_sample_columns(files, format, limits)
    return Sample(
        name=table_name(path),
        columns=columns,
        rows=rows,
        ingest=_section(path, format, {}),
        scope=_scope(path, files, rows, None, is_cut=is_cut),
    )


def _section(path: str, format: str, options: Mapping[str, str]) -> dict[str, object]:
    section: dict[str, object] = {"path": path, "format": format}
    if options:
        section["options"] = dict(options)
    return section


def _scope(path: str, files: SampledFiles, rows: int, size: int | None, *, is_cut: bool) -> tuple[str, ...]:
    """Return sentences about the sample; `is_cut` is true if a sampled file may contain more rows."""
    read = len(files.sampled)
    all_files = _counted(files.files, "file")
    which = all_files if read == files.files else f"{read:,} of {all_files}"
    text = "" if size is None else f", {size:,} characters"
    rest = (
        "All rows were read"
        if read == files.files and not is_cut
        else "Other rows may have other columns, types and null values: check with `lakehouse spec check --sample`"
    )
    place = f"({files.bytes:,} bytes) at {path}"
    sentences = [f"Suggested from {_counted(rows, 'row')}{text} of {which} {place}. {rest}."]
    if files.warning:
        sentences.append(f"{files.warning}.")
    return tuple(sentences)


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def table_name(path: str) -> str:
    """Return a table name for a path: its last part without suffixes, in valid characters."""
    parts = [part for part in re.split(r"[/\\]", path.partition("://")[2] or path) if not re.search(r"[*?{\[]", part)]
    last = next((part for part in reversed(parts) if part not in ("", ".", "..")), "table")
    stem = last.partition(".")[0] or last.strip(".")
    name = re.sub(r"[^A-Za-z0-9_]+", "_", stem).strip("_").lower() or "table"
    return name if name[0].isalpha() else f"t_{name}"


def typed_sample_columns(
    files: SampledFiles, format: str, limits: Limits
) -> tuple[tuple[SampledColumn, ...], int, bool]:
    """Return the columns of the sampled files, the number of sampled rows, and whether a file may have more."""
    part = share(limits, files.sampled)
    tables = [typed_rows(files.storage, file, format, part.rows) for file in files.sampled]
    names: dict[str, list[pa.DataType]] = {}
    for file in files.sampled:
        for column in typed_columns_of(files.storage, file, format):
            kinds = names.setdefault(column.name, [])
            if column.type not in kinds:
                kinds.append(column.type)
    # Times without a zone are instants in ORC.
    columns = tuple(
        _typed_column(name, kinds, tables, has_local_times=format != "orc") for name, kinds in names.items()
    )
    is_cut = any(table.num_rows >= part.rows for table in tables)
    return columns, sum(table.num_rows for table in tables), is_cut


def _typed_column(
    name: str, types: Sequence[pa.DataType], tables: Sequence[pa.Table], *, has_local_times: bool
) -> SampledColumn:
    widest = _widest(types)
    kind = sql_type(widest, has_local_times=has_local_times) or f"unsupported ({widest})"
    values: list[Hashable] = []
    for table in tables:
        stored = table.column(name).to_pylist() if name in table.schema.names else [None] * table.num_rows
        values += [value if isinstance(value, Hashable) else str(value) for value in stored]
    notes: tuple[str, ...] = (f"the files have several types: {', '.join(map(str, types))}",) if len(types) > 1 else ()
    if kind == "bigint" and not notes:
        notes = epoch_notes(name, [value for value in values if isinstance(value, int)])
    return SampledColumn(name=name, type=kind, values=values, notes=notes, key_type=kind)


def _widest(types: Sequence[pa.DataType]) -> pa.DataType:
    """Return a type that represents the values of all types without a change; string if there is none."""
    present = [kind for kind in types if not pa.types.is_null(kind)]
    if len(present) < 2:
        return (present or types)[0]
    stored = normalise(pa.schema([(str(number), kind) for number, kind in enumerate(present)])).types
    fitting = (wide for wide in stored if all(promotion(narrow, wide) is Promotion.EXACT for narrow in stored))
    return next(fitting, pa.string())
