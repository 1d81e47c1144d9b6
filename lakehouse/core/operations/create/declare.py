"""Convert the declaration of a table to the properties that Hudi stores (TL-2, DATA-2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from lakehouse.core.format.log.cdc import CdcMode
from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.layout.registry import NEWEST, WRITABLE_VERSIONS, layout_for, table_layout, unread_by
from lakehouse.core.operations.load.table import OPTION_PREFIX, OWN_OPTIONS, STORED_OPTIONS
from lakehouse.core.rows.custom_merger import load_merger
from lakehouse.core.state.merge_config import payload_rule
from lakehouse.core.state.table_config import (
    CDC_ENABLED,
    CDC_MODE,
    COPY_ON_WRITE,
    TABLE_TYPES,
    new_table_properties,
    parse_table_config,
    require_completion_times,
    require_writable,
)
from lakehouse.errors import UnsupportedError, UserError, nearest
from lakehouse.model.column_groups import ColumnGroups, declared_groups
from lakehouse.model.index_type import INDEX_TYPE, stored_index_type
from lakehouse.model.keys import BY_COLUMN, KEY_ENCODING, KeyConfig, KeyEncoding, KeyGeneratorType, TimestampFormat
from lakehouse.model.merge import GROUP_MERGER, UNAVAILABLE, MergeMode, MergeRule, PartialMode
from lakehouse.model.table_identity import TABLE_ID
from lakehouse.model.texts import require_encodable, text_list
from lakehouse.spec.options.creation import CREATE_OPTIONS, READERS, declared_readers
from lakehouse.spec.options.deletes import DELETE_RETENTION
from lakehouse.spec.options.metadata import STATISTICS_COLUMNS, STATISTICS_LIMIT
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.table.bucket_rules import EXPRESSIONS, MADE_WITH, NUM_BUCKETS, parse_rules

_VERSION = "hoodie.write.table.version"
_HIVE_STYLE = "hoodie.datasource.write.hive_style_partitioning"
_URL_ENCODE = "hoodie.datasource.write.partitionpath.urlencode"
_CONSISTENT = "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled"
_HUDIS_RECORD_KEY = "hoodie.datasource.write.recordkey.field"
#: In Hudi's SQL the types are called `cow` and `mor`.
_ABBREVIATIONS = {"COW": "COPY_ON_WRITE", "MOR": "MERGE_ON_READ"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDeclaration:
    """The declaration of a new table; a single string is accepted instead of a list of columns.

    The attributes about merging (DATA-5.1 to DATA-5.3) cannot be changed after the table is created.

    Attributes:
        name: The name of the table.
        record_key: The columns of the record key; empty for generated keys. It is unique in each partition, as in Hudi;
            with a global index (`hoodie.index.type=GLOBAL_SIMPLE`), which looks up keys in all partitions, it is unique
            in the table.
        partition_by: Column names, or `column:SIMPLE` / `column:TIMESTAMP`.
        ordering: The ordering columns, compared as a tuple; the version with the greater value is newer.
        schema: Avro JSON of the data columns; None takes the schema of the first batch.
        key_generator: The key generator; None infers it from the columns.
        timestamp: The formats of TIMESTAMP partition columns.
        merge_mode: EVENT_TIME_ORDERING (the greater ordering value wins; the default with `ordering`),
            COMMIT_TIME_ORDERING (the later commit wins; the default without `ordering`), or CUSTOM (`merger` decides;
            the default with `merger`).
        merger: `package.module:function`, see `rows.custom_merger`; it must be importable in all tasks.
        column_groups: Columns by their ordering column. The values of a group come from the version with the highest
            value in the ordering column, so that several writers can fill one record (`model.column_groups`).
        partial_update: IGNORE_DEFAULTS (a null keeps the value of the other version) or FILL_UNAVAILABLE (a string or
            bytes equal to `unavailable_value` does).
        unavailable_value: The value that means "not available"; None means the marker of Debezium.
        delete_field: A column that marks deletes: rows are deletes if its value is `delete_marker`.
        delete_marker: The value of `delete_field` in deletes.
        payload_class: A payload class of Hudi, which stands for the merge mode and the settings of merging.
        table_type: COPY_ON_WRITE or MERGE_ON_READ, in any case, or Hudi's abbreviations COW and MOR.
        cdc: The content of change logs (a CdcMode); None means no change logs.
        table_id: The table id, for a table that is created again in place of a lost one; None for a new id.
        options: `hoodie.*` options for the table and its writes.
        stores_options: Whether the table stores the options of writes and services as defaults.
    """

    name: str
    record_key: tuple[str, ...]
    partition_by: tuple[str, ...] = ()
    ordering: str | Sequence[str] | None = None
    schema: str | None = None
    key_generator: KeyGeneratorType | str | None = None
    timestamp: TimestampFormat | None = None
    merge_mode: str | None = None
    merger: str | None = None
    column_groups: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    partial_update: str | None = None
    unavailable_value: str | None = None
    delete_field: str | None = None
    delete_marker: str | None = None
    payload_class: str | None = None
    table_type: str = COPY_ON_WRITE
    cdc: str | None = None
    table_id: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)
    stores_options: bool = True

    def __post_init__(self) -> None:
        for name in ("record_key", "partition_by", "ordering"):
            object.__setattr__(self, name, _column_names(text_list(getattr(self, name), name, ordered=True), name))
        object.__setattr__(self, "table_type", _table_type(self.table_type))
        if self.key_generator is not None:
            object.__setattr__(self, "key_generator", _generator(self.key_generator))

    @property
    def ordering_columns(self) -> tuple[str, ...]:
        """The ordering columns as a tuple."""
        return text_list(self.ordering, "ordering")

    @property
    def named_columns(self) -> tuple[str, ...]:
        """The columns that the data must have."""
        partitions = (entry.partition(":")[0] for entry in self.partition_by)
        deletes = (self.delete_field,) if self.delete_field else ()
        return tuple(dict.fromkeys((*self.record_key, *partitions, *self.ordering_columns, *deletes)))

    def call_options(self) -> dict[str, str]:
        """Return the options of writes, without options of the table."""
        return {key: value for key, value in self.options.items() if key not in CREATE_OPTIONS}


def _table_type(text: str) -> str:
    """Return the type of a table; raise UserError for an unknown one."""
    name = _ABBREVIATIONS.get(text.upper(), text.upper())
    if name not in TABLE_TYPES:
        names = (*TABLE_TYPES, *_ABBREVIATIONS)
        raise UserError(
            f"table_type={text!r} is unknown.{nearest(text.upper(), names)} Types are {', '.join(TABLE_TYPES)}, with "
            f"the abbreviations {', '.join(_ABBREVIATIONS)}",
            argument="table_type",
        )
    return name


def _generator(text: str) -> KeyGeneratorType:
    if text.upper() not in KeyGeneratorType.__members__:
        raise UserError(
            f"key_generator={text!r} is unknown.{nearest(text.upper(), KeyGeneratorType)} Known are "
            f"{', '.join(KeyGeneratorType)}",
            argument="key_generator",
        )
    return KeyGeneratorType[text.upper()]


def _column_names(texts: Sequence[str], argument: str) -> tuple[str, ...]:
    """Return the columns of an argument; one string may contain several, as in "id, day".

    Raises UserError for an empty name and for a duplicate column.
    """
    names = tuple(name.strip() for text in texts for name in text.split(","))
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{argument}: column {twice!r} is named twice; name each column once", argument=argument)
    if "" in names:
        raise UserError(
            f"{argument}={','.join(texts)!r} has a column without a name; remove the comma", argument=argument
        )
    return names


def declared_properties(declaration: TableDeclaration) -> dict[str, str]:
    """Return the content of hoodie.properties for the declared table.

    Raises UserError for missing, unknown or contradictory values; the message names them.
    """
    if not declaration.name:
        raise UserError("a table needs a name")
    require_encodable(declaration.name, "table name")
    if declaration.timestamp is not None and declaration.timestamp.type == BY_COLUMN:
        raise UserError(
            f"table {declaration.name!r}: the type of the TIMESTAMP column in {', '.join(declaration.partition_by)} "
            "decides how its times are read, and it is not known before the first rows. Declare the type of the column "
            "in 'schema', or declare 'timestamp_type'; or let the first ingestion with rows create the table",
            argument="timestamp",
        )
    policies = parse_options(declaration.options, also_known=CREATE_OPTIONS)
    layout = declared_layout(declaration.options)
    properties = new_table_properties(
        name=declaration.name,
        layout=layout,
        keys=declared_keys(declaration, layout),
        rule=declared_rule(declaration),
        create_schema=declaration.schema,
        table_type=declaration.table_type,
        payload=declaration.payload_class or "",
        extra=_index_properties(declaration)
        | _cdc_properties(declaration)
        | _delete_properties(declaration)
        | _statistics_properties(declaration)
        | _option_properties(declaration)
        | ({TABLE_ID: declaration.table_id} if declaration.table_id else {}),
    )
    config, where = parse_table_config(properties, declaration.name), f"table {declaration.name!r}"
    require_writable(config, where)
    require_completion_times(config, where, policies)
    return properties


def declared_layout(options: Mapping[str, str]) -> TableLayout:
    """Return the layout that the options of a new table choose: by its version, or by its readers.

    Raises UserError if the version cannot be written, a reader is not known, or a reader does not read the version.
    """
    readers = declared_readers(options)
    suitable = layout_for(readers) if readers else NEWEST
    version = options.get(_VERSION, "").strip() or str(suitable.version)
    if version not in map(str, WRITABLE_VERSIONS):
        versions = ", ".join(map(str, WRITABLE_VERSIONS))
        raise UserError(f"{_VERSION}={version}: versions {versions} can be written")
    layout = table_layout(int(version))
    lost = unread_by(readers, layout)
    if lost:
        raise UserError(
            f"{_VERSION}={version} is not read by {', '.join(lost)} in {READERS}; leave {_VERSION} out, or set it to "
            f"{suitable.version}",
            option=_VERSION,
        )
    return layout


def declared_keys(declaration: TableDeclaration, layout: TableLayout) -> KeyConfig:
    """Derive the settings of record key and partition path from a declaration, for a table of `layout`.

    Raises UserError for contradictory values.
    """
    fields = tuple(entry.partition(":")[0] for entry in declaration.partition_by)
    types = tuple(entry.partition(":")[2].upper() or "SIMPLE" for entry in declaration.partition_by)
    for entry, kind in zip(declaration.partition_by, types, strict=True):
        if kind not in ("SIMPLE", "TIMESTAMP"):
            raise UserError(f"partition field {entry!r}: type must be SIMPLE or TIMESTAMP.{nearest(kind, types)}")
    generator = _generator(declaration.key_generator) if declaration.key_generator else _inferred(declaration, types)
    if generator is KeyGeneratorType.TIMESTAMP:
        types = tuple("TIMESTAMP" for _ in types)
    if generator in (KeyGeneratorType.SIMPLE, KeyGeneratorType.TIMESTAMP) and len(declaration.record_key) > 1:
        raise UserError(
            f"key generator {generator} takes one record key column, not {', '.join(declaration.record_key)}"
        )
    if (generator is KeyGeneratorType.NON_PARTITION) != (not fields):
        raise UserError(f"key generator {generator} and partition columns ({', '.join(fields) or 'none'}) contradict")
    if "TIMESTAMP" in types and declaration.timestamp is None:
        raise UserError("a TIMESTAMP partition field needs its formats: timestamp=TimestampFormat(...)")
    single_complex = generator is KeyGeneratorType.COMPLEX and len(declaration.record_key) == 1
    return KeyConfig(
        generator=generator,
        record_key_fields=declaration.record_key,
        partition_fields=fields,
        partition_types=types,
        hive_style=_flag(declaration, _HIVE_STYLE),
        url_encode=_flag(declaration, _URL_ENCODE),
        timestamp=declaration.timestamp if "TIMESTAMP" in types else None,
        field_prefix=layout.prefixes_single_key if single_complex else None,
        consistent_timestamps=_flag(declaration, _CONSISTENT),
    )


def declared_rule(declaration: TableDeclaration) -> MergeRule:
    """Return the merge rule of the declared table.

    Raises UserError for contradictory values, and for a merger that cannot be loaded.
    """
    if declaration.payload_class:
        return _payload_rule(declaration)
    groups = _groups(declaration)
    ordering, merger = declaration.ordering_columns, GROUP_MERGER if groups else declaration.merger
    default = MergeMode.EVENT_TIME_ORDERING if ordering else MergeMode.COMMIT_TIME_ORDERING
    mode = (declaration.merge_mode or (MergeMode.CUSTOM if merger else default)).upper()
    partial = (declaration.partial_update or PartialMode.NONE).upper()
    if len(set(ordering)) < len(ordering):
        raise UserError(f"ordering columns {', '.join(ordering)}: one of them is named twice")
    if mode not in MergeMode.__members__:
        raise UserError(f"merge mode {mode!r} is unknown.{nearest(mode, MergeMode)}")
    if mode == MergeMode.EVENT_TIME_ORDERING and not ordering:
        raise UserError("merge mode EVENT_TIME_ORDERING needs an ordering column")
    if mode == MergeMode.CUSTOM and not merger:
        raise UserError("merge mode CUSTOM needs a merger, a function named as package.module:function")
    if groups and mode != MergeMode.CUSTOM:
        raise UserError(f"column_groups: merge mode {mode} does not merge by groups; leave merge_mode out")
    if merger and mode != MergeMode.CUSTOM:
        raise UserError(f"merger {merger!r} would never be called by merge mode {mode}; merge mode CUSTOM calls it")
    if partial not in PartialMode.__members__:
        raise UserError(f"partial update mode {partial!r} is unknown.{nearest(partial, PartialMode)}")
    if merger and partial != PartialMode.NONE:
        fills = "column groups fill" if groups else f"a merger ({merger!r}) fills"
        raise UserError(f"partial update mode {partial} contradicts the other settings: {fills} gaps")
    if declaration.unavailable_value is not None and partial != PartialMode.FILL_UNAVAILABLE:
        raise UserError(f"unavailable value {declaration.unavailable_value!r} needs partial update FILL_UNAVAILABLE")
    if bool(declaration.delete_field) != bool(declaration.delete_marker):
        raise UserError("delete_field and delete_marker belong together: a column, and its value in deletes")
    if merger:
        load_merger(merger)
    return MergeRule(
        mode=MergeMode(mode),
        ordering=ordering,
        partial=PartialMode(partial),
        unavailable=declaration.unavailable_value or UNAVAILABLE,
        delete_field=declaration.delete_field,
        delete_marker=declaration.delete_marker,
        merger=merger,
        merger_allowed=bool(groups),
        groups=groups,
    )


def _payload_rule(declaration: TableDeclaration) -> MergeRule:
    """Return the rule of the declared payload class; raise UserError if it contradicts another merge setting."""
    assert declaration.payload_class is not None
    layout = declared_layout(declaration.options)
    rule = payload_rule(declaration.payload_class, declaration.ordering_columns, layout)
    others: dict[str, tuple[object, object]] = {
        "merge_mode": (declaration.merge_mode and declaration.merge_mode.upper(), rule.mode.value),
        "partial_update": (declaration.partial_update and declaration.partial_update.upper(), rule.partial.value),
        "unavailable_value": (declaration.unavailable_value, rule.unavailable),
        "delete_field": (declaration.delete_field, rule.delete_field),
        "delete_marker": (declaration.delete_marker, rule.delete_marker),
        "merger": (declaration.merger, None),
        "column_groups": (declaration.column_groups or None, None),
    }
    for name, (declared, implied) in others.items():
        if name == "delete_field" and declared and rule.delete_field is None and not layout.has_merge_properties:
            raise UnsupportedError(f"a table of version {layout.version} cannot declare {name}; version 9 can")
        if name in ("delete_field", "delete_marker") and declared and rule.delete_field is None:
            continue
        if declared and declared != implied:
            raise UserError(
                f"{name}={declared!r} contradicts payload_class={declaration.payload_class!r}, which implies "
                f"{implied!r}; keep one",
                argument=name,
            )
    if bool(declaration.delete_field) != bool(declaration.delete_marker):
        raise UserError("delete_field and delete_marker belong together: a column, and its value in deletes")
    if declaration.delete_field and rule.delete_field is None:
        return replace(rule, delete_field=declaration.delete_field, delete_marker=declaration.delete_marker)
    return rule


def _groups(declaration: TableDeclaration) -> ColumnGroups:
    """Return the declared column groups; raise UserError if they contradict the other columns or settings."""
    if not declaration.column_groups:
        return ()
    if declaration.merger:
        raise UserError(f"column_groups and merger {declaration.merger!r} both decide between versions; keep one")
    if declaration.ordering_columns:
        raise UserError(
            f"column_groups: each group has its own ordering column; remove ordering "
            f"({', '.join(declaration.ordering_columns)})"
        )
    return declared_groups(declaration.column_groups, reserved=declaration.named_columns)


def require_ordered(rule: MergeRule, where: str) -> None:
    """Raise UserError if a table cannot keep tombstones, because its merge rule does not order versions."""
    if not rule.compared:
        raise UserError(
            f"{where}: {DELETE_RETENTION} compares ordering values of deletes and rows, but this table orders versions "
            "by commit time; declare an ordering column (EVENT_TIME_ORDERING), or leave the option out",
            option=DELETE_RETENTION,
        )
    if rule.by_parts:
        raise UnsupportedError(f"{where}: {DELETE_RETENTION} cannot order by parts of {rule.ordering[0]!r}")


def _index_properties(declaration: TableDeclaration) -> dict[str, str]:
    stored = {key: declaration.options[key] for key in STORED_OPTIONS if key in declaration.options}
    if stored_index_type(stored).hashes_keys and stored.get(KEY_ENCODING, "").lower() == KeyEncoding.ESCAPED:
        raise UserError(
            f"{KEY_ENCODING}={stored[KEY_ENCODING]} and {INDEX_TYPE}=BUCKET contradict: engines that prune by bucket "
            "hash the values without escaping, and would miss rows; choose another index, or the encoding "
            f"{KeyEncoding.CHECKED}",
            option=KEY_ENCODING,
        )
    if stored_index_type(stored).hashes_keys and not declaration.record_key:
        raise UserError(
            f"{INDEX_TYPE}=BUCKET hashes the columns of the record key, and table {declaration.name!r} has none: name "
            "them in record_key, or leave the option out",
            option=INDEX_TYPE,
        )
    if parse_rules(declaration.options.get(EXPRESSIONS, "")):
        _check_rules(declaration)
        stored[MADE_WITH] = declaration.options[EXPRESSIONS]
    if stored_index_type(stored).hashes_keys:
        # Hudi's bucket index reads the record key from the write options. Hudi's services only read the table
        # properties, so the key must be stored there.
        return {_HUDIS_RECORD_KEY: ",".join(declaration.record_key), **stored}
    return stored


def _check_rules(declaration: TableDeclaration) -> None:
    """Raise UserError for bucket rules of a table without bucket index or partitions."""
    options, rule = declaration.options, f"{EXPRESSIONS}={declaration.options[EXPRESSIONS]!r}"
    if not stored_index_type(options).hashes_keys or not options.get(NUM_BUCKETS, "").strip("0 "):
        raise UserError(f"{rule} needs {INDEX_TYPE}=BUCKET, and {NUM_BUCKETS} for all other partitions")
    if not declaration.partition_by:
        raise UserError(f"{rule}: table {declaration.name!r} has no partitions")


def _statistics_properties(declaration: TableDeclaration) -> dict[str, str]:
    """Return the properties that list the columns with statistics in the metadata table, if declared."""
    keys = (STATISTICS_COLUMNS, STATISTICS_LIMIT)
    return {key: declaration.options[key] for key in keys if declaration.options.get(key, "").strip()}


def _option_properties(declaration: TableDeclaration) -> dict[str, str]:
    """Return the properties with the options of writes and services."""
    if not declaration.stores_options:
        return {}
    options = declaration.call_options()
    return {OPTION_PREFIX + key: options[key] for key in options if key not in (*OWN_OPTIONS, EXPRESSIONS)}


def _delete_properties(declaration: TableDeclaration) -> dict[str, str]:
    """Return the property for the retention of tombstones, if it is declared."""
    retention = declaration.options.get(DELETE_RETENTION, "").strip()
    if not retention:
        return {}
    require_ordered(declared_rule(declaration), f"table {declaration.name!r}")
    return {DELETE_RETENTION: retention}


def _cdc_properties(declaration: TableDeclaration) -> dict[str, str]:
    """Return the properties of change logs, declared by `cdc` or by options; empty if the table has no change logs."""
    enabled = _flag(declaration, CDC_ENABLED)
    texts = [text for text in (declaration.cdc, declaration.options.get(CDC_MODE)) if text is not None]
    modes = {text.upper() for text in texts} or {CdcMode.DATA_BEFORE_AFTER.value}
    for mode in modes:
        if mode not in CdcMode.__members__:
            raise UserError(f"change logs hold {', '.join(CdcMode)}, not {mode!r}.{nearest(mode, CdcMode)}")
    if declaration.cdc is None and not enabled:
        return {}
    if len(modes) > 1 or (CDC_ENABLED in declaration.options and not enabled):
        raise UserError(f"cdc={declaration.cdc!r} contradicts the options {CDC_ENABLED} and {CDC_MODE}; keep one")
    return {CDC_ENABLED: "true", CDC_MODE: modes.pop()}


def _inferred(declaration: TableDeclaration, types: tuple[str, ...]) -> KeyGeneratorType:
    if not types:
        return KeyGeneratorType.NON_PARTITION
    if "TIMESTAMP" in types:
        single = len(types) == 1 and len(declaration.record_key) <= 1
        return KeyGeneratorType.TIMESTAMP if single else KeyGeneratorType.CUSTOM
    single = len(types) == 1 and len(declaration.record_key) <= 1
    return KeyGeneratorType.SIMPLE if single else KeyGeneratorType.COMPLEX


def _flag(declaration: TableDeclaration, key: str) -> bool:
    text = declaration.options.get(key, "false").lower()
    if text not in ("true", "false"):
        raise UserError(f"{key}={declaration.options[key]!r}: expected true or false")
    return text == "true"
