"""From what an engineer declares of a table to the properties that Hudi stores (TL-2, DATA-2)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from lakehouse.core.format.log.cdc import CdcMode
from lakehouse.core.rows.custom_merger import load_merger
from lakehouse.core.state.table_config import (
    CDC_ENABLED,
    CDC_MODE,
    COPY_ON_WRITE,
    TABLE_TYPES,
    WRITABLE_VERSIONS,
    TableConfig,
    new_table_properties,
)
from lakehouse.errors import UnsupportedError, UserError, nearest
from lakehouse.model.index_type import INDEX_TYPE, stored_index_type
from lakehouse.model.keys import KEY_ENCODING, KeyConfig, KeyEncoding, KeyGeneratorType, TimestampFormat
from lakehouse.model.merge import UNAVAILABLE, MergeMode, MergeRule, PartialMode
from lakehouse.model.texts import text_list
from lakehouse.spec.bucket_rules import EXPRESSIONS, HASH_FIELD, MADE_WITH, NUM_BUCKETS, parse_rules
from lakehouse.spec.options.creation import CREATE_OPTIONS
from lakehouse.spec.options.deletes import DELETE_RETENTION
from lakehouse.spec.options.parser import parse_options

_VERSION = "hoodie.write.table.version"
_HIVE_STYLE = "hoodie.datasource.write.hive_style_partitioning"
_URL_ENCODE = "hoodie.datasource.write.partitionpath.urlencode"
_CONSISTENT = "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled"
_HUDIS_RECORD_KEY = "hoodie.datasource.write.recordkey.field"
#: Options of writes that a table keeps, because they must not change afterwards.
STORED_OPTIONS = (
    INDEX_TYPE,
    NUM_BUCKETS,
    HASH_FIELD,
    KEY_ENCODING,
)
#: Options of writes that a table keeps so that all writers heed them; a caller may set others.
_SHARED_OPTIONS = (DELETE_RETENTION,)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDeclaration:
    """A table to be made. `partition_by` holds column names, or `column:SIMPLE` / `column:TIMESTAMP`.

    A text stands for a list of one. The record key is unique in each partition, as in Hudi; in the whole table only
    with a global index (`hoodie.index.type=GLOBAL_SIMPLE`), which looks keys up in all partitions.

    How versions of a record meet (DATA-5.1 to DATA-5.3), all of it settled for the table's life:
    `ordering`: the columns that say which version is the later one, compared as a tuple.
    `merge_mode`: EVENT_TIME_ORDERING (the greater ordering value wins; the default with `ordering`),
    COMMIT_TIME_ORDERING (the later commit wins; the default without), CUSTOM (a `merger` decides; its default).
    `merger`: `package.module:function`, see rows.merger; importable here and wherever tasks run.
    `partial_update`: IGNORE_DEFAULTS (nulls keep the value of the other version) or FILL_UNAVAILABLE (texts and bytes
    that read `unavailable_value` do; Debezium's marker unless it is given).
    `delete_field`, `delete_marker`: rows whose column reads the marker are deletes.

    `schema` is Avro JSON of the data columns, or None to take it from the first batch. `options` are `hoodie.*` keys,
    of the table and of its writes. `cdc` is what change logs hold (a CdcMode), None for a table without.
    """

    name: str
    record_key: tuple[str, ...]
    partition_by: tuple[str, ...] = ()
    ordering: str | Sequence[str] | None = None
    schema: str | None = None
    key_generator: KeyGeneratorType | None = None
    timestamp: TimestampFormat | None = None
    merge_mode: str | None = None
    merger: str | None = None
    partial_update: str | None = None
    unavailable_value: str | None = None
    delete_field: str | None = None
    delete_marker: str | None = None
    table_type: str = COPY_ON_WRITE
    cdc: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("record_key", "partition_by", "ordering"):
            object.__setattr__(self, name, _column_names(text_list(getattr(self, name), name, ordered=True), name))

    @property
    def ordering_columns(self) -> tuple[str, ...]:
        """The ordering columns, however they were given."""
        return text_list(self.ordering, "ordering")

    @property
    def named_columns(self) -> tuple[str, ...]:
        """The columns that the data must have."""
        partitions = (entry.partition(":")[0] for entry in self.partition_by)
        deletes = (self.delete_field,) if self.delete_field else ()
        return tuple(dict.fromkeys((*self.record_key, *partitions, *self.ordering_columns, *deletes)))

    def call_options(self) -> dict[str, str]:
        """Return the options that are of writes, not of the table."""
        return {key: value for key, value in self.options.items() if key not in CREATE_OPTIONS}


def _column_names(texts: Sequence[str], argument: str) -> tuple[str, ...]:
    """Return the columns of an argument, which may also stand in one text: "id, day", as a spec and Hudi have them.

    Raises UserError for a column that is named twice, or not at all.
    """
    names = tuple(name.strip() for text in texts for name in text.split(","))
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UserError(f"{argument}: column {twice!r} stands there twice; name each column once", argument=argument)
    if "" in names:
        raise UserError(
            f"{argument}={','.join(texts)!r} has a column without a name; remove the comma", argument=argument
        )
    return names


def declared_properties(declaration: TableDeclaration) -> dict[str, str]:
    """Return hoodie.properties of the declared table.

    Raises UserError naming what is missing, misspelt or does not fit together.
    """
    if not declaration.name:
        raise UserError("a table needs a name")
    if not declaration.record_key:
        raise UserError(f"table {declaration.name!r} needs a record key: at least one column")
    parse_options(declaration.options, also_known=CREATE_OPTIONS)
    version = declaration.options.get(_VERSION, "9")
    if version not in map(str, WRITABLE_VERSIONS):
        known = " and ".join(map(str, WRITABLE_VERSIONS))
        raise UserError(f"{_VERSION}={version}: versions {known} are written")
    if declaration.table_type not in TABLE_TYPES:
        raise UserError(
            f"table type {declaration.table_type!r} is unknown.{nearest(declaration.table_type, TABLE_TYPES)}"
        )
    return new_table_properties(
        name=declaration.name,
        version=int(version),
        keys=_key_config(declaration, int(version)),
        rule=declared_rule(declaration),
        create_schema=declaration.schema,
        table_type=declaration.table_type,
        extra=_index_properties(declaration) | _cdc_properties(declaration) | _delete_properties(declaration),
    )


def declared_rule(declaration: TableDeclaration) -> MergeRule:
    """Return how versions of a record meet in the declared table.

    Raises UserError for what does not fit together, and for a merger that cannot be loaded.
    """
    ordering, merger = declaration.ordering_columns, declaration.merger
    default = MergeMode.EVENT_TIME_ORDERING if ordering else MergeMode.COMMIT_TIME_ORDERING
    mode = (declaration.merge_mode or (MergeMode.CUSTOM if merger else default)).upper()
    partial = (declaration.partial_update or PartialMode.NONE).upper()
    if len(set(ordering)) < len(ordering):
        raise UserError(f"ordering columns {', '.join(ordering)}: one of them stands there twice")
    if mode not in MergeMode.__members__:
        raise UserError(f"merge mode {mode!r} is unknown.{nearest(mode, MergeMode)}")
    if mode == MergeMode.EVENT_TIME_ORDERING and not ordering:
        raise UserError("merge mode EVENT_TIME_ORDERING needs an ordering column")
    if mode == MergeMode.CUSTOM and not merger:
        raise UserError("merge mode CUSTOM needs a merger, a function named as package.module:function")
    if merger and mode != MergeMode.CUSTOM:
        raise UserError(f"merger {merger!r} would never be called by merge mode {mode}; merge mode CUSTOM calls it")
    if partial not in PartialMode.__members__:
        raise UserError(f"partial update mode {partial!r} is unknown.{nearest(partial, PartialMode)}")
    if merger and partial != PartialMode.NONE:
        raise UserError(f"partial update mode {partial} and merger {merger!r} contradict: a merger fills gaps itself")
    if declaration.unavailable_value is not None and partial != PartialMode.FILL_UNAVAILABLE:
        raise UserError(f"unavailable value {declaration.unavailable_value!r} needs partial update FILL_UNAVAILABLE")
    if bool(declaration.delete_field) != bool(declaration.delete_marker):
        raise UserError("delete_field and delete_marker belong together: the column, and what it reads in a delete")
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
    )


def require_merger(config: TableConfig) -> None:
    """Raise UserError if the table is merged by a function that is allowed and cannot be loaded here.

    One that is not allowed is not loaded: the table is described and listed without it, and refused where rows merge.
    """
    rule = config.merge_rule
    if rule.merger and rule.merger_allowed:
        load_merger(rule.merger)


def require_ordered(rule: MergeRule, where: str) -> None:
    """Raise UserError if deletes of a table that is merged by `rule` have no order to be remembered by."""
    if not rule.compared:
        raise UserError(
            f"{where}: {DELETE_RETENTION} compares ordering values of deletes and rows, and this table orders versions "
            "by commit time; declare an ordering column (EVENT_TIME_ORDERING), or leave the option out",
            option=DELETE_RETENTION,
        )
    if rule.by_parts:
        raise UnsupportedError(f"{where}: {DELETE_RETENTION} does not order by parts of {rule.ordering[0]!r}")


def stored_options(config: TableConfig) -> dict[str, str]:
    """Return the options of writes that the table itself stores."""
    stored = {key: config.raw[key] for key in (*STORED_OPTIONS, *_SHARED_OPTIONS) if key in config.raw}
    return {**stored, EXPRESSIONS: config.raw[MADE_WITH]} if MADE_WITH in config.raw else stored


def _index_properties(declaration: TableDeclaration) -> dict[str, str]:
    stored = {key: declaration.options[key] for key in STORED_OPTIONS if key in declaration.options}
    if stored_index_type(stored).hashes_keys and stored.get(KEY_ENCODING, "").lower() == KeyEncoding.ESCAPED:
        raise UserError(
            f"{KEY_ENCODING}={stored[KEY_ENCODING]} and {INDEX_TYPE}=BUCKET contradict: engines that prune by bucket "
            "hash the values as they are, not escaped, and would miss rows; choose another index, or the encoding "
            f"{KeyEncoding.CHECKED}",
            option=KEY_ENCODING,
        )
    if parse_rules(declaration.options.get(EXPRESSIONS, "")):
        _check_rules(declaration)
        stored[MADE_WITH] = declaration.options[EXPRESSIONS]
    if stored_index_type(stored).hashes_keys:
        # With this index Hudi asks its options for the record key; where it runs a service, they are these properties.
        return {_HUDIS_RECORD_KEY: ",".join(declaration.record_key), **stored}
    return stored


def _check_rules(declaration: TableDeclaration) -> None:
    """Raise UserError for rules of buckets in a table whose partitions cannot have any."""
    options, rule = declaration.options, f"{EXPRESSIONS}={declaration.options[EXPRESSIONS]!r}"
    if not stored_index_type(options).hashes_keys or not options.get(NUM_BUCKETS, "").strip("0 "):
        raise UserError(f"{rule} needs {INDEX_TYPE}=BUCKET, and {NUM_BUCKETS} for all other partitions")
    if not declaration.partition_by:
        raise UserError(f"{rule}: table {declaration.name!r} has no partitions")


def _delete_properties(declaration: TableDeclaration) -> dict[str, str]:
    """Return the property of remembered deletes, if the declaration asks for them."""
    retention = declaration.options.get(DELETE_RETENTION, "").strip()
    if not retention:
        return {}
    require_ordered(declared_rule(declaration), f"table {declaration.name!r}")
    return {DELETE_RETENTION: retention}


def _cdc_properties(declaration: TableDeclaration) -> dict[str, str]:
    """Return the properties of change data, declared by `cdc` or by their keys; none for a table without."""
    enabled = _flag(declaration, CDC_ENABLED)
    if declaration.cdc is None and not enabled:
        return {}
    texts = [text for text in (declaration.cdc, declaration.options.get(CDC_MODE)) if text is not None]
    modes = {text.upper() for text in texts} or {CdcMode.DATA_BEFORE_AFTER.value}
    for mode in modes:
        if mode not in CdcMode.__members__:
            raise UserError(f"change logs hold {', '.join(CdcMode)}, not {mode!r}.{nearest(mode, CdcMode)}")
    if len(modes) > 1 or (CDC_ENABLED in declaration.options and not enabled):
        raise UserError(f"cdc={declaration.cdc!r} contradicts the options {CDC_ENABLED} and {CDC_MODE}; keep one")
    return {CDC_ENABLED: "true", CDC_MODE: modes.pop()}


def _key_config(declaration: TableDeclaration, version: int) -> KeyConfig:
    fields = tuple(entry.partition(":")[0] for entry in declaration.partition_by)
    types = tuple(entry.partition(":")[2].upper() or "SIMPLE" for entry in declaration.partition_by)
    for entry, kind in zip(declaration.partition_by, types, strict=True):
        if kind not in ("SIMPLE", "TIMESTAMP"):
            raise UserError(f"partition field {entry!r}: type must be SIMPLE or TIMESTAMP.{nearest(kind, types)}")
    generator = declaration.key_generator or _inferred(declaration, types)
    if generator is KeyGeneratorType.TIMESTAMP:
        types = tuple("TIMESTAMP" for _ in types)
    if generator in (KeyGeneratorType.SIMPLE, KeyGeneratorType.TIMESTAMP) and len(declaration.record_key) != 1:
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
        field_prefix=(version >= 9) if single_complex else None,
        consistent_timestamps=_flag(declaration, _CONSISTENT),
    )


def _inferred(declaration: TableDeclaration, types: tuple[str, ...]) -> KeyGeneratorType:
    if not types:
        return KeyGeneratorType.NON_PARTITION
    if "TIMESTAMP" in types:
        single = len(types) == 1 and len(declaration.record_key) == 1
        return KeyGeneratorType.TIMESTAMP if single else KeyGeneratorType.CUSTOM
    single = len(types) == 1 and len(declaration.record_key) == 1
    return KeyGeneratorType.SIMPLE if single else KeyGeneratorType.COMPLEX


def _flag(declaration: TableDeclaration, key: str) -> bool:
    text = declaration.options.get(key, "false").lower()
    if text not in ("true", "false"):
        raise UserError(f"{key}={declaration.options[key]!r}: expected true or false")
    return text == "true"
