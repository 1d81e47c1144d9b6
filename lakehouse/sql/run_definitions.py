"""Executes CREATE, ALTER and DROP of tables, views, indexes and namespaces, and SET."""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.table.table import Table
from lakehouse.core.table.write_jobs import creation_arguments
from lakehouse.errors import SettingError, UserError, nearest
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.spec.options.declarations import declared_keys
from lakehouse.spec.options.hudi.job_names import (
    ARGUMENTS,
    MERGE_MODE,
    ORDERING,
    PAYLOAD,
    RECORD_KEY,
    SAME,
    STRATEGY,
    TABLE_NAME,
    TABLE_TYPE,
)
from lakehouse.spec.options.hudi.write_job import WriteJob, parse_write_job
from lakehouse.spec.options.parser import check_known, parse_options
from lakehouse.spec.table.location import resolve
from lakehouse.sql.engine import Parameters, Target
from lakehouse.sql.run_shows import matches
from lakehouse.sql.run_writes import matching_partitions, outcome_rows
from lakehouse.sql.session_tables import CHOICES, OPERATION, SessionTables, checked_choice
from lakehouse.sql.statements import (
    AddColumns,
    AlterAction,
    AlterTable,
    ChangeColumn,
    CreateIndex,
    CreateTable,
    CreateView,
    DropColumns,
    DropIndex,
    DropPartitions,
    DropTable,
    DropView,
    Namespace,
    Refresh,
    RenameColumn,
    SetOption,
    SetProperties,
    UnsetProperties,
    UnsupportedAlter,
)
from lakehouse.sql.types import arrow_type

logger = logging.getLogger(__name__)

#: Hudi's names of properties in SQL, and the options of its writers with the same meaning.
_SQL_NAMES = {
    "primarykey": RECORD_KEY,
    "precombinefield": "hoodie.datasource.write.precombine.field",
    "orderingfields": ORDERING,
    "type": TABLE_TYPE,
    "payloadclass": PAYLOAD,
    "recordmergemode": MERGE_MODE,
    "recordmergestrategyid": STRATEGY,
}
#: Options of one write, which a table cannot store, with the way out.
_OF_WRITES = {
    "operation": f"SET {OPERATION} in the session",
    "partitions": "use ALTER TABLE ... DROP PARTITION",
    "commit_metadata": "it belongs to one commit",
    "functions": "give it to the process that opens the table",
    "identifier": "it belongs to one streaming query",
    "storage": "credentials and options of the storage belong to the process that opens the table",
}
_PROPERTIES = ("primaryKey", "preCombineField", "orderingFields", "type", "payloadClass", "recordMergeMode")
_CDC = "hoodie.table.cdc.enabled"
_CDC_MODE = "hoodie.table.cdc.supplemental.logging.mode"
_INDEX_KINDS = ("", "secondary_index", "record_index", "column_stats", "bloom_filters", "lakehouse")


def create_table(session: SessionTables, statement: CreateTable, parameters: Parameters) -> pa.Table:
    """Create a table, register it, and insert the rows of AS SELECT; a failed insert drops the table again."""
    identifier = session.names.find(statement.name) or session.names.new_identifier(statement.name)
    if identifier is None:
        raise UserError(
            f"{'.'.join(statement.name)!r} cannot be the name of a table: write namespace.table with letters, digits, "
            "'_' and '-'"
        )
    if session.catalog.table_exists(identifier):
        if statement.exist_ok:
            return outcome_rows(_nothing(f"{identifier} exists already"))
        hint = "use INSERT OVERWRITE" if statement.replace else "write IF NOT EXISTS to accept it"
        raise UserError(f"table {identifier} exists already; {hint}, or DROP it first", table=identifier)
    if statement.like:
        raise UserError("CREATE TABLE ... LIKE is not supported: use CREATE TABLE ... AS SELECT * FROM t WHERE false")
    frame = session.query(statement.query, parameters) if statement.query else None
    schema = _schema(statement, None if frame is None else session.engine.schema(frame))
    location = statement.location or f"{(session.warehouse or '.').rstrip('/')}/{identifier.replace('.', '/')}"
    place = resolve(location, os.environ, name="LOCATION")
    if not statement.columns and not statement.query:
        return _registered(session, statement, identifier, place)
    name = identifier.rpartition(".")[2]
    arguments, options = _arguments(statement, name)
    Table.create(place, name=name, schema=schema, options=options, **arguments)
    session.catalog.register_table(identifier, place)
    if frame is None:
        return outcome_rows(_nothing(f"created {identifier} at {place}"))
    targets = [Target(field=field, source=number) for number, field in enumerate(schema)]
    try:
        rows = session.engine.conform(frame, targets)
        return outcome_rows(session.names.open(statement.name, session.options_of_writes()).bulk_insert(rows))
    except BaseException:
        session.catalog.drop_table(identifier, purge=True)
        raise


