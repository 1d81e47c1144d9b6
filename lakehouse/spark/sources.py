"""Reads source files as DataFrames; records that cannot be parsed are kept with content and file.

Spark's own readers read local files. The JVM cannot open files of object stores without Hadoop's connectors, nor local
files with a colon in their names. Python workers read these through lakehouse.core.storage: Spark's parsers parse their
lines, and rows of the other formats arrive as Arrow batches. ORC and Avro are always read in this way.

A string is divided into records before it is parsed, so that every character belongs to a record that is read or bad:
JSON by `lakehouse.spark.json_text`, CSV by `lakehouse.spark.csv_dialect`. Spark's own readers get only files whose
lines are records (see `with_simple_lines`).
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial, reduce
from typing import Any

import pyarrow as pa
from pyspark.errors import PySparkException
from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, StringType, StructField, StructType

from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UserError, nearest
from lakehouse.spark.csv_dialect import CsvDialect, encoding_of, flag, is_utf8, option
from lakehouse.spark.failures import spark_failures
from lakehouse.spark.field_rows import csv_text, separators_of, typed_rows
from lakehouse.spark.field_values import FieldRules, marked_json
from lakehouse.spark.inferred_types import inferred_types, number_types, with_key_types
from lakehouse.spark.json_pattern import object_pattern
from lakehouse.spark.json_text import has_repeated_key, is_json_object, json_objects, repeated_key_problem
from lakehouse.spark.lines import BLOCK_BYTES, TextLayout, line_batches
from lakehouse.spark.typed_files import typed_batches, typed_schema
from lakehouse.spark.versions.choice import spark_version
from lakehouse.spark.workers import map_in_arrow, task_numbers
from lakehouse.spec.contracts.job import STORAGE_PREFIXES
from lakehouse.spec.sources.file_source import TYPED

#: Types for callers outside of lakehouse.spark, which do not import pyspark.
Session = SparkSession
Frame = DataFrame
Schema = StructType

#: Internal columns: the string of a record that could not be parsed, a message about its bad value, its file, and the
#: number of its file set. Records of messages also have their position, time and bytes.
CORRUPT = "_lakehouse_corrupt"
PROBLEM = "_lakehouse_problem"
SOURCE_FILE = "_lakehouse_source_file"
FILE_SET = "_lakehouse_file_set"
RAW = "_lakehouse_raw"
_RECORD = "_lakehouse_record"
INTERNAL = (CORRUPT, PROBLEM, SOURCE_FILE, FILE_SET, RAW)

#: Reader options that users cannot set, because other settings decide about bad records and types.
_RESERVED = {
    "mode": "max_bad_records limits the number of bad records",
    "columnNameOfCorruptRecord": "records that cannot be parsed are written as dead letters",
    "schema": "declare the columns in 'schema' of the table spec",
    "samplingRatio": "columns and types are always inferred from all records",
    "inferSchema": "types are inferred when 'schema' of the table spec is absent",
    "enforceSchema": "columns are matched by the names in the header",
    "path": "ingest.path names the files",
}
#: Typed formats that Python workers read.
_READ_BY_WORKERS = ("orc", "avro", "debezium_avro")
_MORE_OPTIONS = ("delimiter", "charset", "timeZone", "compression", "basePath", "singleVariantColumn", "mergeSchema")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSet:
    """Files that one reader can read together: of one format and, for CSV, with one header.

    `header` has the column names; it is empty for other formats and for CSV without a header. `paths` are relative to
    the storage. `bytes` is the approximate size of all files, 0 if unknown; it determines the number of tasks that
    write their rows. `has_simple_lines` means that each line of the files, JSON or CSV, is one record in UTF-8.
    `has_long_lines` means that JSON files have a line that is longer than a block; workers read them block by block.
    `checks_keys` means that objects in the JSON files may have a key twice, so each record is checked. `declared` and
    `keys` have, in lower case, the columns whose types the spec declares, and the record key. `checks_values` means
    that values must represent their whole strings; see `FieldRules.is_strict`.
    """

    storage: Storage
    paths: tuple[str, ...]
    format: str
    header: tuple[str, ...] = ()
    options: Mapping[str, str] = field(default_factory=dict)
    bytes: int = 0
    has_simple_lines: bool = False
    has_long_lines: bool = False
    checks_keys: bool = False
    declared: frozenset[str] = frozenset()
    keys: frozenset[str] = frozenset()
    checks_values: bool = True

    @property
    def is_native(self) -> bool:
        """Whether the JVM can open these files itself. It cannot decompress zstd without a native library."""
        if self.format in _READ_BY_WORKERS:
            return False
        if self.format in ("json", "csv", "debezium") and any(path.endswith(".zst") for path in self.paths):
            return False
        return "://" not in self.storage.root and not any(":" in self.storage.native(path) for path in self.paths)

    def address(self, path: str) -> str:
        """Return the path or URL of a file, as in `SOURCE_FILE` and in messages."""
        return str(self.storage.native(path)) if self.is_native else f"{self.storage.root}/{path}"


def check_reader_options(options: Mapping[str, str], format: str) -> None:
    """Raise UserError for an option that Spark's reader of this format does not have, or that users cannot set."""
    if format in _READ_BY_WORKERS:
        if options:
            name = next(iter(options))
            raise UserError(f"ingest.options: the {format} reader has no options; remove {name!r}", option=name)
        return
    reader = "json" if format == "debezium" else format
    allowed = {name for name in inspect.signature(getattr(DataFrameReader, reader)).parameters if name != "self"}
    allowed = (allowed | set(_MORE_OPTIONS)) - {"paths", "options"} - _RESERVED.keys()
    names = {name.lower() for name in allowed}
    for name in options:
        reserved = next((why for other, why in _RESERVED.items() if other.lower() == name.lower()), None)
        if reserved is not None:
            raise UserError(f"ingest.options: {name!r} cannot be set: {reserved}", option=name)
        if name.lower() not in names:
            raise UserError(
                f"ingest.options: {name!r} is not an option of the {format} reader.{nearest(name, allowed)}",
                option=name,
            )


