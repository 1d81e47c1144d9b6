"""The settings that a spec declares and a table stores, in one list, and their differences.

A table stores these settings when it is created, and every writer reads them from the table. A spec that declares
another value would have no effect, so the difference is refused by a run, by its `--check`, and by `table drift`.

A setting that a spec does not declare is not compared: the table keeps its value. Settings that each write may choose
are not in the list, because the spec decides: indexes except BUCKET, the retention of deletes, and the columns with
statistics.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pyarrow as pa

from lakehouse.core.layout.registry import unread_by
from lakehouse.core.operations.create.declare import TableDeclaration, declared_keys
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.placement.bucket_rules import readable_bucket_rules
from lakehouse.core.rows.timestamp_keys import zone_id
from lakehouse.core.rows.timestamp_units import check_unit, resolved_format
from lakehouse.core.state.table_config import CDC_ENABLED, CDC_MODE, TableConfig, stored_format
from lakehouse.errors import UserError
from lakehouse.model.column_groups import declared_groups, groups_text
from lakehouse.model.index_type import BUCKET, BUCKET_ENGINE, INDEX_TYPE, index_type
from lakehouse.model.keys import BY_COLUMN, KEY_ENCODING, KeyConfig, KeyEncoding, TimestampFormat
from lakehouse.spec.options.creation import READERS, declared_readers
from lakehouse.spec.options.declarations import canonical_key
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.table.bucket_rules import (
    EXPRESSIONS,
    HASH_FIELD,
    MADE_WITH,
    NUM_BUCKETS,
    BucketRules,
    parse_rules,
    render_rules,
)
from lakehouse.spec.table.partition_fields import DEFAULT_FORMAT
from lakehouse.spec.table.table_spec import TableSpec

_HIVE_STYLE = "hoodie.datasource.write.hive_style_partitioning"
_URL_ENCODE = "hoodie.datasource.write.partitionpath.urlencode"
_CONSISTENT = "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled"
_VERSION = "hoodie.write.table.version"
#: Arrow types by Spark SQL type, as far as time-based partitions distinguish them.
_SQL_TYPES: Mapping[str, pa.DataType] = {
    "date": pa.date32(),
    **dict.fromkeys(("timestamp", "timestamp_ltz"), pa.timestamp("us", "UTC")),
    "timestamp_ntz": pa.timestamp("us"),
    **dict.fromkeys(("string", "varchar", "char"), pa.string()),
    **dict.fromkeys(("tinyint", "byte", "smallint", "short", "int", "integer", "bigint", "long"), pa.int64()),
    **dict.fromkeys(("float", "real", "double", "decimal", "dec", "numeric"), pa.float64()),
}
_OF_INDEX = (INDEX_TYPE, BUCKET_ENGINE, NUM_BUCKETS, HASH_FIELD, EXPRESSIONS)
#: Timestamp types for numbers with a unit, and timestamp types that parse strings.
_UNIT_TYPES, _TEXT_TYPES = ("SCALAR", "MIXED"), ("DATE_STRING", "MIXED")


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """The declarations of a spec: the spec, the options from spec and run, and the keys of its table."""

    spec: TableSpec
    options: Mapping[str, str]
    keys: KeyConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class DeclaredSetting:
    """One setting of a spec that a table stores.

    Attributes:
        name: The key in the spec, or the key of the option.
        declared: Returns the declared value; None if the spec does not declare it.
        stored: Returns the value in the table; None if the table does not store it, which is possible in Hudi.
        current: Returns the current value, which the table may have changed since its creation.
    """

    name: str
    declared: Callable[[Declaration], str | None]
    stored: Callable[[TableConfig], str | None]
    current: Callable[[LoadedTable, Declaration], str | None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A setting whose declared and stored values differ."""

    name: str
    declared: str
    stored: str