def create_view(session: SessionTables, statement: CreateView, _: Parameters) -> pa.Table | None:
    """Create a view of this session if its query reads tables of the catalog."""
    from_catalog = session.reads_catalog(statement.query)
    name = statement.name[-1].lower()
    exists = f"the view {name} exists already; use CREATE OR REPLACE TEMPORARY VIEW"
    if not from_catalog:
        if len(statement.name) == 1 and session.view(name) is not None:
            if not statement.replace:
                raise UserError(exists)
            session.views.pop(name, None)
        return None
    if not statement.is_temporary or len(statement.name) > 1:
        raise UserError(
            "a view in a catalog cannot read tables of the lakehouse catalog, because other sessions do not have their "
            "names: use CREATE TEMPORARY VIEW"
        )
    if not statement.replace and (session.view(name) is not None or session.engine.has_view(name)):
        raise UserError(exists)
    session.define_view(name, statement.query, statement.columns)
    return outcome_rows(_nothing(f"created view {name}"))


def drop_view(session: SessionTables, statement: DropView, _: Parameters) -> pa.Table | None:
    """Drop a view of this session."""
    if len(statement.name) != 1 or statement.name[0].lower() not in session.views:
        return None
    del session.views[statement.name[0].lower()]
    return outcome_rows(_nothing(f"dropped view {statement.name[0]}"))


def drop_table(session: SessionTables, statement: DropTable, _: Parameters) -> pa.Table | None:
    """Remove a table from the catalog; PURGE also deletes its files."""
    if not session.belongs(statement.name):
        identifier = session.names.identifier(statement.name)
        is_ours = (
            identifier is not None
            and len(statement.name) > 1
            and (session.names.namespace(statement.name[:-1]) is not None)
        )
        if statement.exist_ok and session.engine.session is None:
            # DuckDB has no PURGE.
            is_ours = is_ours or not session.engine.has_relation(statement.name)
        return outcome_rows(_nothing("there is no such table")) if is_ours and statement.exist_ok else None
    identifier = session.names.registered(statement.name)
    remaining = session.catalog.drop_table(identifier, purge=statement.purge)
    foreign = f"; these paths do not belong to it and stay: {', '.join(remaining)}" if remaining else ""
    files = "" if statement.purge else "; its files stay, DROP TABLE ... PURGE deletes them"
    return outcome_rows(_nothing(f"dropped {identifier}{files}{foreign}"))


def refresh(session: SessionTables, statement: Refresh, _: Parameters) -> pa.Table | None:
    """Do nothing: every statement reads the newest version."""
    return outcome_rows(_nothing("nothing to refresh")) if session.belongs(statement.name) else None


def alter_table(session: SessionTables, statement: AlterTable, _: Parameters) -> pa.Table | None:
    """Change columns and properties, in one commit, or drop partitions."""
    if not session.belongs(statement.name):
        return None
    table = session.open(statement.name)
    outcome: Any = _nothing("nothing to change")
    builder: Any = None
    target: Any = table
    for action in statement.actions:
        if isinstance(action, DropPartitions):
            outcome = _drop_partitions(table, action)
        else:
            builder = _altered(target.alter() if builder is None else builder, action, table)
    if builder is not None:
        outcome = builder.execute()
    return outcome_rows(outcome)


