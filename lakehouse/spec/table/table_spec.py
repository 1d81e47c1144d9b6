"""The table spec: the declaration of one table in one YAML file.

Values are stored as written. A job replaces `${VAR}` in `location` and `ingest.path` by the environment variable, and
resolves a relative location or path below the directory `LAKEHOUSE_HOME`, or below the current directory if that
variable is not set.

A `record_key` is unique in each partition, as in Hudi. It is unique in the whole table only without `partition_by` or
with a global index (`index: global_simple`); otherwise a row whose partition column changed becomes a second row.
`lakehouse table validate --keys global` finds such keys.

Without `record_key` each inserted row gets a generated key, as in Hudi 1. An ingestion can then only add rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from lakehouse.errors import SettingError, UserError, nearest
from lakehouse.model.column_groups import declared_groups
from lakehouse.model.index_type import INDEX_TYPE, INDEX_TYPES, SIMPLE, IndexType, index_type, stored_index_type
from lakehouse.model.keys import KeyGeneratorType
from lakehouse.model.table_identity import TableIdentity
from lakehouse.model.texts import text_list
from lakehouse.spec.options.creation import CREATE_OPTIONS
from lakehouse.spec.options.declarations import canonical_key
from lakehouse.spec.options.deletes import DELETE_RETENTION
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.options.transaction import CONCURRENCY
from lakehouse.spec.options.ttl import TtlPolicy
from lakehouse.spec.quantities import duration_text
from lakehouse.spec.secrets import refuse_secrets
from lakehouse.spec.sources.ingest import IngestSpec, check_generated_keys, ingest_mapping, parse_ingest
from lakehouse.spec.sources.ingest_inputs import INPUTS, InputSpec, inputs_mapping, parse_inputs
from lakehouse.spec.spec_key import key_names
from lakehouse.spec.table.bucket_rules import EXPRESSIONS, HASH_FIELD, NUM_BUCKETS, check_rule, render_rules
from lakehouse.spec.table.contradictions import check_settings
from lakehouse.spec.table.partition_fields import PartitionField, parse_partition_by, partition_entry
from lakehouse.spec.table.publish import PublishSpec, is_enabled, parse_publish
from lakehouse.spec.table.service_settings import service_options, service_settings, setting_options
from lakehouse.spec.table.services import SERVICES
from lakehouse.spec.table.table_keys import (
    INDEX_KEYS,
    MERGE_MODES,
    PARTIAL_UPDATES,
    TABLE_KEYS,
    TABLE_TYPES,
)
from lakehouse.spec.yaml_section import Section, read_section

#: Concurrency modes of a table with several inputs: for merge-on-read with a bucket index, and for other tables.
_NON_BLOCKING, _OPTIMISTIC = "NON_BLOCKING_CONCURRENCY_CONTROL", "OPTIMISTIC_CONCURRENCY_CONTROL"
_MERGING = ("merger", "partial_update", "unavailable_value", "delete_field", "delete_marker")
_TABLE_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,199}")
_MERGER = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexSpec:
    """The index of a table, such as SIMPLE, BLOOM or BUCKET; the other fields are settings of the bucket index.

    `partitions` are pairs of pattern and bucket number; the first pattern that matches a partition path applies.
    """

    type: str
    buckets: int = 0
    hash_fields: tuple[str, ...] = ()
    partitions: tuple[tuple[str, int], ...] = ()

    @property
    def index_type(self) -> IndexType:
        """The index type for the value of `type`, with its properties."""
        return index_type(self.type)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableSpec:
    """The declaration of one table.

    Attributes:
        table: The name of the table.
        location: The path or URL of the table.
        record_key: The key columns; unique in each partition, or in the table with a global index. Without key columns
            each inserted row gets a generated key.
        type: COPY_ON_WRITE or MERGE_ON_READ.
        ordering: The columns that decide which version of a record is newer.
        partition_by: The columns of the partition path.
        key_generator: The key generator; None to derive it from the columns.
        merge_mode: Whether ordering columns, commit times or a merger decide between versions of a record.
        merger: The function `package.module:function` of the merge mode CUSTOM.
        column_groups: Columns by their ordering column, for tables that several writers fill.
        partial_update: IGNORE_DEFAULTS keeps stored values if the newer version is null, FILL_UNAVAILABLE if it is
            `unavailable_value`.
        unavailable_value: The value that FILL_UNAVAILABLE replaces; None for Debezium's.
        delete_field: The column that marks a delete by the value `delete_marker`.
        delete_marker: The value that marks a delete.
        delete_retention: The time for which deletes exclude older rows with the same key, such as `7d`; None means not
            at all, as in Hudi.
        index: The index; None for the default of the options.
        schema: The columns of the input, in order, with their Spark SQL types.
        ingest: The ingestion; None if there is none, or if there are `inputs`.
        inputs: Several ingestions by name.
        input: The name of the input whose ingestion this spec has (see `of_input`); empty for the spec of a file.
        shared_schema: In the spec of an input, the `schema` of the file; the input may declare its own schema.
        services: The settings of services and publication, as in the file.
        options: `hoodie.*` and `lakehouse.*` keys; `write_options` adds those that `index` and `ingest` imply.
        source: The file of the spec.
        identities: The identities that a catalog records for the table, or for the tables of a template, by table name.
            They are not part of the YAML document.
    """

    table: str
    location: str
    record_key: tuple[str, ...] = ()
    type: str = "COPY_ON_WRITE"
    ordering: tuple[str, ...] = ()
    partition_by: tuple[PartitionField, ...] = ()
    key_generator: KeyGeneratorType | None = None
    merge_mode: str | None = None
    merger: str | None = None
    column_groups: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    partial_update: str | None = None
    unavailable_value: str | None = None
    delete_field: str | None = None
    delete_marker: str | None = None
    delete_retention: str | None = None
    index: IndexSpec | None = None
    schema: Mapping[str, str] = field(default_factory=dict)
    ingest: IngestSpec | None = None
    inputs: Mapping[str, InputSpec] = field(default_factory=dict)
    input: str = ""
    shared_schema: Mapping[str, str] = field(default_factory=dict, compare=False, repr=False)
    services: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, str] = field(default_factory=dict)
    source: str = field(default="", compare=False)
    identities: Mapping[str, TableIdentity] = field(default_factory=dict, compare=False, repr=False)

    def __post_init__(self) -> None:
        for name in ("record_key", "ordering"):
            object.__setattr__(self, name, text_list(getattr(self, name), name, ordered=True))

    def write_options(self) -> dict[str, str]:
        """Return `options` together with the options that `index`, `ingest` and `delete_retention` imply."""
        chosen = {} if self.ingest is None else self.ingest.write_options(self.ingestion_name, self.options)
        if self.inputs:
            has_buckets = self.type == "MERGE_ON_READ" and self.index is not None and self.index.index_type.hashes_keys
            chosen[CONCURRENCY] = _NON_BLOCKING if has_buckets else _OPTIMISTIC
        if self.delete_retention is not None:
            chosen[DELETE_RETENTION] = self.delete_retention
        if self.index is None:
            return {**chosen, **self.options}
        chosen[INDEX_TYPE] = self.index.type
        if self.index.buckets:
            chosen[NUM_BUCKETS] = str(self.index.buckets)
        if self.index.partitions:
            chosen[EXPRESSIONS] = render_rules(self.index.partitions)
        if self.index.hash_fields:
            chosen[HASH_FIELD] = ",".join(self.index.hash_fields)
        return {**chosen, **self.options}

    @property
    def is_template(self) -> bool:
        """Whether the spec declares several tables, whose names and keys come from the source."""
        return self.ingest is not None and self.ingest.database is not None and bool(self.ingest.database.into)

    @property
    def ingestion_name(self) -> str:
        """The name of the ingestion: the table's name, or `table.input`."""
        return f"{self.table}.{self.input}" if self.input else self.table

    @property
    def ingestions(self) -> tuple[TableSpec, ...]:
        """One spec for each ingestion of the table: this one, or the specs of its inputs."""
        if self.inputs and not self.input:
            return tuple(self.of_input(name) for name in self.inputs)
        return () if self.ingest is None else (self,)

    def of_input(self, name: str | None) -> TableSpec:
        """Return the spec with the ingestion and the columns of one input; this spec if it has no inputs.

        Raises UserError for an unknown or missing name, and for a name if the spec has no inputs.
        """
        if not self.inputs:
            if name:
                raise UserError(
                    f"--input {name}: the spec of {self.table} has no inputs; remove --input", flag="--input"
                )
            return self
        names = ", ".join(self.inputs)
        if not name:
            raise UserError(f"the spec of {self.table} has several inputs: choose one of {names} with --input NAME")
        if name not in self.inputs:
            raise UserError(
                f"--input {name}: the spec of {self.table} has no such input.{nearest(name, self.inputs)} Inputs are "
                f"{names}",
                flag="--input",
            )
        chosen, shared = self.inputs[name], self.file_schema
        return replace(self, ingest=chosen.ingest, schema=chosen.schema or shared, input=name, shared_schema=shared)

    @property
    def file_schema(self) -> Mapping[str, str]:
        """The columns that the file declares for all inputs."""
        return self.shared_schema if self.input else self.schema

    @property
    def functions(self) -> tuple[str, ...]:
        """The functions in the spec. Its table may then also refer to them."""
        return (self.merger,) if self.merger else ()

    def call_options(self) -> dict[str, str]:
        """Return the options for opening the table: the write options, and the options that `services` imply."""
        write = {key: value for key, value in self.write_options().items() if key not in CREATE_OPTIONS}
        return {**service_options(self.services), **write}

    def publication(self) -> PublishSpec | None:
        """Return the settings of `services.publish`; None if they are missing or not enabled."""
        settings = self.services.get("publish")
        return _publish(self.table, settings) if settings is not None and is_enabled(settings) else None

    def to_mapping(self) -> dict[str, Any]:
        """Return the spec as in the YAML file, without default values.

        `parse_spec` of the result gives an equal spec.
        """
        mapping: dict[str, Any] = {"table": self.table, "location": self.location}
        if self.type != "COPY_ON_WRITE":
            mapping["type"] = self.type
        if self.record_key:
            mapping["record_key"] = list(self.record_key)
        if self.ordering:
            mapping["ordering"] = list(self.ordering)
        if self.partition_by:
            mapping["partition_by"] = [partition_entry(column) for column in self.partition_by]
        if self.key_generator is not None:
            mapping["key_generator"] = str(self.key_generator)
        for name in ("merge_mode", *_MERGING, "delete_retention"):
            if getattr(self, name) is not None:
                mapping[name] = getattr(self, name)
        if self.column_groups:
            mapping["column_groups"] = {name: list(columns) for name, columns in self.column_groups.items()}
        if self.index is not None:
            index = {"type": self.index.type, "buckets": self.index.buckets, "hash_field": list(self.index.hash_fields)}
            index["partitions"] = dict(self.index.partitions)
            mapping["index"] = {name: value for name, value in index.items() if value}
        if self.inputs:
            mapping["ingest"] = inputs_mapping(self.inputs)
        elif self.ingest is not None:
            mapping["ingest"] = ingest_mapping(self.ingest)
        for name, values in (("schema", self.file_schema), ("services", self.services), ("options", self.options)):
            if values:
                mapping[name] = dict(values)
        return mapping


