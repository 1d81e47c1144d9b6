"""Decide which file columns a run reads, and with which types.

    known     the columns of the spec's `schema`, and further columns that earlier runs read
    new       unknown names in files: either their types are inferred from all records, or they are not read
    lacking   known names that are missing in files of the run; the write needs them for each set of files

Parquet, ORC and Avro files declare their types. All their columns are read; a comparison with the table shows new ones.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lakehouse.errors import UserError
from lakehouse.model.drift import ColumnDrift, Drift
from lakehouse.platform.sources.files.json_values import FieldCollector
from lakehouse.platform.sources.new_fields import role_columns, value_columns, with_new_columns
from lakehouse.platform.sources.source import KnownColumns
from lakehouse.platform.sources.source_context import ingest_of
from lakehouse.platform.sources.unread_fields import RowFieldCollector, UnreadField, merged
from lakehouse.spark.bad_records import key_inputs
from lakehouse.spark.columns import (
    ColumnSet,
    common_schema,
    json_columns,
    narrowing,
    nested,
    new_fields,
    refused_numbers,
    typed_columns,
    widened,
)
from lakehouse.spark.debezium import EVENT_ROWS, row_type
from lakehouse.spark.event_files import event_records, unread_of_records
from lakehouse.spark.field_rows import check_patterns
from lakehouse.spark.inferred_types import with_key_types
from lakehouse.spark.letters import unread_texts
from lakehouse.spark.sources import (
    FileSet,
    Schema,
    Session,
    check_reader_options,
    column_of,
    declared_schema,
    describe,
    infer_numbers,
    infer_schema,
    records_of,
    schema_of,
    to_arrow,
)
from lakehouse.spec.options.schema import NEW_COLUMN, SchemaPolicy
from lakehouse.spec.sources.debezium import DEBEZIUM_FORMATS, check_debezium
from lakehouse.spec.sources.file_source import TYPED, FileSourceSpec
from lakehouse.spec.table.table_spec import TableSpec

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadPlan:
    """The columns to read.

    Attributes:
        sets: Sets of files with the same columns.
        schema: The columns and types for all rows.
        ignored: The columns in files that are not read.
        fields: The nested fields in files that are not read, by dotted name.
        lacking_fields: Per set, the nested fields that only other sets contain.
        unread: The fields that are not read, with counts and examples, if records were searched for them.
    """

    sets: tuple[ColumnSet, ...]
    schema: Schema
    ignored: tuple[str, ...] = ()
    fields: tuple[str, ...] = ()
    lacking_fields: tuple[tuple[str, ...], ...] = ()
    unread: tuple[UnreadField, ...] = ()

    def lacking(self, number: int) -> frozenset[str]:
        """Return the columns that are missing in one set's files."""
        one = self.sets[number]
        if not one.names and one.files.format == "csv":
            # A file without a header has all columns, in order.
            return frozenset()
        fold = str if one.files.format == "json" else str.lower
        names = {fold(name) for name in one.names}
        return frozenset(name for name in self.schema.names if fold(name) not in names)

    def drift(self, rows: Sequence[int]) -> tuple[ColumnDrift, ...]:
        """Return the columns that were not read or are missing, with the number of affected rows.

        `rows` contains the number of rows per set.
        """
        counts = {name: sum(rows) for name in self.fields}
        for name in self.ignored:
            counts[name] = sum(count for one, count in zip(self.sets, rows, strict=True) if name in one.names)
        examples = {one.name: one.example for one in self.unread}
        counts |= {one.name: one.records for one in self.unread}
        nulled: dict[str, int] = {}
        for names, count in zip(self.lacking_fields, rows, strict=bool(self.lacking_fields)):
            nulled |= {name: nulled.get(name, 0) + count for name in names}
        return (
            *(
                ColumnDrift(column=name, change=Drift.IGNORED, rows=count, example=examples.get(name, ""))
                for name, count in counts.items()
            ),
            *(ColumnDrift(column=name, change=Drift.NULLED, rows=count) for name, count in nulled.items() if count),
        )


def plan_columns(session: Session, sets: Sequence[FileSet], spec: TableSpec, known_columns: KnownColumns) -> ReadPlan:
    """Look up the files' columns and decide which are read.

    Args:
        session: The Spark session that reads.
        sets: The files, in sets of one format and one header.
        spec: The spec of the table.
        known: The columns that earlier runs read, and the rules for different columns.

    Raises:
        UserError: The policy does not allow a difference.
    """
    settings, declared = file_source_of(spec), declared_schema(spec.schema)
    sets = tuple(with_columns_of(one, spec) for one in sets)
    if settings.format in TYPED:
        return _typed_plan(session, sets[0], declared, known_columns.policy)
    if settings.format in DEBEZIUM_FORMATS:
        return _event_plan(session, sets[0], spec, known_columns)
    if settings.format == "json":
        column_sets = tuple(one for files in sets for one in json_columns(session, files))
    else:
        column_sets = tuple(ColumnSet.of(files, files.header) for files in sets)
    base = _base(declared, known_columns.schema)
    if not base.fields:
        return ReadPlan(sets=column_sets, schema=_inferred(session, column_sets, spec))
    return _with_new(session, column_sets, base, spec, known_columns.policy)