def unsupported_alter(session: SessionTables, statement: UnsupportedAlter, _: Parameters) -> None:
    """Raise UserError if the table belongs to the catalog."""
    if session.belongs(statement.name):
        raise UserError(f"ALTER TABLE {'.'.join(statement.name)}: this change is not supported: {statement.advice}")


def create_index(session: SessionTables, statement: CreateIndex, _: Parameters) -> pa.Table | None:
    """Declare an index; `CALL lakehouse.index(table => ..., op => 'run')` builds it."""
    if not session.belongs(statement.name):
        return None
    services = session.open(statement.name).services
    if statement.kind not in _INDEX_KINDS:
        kinds = ", ".join(_INDEX_KINDS[1:-1])
        near = nearest(statement.kind, _INDEX_KINDS[1:])
        raise UserError(f"USING {statement.kind}: there is no such index.{near} Indexes are {kinds}")
    if statement.kind == "record_index":
        raise UserError(
            "a record index is declared by an option: ALTER TABLE ... SET TBLPROPERTIES "
            "('hoodie.metadata.record.index.enable' = 'true'), then CALL lakehouse.index(table => '...', op => 'run')"
        )
    if len(statement.columns) != 1:
        raise UserError("an index has one column")
    column = statement.columns[0].strip('`"')
    expression = statement.options.get("expr", statement.options.get("func", ""))
    try:
        if statement.kind in ("column_stats", "bloom_filters") or expression:
            _declare_expression(services, statement, column, expression)
        else:
            services.create_index(column, name=statement.index)
    except UserError as error:
        if statement.exist_ok and "exists" in error.message:
            return outcome_rows(_nothing(error.message))
        raise
    build = f"CALL lakehouse.index(table => '{'.'.join(statement.name)}', op => 'run') builds it"
    return outcome_rows(_nothing(f"declared the index {statement.index}; {build}"))


def drop_index(session: SessionTables, statement: DropIndex, _: Parameters) -> pa.Table | None:
    """Drop an index."""
    if not session.belongs(statement.name):
        return None
    services = session.open(statement.name).services
    try:
        services.drop_index(statement.index)
    except UserError as error:
        if statement.exist_ok:
            return outcome_rows(_nothing(error.message))
        raise
    return outcome_rows(_nothing(f"dropped the index {statement.index}"))


def namespace(session: SessionTables, statement: Namespace, _: Parameters) -> pa.Table | None:
    """Create, drop, show and use namespaces of the catalog."""
    if statement.verb == "show":
        return show_namespaces(session, statement.pattern)
    if len(statement.name) > 1 and statement.name[0].lower() != "lakehouse":
        return None
    name, existing = statement.name[-1], session.names.namespace(statement.name)
    if statement.verb == "use":
        if existing is None:
            session.names.current = name
            return None if session.engine.session is not None else _unknown_namespace(session, name)
        session.names.current = existing
        if session.engine.has_namespace(existing):
            return None
        return outcome_rows(_nothing(f"the current namespace is {existing}"))
    if statement.verb == "create":
        if session.engine.session is not None and statement.name[0].lower() != "lakehouse":
            return None
        if statement.location:
            raise UserError("a namespace has no location: give LOCATION in CREATE TABLE")
        session.catalog.create_namespace(name, exist_ok=statement.exist_ok)
        return outcome_rows(_nothing(f"created namespace {name}"))
    if existing is None:
        if session.engine.session is not None:
            return None
        return outcome_rows(_nothing("no such namespace")) if statement.exist_ok else _unknown_namespace(session, name)
    if statement.cascade:
        raise UserError("DROP NAMESPACE ... CASCADE is not supported: drop the tables first")
    session.catalog.drop_namespace(existing)
    return outcome_rows(_nothing(f"dropped namespace {existing}"))


def show_namespaces(session: SessionTables, pattern: str) -> pa.Table:
    """Return the namespaces in the catalog and in the engine."""
    names = [*session.engine_namespaces(), *session.catalog.list_namespaces()]
    shown = sorted({name for name in names if matches(name, pattern)})
    return pa.table({"namespace": pa.array(shown, pa.string())})