def load_spec(path: Path) -> TableSpec:
    """Read the spec in a file; raise UserError if it cannot be read or is not a spec."""
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise UserError(f"cannot read the table spec {path}: {reason}", file=str(path)) from error
    return parse_spec(text, source=str(path))


def parse_spec(text: str, *, source: str) -> TableSpec:
    """Return the spec in a YAML document; raise UserError with file, line and a similar known name."""
    section = read_section(text, source=source, title="the table spec")
    section.only(key_names(TABLE_KEYS))
    table = section.required("table")
    if not _TABLE_NAME.fullmatch(table):
        raise section.error(
            f"table: {table!r} is not a name: up to 200 letters, digits, '_', '.' and '-', not starting with '.', '-'.",
            "table",
        )
    generator = section.choice("key_generator", ("", *KeyGeneratorType), "")
    detail = section.section("ingest", "ingest")
    inputs = parse_inputs(detail) if detail is not None and INPUTS in detail.lines else {}
    ingest = parse_ingest(detail) if detail is not None and not inputs else None
    spec = TableSpec(
        table=table,
        location=section.required("location"),
        record_key=_columns(section, "record_key") if "record_key" in section.lines else (),
        type=section.choice("type", TABLE_TYPES, TABLE_TYPES[0]),
        ordering=_columns(section, "ordering") if "ordering" in section.nodes else (),
        partition_by=parse_partition_by(section),
        key_generator=KeyGeneratorType(generator) if generator else None,
        merge_mode=section.choice("merge_mode", ("", *MERGE_MODES), "") or None,
        merger=section.text("merger") or None,
        column_groups=_column_groups(section),
        partial_update=section.choice("partial_update", ("", *PARTIAL_UPDATES), "") or None,
        unavailable_value=section.text("unavailable_value") or None,
        delete_field=section.text("delete_field") or None,
        delete_marker=section.text("delete_marker") or None,
        delete_retention=section.text("delete_retention").strip() or None,
        index=_index(section),
        schema=_schema(section),
        ingest=ingest,
        inputs=inputs,
        services=_services(section),
        options=_options(section),
        source=source,
    )
    for one in spec.ingestions or (spec,):
        _check(one, section)
    return spec


