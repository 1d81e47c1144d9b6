"""Finds the columns of source files and their types before the rows are read.

csv      the header of each file; types of unknown columns are inferred from all records
json     the names in all records of each file, found in one pass; types as for CSV
typed    of Parquet, ORC and Avro: the schema in the footer or header of each file
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace

import pyarrow as pa
from pyspark.sql import functions as F
from pyspark.sql.pandas.types import from_arrow_schema, to_arrow_schema
from pyspark.sql.types import ArrayType, DataType, MapType, NumericType, StringType, StructField, StructType

from lakehouse.core.planning.schema import evolve, normalise
from lakehouse.errors import UserError
from lakehouse.spark.failures import spark_failures
from lakehouse.spark.json_text import has_repeated_key
from lakehouse.spark.sources import FileSet, Schema, Session, records_of, text_options
from lakehouse.spark.typed_files import typed_schema
from lakehouse.spec.options.schema import SchemaPolicy

_AT_ONCE = 16
_NAMES = "map<string,string>"


@dataclass(frozen=True, slots=True, kw_only=True)
class ColumnSet:
    """Files with the same columns.

    Attributes:
        files: The files.
        names: Their columns.
        valued: Columns that have a value in at least one record.
        absent: By column, the number of records that lack it although other records of their file have it.
    """

    files: FileSet
    names: tuple[str, ...]
    valued: frozenset[str]
    absent: Mapping[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, files: FileSet, names: Sequence[str]) -> ColumnSet:
        """Return a set whose columns are all assumed to contain values."""
        return cls(files=files, names=tuple(names), valued=frozenset(names))


def json_columns(session: Session, files: FileSet) -> tuple[ColumnSet, ...]:
    """Group the files by the names that occur in their records."""
    options = text_options(files)
    parsed = F.from_json("value", _NAMES, options).alias("one")
    records = records_of(session, files).where("whole").select("file", "value", parsed)
    # An expression in the same select as `explode` would be evaluated for each exploded row.
    repeats = has_repeated_key(F.col("value"), options, F.col("one")).alias("repeats")
    single = records.select("file", "one", repeats)
    # Each record also gets one pair with a null name, by which records are counted.
    unnamed = F.array(F.struct(*(F.lit(None).cast("string").alias(name) for name in ("key", "value"))))
    # Records with repeated keys are bad, so they have no columns.
    named = F.when(F.col("repeats"), unnamed).otherwise(F.concat(F.map_entries("one"), unnamed))
    entries = F.explode(named).alias("entry")
    pairs = single.select("file", entries, "repeats").select("file", "entry.key", "entry.value", "repeats")
    by_name = pairs.groupBy("file", "key").agg(
        F.count("value").alias("texts"), F.count(F.lit(1)).alias("records"), F.max("repeats").alias("repeats")
    )
    counts = F.sort_array(F.collect_list(F.when(F.col("key").isNotNull(), F.struct("key", "records"))))
    by_file = by_name.groupBy("file").agg(
        F.sort_array(F.collect_set("key")).alias("names"),
        F.sort_array(F.collect_set(F.when(F.col("texts") > 0, F.col("key")))).alias("valued"),
        F.max(F.when(F.col("key").isNull(), F.col("records"))).alias("records"),
        F.max("repeats").alias("repeats"),
        counts["records"].alias("counts"),
    )
    lacking = F.transform("counts", lambda count: F.greatest(F.col("records") - count, F.lit(0)))
    sums = F.aggregate(
        F.collect_list("absent"),
        F.array_repeat(F.lit(0).cast("long"), F.size("names")),
        lambda total, one: F.zip_with(total, one, lambda left, right: left + right),
    )
    by_set = by_file.withColumn("absent", lacking).groupBy("names", "valued", "repeats")
    with spark_failures("reading the files to find their columns"):
        rows = by_set.agg(F.collect_list("file").alias("files"), sums.alias("absent")).collect()
    paths_by_address = {files.address(path): path for path in files.paths}
    column_sets = []
    without_records = set(files.paths)
    for row in rows:
        paths = tuple(sorted(paths_by_address[address] for address in row["files"]))
        without_records -= set(paths)
        missing = {name: count for name, count in zip(row["names"], row["absent"], strict=True) if count}
        column_sets.append(
            ColumnSet(
                files=replace(
                    files,
                    paths=paths,
                    has_simple_lines=files.has_simple_lines and not row["repeats"],
                    checks_keys=bool(row["repeats"]),
                ),
                names=tuple(row["names"]),
                valued=frozenset(row["valued"]),
                absent=missing,
            )
        )
    if without_records:
        # No record of these files can be parsed.
        column_sets.append(ColumnSet.of(replace(files, paths=tuple(sorted(without_records))), ()))
    return tuple(sorted(column_sets, key=lambda one: one.files.paths))


def typed_columns(files: FileSet) -> tuple[ColumnSet, ...]:
    """Group the files by the columns and types that they declare."""

    def stored(path: str) -> pa.Schema:
        return typed_schema(files.storage, path, files.format)

    groups: dict[tuple[tuple[str, str], ...], list[str]] = {}
    with ThreadPoolExecutor(_AT_ONCE) as pool:
        for path, schema in zip(files.paths, pool.map(stored, files.paths), strict=True):
            key = tuple((column.name, str(column.type)) for column in schema)
            groups.setdefault(key, []).append(path)
    return tuple(
        ColumnSet.of(replace(files, paths=tuple(paths)), [name for name, _ in columns])
        for columns, paths in groups.items()
    )


def common_schema(sets: Sequence[ColumnSet], schemas: Sequence[Schema], policy: SchemaPolicy) -> Schema:
    """Return the columns in all files of a typed format, in types that can hold the values of every file.

    `schemas` contains one schema per set. Raises UserError with the column whose types differ more than the policy
    allows.
    """
    if len(schemas) == 1:
        return schemas[0]
    # Whether a column is new or missing is decided by the table, not by other files.
    merging = SchemaPolicy(missing_column="null", type_change=policy.type_change)
    common = normalise(to_arrow_schema(schemas[0]))
    for one, schema in zip(sets[1:], schemas[1:], strict=True):
        try:
            common = evolve(common, normalise(to_arrow_schema(schema)), merging).schema
        except UserError as error:
            raise UserError(
                f"the {one.files.format} files do not agree on their columns; comparing "
                f"{one.files.address(one.files.paths[0])} with files before it ('the table'): {error.message}",
                **error.facts,
            ) from error
    return from_arrow_schema(common)


def widened(schema: Schema, inferred: Schema, policy: SchemaPolicy, fixed: frozenset[str]) -> Schema:
    """Return the known columns, widened to the inferred types where the policy allows it.

    Other columns, and those in `fixed`, keep their type; records whose values do not fit are bad records.
    """
    inferred_columns = {column.name.lower(): column for column in inferred}
    merging = SchemaPolicy(new_column="ignore", missing_column="null", type_change=policy.type_change)
    return StructType(
        [_widened(column, inferred_columns.get(column.name.lower()), merging, fixed) for column in schema]
    )


def refused_numbers(schema: Schema, inferred: Schema, wider: Schema, fixed: frozenset[str]) -> tuple[str, ...]:
    """Return the names of numeric columns that keep their type because some of their values are not numbers."""
    kinds = {column.name.lower(): column.dataType for column in inferred}
    names = {column.name.lower(): column.name for column in inferred}
    return tuple(
        names[column.name.lower()]
        for column, same in zip(schema, wider, strict=True)
        if isinstance(column.dataType, NumericType)
        and column.dataType == same.dataType
        and column.name not in fixed
        and isinstance(kinds.get(column.name.lower()), StringType)
    )


def _widened(
    column: StructField, other: StructField | None, policy: SchemaPolicy, fixed: frozenset[str]
) -> StructField:
    if other is None or other.dataType == column.dataType or column.name in fixed or nested(column.dataType):
        return column
    before, after = (normalise(to_arrow_schema(StructType([StructField("x", c.dataType)]))) for c in (column, other))
    try:
        plan = evolve(before, after, policy)
    except UserError:
        return column
    return StructField(column.name, from_arrow_schema(plan.schema)[0].dataType) if plan.drift else column


def nested(kind: DataType) -> bool:
    """Return whether a type is a struct, an array or a map."""
    return isinstance(kind, StructType | ArrayType | MapType)


def new_fields(declared: DataType, inferred: DataType, name: str) -> tuple[DataType, tuple[str, ...]]:
    """Return the known type with the additional fields of `inferred`, and the dotted names of these fields."""
    if isinstance(declared, StructType) and isinstance(inferred, StructType):
        inferred_fields = {field.name: field for field in inferred}
        fields: list[StructField] = []
        added: list[str] = []
        for field in declared:
            kind, names = field.dataType, tuple[str, ...]()
            if field.name in inferred_fields:
                kind, names = new_fields(kind, inferred_fields[field.name].dataType, f"{name}.{field.name}")
            fields.append(StructField(field.name, kind))
            added += names
        new = [field for field in inferred if field.name not in declared.names]
        return StructType([*fields, *new]), (*added, *(f"{name}.{field.name}" for field in new))
    if isinstance(declared, ArrayType) and isinstance(inferred, ArrayType):
        kind, names = new_fields(declared.elementType, inferred.elementType, f"{name}.element")
        return ArrayType(kind), names
    return declared, ()


def narrowing(declared: Schema, stored: Mapping[str, DataType]) -> str | None:
    """Describe the first column, if any, whose declared numeric type is narrower than the stored type."""
    order = {"tinyint": 1, "smallint": 2, "int": 3, "bigint": 4, "float": 5, "double": 6}
    for column in declared:
        kind = stored.get(column.name.lower())
        texts = column.dataType.simpleString(), "" if kind is None else kind.simpleString()
        if all(text in order for text in texts) and order[texts[0]] < order[texts[1]]:
            return f"column {column.name!r} is {texts[1]} in the files and {texts[0]} in 'schema' of the spec"
    return None