def set_option(session: SessionTables, statement: SetOption, _: Parameters) -> pa.Table | None:
    """Set or reset an option for writes in this session; Spark gets the statement, too."""
    in_spark = session.engine.session is not None
    if statement.value is None:
        session.options.pop(statement.key, None)
    else:
        try:
            if statement.key in CHOICES:
                checked_choice(statement.key, statement.value)
            else:
                check_known({statement.key: statement.value})
                _check_value(statement.key, statement.value)
        except UserError as error:
            is_unknown = statement.key not in declared_keys() and statement.key not in CHOICES
            if not in_spark or not is_unknown:
                raise error
            # Another library of the session may know the key.
            return None
        session.options[statement.key] = statement.value
    if in_spark:
        return None
    value = "" if statement.value is None else statement.value
    return pa.table({"key": pa.array([statement.key]), "value": pa.array([value])})


def _check_value(key: str, value: str) -> None:
    """Raise UserError for a value that does not fit its option; options that need others are checked by the write."""
    try:
        parse_options({key: value})
    except SettingError as error:
        if error.setting == key and not error.related:
            raise


def _nothing(reason: str) -> NothingToDo:
    return NothingToDo(code=NothingToDoReason.NO_CHANGES, reason=reason)


def _unknown_namespace(session: SessionTables, name: str) -> pa.Table:
    names = session.catalog.list_namespaces()
    raise UserError(f"there is no namespace {name!r}.{nearest(name, names)} SHOW NAMESPACES lists them")


def _schema(statement: CreateTable, source: pa.Schema | None) -> pa.Schema:
    if source is not None and statement.columns:
        raise UserError("CREATE TABLE ... AS SELECT takes its columns from the query: leave out the list of columns")
    if source is not None:
        return pa.schema([pa.field(field.name, _stored_type(field)) for field in source])
    fields = []
    for column in statement.columns:
        if column.name.lower() in META_COLUMNS:
            raise UserError(f"column {column.name} is a meta column, which every table has: leave it out")
        metadata = {"comment": column.comment} if column.comment else None
        fields.append(pa.field(column.name, arrow_type(column.type), not column.is_required, metadata))
    return pa.schema(fields)


def _stored_type(field: pa.Field) -> pa.DataType:
    if pa.types.is_null(field.type):
        raise UserError(f"column {field.name}: NULL has no type; write CAST(NULL AS ...)")
    if pa.types.is_integer(field.type) and field.type.bit_width < 32:
        return pa.int32()
    return field.type


def _registered(session: SessionTables, statement: CreateTable, identifier: str, place: str) -> pa.Table:
    """Register an existing table: CREATE TABLE without columns, with LOCATION."""
    if not statement.location:
        raise UserError(f"CREATE TABLE {identifier} needs columns, AS SELECT, or the LOCATION of an existing table")
    if statement.properties or statement.partition_by:
        raise UserError("an existing table has its properties already: leave out TBLPROPERTIES and PARTITIONED BY")
    session.catalog.register_table(identifier, place)
    return outcome_rows(_nothing(f"registered {identifier} at {place}"))