def declared_schema(columns: Mapping[str, str]) -> Schema:
    """Return the columns that a spec declares; raise UserError with the column whose type Spark does not know."""
    return StructType([StructField(name, _parsed_type(name, text)) for name, text in columns.items()])


def schema_of_arrow(schema: pa.Schema) -> Schema:
    """Return an Arrow schema as a Spark schema."""
    return from_arrow_schema(schema)


def to_arrow(schema: Schema) -> pa.Schema:
    """Return a Spark schema as an Arrow schema."""
    return to_arrow_schema(schema)


def arrow_frame(session: Session, rows: pa.Table) -> Frame:
    """Return the rows of an Arrow table as a DataFrame."""
    return spark_version().from_arrow(session, rows, from_arrow_schema(rows.schema))


def schema_to_json(schema: Schema) -> str:
    """Return the schema as a string that `schema_from_json` reads back."""
    return schema.json()


def schema_from_json(text: str) -> Schema:
    """Parse the result of `schema_to_json`."""
    return StructType.fromJson(json.loads(text))


def schema_of(columns: Iterable[StructField]) -> Schema:
    """Return columns as a schema."""
    return StructType(list(columns))


def column_of(schema: Schema, name: str, kind: DataType | None = None) -> StructField:
    """Return the column with this name; its type is replaced by `kind` if given."""
    column = schema[name]
    return column if kind is None else StructField(name, kind)


def lines_of(session: Session, files: FileSet) -> Frame:
    """Return the lines of files as `value` with their file as `file`; blank lines may be omitted.

    Records of CSV that span lines are one value. With the option multiLine a file of JSON is one value.
    """
    is_by_workers = not files.is_native or files.format == "csv" or files.has_long_lines
    if is_by_workers or not is_utf8(encoding_of(files.options)):
        return _lines(session, files)
    return _native_lines(session, files)


def records_of(session: Session, files: FileSet) -> Frame:
    """Return the records of files as `value` with `file`, and whether the record is `whole` (see `divided`)."""
    if files.has_simple_lines and files.format == "json":
        return lines_of(session, files).where(F.trim("value") != "").withColumn("whole", F.lit(True))
    return divided(lines_of(session, files), files)


def divided(lines: Frame, files: FileSet) -> Frame:
    """Divide lines (`value`, `file`) into records, by the format and the options of files.

    The column `whole` is whether every character in a parsed record is part of its values. A line that cannot
    be divided is one record that is not whole.
    """
    if files.format == "csv":
        return lines.withColumn("whole", is_csv_row(F.col("value"), files.options))
    options = text_options(files)
    objects = lines.where(F.trim("value") != "").withColumn("objects", json_objects(F.col("value"), options))
    values = F.coalesce("objects", F.array("value")).alias("values")
    # Each row of `explode` also contains the other columns, so the list of all objects must not be one of them.
    lists = objects.select("file", F.col("objects").isNotNull().alias("whole"), values)
    records = lists.select(F.explode("values").alias("value"), "file", "whole")
    if not files.checks_keys:
        return records
    return records.withColumn("whole", F.col("whole") & ~has_repeated_key(F.col("value"), options))