def asset_uri(table: str) -> str:
    """Return the Airflow asset URI for the table with this name."""
    return f"lakehouse://{table}"


def _columns(section: Section, name: str) -> tuple[str, ...]:
    columns = section.names(name)
    if not columns or not all(columns):
        raise section.error(f"{section.title} needs {name!r}: a column, or a list of columns.", name)
    twice = next((column for column in columns if columns.count(column) > 1), None)
    if twice is not None:
        raise section.error(f"{name}: column {twice!r} is listed twice.", name)
    return columns


def _index(section: Section) -> IndexSpec | None:
    if "index" not in section.nodes:
        return None
    if not section.is_mapping("index"):
        return _checked_index(section, IndexSpec(type=section.choice("index", tuple(INDEX_TYPES), "")))
    detail = section.section("index", "index")
    assert detail is not None, "the mapping was seen above"
    detail.only(key_names(INDEX_KEYS))
    return _checked_index(
        detail,
        IndexSpec(
            type=detail.choice("type", tuple(INDEX_TYPES), SIMPLE.name),
            buckets=detail.integer("buckets", 0),
            hash_fields=detail.names("hash_field"),
            partitions=_partition_buckets(detail.section("partitions", "index.partitions")),
        ),
    )


def _partition_buckets(section: Section | None) -> tuple[tuple[str, int], ...]:
    rules = []
    for pattern in section.lines if section is not None else ():
        assert section is not None, "it has lines"
        count = section.integer(pattern, 0)
        try:
            check_rule(pattern, count)
        except UserError as error:
            raise section.error(error.message, pattern) from error
        rules.append((pattern, count))
    return tuple(rules)