def differences(
    spec: TableSpec, options: Mapping[str, str], config: TableConfig, table: LoadedTable | None = None
) -> Iterator[Difference]:
    """Yield the settings whose declared and stored values differ, in the order of `SETTINGS`.

    Args:
        spec: The spec of the table.
        options: The options from spec and run.
        config: The configuration of the stored table.
        table: The table, for settings that it may have changed since; None to compare only its configuration.

    Raises:
        UserError: The settings of the spec contradict each other.
    """
    options = {canonical_key(key): text for key, text in options.items()}
    fields = declared_fields(spec, declared_columns(spec) or _stored_columns(spec, table))
    timestamp, stored_time = fields["timestamp"], config.keys.timestamp
    if timestamp is not None and timestamp.type == BY_COLUMN and stored_time is not None:
        # Without a known column the timestamp type of the table applies.
        unit = replace(timestamp, type=stored_time.type, scalar_unit=stored_time.scalar_unit)
        fields["timestamp"] = unit
    keys = declared_keys(TableDeclaration(options=dict(options), **fields), config.layout)
    declaration = Declaration(spec=spec, options=options, keys=keys)
    for setting in SETTINGS:
        declared, stored = setting.declared(declaration), setting.stored(config)
        if declared is None or stored is None or declared == stored:
            continue
        if setting.current is not None and table is not None and declared == setting.current(table, declaration):
            continue
        yield Difference(name=setting.name, declared=declared, stored=stored)
    readers = declared_readers(options)
    if unread_by(readers, config.layout):
        yield Difference(
            name=READERS, declared=", ".join(readers), stored=f"{_VERSION}={config.version}, which not all of them read"
        )


def _stored_columns(spec: TableSpec, table: LoadedTable | None) -> dict[str, pa.DataType]:
    """Return the stored columns, if the type of a column decides how times are read."""
    times = [column.timestamp or DEFAULT_FORMAT for column in spec.partition_by if column.type == "TIMESTAMP"]
    if table is None or not any(timestamp.type == BY_COLUMN for timestamp in times):
        return {}
    schema = table_schema(table)
    return {} if schema is None else columns_of(schema)


def declared_fields(spec: TableSpec, columns: Mapping[str, pa.DataType] | None = None) -> dict[str, Any]:
    """Return the fields of the spec's TableDeclaration, without its options.

    `columns` are the column types of the rows if they are known, or else the types that the spec declares.
    """
    recorded = spec.identities.get(spec.table)
    return {
        "name": spec.table if recorded is None else recorded.name,
        "table_id": None if recorded is None else recorded.id or None,
        "record_key": spec.record_key,
        "partition_by": tuple(f"{column.name}:{column.type}" for column in spec.partition_by),
        "ordering": spec.ordering,
        "table_type": spec.type,
        "key_generator": spec.key_generator,
        "timestamp": _timestamp(spec, declared_columns(spec) if columns is None else columns),
        "merge_mode": spec.merge_mode,
        "merger": spec.merger,
        "column_groups": spec.column_groups,
        "partial_update": spec.partial_update,
        "unavailable_value": spec.unavailable_value,
        "delete_field": spec.delete_field,
        "delete_marker": spec.delete_marker,
    }


def declared_columns(spec: TableSpec) -> dict[str, pa.DataType]:
    """Return the column types that the spec declares, as far as partitions depend on them."""
    if spec.ingest is not None and (spec.ingest.select or spec.ingest.transform):
        return {}
    named = {name: text.strip().lower().partition("(")[0].strip() for name, text in spec.schema.items()}
    return {name: _SQL_TYPES[text] for name, text in named.items() if text in _SQL_TYPES}


def columns_of(schema: pa.Schema) -> dict[str, pa.DataType]:
    """Return the types of columns by name, and of nested fields by dotted name."""
    types: dict[str, pa.DataType] = {}
    fields = [(field.name, field.type) for field in schema]
    while fields:
        name, kind = fields.pop()
        types[name] = kind
        if pa.types.is_struct(kind):
            fields += [(f"{name}.{kind.field(at).name}", kind.field(at).type) for at in range(kind.num_fields)]
    return types


def check_units(spec: TableSpec, options: Mapping[str, str], columns: Mapping[str, pa.DataType] | None = None) -> None:
    """Raise UserError for a TIMESTAMP partition column whose type does not match its timestamp type."""
    available = declared_columns(spec) if columns is None else columns
    consistent = options.get(_CONSISTENT, "").strip().lower() == "true"
    for column in spec.partition_by:
        if column.type == "TIMESTAMP" and column.name in available:
            kind = available[column.name]
            timestamp = resolved_format(column.timestamp or DEFAULT_FORMAT, kind)
            check_unit(timestamp, kind, name=column.name, consistent_timestamps=consistent)