def is_csv_row(text: Column, options: Mapping[str, str]) -> Column:
    """Return whether a string is UTF-8 and one CSV record whose quotes are all closed before a separator."""
    dialect = CsvDialect.of(options)
    is_text = spark_version().is_valid_utf8(text)
    if not dialect.quote or not dialect.is_strict:
        return is_text
    return is_text & (~F.contains(text, F.lit(dialect.quote)) | F.regexp_like(text, F.lit(dialect.row)))


def with_simple_lines(session: Session, sets: Sequence[FileSet]) -> tuple[FileSet, ...]:
    """Divide sets of JSON and CSV files so that those which Spark's readers read correctly are marked.

    These readers take each line for a record, ignore characters after its first object, read on after an open quote,
    and replace bytes that are not UTF-8. A pass over the lines finds the files that these readers read without loss.
    """
    return tuple(part for one in sets for part in _by_lines(session, one))


def _by_lines(session: Session, files: FileSet) -> tuple[FileSet, ...]:
    is_candidate = files.format in ("json", "csv") and files.is_native and is_utf8(encoding_of(files.options))
    if not is_candidate or flag(files.options, "multiLine", default=False):
        return (files,)
    value = F.col("value")
    is_long = F.lit(False)
    if files.format == "json":
        is_long = F.octet_length(value) > BLOCK_BYTES
        is_record = ~is_long & (is_json_object(value, text_options(files)) | (F.trim(value) == ""))
    else:
        is_record = is_csv_row(value, files.options)
    others = _native_lines(session, files).where(~is_record).groupBy("file").agg(F.max(is_long).alias("is_long"))
    with spark_failures("reading the lines of the files"):
        is_long_by_address = {row["file"]: row["is_long"] for row in others.collect()}
    kinds = {path: is_long_by_address.get(files.address(path)) for path in files.paths}
    groups = {kind: tuple(path for path in files.paths if kinds[path] is kind) for kind in (None, False, True)}
    return tuple(
        replace(files, paths=paths, has_simple_lines=kind is None, has_long_lines=bool(kind))
        for kind, paths in groups.items()
        if paths
    )


def text_options(files: FileSet) -> dict[str, str]:
    """Return the options of the parser for UTF-8 strings that are divided already."""
    own = ("encoding", "charset", "linesep", "multiline", "comment")
    return {name: text for name, text in _parser_options(files).items() if name.lower() not in own}


def _native_lines(session: Session, files: FileSet) -> Frame:
    options = {name: text for name, text in files.options.items() if name.lower() == "linesep"}
    if _is_whole(files):
        options = {"wholetext": "true"}
    reader = session.read.options(**options, __globPaths__="false").format("text")
    frame = reader.load(["file://" + files.storage.native(path) for path in files.paths])
    value = F.col("value")
    if _is_whole(files):
        # Spark removes a byte order mark from the first line of a file, but not from a whole file.
        value = F.when(F.startswith(value, F.lit("\ufeff")), F.substring(value, 2, 1 << 30)).otherwise(value)
    return frame.select(value.alias("value"), _native_file().alias("file"))


def _is_whole(files: FileSet) -> bool:
    """Return whether each file is one record."""
    return files.format == "json" and flag(files.options, "multiLine", default=False)


def describe(schema: Schema) -> str:
    """Return the schema in the syntax of a spec: `name: type, ...`."""
    return ", ".join(f"{column.name}: {column.dataType.simpleString()}" for column in schema)


def storage_options_of(session: Session) -> dict[str, str]:
    """Return the session's file system settings `spark.hadoop.fs.*` and `spark.hadoop.dfs.*` for core.storage."""
    conf = session.sparkContext._jsc.sc().getConf()
    # Each value is a call to the JVM, so reading all other settings would take 0.03 s.
    return {
        f"{prefix}{pair._1()}": str(pair._2()) for prefix in STORAGE_PREFIXES for pair in conf.getAllWithPrefix(prefix)
    }


