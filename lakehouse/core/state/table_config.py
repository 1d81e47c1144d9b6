"""The table configuration: hoodie.properties as one validated value (TL-2).

All raw keys are kept, including unknown ones, so that a rewrite of the file loses none. A property that this package
cannot honour is refused with its name.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from lakehouse.core.format.log.cdc import CdcMode
from lakehouse.core.format.log.delete_block import DecodeDeletes
from lakehouse.core.format.properties import table_checksum
from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.layout.registry import (
    BEFORE_UPGRADE,
    SUPPORTED_VERSIONS,
    WRITABLE_VERSIONS,
    has_completion_times,
    table_layout,
)
from lakehouse.core.state.merge_config import (
    declared_mode,
    merge_properties,
    ordering_fields,
    parse_merge_rule,
    payload_properties,
)
from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.index_type import stored_index_type
from lakehouse.model.keys import KEY_ENCODING, KeyConfig, KeyEncoding, KeyGeneratorType, TimestampFormat
from lakehouse.model.merge import MergeMode, MergeRule, require_runnable
from lakehouse.model.table_identity import TABLE_ID, TableIdentity
from lakehouse.spec.function import is_allowed
from lakehouse.spec.options.deletes import DELETE_RETENTION
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.table.bucket_rules import EXPRESSIONS

INITIAL_VERSION = "hoodie.table.initial.version"
CDC_ENABLED, CDC_MODE = "hoodie.table.cdc.enabled", "hoodie.table.cdc.supplemental.logging.mode"
COPY_ON_WRITE, MERGE_ON_READ = TABLE_TYPES = ("COPY_ON_WRITE", "MERGE_ON_READ")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableConfig:
    """The configuration that the properties of a table declare.

    Attributes:
        raw: All properties as stored in the file.
        cdc: The content of the change logs; None if the table has no change data capture.
        allowed_functions: Names and patterns of functions that the table may name (see spec.function). The caller or
            the deployment declares them; they are not a property of the table.
    """

    name: str
    version: int
    table_type: str
    keys: KeyConfig
    ordering_fields: tuple[str, ...] = ()
    merge_mode: MergeMode = MergeMode.COMMIT_TIME_ORDERING
    create_schema: str | None = None
    populate_meta_fields: bool = True
    base_file_format: str = "PARQUET"
    metadata_partitions: tuple[str, ...] = ()
    timeline_path: str = "timeline"
    timezone: str = "LOCAL"
    cdc: CdcMode | None = None
    raw: Mapping[str, str] = field(default_factory=dict)
    allowed_functions: tuple[str, ...] = ()

    @property
    def identity(self) -> TableIdentity:
        """The name, the record key and the id of the table."""
        return identity_of(self.raw)

    @property
    def layout(self) -> TableLayout:
        """The behaviour that depends on the table version."""
        return table_layout(self.version)

    @property
    def is_upgraded(self) -> bool:
        """Whether Hudi upgraded the table from version 6, so that it may contain log files with names of version 6."""
        created = self.raw.get(INITIAL_VERSION, str(self.version)).strip()
        return self.layout.has_completion_times and not has_completion_times(created)

    @property
    def decode_deletes(self) -> DecodeDeletes:
        """Decodes the delete blocks of log files. A table that Hudi upgraded may have log files of version 6."""
        return BEFORE_UPGRADE.decode_deletes if self.is_upgraded else self.layout.decode_deletes

    @property
    def is_merge_on_read(self) -> bool:
        """Whether updates go to log files."""
        return self.table_type == MERGE_ON_READ

    @property
    def names_logs_by_slice(self) -> bool:
        """Whether there are log files that are named after their slice, so that writes of a file group are in order."""
        return self.is_merge_on_read and self.layout.names_logs_by_slice

    @property
    def is_partitioned(self) -> bool:
        """Whether the table has partitions."""
        return bool(self.keys.partition_fields)

    @property
    def path_keys(self) -> KeyConfig:
        """The key configuration by which partition paths determine values of rows.

        With a global index it has no partition fields: a row may stay in its partition although the value of its
        partition column changed.
        """
        if not stored_index_type(self.raw).is_global:
            return self.keys
        return replace(self.keys, partition_fields=(), partition_types=())

    @property
    def appends_inserts(self) -> bool:
        """Whether writes append new records to log files: the bucket index of a merge-on-read table does."""
        return self.is_merge_on_read and stored_index_type(self.raw).hashes_keys

    @property
    def merge_rule(self) -> MergeRule:
        """The rule by which versions of a record are merged; payload classes of older table versions are translated.

        `merge_mode` is the declared mode: CUSTOM for every payload class, also for a translated one. Raises UserError
        for a delete field without marker.
        """
        rule = parse_merge_rule(self.raw, self.layout)
        if rule.merger is None:
            return rule
        is_runnable = bool(rule.groups) or is_allowed(rule.merger, self.allowed_functions)
        return replace(rule, merger_allowed=is_runnable)


def parse_table_config(
    raw: Mapping[str, str], location: str, *, allowed_functions: tuple[str, ...] = ()
) -> TableConfig:
    """Return the configuration that the properties `raw` of the table at `location` declare.

    Raises:
        UnsupportedError: The table version or a property is not supported; the message names it.
        UserError: The table has no name.
    """
    name = raw.get("hoodie.table.name")
    if not name:
        raise UserError(f"{location}: hoodie.properties has no hoodie.table.name; is this a Hudi table?")
    layout = _layout(raw, location)
    _refuse(raw, location)
    return TableConfig(
        name=name,
        version=layout.version,
        table_type=raw.get("hoodie.table.type", "COPY_ON_WRITE").upper(),
        keys=_keys(raw, layout),
        ordering_fields=ordering_fields(raw),
        merge_mode=declared_mode(raw, layout),
        create_schema=raw.get("hoodie.table.create.schema"),
        populate_meta_fields=_flag(raw, "hoodie.populate.meta.fields", True),
        base_file_format=raw.get("hoodie.table.base.file.format", "PARQUET").upper(),
        metadata_partitions=_split(raw.get("hoodie.table.metadata.partitions")),
        timeline_path=raw.get("hoodie.timeline.path", "timeline"),
        timezone=raw.get("hoodie.table.timeline.timezone", "LOCAL").upper(),
        cdc=_cdc_mode(raw, location),
        raw=dict(raw),
        allowed_functions=allowed_functions,
    )


def identity_of(raw: Mapping[str, str]) -> TableIdentity:
    """Return the identity that the properties `raw` declare. This also works for tables that are not supported."""
    return TableIdentity(
        name=raw.get("hoodie.table.name", ""),
        record_key=_split(raw.get("hoodie.table.recordkey.fields")),
        id=raw.get(TABLE_ID, ""),
    )


def stored_format(timestamp: TimestampFormat) -> TimestampFormat:
    """Return the format in its stored form, without settings that its type does not use."""
    return _timestamp_format(_timestamp_properties(timestamp))


def require_writable(config: TableConfig, root: str) -> None:
    """Raise UnsupportedError if this package does not write the table at `root`; the message contains the way out."""
    problem = write_refusal(config)
    if problem is not None:
        raise UnsupportedError(f"{root}: {problem}")


def require_completion_times(config: TableConfig, root: str, policies: Policies) -> None:
    """Raise UnsupportedError for options of writes that need completion times, if the table version has none."""
    if config.layout.has_completion_times:
        return
    features = {
        f"{DELETE_RETENTION} finds deletes": (policies.deletes.retention_ms > 0, "leave the option out"),
        "non-blocking concurrency control orders log files": (
            policies.transaction.non_blocking,
            "declare hoodie.write.concurrency.mode=OPTIMISTIC_CONCURRENCY_CONTROL",
        ),
    }
    for feature, (is_wanted, remedy) in features.items():
        if is_wanted:
            raise UnsupportedError(
                f"{root}: {feature} by completion times, which tables of version {config.version} do not have; "
                f"{remedy}, or create a table of version 9"
            )


def write_refusal(config: TableConfig) -> str | None:
    """Return why this package does not write a table of this version and kind, and the way out; None if it does."""
    layout, version = config.layout, f"of version {config.version}"
    if not layout.is_writable:
        names = " and ".join(map(str, WRITABLE_VERSIONS))
        return f"tables {version} can be read but not written; versions {names} can be written"
    if config.is_merge_on_read and not layout.writes_logs:
        return f"merge-on-read tables {version} can be read but not written; upgrade the table with Apache Hudi 1.x"
    features = {
        "consistent hashing": stored_index_type(config.raw).has_ring,
        "bucket counts per partition": bool(config.raw.get(EXPRESSIONS)),
        "change logs of merge-on-read tables": config.cdc is not None and config.is_merge_on_read,
        "remembered deletes": config.raw.get(DELETE_RETENTION, "").strip() not in ("", "0"),
    }
    if not layout.has_completion_times and (feature := next((name for name, used in features.items() if used), "")):
        return f"tables {version} do not have {feature}; create a table of version 9, or leave the option out"
    has_types = layout.stores_partition_types or ":" in config.raw.get("hoodie.table.partition.fields", "")
    if config.keys.generator is KeyGeneratorType.CUSTOM and not has_types:
        return (
            f"a table {version} does not store the types of its partition columns, so the partition paths of its "
            "CUSTOM key generator are unknown; write it with the writer that created it"
        )
    return _timestamp_refusal(config)


def _timestamp_refusal(config: TableConfig) -> str | None:
    """Return why partition paths of a TIMESTAMP key generator are unknown. Hudi 0.15 stores formats but no type."""
    names = [prefix + "timestamp.type" for prefix in _TIMEBASED]
    if config.keys.timestamp is None or config.layout.stores_partition_types:
        return None
    if any(name in config.raw for name in names):
        return None
    return (
        f"the properties have no {names[0]}, so it is unknown how partition paths are built from the partition "
        "column. Add it to .hoodie/hoodie.properties, with the value that the other writers of the table use"
    )


def require_mergeable(config: TableConfig) -> None:
    """Raise UnsupportedError, with the payload class, strategy or merger, if records cannot be merged."""
    require_runnable(config.merge_rule)


# parameters: the independent parts of a table declaration
def new_table_properties(
    *,
    name: str,
    layout: TableLayout,
    keys: KeyConfig,
    rule: MergeRule,
    create_schema: str | None,
    extra: Mapping[str, str],
    table_type: str = COPY_ON_WRITE,
    payload: str = "",
) -> dict[str, str]:
    """Return the properties of a new table, as Hudi writes them for its version (TL-2.4, V6-1).

    `payload` is its payload class.

    Raises UnsupportedError if the version has no properties for `rule` or `keys`.
    """
    raw = {
        "hoodie.table.name": name,
        "hoodie.database.name": "default",
        "hoodie.table.type": table_type,
        "hoodie.table.version": str(layout.version),
        INITIAL_VERSION: str(layout.version),
        "hoodie.timeline.layout.version": str(layout.timeline_layout),
        "hoodie.timeline.path": "timeline",
        "hoodie.timeline.history.path": "history",
        "hoodie.archivelog.folder": "archived",
        "hoodie.table.keygenerator.type": keys.generator.value,
        **(payload_properties(payload, rule, layout) if payload else merge_properties(rule, layout)),
        "hoodie.datasource.write.hive_style_partitioning": str(keys.hive_style).lower(),
        "hoodie.datasource.write.partitionpath.urlencode": str(keys.url_encode).lower(),
        "hoodie.datasource.write.drop.partition.columns": "false",
        "hoodie.table.timeline.timezone": "UTC",
        "hoodie.table.checksum": str(table_checksum("default", name)),
    }
    if keys.record_key_fields:
        # Hudi generates keys if the property is absent.
        raw["hoodie.table.recordkey.fields"] = ",".join(keys.record_key_fields)
    if keys.partition_fields:
        raw["hoodie.table.partition.fields"] = _partition_fields_text(keys)
    if keys.consistent_timestamps:
        raw["hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled"] = "true"
    if create_schema:
        raw["hoodie.table.create.schema"] = create_schema
    return layout.stored_properties({**raw, **_timestamp_properties(keys.timestamp), **extra})


_TIMEBASED = ("hoodie.keygen.timebased.", "hoodie.deltastreamer.keygen.timebased.")


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _flag(raw: Mapping[str, str], key: str, default: bool) -> bool:
    return raw.get(key, str(default)).strip().lower() == "true"


def _layout(raw: Mapping[str, str], location: str) -> TableLayout:
    text = raw.get("hoodie.table.version", "")
    if text not in map(str, SUPPORTED_VERSIONS):
        supported = ", ".join(map(str, SUPPORTED_VERSIONS))
        raise UnsupportedError(
            f"{location}: table version {text or '(none)'} is not supported; versions {supported} are. "
            "Upgrade the table with Apache Hudi first.",
            version=text,
        )
    layout = table_layout(int(text))
    declared, expected = raw.get("hoodie.timeline.layout.version"), str(layout.timeline_layout)
    if declared is not None and declared != expected:
        raise UnsupportedError(f"{location}: table version {text} with timeline layout {declared}; expected {expected}")
    return layout


def _cdc_mode(raw: Mapping[str, str], location: str) -> CdcMode | None:
    if not _flag(raw, CDC_ENABLED, False):
        return None
    text = raw.get(CDC_MODE, CdcMode.DATA_BEFORE_AFTER).strip().upper()
    if text not in CdcMode.__members__:
        raise UnsupportedError(f"{location}: {CDC_MODE}={text} is not supported; {', '.join(CdcMode)} are")
    return CdcMode(text)


def _refuse(raw: Mapping[str, str], location: str) -> None:
    if _flag(raw, "hoodie.datasource.write.drop.partition.columns", False):
        raise UnsupportedError(f"{location}: hoodie.datasource.write.drop.partition.columns=true is not supported")
    table_format = raw.get("hoodie.table.format", "native")
    if table_format != "native":
        raise UnsupportedError(f"{location}: hoodie.table.format={table_format} is not supported; only native is")


def _keys(raw: Mapping[str, str], layout: TableLayout) -> KeyConfig:
    record_key = _split(raw.get("hoodie.table.recordkey.fields"))
    declared = _split(raw.get("hoodie.table.partition.fields"))
    partition = tuple(name.split(":", 1)[0] for name in declared)
    generator = _generator(raw, record_key, declared)
    types = tuple(name.split(":", 1)[1].upper() if ":" in name else "SIMPLE" for name in declared)
    if generator is KeyGeneratorType.TIMESTAMP:
        types = tuple("TIMESTAMP" for _ in partition)
    single_complex = generator is KeyGeneratorType.COMPLEX and len(record_key) == 1
    return KeyConfig(
        generator=generator,
        record_key_fields=record_key,
        partition_fields=partition,
        partition_types=types,
        hive_style=_flag(raw, "hoodie.datasource.write.hive_style_partitioning", False),
        url_encode=_flag(raw, "hoodie.datasource.write.partitionpath.urlencode", False),
        timestamp=_timestamp_format(raw) if "TIMESTAMP" in types else None,
        field_prefix=layout.prefixes_single_key if single_complex else None,
        consistent_timestamps=_flag(
            raw, "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled", False
        ),
        encoding=_key_encoding(raw),
    )


def _key_encoding(raw: Mapping[str, str]) -> KeyEncoding:
    """Return the encoding of stored keys; each write decides by its options whether new keys are checked."""
    escaped = raw.get(KEY_ENCODING, "").lower() == KeyEncoding.ESCAPED
    return KeyEncoding.ESCAPED if escaped else KeyEncoding.HUDI


def _generator(raw: Mapping[str, str], record_key: tuple[str, ...], declared: tuple[str, ...]) -> KeyGeneratorType:
    text = raw.get("hoodie.table.keygenerator.type", "").upper().removesuffix("_AVRO")
    if not text:
        class_name = raw.get("hoodie.table.keygenerator.class", "").rsplit(".", 1)[-1]
        text = _BY_CLASS.get(class_name.removesuffix("KeyGenerator").removesuffix("Avro"), "")
    if text in KeyGeneratorType.__members__:
        return KeyGeneratorType(text)
    if not declared:
        return KeyGeneratorType.NON_PARTITION
    if any(":" in name for name in declared):
        return KeyGeneratorType.CUSTOM
    return KeyGeneratorType.SIMPLE if len(declared) == 1 and len(record_key) <= 1 else KeyGeneratorType.COMPLEX


_BY_CLASS = {
    "Simple": "SIMPLE",
    "Complex": "COMPLEX",
    "TimestampBased": "TIMESTAMP",
    "Custom": "CUSTOM",
    "Nonpartitioned": "NON_PARTITION",
}


def _timestamp_format(raw: Mapping[str, str]) -> TimestampFormat:
    def value(name: str, default: str = "") -> str:
        return next((raw[prefix + name] for prefix in _TIMEBASED if prefix + name in raw), default)

    formats = value("input.dateformat")
    delimiter = value("input.dateformat.list.delimiter.regex", ",") or ","
    zone = value("timezone", "")
    kind = value("timestamp.type") or ("DATE_STRING" if formats else "EPOCHMILLISECONDS")
    return TimestampFormat(
        type=kind.upper(),
        scalar_unit=value("timestamp.scalar.time.unit", "seconds").lower(),
        input_formats=tuple(part.strip() for part in formats.split(delimiter) if part.strip()),
        input_timezone=value("input.timezone", zone),
        output_format=value("output.dateformat", "yyyy-MM-dd"),
        output_timezone=value("output.timezone", zone) or "UTC",
    )


def _timestamp_properties(timestamp: TimestampFormat | None) -> dict[str, str]:
    if timestamp is None:
        return {}
    values = {
        "timestamp.type": timestamp.type,
        "output.dateformat": timestamp.output_format,
        "output.timezone": timestamp.output_timezone,
        "input.dateformat": ",".join(timestamp.input_formats),
        "input.timezone": timestamp.input_timezone,
        "timestamp.scalar.time.unit": timestamp.scalar_unit if timestamp.type in ("SCALAR", "MIXED") else "",
    }
    return {_TIMEBASED[0] + key: value for key, value in values.items() if value}


def _partition_fields_text(keys: KeyConfig) -> str:
    if keys.generator is not KeyGeneratorType.CUSTOM:
        return ",".join(keys.partition_fields)
    return ",".join(f"{name}:{kind}" for name, kind in zip(keys.partition_fields, keys.partition_types, strict=True))