def _timestamp(spec: TableSpec, columns: Mapping[str, pa.DataType]) -> TimestampFormat | None:
    """Return the format that all TIMESTAMP partition columns share, or None if there are no such columns."""
    timed = [column for column in spec.partition_by if column.type == "TIMESTAMP"]
    declared = [
        resolved_format(column.timestamp or DEFAULT_FORMAT, columns[column.name])
        if column.name in columns
        else column.timestamp or DEFAULT_FORMAT
        for column in timed
    ]
    if any(other != declared[0] for other in declared):
        listed = "; ".join(
            f"{c.name}: {f.type or 'by column'}, {f.output_format}" for c, f in zip(timed, declared, strict=True)
        )
        raise UserError(
            f"table {spec.table}: partition_by declares several timestamp formats ({listed}), but a table has one; "
            "use the same format and columns of the same type in all TIMESTAMP columns"
        )
    return declared[0] if declared else None


def _names(names: Iterable[str]) -> str:
    return ", ".join(names)


def _given(value: object) -> str | None:
    """Return a setting that the spec may omit."""
    return None if value is None else str(value)


def _fields(keys: KeyConfig) -> str:
    """Return the partition columns with their types."""
    types = keys.partition_types or ("SIMPLE",) * len(keys.partition_fields)
    pairs = zip(keys.partition_fields, types, strict=True)
    return _names(name if kind == "SIMPLE" else f"{name}:{kind}" for name, kind in pairs)


def _groups(spec: TableSpec) -> str:
    return groups_text(declared_groups(spec.column_groups))


def _of_time(name: str, text: Callable[[TimestampFormat], str | None]) -> DeclaredSetting:
    """Return a setting of the TIMESTAMP partition columns, compared as a table stores it."""

    def declared(declaration: Declaration) -> str | None:
        timestamp = declaration.keys.timestamp
        return None if timestamp is None else text(stored_format(timestamp))

    def stored(config: TableConfig) -> str | None:
        return None if config.keys.timestamp is None else text(stored_format(config.keys.timestamp))

    return DeclaredSetting(name=name, declared=declared, stored=stored)


def _unit(timestamp: TimestampFormat) -> str | None:
    return timestamp.scalar_unit if timestamp.type in _UNIT_TYPES else None


def _inputs(timestamp: TimestampFormat) -> str | None:
    return _names(timestamp.input_formats) if timestamp.type in _TEXT_TYPES else None


def _input_zone(timestamp: TimestampFormat) -> str | None:
    return zone_id(timestamp.input_timezone) if timestamp.type in _TEXT_TYPES else None


def _flag(key: str, text: Callable[[TableConfig], bool]) -> DeclaredSetting:
    """Return a setting for a boolean option."""
    return DeclaredSetting(
        name=key,
        declared=lambda it: it.options[key].strip().lower() if key in it.options else None,
        stored=lambda config: str(text(config)).lower(),
    )


def _of_buckets(
    key: str,
    text: Callable[[str], str],
    *,
    stored: str = "",
    current: Callable[[BucketRules], str] | None = None,
) -> DeclaredSetting:
    """Return an option of the bucket index; the table stores it under its key, or under the key `stored`.

    `current` is its value in the rule file of a table whose bucket counts were changed.
    """

    def declared(declaration: Declaration) -> str | None:
        if declaration.options.get(key, "").strip():
            return text(declaration.options[key])
        # The section `index` declares the whole index.
        return None if declaration.spec.index is None else ""

    def of_table(config: TableConfig) -> str | None:
        if NUM_BUCKETS not in config.raw:
            # Hudi stores no settings of the bucket index in the table.
            return None
        return text(config.raw[stored or key]) if config.raw.get(stored or key, "").strip() else ""

    def changed(table: LoadedTable, declaration: Declaration) -> str | None:
        options = {name: declaration.options[name] for name in _OF_INDEX if name in declaration.options}
        rules = readable_bucket_rules(table, parse_options(options).index)
        return None if rules is None or current is None else current(rules)

    return DeclaredSetting(name=key, declared=declared, stored=of_table, current=None if current is None else changed)


def _hashing(properties: Mapping[str, str]) -> str | None:
    """Return whether an index hashes keys into buckets; a write may choose among the other indexes."""
    if not properties.get(INDEX_TYPE, "").strip():
        return None
    return BUCKET.name if index_type(properties[INDEX_TYPE]).hashes_keys else f"not {BUCKET.name}"


def _engine(properties: Mapping[str, str]) -> str | None:
    """Return the engine of a bucket index, or None if the table has another index."""
    if not index_type(properties.get(INDEX_TYPE, "")).hashes_keys:
        return None
    return properties.get(BUCKET_ENGINE, "").strip().upper() or "SIMPLE"


def _encoding(properties: Mapping[str, str], fields: tuple[str, ...]) -> str | None:
    """Return whether keys of several columns are escaped."""
    if KEY_ENCODING not in properties or len(fields) < 2:
        return None
    return _escaped(properties[KEY_ENCODING].strip().lower() == KeyEncoding.ESCAPED)