def _arguments(statement: CreateTable, name: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Return the arguments and options of `Table.create`, as for a DataFrame writer with the same options.

    Raises UserError for an unknown property, and for an option that a table cannot store.
    """
    options: dict[str, str] = {}
    cdc: dict[str, str] = {}
    for key, value in statement.properties.items():
        if key.lower() in (_CDC, _CDC_MODE):
            cdc[key.lower()] = value
        elif key.lower() in _SQL_NAMES:
            options[_SQL_NAMES[key.lower()]] = value
        elif key.startswith(("hoodie.", "lakehouse.")):
            options[key] = value
        else:
            raise UserError(
                f"unknown property {key!r}.{nearest(key, _PROPERTIES)} Properties are {', '.join(_PROPERTIES)}, and "
                "options hoodie.* and lakehouse.*"
            )
    if statement.comment:
        raise UserError("the COMMENT of a table is not stored: leave it out, or comment columns")
    job = parse_write_job(options)
    _check_job(job, name)
    declared = statement.partition_by
    if declared and job.partition_by not in (None, declared):
        raise UserError("PARTITIONED BY and hoodie.datasource.write.partitionpath.field differ; give one of them")
    for key, reason in job.unused.items():
        logger.info("CREATE TABLE %s: the property %s has no effect: %s", name, key, reason)
    arguments: dict[str, Any] = {
        "record_key": job.record_key or None,
        "partition_by": declared or job.partition_by,
        "table_type": job.table_type or None,
        "cdc": cdc.get(_CDC_MODE) or ("DATA_BEFORE_AFTER" if cdc.get(_CDC, "").lower() == "true" else None),
        **creation_arguments(job),
    }
    given = {key: value for key, value in arguments.items() if value is not None}
    return given, {**job.creation, **job.options}


def _check_job(job: WriteJob, name: str) -> None:
    """Raise UserError for properties of a write instead of a table."""
    if job.name and job.name != name:
        raise UserError(f"property {TABLE_NAME}={job.name!r} contradicts the name {name} of the table; leave it out")
    written = job.declares_operation and "operation"
    wrong = written or next((part for part in _OF_WRITES if part != "operation" and getattr(job, part)), "")
    if wrong:
        raise UserError(
            f"TBLPROPERTIES: the {wrong.replace('_', ' ')} of a write is no property of a table: {_OF_WRITES[wrong]}"
        )


def _declare_expression(services: Any, statement: CreateIndex, column: str, expression: str) -> None:
    prefix = "bloom_filters:" if statement.kind == "bloom_filters" else ""
    pattern = statement.options.get("format")
    call = f"{expression}({column}{f', {pattern}' if pattern else ''})" if expression else column
    if not expression:
        raise UserError(f"USING {statement.kind} needs OPTIONS (expr = 'function'), such as 'hour' or 'upper'")
    services.create_expression_index(f"{statement.index}={prefix}{call}")


def _drop_partitions(table: Table, action: DropPartitions) -> Committed | NothingToDo:
    paths: dict[str, None] = {}
    for values in action.partitions:
        some = matching_partitions(table, values)
        if not some and not action.exist_ok:
            raise UserError(f"no partition of {table.name} has the values {dict(values)}; write IF EXISTS to accept it")
        paths.update(dict.fromkeys(some))
    return table.delete_partitions(list(paths)) if paths else _nothing("no such partition")


def _altered(builder: Any, action: AlterAction, table: Table) -> Any:
    """Add one change to a builder of `Table.alter`."""
    match action:
        case AddColumns(columns=columns):
            for column in columns:
                if column.is_required:
                    raise UserError(
                        f"column {column.name}: stored rows have no value for it, so NOT NULL is not possible"
                    )
                kind = arrow_type(column.type)
                builder = builder.add_column(
                    column.name, kind, comment=column.comment, first=column.first, after=column.after
                )
        case DropColumns(names=names, exist_ok=exist_ok):
            stored = {name.lower() for name in table.schema.names}
            for name in names:
                if not (exist_ok and "." not in name and name.lower() not in stored):
                    builder = builder.drop_column(name)
        case RenameColumn(old=old, new=new):
            builder = builder.rename_column(old, new)
        case ChangeColumn():
            builder = _changed(builder, action, table)
        case SetProperties(values=values):
            builder = builder.set_properties(_options(values))
        case UnsetProperties(names=names):
            builder = builder.unset_properties(names)
    return builder


def _options(values: Mapping[str, str]) -> dict[str, str]:
    names = (*_SQL_NAMES, _CDC, _CDC_MODE)
    fixed = next((key for key in values if key.lower() in names or SAME.get(key, key) in ARGUMENTS), None)
    if fixed is not None:
        raise UserError(f"the property {fixed} is fixed when a table is created; create a new table AS SELECT")
    return dict(values)


def _changed(builder: Any, action: ChangeColumn, table: Table) -> Any:
    """Add the changes of one column; its type is changed only if it differs."""
    if action.type:
        kind = arrow_type(action.type)
        stored = table.schema.field(action.name).type if action.name in table.schema.names else None
        if stored != kind:
            builder = builder.change_type(action.name, kind)
    if action.comment is not None:
        builder = builder.set_comment(action.name, action.comment)
    if action.first or action.after:
        builder = builder.move_column(action.name, first=action.first, after=action.after)
    return builder.rename_column(action.name, action.new_name) if action.new_name else builder