def _checked_index(section: Section, index: IndexSpec) -> IndexSpec:
    if index.index_type.hashes_keys and not index.buckets:
        raise section.error("index: the bucket index needs 'buckets', the file groups per partition.", "index")
    if not index.index_type.hashes_keys and (index.buckets or index.hash_fields or index.partitions):
        raise section.error("index: 'buckets', 'hash_field' and 'partitions' are for 'type: bucket' only.", "buckets")
    return index


def _schema(section: Section) -> dict[str, str]:
    schema = section.mapping("schema")
    detail = section.section("schema", "schema")
    untyped = next((name for name in (detail.lines if detail else {}) if not schema.get(name, "").strip()), None)
    if detail is not None and untyped is not None:
        raise detail.error(f"schema: column {untyped!r} needs a Spark SQL type.", untyped)
    names: dict[str, str] = {}
    for name in schema:
        other = names.setdefault(name.lower(), name)
        if other != name and detail is not None:
            raise detail.error(f"schema: columns {other!r} and {name!r} differ only in case; remove one.", name)
    return schema


def _services(section: Section) -> dict[str, Any]:
    detail = section.section("services", "services")
    services = section.plain("services")
    if detail is None:
        return services
    detail.only((*SERVICES, "publish"))
    for service in SERVICES:
        settings = services.get(service) or {}
        if not isinstance(settings, dict):
            raise detail.error(f"services.{service}: {settings!r} is not a mapping of settings.", service)
        try:
            refuse_secrets(settings, f"services.{service}")
            service_settings(service, settings)
        except UserError as error:
            raise _at_setting(detail, service, error) from error
    if "publish" in services:
        try:
            _publish(section.text("table"), services["publish"])
        except UserError as error:
            lines = detail.section("publish", "publish") if detail.is_mapping("publish") else None
            setting = error.setting.rpartition(".")[2] if isinstance(error, SettingError) else ""
            if lines is not None and setting in lines.lines:
                raise lines.error(error.message, setting) from error
            raise detail.error(error.message, "publish") from error
    return services