@contextmanager
def ingest_settings(session: Session) -> Iterator[None]:
    """Set the options that affect row values for a `with` block, so that values do not depend on the session.

    Times without a zone are read as UTC: otherwise the partition of a row would depend on the machine that ingests it.
    JSON with repeated keys is refused. SQL has ANSI mode on each version of Spark, unless the user has set it.
    """
    version = spark_version()
    java_session: Any = session._jsparkSession
    stored = java_session.sessionState().conf()
    defaults = {name: value for name, value in version.DEFAULT_SETTINGS.items() if not stored.contains(name)}
    settings = {"spark.sql.session.timeZone": "UTC", **version.JSON_SETTINGS}
    before = {name: session.conf.get(name) for name in settings}
    for name, value in (settings | defaults).items():
        session.conf.set(name, value)
    try:
        yield
    finally:
        for name, earlier in before.items():
            session.conf.set(name, earlier or settings[name])
        for name in defaults:
            session.conf.unset(name)


def infer_schema(session: Session, sets: Sequence[FileSet]) -> Schema:
    """Read all files once and return columns and types that fit every record that can be parsed.

    The columns of the record key have types that keep their string (see `with_key_types`).
    """
    with spark_failures("reading the files to infer their columns"):
        union = _untyped(session, sets)
        if sets[0].format in TYPED:
            return union.schema
        is_json = sets[0].format == "json"
        schema = union.schema if is_json else inferred_types(union, _rules(session, sets[0]))
        return with_key_types(schema, sets[0].keys, is_json=is_json)


def infer_numbers(session: Session, sets: Sequence[FileSet], names: Collection[str]) -> Schema:
    """Return the types of the numbers in some columns; values that are not numbers are ignored."""
    with spark_failures("reading the files to infer their columns"):
        rules = _rules(session, sets[0])
        if rules.is_json:
            texts = StructType([StructField(name, StringType()) for name in names])
            records = [(one, records_of(session, one).where("whole")) for one in sets]
            frames = [frame.select(_json_record(texts, one).alias("record")) for one, frame in records]
            union = reduce(DataFrame.unionByName, frames).select("record.*")
        else:
            union = _untyped(session, sets)
        return number_types(union, [name for name in names if name in union.columns], rules)


def _untyped(session: Session, sets: Sequence[FileSet]) -> Frame:
    """Return the records of files: CSV records as strings, others with their own types."""
    frames = [_inferred(session, files) for files in sets]
    union = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), frames)
    return union.drop(*INTERNAL)


def read_files(session: Session, sets: Sequence[FileSet], schema: Schema) -> Frame:
    """Return the records of all files with exactly the columns of `schema` and the columns `INTERNAL`.

    Columns that the schema lacks are dropped; a column that a file lacks is null. Raises UserError if the schema has a
    column with an internal name.
    """
    reserved = next((column.name for column in schema if column.name in INTERNAL), None)
    if reserved is not None:
        raise UserError(f"column {reserved!r} is a name of this package; rename it in the files", column=reserved)
    with spark_failures("reading the files"):
        frames = [_typed(session, f, schema) if f.format in TYPED else _text(session, f, schema) for f in sets]
        numbered = [frame.withColumn(FILE_SET, F.lit(number)) for number, frame in enumerate(frames)]
        return reduce(DataFrame.unionByName, numbered)


def _text(session: Session, files: FileSet, schema: Schema) -> Frame:
    if not files.has_simple_lines or files.format == "json":
        return parse_records(records_of(session, files), files, schema)
    layout, rules, options = _text_layout(session, files, schema, _parser_options(files))
    reader = session.read.schema(_parsed(layout, rules)).options(**options)
    frame = _load(reader, files).select("*", _native_file().alias(SOURCE_FILE))
    return _with_columns(frame, layout, schema, rules)


def parse_records(records: Frame, files: FileSet, schema: Schema) -> Frame:
    """Return the rows of records (`value`, `file`, `whole`) by the format, the header and the options of files."""
    layout, rules, options = _text_layout(records.sparkSession, files, schema, text_options(files))
    parsed = _parsed(layout, rules)
    if rules.is_json:
        value = F.from_json(F.expr(rules.parsed_text("value")), parsed, options)
    else:
        value = F.from_csv("value", spark_version().to_ddl(parsed), options)
    rows = records.select("value", "whole", value.alias("record"), F.col("file").alias(SOURCE_FILE))
    is_bad = ~F.col("whole") | F.col(f"record.{CORRUPT}").isNotNull()
    columns = [F.col(f"record.{_quoted(name)}").alias(name) for name in layout.names]
    corrupt = F.when(is_bad, F.col("value")).alias(CORRUPT)
    frame = rows.select(*columns, corrupt, F.col("value").alias(_RECORD), SOURCE_FILE)
    typed = _with_columns(frame, layout, schema, rules)
    if not files.checks_keys:
        return typed
    repeated = F.when(F.col(CORRUPT).isNotNull(), repeated_key_problem(F.col(CORRUPT), options))
    return typed.withColumn(PROBLEM, F.coalesce(PROBLEM, repeated))