def widened_plan(session: Session, plan: ReadPlan, spec: TableSpec, policy: SchemaPolicy) -> ReadPlan:
    """Return the plan with wider types for the records that did not parse, where the policy allows the change.

    Columns that the spec declares, record keys, partition and ordering columns keep their types. A value that is not a
    number does not prevent a wider numeric type for its column; its record stays bad.
    """
    fixed = {*spec.schema, *spec.record_key, *(column.name for column in spec.partition_by), *spec.ordering}
    sets, names = [one.files for one in plan.sets], frozenset(fixed)
    inferred = infer_schema(session, sets)
    schema = widened(plan.schema, inferred, policy, names)
    refused = refused_numbers(plan.schema, inferred, schema, names)
    if refused:
        schema = widened(schema, infer_numbers(session, sets, refused), policy, names)
    return plan if schema == plan.schema else replace(plan, schema=schema)


def file_source_of(spec: TableSpec) -> FileSourceSpec:
    """Return the files source settings of a spec."""
    source = ingest_of(spec).source
    assert isinstance(source, FileSourceSpec), f"the source of table {spec.table} is {source.KIND}"
    return source


def with_columns_of(files: FileSet, spec: TableSpec) -> FileSet:
    """Return files with the spec's declared columns and record key, and whether it checks values."""
    declared, keys = (frozenset(name.lower() for name in names) for names in (spec.schema, spec.record_key))
    checks = file_source_of(spec).check_values
    return replace(files, declared=declared, keys=keys, checks_values=checks)


def check_format(spec: TableSpec) -> None:
    """Raise UserError if an option does not fit the file format, or the format requires a setting in the spec."""
    settings, place = file_source_of(spec), spec.source or "the spec"
    check_reader_options(settings.options, settings.format)
    check_patterns(settings.options)
    if settings.format not in DEBEZIUM_FORMATS:
        return
    if settings.options.get("multiLine", "false").lower() == "true":
        raise UserError(
            "ingest.options: multiLine is not possible for change events: each line is one", option="multiLine"
        )
    check_debezium(spec.table, place, spec.schema, (spec.delete_field, spec.delete_marker))


def _base(declared: Schema, stored: Schema | None) -> Schema:
    names = {name.lower() for name in declared.names}
    return schema_of([*declared, *(column for column in stored or () if column.name.lower() not in names)])


def _event_plan(session: Session, files: FileSet, spec: TableSpec, known_columns: KnownColumns) -> ReadPlan:
    """Return the plan of change events, whose columns the spec declares; all other columns are reported."""
    schema = value_columns(spec, known_columns)
    target = pa.struct(list(to_arrow(row_type(schema))))
    if files.format == "debezium":
        collector = FieldCollector(target=target, paths=EVENT_ROWS)
        unread = merged(unread_texts(event_records(session, files).where("whole").select("value"), collector))
    else:
        unread = merged(unread_of_records(session, files, RowFieldCollector(target=target, paths=("after", "before"))))
    with_new_columns(schema, unread, spec, known_columns, has_types=False)
    return ReadPlan(sets=(ColumnSet.of(files, schema.names),), schema=schema, unread=unread)


def _typed_plan(session: Session, files: FileSet, declared: Schema, policy: SchemaPolicy) -> ReadPlan:
    column_sets = typed_columns(files)
    schemas = [infer_schema(session, [one.files]) for one in column_sets]
    common = common_schema(column_sets, schemas, policy)
    narrowed = narrowing(declared, {column.name.lower(): column.dataType for column in common})
    if narrowed is not None:
        raise UserError(f"{narrowed}: values would be truncated. Declare the wider type")
    return ReadPlan(sets=column_sets, schema=_base(declared, common), lacking_fields=_lacking_fields(schemas, common))


def _lacking_fields(schemas: Sequence[Schema], common: Schema) -> tuple[tuple[str, ...], ...]:
    """Return the dotted names of nested fields that each schema lacks."""
    kinds = {column.name: column.dataType for column in common}
    return tuple(
        tuple(
            name
            for column in schema
            if column.name in kinds
            for name in new_fields(column.dataType, kinds[column.name], column.name)[1]
        )
        for schema in schemas
    )