def _publish(table: str, settings: Any) -> PublishSpec:
    if not isinstance(settings, Mapping):
        raise UserError(f"services.publish: {settings!r} is not a mapping of settings")
    is_enabled(settings)
    return parse_publish(table, settings)


def _at_setting(detail: Section, service: str, error: UserError) -> UserError:
    """Return the error with the line of the setting or service in its message."""
    lines = detail.section(service, service)
    setting = error.setting if isinstance(error, SettingError) else ""
    for name in lines.lines if lines is not None else ():
        if name == setting or setting in setting_options(service, {name: ""}):
            assert lines is not None, "it has lines"
            return lines.error(error.message, name)
    return detail.error(error.message, service)


def _check_services(spec: TableSpec, section: Section) -> None:
    """Raise UserError for contradictory settings, and for services that the table does not support."""
    detail = section.section("services", "services")
    if detail is None:
        return
    settings = {service: spec.services.get(service) or {} for service in SERVICES}
    try:
        check_settings(settings, {key: value for key, value in spec.options.items() if key not in CREATE_OPTIONS})
    except UserError as error:
        service = error.service if isinstance(error, SettingError) else ""
        raise _at_setting(detail, service, error) from error
    ttl = parse_options(service_options({"ttl": settings["ttl"]})).ttl
    if ttl.rule() is not None and not spec.partition_by:
        raise detail.error("services.ttl: the table has no partitions that can expire; add 'partition_by'.", "ttl")
    _check_pins(spec, ttl, detail)


def _check_pins(spec: TableSpec, ttl: TtlPolicy, detail: Section) -> None:
    """Raise UserError if partitions expire while a publication pins their files, because no space would be freed."""
    published, rule = spec.publication(), ttl.rule()
    if published is None or published.partitions != "table" or rule is None:
        return
    ages = [age for age in (rule.partition_age_s, rule.creation_age_s, rule.modification_age_s) if age is not None]
    pinned = published.archive_after_s
    if ages and (pinned is None or pinned > min(ages)):
        period = "for ever" if pinned is None else f"for {duration_text(pinned)}"
        raise detail.error(
            f"services.ttl: partitions expire after {duration_text(min(ages))}, but services.publish pins published "
            f"ones {period}, so their files would remain. Set services.publish.archive_after to at most that age, or "
            "increase the age.",
            "ttl",
        )


def _options(section: Section) -> dict[str, str]:
    detail = section.section("options", "options")
    options = section.mapping("options")
    try:
        for name, value in options.items():
            refuse_secrets({name: value}, "options")
        parse_options(options, also_known=CREATE_OPTIONS)
    except UserError as error:
        raise (detail or section).error(error.message, _wrong_option(error, options)) from error
    return options


def _wrong_option(error: UserError, options: Mapping[str, str]) -> str | None:
    """Return the declared option in an error message, or None if it contains only undeclared options."""
    if not isinstance(error, SettingError):
        return None
    declared = {canonical_key(name): name for name in reversed([*options])} | {name: name for name in options}
    return next((declared[key] for key in (error.setting, *error.related) if key in declared), None)


def _check(spec: TableSpec, section: Section) -> None:
    if spec.merge_mode == "EVENT_TIME_ORDERING" and not spec.ordering:
        raise section.error("merge_mode: EVENT_TIME_ORDERING needs 'ordering', the column to order by.", "merge_mode")
    if not (spec.record_key or spec.is_template or spec.ingest is None):
        check_generated_keys(spec.ingest, section)
    _check_database(spec, section)
    _check_merging(spec, section)
    _check_deletes(spec, section)
    _check_services(spec, section)
    if spec.index is not None and spec.index.partitions and not spec.partition_by:
        raise section.error("index: 'partitions' needs 'partition_by', and the table has none.", "index")
    if spec.index is not None and INDEX_TYPE in spec.options:
        raise section.error("the index is declared twice: in 'index' and in 'options'. Keep one.", "options")
    if not spec.schema or (spec.ingest is not None and spec.ingest.select):
        return
    deletes = (spec.delete_field,) if spec.delete_field else ()
    used = (*spec.record_key, *spec.ordering, *deletes, *(column.name for column in spec.partition_by))
    missing = next((name for name in used if name.split(".")[0] not in spec.schema), None)
    if missing is not None:
        raise section.error(
            f"column {missing!r} is not in 'schema': add it, or compute it in 'ingest.select'.", "schema"
        )