def _text_layout(
    session: Session, files: FileSet, schema: Schema, options: Mapping[str, str]
) -> tuple[Schema, FieldRules, dict[str, str]]:
    """Return the columns of a record, the rules of their values, and the options of the parser."""
    options = {**options, "columnNameOfCorruptRecord": CORRUPT, "mode": "PERMISSIVE"}
    return _layout(files, schema), _rules(session, files), options


def _rules(session: Session, files: FileSet) -> FieldRules:
    options = _parser_options(files)
    return FieldRules(
        options=options,
        is_json=files.format == "json",
        declared=files.declared,
        exact=files.keys - files.declared,
        separators=separators_of(session, options),
        is_strict=files.checks_values,
    )


def _json_record(texts: Schema, files: FileSet) -> Column:
    return F.from_json(F.expr(marked_json("value")), texts, text_options(files))


def _parsed(layout: Schema, rules: FieldRules) -> Schema:
    """Return the columns with which records are parsed, and the column `CORRUPT`."""
    texts = [StructField(column.name, rules.text_kind(column.dataType)) for column in layout]
    return StructType([*texts, StructField(CORRUPT, StringType())])


def _with_columns(frame: Frame, layout: Schema, schema: Schema, rules: FieldRules) -> Frame:
    """Return exactly the columns of `schema`, and `CORRUPT`, `PROBLEM` and `SOURCE_FILE`; `layout` describes one file.

    Columns that the files lack are null. A CSV record that Spark's reader parsed is written again.
    """
    rows = typed_rows(frame, layout, rules, problem=PROBLEM)
    record = F.col(_RECORD) if _RECORD in frame.columns else csv_text(layout, rules.options)
    corrupt = F.when(F.col(CORRUPT).isNull() & F.col(PROBLEM).isNotNull(), record).otherwise(F.col(CORRUPT))
    columns = {name.lower() for name in layout.names}
    selected = [
        F.col(_quoted(c.name)).alias(c.name)
        if c.name.lower() in columns
        else F.lit(None).cast(c.dataType).alias(c.name)
        for c in schema
    ]
    return rows.select(*selected, corrupt.alias(CORRUPT), PROBLEM, SOURCE_FILE)


def _layout(files: FileSet, schema: Schema) -> Schema:
    """Return the columns in the order of the file: for CSV as in its header; other formats match by name."""
    if not files.header:
        return schema
    types = {column.name.lower(): column.dataType for column in schema}
    return StructType([StructField(name, types.get(name.lower(), StringType())) for name in files.header])


def _typed(session: Session, files: FileSet, schema: Schema) -> Frame:
    if files.is_native:
        reader = session.read.options(**{"mergeSchema": "true", **files.options})
        frame = _load(reader, files).select("*", _native_file().alias(SOURCE_FILE))
    else:
        stored = StructType([*_stored_schema(files).fields, StructField(SOURCE_FILE, StringType())])
        read = partial(_typed_batches, files.storage, files.paths, files.format, to_arrow_schema(stored))
        frame = map_in_arrow(per_file(session, files), read, stored)
    kinds = {column.name.lower(): column.dataType for column in frame.schema}
    selected = [
        (
            _cast(F.col(_quoted(c.name)), kinds[c.name.lower()], c.dataType)
            if c.name.lower() in kinds
            else F.lit(None).cast(c.dataType)
        ).alias(c.name)
        for c in schema
    ]
    return frame.select(*selected, F.lit(None).cast("string").alias(CORRUPT), SOURCE_FILE)


def _cast(value: Column, stored: DataType, target: DataType) -> Column:
    """Cast a value; fields of structs that the value lacks become null, and no field is dropped."""
    if stored == target:
        return value
    if isinstance(stored, StructType) and isinstance(target, StructType) and {*stored.names} <= {*target.names}:
        kinds = {field.name: field.dataType for field in stored}
        fields = [
            (
                _cast(value.getField(field.name), kinds[field.name], field.dataType)
                if field.name in kinds
                else F.lit(None).cast(field.dataType)
            ).alias(field.name)
            for field in target
        ]
        return F.when(value.isNotNull(), F.struct(*fields)).cast(target)
    if isinstance(stored, ArrayType) and isinstance(target, ArrayType):
        return F.transform(value, lambda one: _cast(one, stored.elementType, target.elementType)).cast(target)
    return value.cast(target)


