"""From what an engineer declares of a table to the properties that Hudi stores (format: timeline.md 2, data.md 2)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from lakehouse.errors import UserError, nearest
from lakehouse.format.cdc import CdcMode
from lakehouse.model.keys import KeyConfig, KeyGeneratorType, TimestampFormat
from lakehouse.model.merge import MergeMode
from lakehouse.spec.options import CREATE_OPTIONS, parse_options
from lakehouse.state.table_config import (
    CDC_ENABLED,
    CDC_MODE,
    COPY_ON_WRITE,
    TABLE_TYPES,
    WRITABLE_VERSIONS,
    TableConfig,
    new_table_properties,
)

_VERSION = "hoodie.write.table.version"
_HIVE_STYLE = "hoodie.datasource.write.hive_style_partitioning"
_URL_ENCODE = "hoodie.datasource.write.partitionpath.urlencode"
_CONSISTENT = "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled"
#: Options of writes that a table keeps, because they must not change afterwards.
STORED_OPTIONS = (
    "hoodie.index.type",
    "hoodie.bucket.index.num.buckets",
    "hoodie.bucket.index.hash.field",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableDeclaration:
    """A table to be made. `partition_by` holds column names, or `column:SIMPLE` / `column:TIMESTAMP`.

    `schema` is Avro JSON of the data columns, or None to take it from the first batch. `options` are `hoodie.*` keys,
    of the table and of its writes. `cdc` is what change logs hold (a CdcMode), None for a table without.
    """

    name: str
    record_key: tuple[str, ...]
    partition_by: tuple[str, ...] = ()
    ordering: str | None = None
    schema: str | None = None
    key_generator: KeyGeneratorType | None = None
    timestamp: TimestampFormat | None = None
    merge_mode: MergeMode | None = None
    table_type: str = COPY_ON_WRITE
    cdc: str | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def call_options(self) -> dict[str, str]:
        """Return the options that are of writes, not of the table."""
        return {key: value for key, value in self.options.items() if key not in CREATE_OPTIONS}


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
    default = MergeMode.EVENT_TIME_ORDERING if declaration.ordering else MergeMode.COMMIT_TIME_ORDERING
    mode = declaration.merge_mode or default
    if mode is MergeMode.EVENT_TIME_ORDERING and not declaration.ordering:
        raise UserError("merge mode EVENT_TIME_ORDERING needs an ordering column")
    if mode is MergeMode.CUSTOM:
        raise UserError("merge mode CUSTOM is not supported for new tables")
    return new_table_properties(
        name=declaration.name,
        version=int(version),
        keys=_key_config(declaration, int(version)),
        ordering=declaration.ordering,
        merge_mode=mode,
        create_schema=declaration.schema,
        table_type=declaration.table_type,
        extra={key: declaration.options[key] for key in STORED_OPTIONS if key in declaration.options}
        | _cdc_properties(declaration),
    )


def stored_options(config: TableConfig) -> dict[str, str]:
    """Return the options of writes that the table itself stores."""
    return {key: config.raw[key] for key in STORED_OPTIONS if key in config.raw}


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