def _inferred(session: Session, column_sets: Sequence[ColumnSet], spec: TableSpec) -> Schema:
    """Return the columns of a table without a declared schema; record key columns stay strings."""
    is_json = file_source_of(spec).format == "json"
    if is_json:
        _check_case({name: one for one in reversed(column_sets) for name in one.names}, schema_of([]))
    schema = infer_schema(session, [one.files for one in column_sets])
    if not schema.fields:
        files = column_sets[0].files
        hint = "; if a record spans lines, set options: {multiLine: 'true'} in 'ingest'" if is_json else ""
        raise UserError(
            f"table {spec.table}: no record of the files could be read as {files.format}, such as those of "
            f"{files.address(files.paths[0])}, so there are no columns. Check ingest.format{hint}",
            path=files.address(files.paths[0]),
        )
    computed = key_inputs(session, schema, ingest_of(spec).select, spec.record_key)
    schema = with_key_types(schema, computed, is_json=is_json)
    if is_json and not ingest_of(spec).select:
        # The type of a column without values is unknown. The column is added with its first value.
        valued = {name for one in column_sets for name in one.valued} | set(spec.record_key)
        schema = schema_of([column for column in schema if column.name in valued])
    log.warning(
        "table %s: columns and types were inferred from %s files, and record keys keep their text; declare them in "
        "'schema' of the spec to fix them: %s",
        spec.table,
        sum(len(one.files.paths) for one in column_sets),
        describe(schema),
    )
    return schema


def _with_new(
    session: Session, column_sets: tuple[ColumnSet, ...], base: Schema, spec: TableSpec, policy: SchemaPolicy
) -> ReadPlan:
    """Return the plan of files with known columns and possibly new ones."""
    fold = str if file_source_of(spec).format == "json" else str.lower
    names = {fold(name) for name in base.names}
    new = {name: one for one in column_sets for name in one.names if fold(name) not in names and name in one.valued}
    select = ingest_of(spec).select
    passes = not select or any(text.strip().startswith("*") for text in select)
    adds = policy.new_column == "add" and passes
    columns, fields = _new_fields(session, column_sets, base)
    if policy.new_column == "fail" and (new or fields):
        name = sorted(new or fields)[0]
        where = f", such as {new[name].files.address(new[name].files.paths[0])}," if name in new else ""
        raise UserError(
            f"column {name!r} of the files{where} is not among the columns of table {spec.table}. Remove it, or set "
            f"new_column in 'ingest' ({NEW_COLUMN}) to add it, or to ignore it",
            column=name,
        )
    roles = role_columns(spec) if passes else frozenset()
    added = {name: one for name, one in new.items() if adds or name in roles}
    _check_case(added, base)
    ignored = tuple(sorted(new.keys() - added.keys()))
    more: list[Any] = []
    if added:
        with_new = infer_schema(session, [one.files for one in column_sets if added.keys() & set(one.names)])
        # Empty objects give no column.
        more = [column_of(with_new, name) for name in sorted(added) if name in with_new.names]
    if policy.new_column == "add" or not fields:
        plan = ReadPlan(sets=column_sets, schema=schema_of([*columns, *more]), ignored=ignored)
    else:
        plan = ReadPlan(sets=column_sets, schema=schema_of([*base, *more]), ignored=ignored, fields=fields)
    return replace(plan, unread=_unread(session, plan)) if plan.ignored or plan.fields else plan


def _unread(session: Session, plan: ReadPlan) -> tuple[UnreadField, ...]:
    """Return the fields of JSON records that the plan does not read, with their numbers and examples."""
    sets = [one.files for one in plan.sets]
    if sets[0].format != "json":
        return ()
    collector = FieldCollector(target=pa.struct(list(to_arrow(plan.schema))))
    return merged(
        text for files in sets for text in unread_texts(records_of(session, files).select("value"), collector)
    )


def _check_case(new: Mapping[str, ColumnSet], base: Schema) -> None:
    """Raise UserError for a new column that differs from another column only in case: a table cannot have both."""
    seen = {name.lower(): (name, "") for name in base.names}
    for name, one in sorted(new.items()):
        file = one.files.address(one.files.paths[0])
        other, place = seen.setdefault(name.lower(), (name, f" of {file}"))
        if other != name:
            raise UserError(
                f"column {name!r} of the files, such as {file}, differs from {other!r}{place} only in case, and a "
                "table cannot have both. Rename it in the files, or declare the columns in 'schema' and set "
                "new_column: ignore in 'ingest'",
                column=name,
            )


def _new_fields(session: Session, column_sets: Sequence[ColumnSet], base: Schema) -> tuple[Schema, tuple[str, ...]]:
    """Return the known columns including new nested fields, and the dotted names of the new fields."""
    if not any(nested(column.dataType) for column in base):
        return base, ()
    inferred = {column.name: column for column in infer_schema(session, [one.files for one in column_sets])}
    columns = []
    added: list[str] = []
    for column in base:
        if column.name in inferred:
            kind, names = new_fields(column.dataType, inferred[column.name].dataType, column.name)
            column = column_of(schema_of([column]), column.name, kind)
            added += names
        columns.append(column)
    return schema_of(columns), tuple(added)