def _escaped(escaped: bool) -> str:
    return "escaped" if escaped else "not escaped"


#: All settings that a spec declares and a table stores.
SETTINGS: tuple[DeclaredSetting, ...] = (
    DeclaredSetting(name="type", declared=lambda it: it.spec.type, stored=lambda config: config.table_type),
    DeclaredSetting(
        name="record_key",
        declared=lambda it: _names(it.spec.record_key),
        stored=lambda config: _names(config.keys.record_key_fields),
    ),
    DeclaredSetting(
        name="partition_by", declared=lambda it: _fields(it.keys), stored=lambda config: _fields(config.keys)
    ),
    DeclaredSetting(
        name="key_generator",
        declared=lambda it: _given(it.spec.key_generator),
        stored=lambda config: str(config.keys.generator),
    ),
    _of_time("timestamp_type", lambda timestamp: timestamp.type),
    _of_time("scalar_unit", _unit),
    _of_time("input_formats", _inputs),
    _of_time("input_timezone", _input_zone),
    _of_time("output_format", lambda timestamp: timestamp.output_format),
    _of_time("output_timezone", lambda timestamp: zone_id(timestamp.output_timezone)),
    DeclaredSetting(
        name="ordering",
        declared=lambda it: _names(it.spec.ordering),
        stored=lambda config: _names(config.merge_rule.ordering),
    ),
    DeclaredSetting(
        name="merge_mode",
        declared=lambda it: _given(it.spec.merge_mode),
        stored=lambda config: str(config.merge_rule.mode),
    ),
    DeclaredSetting(
        name="merger",
        declared=lambda it: _given(it.spec.merger),
        stored=lambda config: config.merge_rule.merger or "",
    ),
    DeclaredSetting(
        name="partial_update",
        declared=lambda it: _given(it.spec.partial_update),
        stored=lambda config: str(config.merge_rule.partial),
    ),
    DeclaredSetting(
        name="unavailable_value",
        declared=lambda it: _given(it.spec.unavailable_value),
        stored=lambda config: config.merge_rule.unavailable,
    ),
    DeclaredSetting(
        name="delete_field",
        declared=lambda it: _given(it.spec.delete_field),
        stored=lambda config: config.merge_rule.delete_field or "",
    ),
    DeclaredSetting(
        name="delete_marker",
        declared=lambda it: _given(it.spec.delete_marker),
        stored=lambda config: config.merge_rule.delete_marker or "",
    ),
    DeclaredSetting(
        name="column_groups",
        declared=lambda it: _groups(it.spec),
        stored=lambda config: groups_text(config.merge_rule.groups),
    ),
    DeclaredSetting(
        name=_VERSION,
        declared=lambda it: it.options.get(_VERSION, "").strip() or None,
        stored=lambda config: str(config.version),
    ),
    _flag(_HIVE_STYLE, lambda config: config.keys.hive_style),
    _flag(_URL_ENCODE, lambda config: config.keys.url_encode),
    _flag(_CONSISTENT, lambda config: config.keys.consistent_timestamps),
    _flag(CDC_ENABLED, lambda config: config.cdc is not None),
    DeclaredSetting(
        name=CDC_MODE,
        declared=lambda it: it.options.get(CDC_MODE, "").strip().upper() or None,
        stored=lambda config: None if config.cdc is None else str(config.cdc),
    ),
    DeclaredSetting(
        name=INDEX_TYPE, declared=lambda it: _hashing(it.options), stored=lambda config: _hashing(config.raw)
    ),
    DeclaredSetting(
        name=BUCKET_ENGINE,
        declared=lambda it: it.options.get(BUCKET_ENGINE, "").strip().upper() or None,
        stored=lambda config: _engine(config.raw),
    ),
    _of_buckets(NUM_BUCKETS, lambda text: text.strip(), current=lambda rules: str(rules.default)),
    _of_buckets(HASH_FIELD, lambda text: _names(part.strip() for part in text.split(","))),
    _of_buckets(
        EXPRESSIONS,
        lambda text: render_rules(parse_rules(text)),
        stored=MADE_WITH,
        current=lambda rules: rules.expressions,
    ),
    DeclaredSetting(
        name=KEY_ENCODING,
        declared=lambda it: _encoding(it.options, it.spec.record_key),
        stored=lambda config: _escaped(config.keys.encoding is KeyEncoding.ESCAPED),
    ),
)