def _inferred(session: Session, files: FileSet) -> Frame:
    if files.format in TYPED:
        if files.is_native:
            reader = session.read.options(**{"mergeSchema": "true", **files.options})
            return _load(reader, files)
        return session.createDataFrame([], _stored_schema(files))
    is_csv = files.format == "csv"
    options = _parser_options(files) if files.has_simple_lines else text_options(files)
    options = {**options, "columnNameOfCorruptRecord": CORRUPT}
    reader = session.read.options(**options)
    if files.has_simple_lines:
        frame = _load(reader, files)
    else:
        # Only the reader of the JVM accepts records that are already in a DataFrame.
        jvm = session.sparkContext._jvm
        assert jvm is not None, "a classic session has a JVM"
        texts = records_of(session, files).where("whole").select("value")
        records = getattr(texts._jdf, "as")(jvm.org.apache.spark.sql.Encoders.STRING())
        read = reader._jreader.option("header", "false").csv if is_csv else reader._jreader.json
        frame = DataFrame(read(records), session)
    return frame.toDF(*files.header) if files.header else frame


def _load(reader: DataFrameReader, files: FileSet) -> Frame:
    # Names may contain brackets and stars, so they must not be treated as patterns.
    reader = reader.option("__globPaths__", "false")
    return reader.format(files.format).load(["file://" + files.storage.native(path) for path in files.paths])


def _parser_options(files: FileSet) -> dict[str, str]:
    options = {"timeZone": "UTC", **files.options}
    if files.format == "csv":
        options.setdefault("header", "true")
        if "escape" not in {name.lower() for name in options}:
            options["escape"] = CsvDialect.of(options).escape
    return options


def _native_file() -> Column:
    """Return the path of a record's file; Spark supplies a URI."""
    decoded = F.url_decode(F.replace(F.col("_metadata.file_path"), F.lit("+"), F.lit("%2B")))
    return F.regexp_replace(decoded, "^file:/+", "/")


def _lines(session: Session, files: FileSet) -> Frame:
    layout = TextLayout(
        encoding=encoding_of(files.options),
        skip=1 if files.header else 0,
        separator=option(files.options, "", "lineSep"),
        dialect=CsvDialect.of(files.options) if files.format == "csv" else None,
        is_whole=_is_whole(files),
        object=object_pattern(text_options(files)) if files.format in ("json", "debezium") else "",
    )
    read = partial(line_batches, files.storage, files.paths, layout)
    return map_in_arrow(per_file(session, files), read, "value string, file string")


def per_file(session: Session, files: FileSet) -> Frame:
    """Return one row per file, its position in `paths`; a task gets consecutive rows."""
    return task_numbers(session, len(files.paths), files.bytes, tasks=min(len(files.paths), 1000))


def _stored_schema(files: FileSet) -> Schema:
    def stored(path: str) -> pa.Schema:
        return typed_schema(files.storage, path, files.format)

    with ThreadPoolExecutor(16) as pool:
        schemas = pool.map(stored, files.paths)
    try:
        # Times without a zone are instants in Parquet and ORC, as Spark writes them; Avro has a type for both.
        common = pa.unify_schemas(list(schemas), promote_options="permissive")
        return from_arrow_schema(common, prefer_timestamp_ntz=files.format == "avro")
    except pa.ArrowInvalid as error:
        raise UserError(
            f"the {files.format} files of {files.storage.root} do not agree on their columns: {error}"
        ) from error


def _typed_batches(
    storage: Storage, paths: tuple[str, ...], format: str, target: pa.Schema, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        for index in batch.column(0).to_pylist():
            url = f"{storage.root}/{paths[index]}"
            for rows in typed_batches(storage, paths[index], format):
                columns = [
                    pa.repeat(url, rows.num_rows)
                    if column.name == SOURCE_FILE
                    else rows.column(column.name).cast(column.type)
                    if column.name in rows.schema.names
                    else pa.nulls(rows.num_rows, column.type)
                    for column in target
                ]
                yield pa.RecordBatch.from_arrays(columns, schema=target)


def _parsed_type(name: str, text: str) -> DataType:
    try:
        return spark_version().parsed_type(text)
    except PySparkException as error:
        raise UserError(
            f"schema: column {name!r} has the type {text!r}, which Spark does not know", column=name
        ) from error


def _quoted(name: str) -> str:
    return "`" + name.replace("`", "``") + "`"