def _check_database(spec: TableSpec, section: Section) -> None:
    settings = None if spec.ingest is None else spec.ingest.database
    if settings is None:
        return
    for name in ("ordering", "merge_mode", *_MERGING):
        if getattr(spec, name):
            raise section.error(
                f"{name}: rows of a database follow the order of its log, so the newest commit decides. Remove {name}.",
                name,
            )
    if settings.into and spec.record_key:
        raise section.error(
            "record_key: with 'into' each table has the key of its source table. Remove it, or declare 'ingest.keys'.",
            "record_key",
        )
    if spec.schema:
        raise section.error("schema: the source tables declare their columns and types. Remove it.", "schema")
    if spec.partition_by and not stored_index_type(spec.write_options()).is_global:
        raise section.error(
            "partition_by: a row whose partition column changes would stay in its old partition, too. Add a global "
            "index: 'index: global_simple', or 'index: record_index'.",
            "partition_by",
        )


def _check_deletes(spec: TableSpec, section: Section) -> None:
    if spec.delete_retention is None:
        return
    if DELETE_RETENTION in spec.options:
        raise section.error(f"delete_retention is declared twice: also as {DELETE_RETENTION}. Keep one.", "options")
    if not spec.ordering or spec.merge_mode == "COMMIT_TIME_ORDERING":
        raise section.error(
            "delete_retention: deletes are remembered by their ordering value, so it needs 'ordering', and not "
            "'merge_mode: COMMIT_TIME_ORDERING'.",
            "delete_retention",
        )
    if spec.ingest is not None and spec.ingest.operation == "bulk_insert":
        raise section.error(
            "delete_retention: 'ingest.operation: bulk_insert' compares no rows with deletes; say upsert or insert.",
            "delete_retention",
        )
    try:
        parse_options({DELETE_RETENTION: spec.delete_retention})
    except UserError as error:
        raise section.error(error.message, "delete_retention") from error


def _column_groups(section: Section) -> dict[str, tuple[str, ...]]:
    detail = section.section("column_groups", "column_groups")
    return {} if detail is None else {name: detail.names(name) for name in detail.lines}


def _check_groups(spec: TableSpec, section: Section) -> None:
    """Raise UserError for column groups that contradict each other or another setting."""
    if not spec.column_groups:
        return
    for name in ("ordering", "merger", "partial_update", "merge_mode"):
        if getattr(spec, name):
            raise section.error(
                f"{name}: 'column_groups' decides between versions of a record. Keep one of the two.", name
            )
    deletes = (spec.delete_field,) if spec.delete_field else ()
    reserved = (*spec.record_key, *(column.name for column in spec.partition_by), *deletes)
    try:
        declared_groups(spec.column_groups, reserved)
    except UserError as error:
        raise section.error(f"{error.message}.", "column_groups") from error


def _check_merging(spec: TableSpec, section: Section) -> None:
    _check_groups(spec, section)
    if spec.merge_mode == "CUSTOM" and not spec.merger:
        raise section.error(
            "merge_mode: CUSTOM needs 'merger', a function: package.module:function. 'column_groups' implies CUSTOM.",
            "merge_mode",
        )
    if spec.merger and spec.merge_mode not in (None, "CUSTOM"):
        raise section.error(f"merger: merge_mode {spec.merge_mode} never calls a merger; CUSTOM does.", "merger")
    if spec.merger and not _MERGER.fullmatch(spec.merger):
        raise section.error(f"merger: {spec.merger!r} is not of the form package.module:function.", "merger")
    if spec.merger and spec.partial_update:
        raise section.error("partial_update: a merger fills gaps itself. Keep one of the two.", "partial_update")
    if spec.unavailable_value and spec.partial_update != "FILL_UNAVAILABLE":
        raise section.error("unavailable_value: needs 'partial_update: FILL_UNAVAILABLE'.", "unavailable_value")
    if bool(spec.delete_field) != bool(spec.delete_marker):
        given = "delete_field" if spec.delete_field else "delete_marker"
        raise section.error(
            "delete_field and delete_marker belong together: the column, and its value in a delete.", given
        )
