"""Plan a metastore sync by comparing a table with the metastore; pure. Declarations are the same as in Hudi's own sync.

    copy on write                t
    merge on read, ALL           t_ro (base files), t_rt (all rows), and t (all rows)
    merge on read, ALL, skip_ro_suffix    t (base files), t_rt (all rows)
    merge on read, RO or RT      t (base files, or all rows)

The table is authoritative. Every plan compares all its partitions with all names in the metastore, so a later sync
repairs omissions of an earlier one. Partitions that the table lacks are dropped, and partitions at another location are
moved, even if another program created them. A path is skipped with a reason if it does not fit the partition columns,
or if another path has the same name in Hive.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import pyarrow as pa

from lakehouse.core.format.avro.schema import with_meta_fields
from lakehouse.errors import UserError
from lakehouse.model.keys import KeyConfig
from lakehouse.platform.metastore.names import partition_name, same_location
from lakehouse.platform.metastore.protocol import Column, Format, HivePartition, HiveTable
from lakehouse.platform.publish.column_types import hive_columns, is_widening, spark_json
from lakehouse.platform.publish.sync_partitions import NamedPartitions, named_partitions, partition_columns
from lakehouse.spec.options.sync import ALL, RO, SyncPolicy

#: Hudi's sync continues from these parameters, so they are written after all partitions.
LAST_COMMIT = "last_commit_time_sync"
LAST_COMPLETION = "last_commit_completion_time_sync"
_PROVIDER, _SPARK_SCHEMA = "spark.sql.sources.provider", "spark.sql.sources.schema."
_SPARK_COLUMNS = (f"{_SPARK_SCHEMA}partCol.", f"{_SPARK_SCHEMA}numPartCols")
_CONTAINS_NULL = re.compile('("containsNull"|"valueContainsNull"):false')
_BASE_ONLY = "hoodie.query.as.ro.table"
_HUDI = "org.apache.hudi."
_FORMATS = {False: "HoodieParquetInputFormat", True: "realtime.HoodieParquetRealtimeInputFormat"}
_PARQUET = "org.apache.hadoop.hive.ql.io.parquet."
#: Parameter by which Athena lists files in the metadata table.
METADATA_LISTING = "hudi.metadata-listing-enabled"


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncFacts:
    """State of the table: data columns, paths of the partitions with data, and its newest write.

    `sizes` maps partitions to their number of files and bytes, if these are known. Without completion times, the time
    of the newest write is when it began.
    """

    name: str
    location: str
    is_merge_on_read: bool
    schema: pa.Schema
    keys: KeyConfig
    partitions: tuple[str, ...]
    sizes: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    last_requested: str = ""
    last_completed: str = ""
    has_completion_times: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """A table in the metastore, with the names of its partitions, and their details; an incremental sync reads none."""

    table: HiveTable
    names: tuple[str, ...] = ()
    partitions: tuple[HivePartition, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """Plan for one table of the metastore.

    `wanted` is its future state, `changes` lists the alterations, and `stamp` contains the parameters that are written
    last.
    """

    wanted: HiveTable
    create: bool = False
    changes: tuple[str, ...] = ()
    add: tuple[HivePartition, ...] = ()
    alter: tuple[HivePartition, ...] = ()
    drop: tuple[str, ...] = ()
    stamp: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Return whether there is nothing to do."""
        return not (self.create or self.changes or self.add or self.alter or self.drop or self.stamp)


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncPlan:
    """Plan of a sync; `skipped` maps partitions that Hive cannot represent to the reason.

    An incremental plan did not compare the details of the partitions that the metastore already shows.
    """

    database: str
    tables: tuple[TablePlan, ...]
    metastore: str = ""
    skipped: Mapping[str, str] = field(default_factory=dict)
    is_incremental: bool = False

    @property
    def is_empty(self) -> bool:
        """Return whether the metastore is up to date."""
        return all(table.is_empty for table in self.tables)


def wanted_tables(facts: SyncFacts, policy: SyncPolicy) -> tuple[HiveTable, ...]:
    """Return the metastore tables that represent this table under the policy's strategy.

    With `skip_ro_suffix` the table <name> contains base files only, so no other table has this name.
    """
    name = (policy.target_table or re.sub(r"[^A-Za-z0-9_]", "_", facts.name.rpartition(".")[2])).lower()
    if not facts.is_merge_on_read:
        return (_table(facts, policy, name, realtime=False, base_only=False),)
    if policy.strategy != ALL:
        base_only = policy.strategy == RO
        return (_table(facts, policy, name, realtime=not base_only, base_only=base_only),)
    base_files = _table(facts, policy, name if policy.skip_ro_suffix else f"{name}_ro", realtime=False, base_only=True)
    shown = (base_files, _table(facts, policy, f"{name}_rt", realtime=True, base_only=False))
    if policy.skip_ro_suffix or not policy.snapshot_with_table_name:
        return shown
    return (*shown, _table(facts, policy, name, realtime=True, base_only=False))


def plan_sync(facts: SyncFacts, policy: SyncPolicy, present: Mapping[str, Present]) -> SyncPlan:
    """Return the plan, given the existing tables of the metastore by name.

    Raises UserError before any change if a table of the name refers to other data, or if a column type cannot be
    changed in the metastore.
    """
    named = named_partitions(facts.partitions, facts.keys, policy)
    tables = []
    wanted = wanted_tables(facts, policy)
    for table in wanted:
        there = present.get(table.name)
        format = table.format
        if policy.skip_ro_suffix and policy.snapshot_with_table_name and there is not None:
            format = _format_that_hudi_left(table, wanted[-1].format, there.table)
        planned = _plan_table(replace(table, format=format), there, facts, named, table.format)
        changes_more = not replace(planned, stamp={}).is_empty
        tables.append(planned if changes_more or not policy.conditional else replace(planned, stamp={}))
    return SyncPlan(database=policy.target_database.lower(), tables=tuple(tables), skipped=named.skipped)


def _format_that_hudi_left(table: HiveTable, all_rows: Format, there: HiveTable) -> Format:
    """Return the format for base files, or the format for all rows if the metastore shows that one.

    From its second sync on, Hudi's own sync with `skip_ro_suffix` gives this table the format for all rows, and leaves
    its partitions as they are. Engines that read the table must not see other rows after a change of the sync.
    """
    shows_all_rows = there.format.input_format == all_rows.input_format and not format_differs(all_rows, there.format)
    return all_rows if shows_all_rows else table.format


def _table(facts: SyncFacts, policy: SyncPolicy, name: str, *, realtime: bool, base_only: bool) -> HiveTable:
    schema = facts.schema if policy.omit_metadata_fields else with_meta_fields(facts.schema)
    fields = partition_columns(facts.keys, policy)
    columns = {column.name: column for column in hive_columns(schema, timestamps=policy.timestamps)}
    partition = tuple(columns.get(f.lower(), Column(name=f.lower(), type="string")) for f in fields)
    for_spark = {_BASE_ONLY: str(base_only).lower()} if policy.sync_as_datasource else {}
    parameters = {} if policy.create_managed_table else {"EXTERNAL": "TRUE"}
    if policy.is_glue:
        parameters[METADATA_LISTING] = str(policy.glue_metadata_listing).upper()
    parameters.update(policy.extra_parameters)
    if policy.sync_as_datasource:
        parameters.update(_spark_parameters(schema, fields, policy.schema_piece))
    return HiveTable(
        database=policy.target_database.lower(),
        name=name,
        columns=tuple(column for column in columns.values() if column not in partition),
        partition_columns=partition,
        location=facts.location,
        format=Format(
            input_format=f"{_HUDI}hadoop.{_FORMATS[realtime]}",
            output_format=f"{_PARQUET}MapredParquetOutputFormat",
            serde=f"{_PARQUET}serde.ParquetHiveSerDe",
            serde_properties={
                "serialization.format": "1",
                **policy.extra_serde_properties,
                **for_spark,
                "path": facts.location,
            },
        ),
        parameters=parameters,
        managed=policy.create_managed_table,
    )


def _spark_parameters(schema: pa.Schema, fields: Sequence[str], size: int) -> dict[str, str]:
    """Return the parameters with which Spark reads the table through Hudi; partition columns are last in its schema."""
    data = [f for f in schema if f.name not in fields]
    missing = [pa.field(name, pa.string(), nullable=False) for name in fields if name not in schema.names]
    by_name = {f.name: f for f in (*schema, *missing)}
    text = spark_json(pa.schema([*data, *(by_name[name] for name in fields)]))
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    parameters = {_PROVIDER: "hudi", f"{_SPARK_SCHEMA}numParts": str(len(pieces))}
    parameters.update({f"{_SPARK_SCHEMA}part.{number}": piece for number, piece in enumerate(pieces)})
    if fields:
        parameters[f"{_SPARK_SCHEMA}numPartCols"] = str(len(fields))
        parameters.update({f"{_SPARK_SCHEMA}partCol.{number}": name for number, name in enumerate(fields)})
    return parameters


def _plan_table(
    wanted: HiveTable, present: Present | None, facts: SyncFacts, named: NamedPartitions, format: Format
) -> TablePlan:
    """Plan one table; `format` is the format of its partitions."""
    stamp = _stamp(facts, None if present is None else present.table)
    shown = replace(wanted, format=format)
    if present is None:
        added = tuple(_partition(shown, facts, values, path) for values, path in named.by_name.values())
        return TablePlan(wanted=wanted, create=True, add=added, stamp=stamp)
    _require_ours(wanted, present.table)
    merged, changes = _merged(wanted, present.table)
    details = dict(zip(_names(wanted, present.partitions), present.partitions, strict=True))
    existing = frozenset(present.names)
    partitions = dict(_wanted_partitions(shown, facts, named, existing, details))
    return TablePlan(
        wanted=merged,
        changes=changes,
        add=tuple(_added(merged, partition) for name, partition in partitions.items() if name not in existing),
        alter=tuple(_altered(partitions, details, () if "columns" in changes else wanted.columns)),
        drop=tuple(name for name in present.names if name not in partitions),
        stamp=stamp,
    )


def _stamp(facts: SyncFacts, there: HiveTable | None) -> dict[str, str]:
    """Return the parameters for the newest write that a table does not contain yet."""
    parameters = {} if there is None else there.parameters
    stamp = {LAST_COMMIT: facts.last_requested, LAST_COMPLETION: facts.last_completed}
    if not facts.has_completion_times and parameters.get(LAST_COMMIT) == facts.last_requested:
        # Hudi 0.15 stores when it completed the same write, which only the modification time of a file shows.
        del stamp[LAST_COMPLETION]
    return {key: value for key, value in stamp.items() if value and parameters.get(key) != value}


def _altered(
    wanted: Mapping[str, HivePartition], there: Mapping[str, HivePartition], columns: Sequence[Column]
) -> Iterator[HivePartition]:
    """Yield the partitions that differ; a change of the table's columns cascades, so that `columns` is empty then."""
    # Partitions share column tuples, so each tuple is compared once.
    shared = {id(partition.columns): partition.columns for partition in there.values() if columns}
    outdated = {key for key, present in shared.items() if _types(present) != _types(columns)}
    for name, partition in there.items():
        if name in wanted and (id(partition.columns) in outdated or _differs(wanted[name], partition)):
            yield replace(wanted[name], parameters=partition.parameters)


def _wanted_partitions(
    wanted: HiveTable,
    facts: SyncFacts,
    named: NamedPartitions,
    existing: Container[str],
    details: Mapping[str, HivePartition],
) -> Iterator[tuple[str, HivePartition]]:
    """Yield the partitions by name; one that Hudi declared with escaped values keeps its name."""
    columns = [column.name for column in wanted.partition_columns]
    for name, (values, path) in named.by_name.items():
        partition = _partition(wanted, facts, values, path)
        raw = named.escaped.get(name)
        if raw is not None and name not in existing:
            hudis = partition_name(columns, raw)
            there = details.get(hudis, partition)
            if hudis in existing and same_location(there.location, partition.location):
                yield hudis, replace(partition, values=raw)
                continue
        yield name, partition


def _partition(table: HiveTable, facts: SyncFacts, values: tuple[str, ...], path: str) -> HivePartition:
    # Without these parameters the metastore would list the files of an added partition.
    sizes = zip(("numFiles", "totalSize"), facts.sizes.get(path, ()), strict=False)
    return HivePartition(
        values=values,
        location=f"{table.location}/{path}",
        format=_partition_format(table.format),
        columns=table.columns,
        parameters={key: str(number) for key, number in sizes},
    )


def _added(table: HiveTable, partition: HivePartition) -> HivePartition:
    """Return a partition with all SerDe properties of an existing table, which new partitions inherit."""
    if table.format.input_format != partition.format.input_format:
        return partition
    return replace(partition, format=table.format)


def _partition_format(format: Format) -> Format:
    """Return the format of partitions: the path is a property for Spark, and of the table itself."""
    if _BASE_ONLY in format.serde_properties:
        return format
    properties = {key: value for key, value in format.serde_properties.items() if key != "path"}
    return replace(format, serde_properties=properties)


def _names(table: HiveTable, partitions: Iterable[HivePartition]) -> list[str]:
    columns = [column.name for column in table.partition_columns]
    return [partition_name(columns, partition.values) for partition in partitions]


def _differs(wanted: HivePartition, there: HivePartition) -> bool:
    return not same_location(wanted.location, there.location) or format_differs(wanted.format, there.format)


def format_differs(wanted: Format, there: Format) -> bool:
    """Return whether a format lacks the classes or a property of the wanted one."""
    classes = (wanted.input_format, wanted.output_format, wanted.serde)
    return classes != (there.input_format, there.output_format, there.serde) or any(
        not _same_property(key, value, there.serde_properties.get(key))
        for key, value in wanted.serde_properties.items()
    )


def _same_property(key: str, value: str, there: str | None) -> bool:
    """Return whether a SerDe property has a value; a path may have another notation, such as s3a for s3."""
    return value == there or (key == "path" and there is not None and same_location(value, there))


def _types(columns: Iterable[Column]) -> dict[str, str]:
    return {column.name: column.type.replace(" ", "").lower() for column in columns}


def _require_ours(wanted: HiveTable, there: HiveTable) -> None:
    name = f"{there.database}.{there.name}"
    is_hudis = there.parameters.get(_PROVIDER) == "hudi" or there.format.input_format.startswith(_HUDI)
    if not is_hudis or not same_location(wanted.location, there.location):
        kind = "a Hudi table" if is_hudis else "no Hudi table"
        raise UserError(
            f"the metastore's table {name} is {kind} at {there.location or '(no location)'}, not the table at "
            f"{wanted.location}: set hoodie.datasource.hive_sync.table or .database to another name; nothing was "
            "changed",
            table=name,
            location=there.location,
        )
    if [c.name for c in wanted.partition_columns] != [c.name for c in there.partition_columns]:
        theirs = ", ".join(column.name for column in there.partition_columns) or "nothing"
        ours = ", ".join(column.name for column in wanted.partition_columns) or "nothing"
        raise UserError(
            f"the metastore's table {name} is partitioned by {theirs}, but the table by {ours}, and a metastore cannot "
            "change that: drop the metastore's table (files are kept) and sync again; nothing was changed",
            table=name,
        )


def _merged(wanted: HiveTable, there: HiveTable) -> tuple[HiveTable, tuple[str, ...]]:
    """Return the future state of a table, with parameters of other programs preserved, and the names of its changes."""
    before, after = _types(there.columns), _types(wanted.columns)
    for name in before.keys() & after.keys():
        if not is_widening(before[name], after[name]):
            raise UserError(
                f"column {name!r} of {there.database}.{there.name} is {before[name]} in the metastore and "
                f"{after[name]} in the table, and a metastore refuses this change: drop the metastore's table (files "
                "are kept) and sync again; nothing was changed",
                column=name,
            )
    comments = {column.name: column.comment for column in there.columns}
    columns = tuple(replace(column, comment=comments.get(column.name, "")) for column in wanted.columns)
    parameters = _merged_parameters(wanted.parameters, there.parameters)
    changes = []
    if before != after:
        changes.append("columns")
    else:
        columns = there.columns
    if format_differs(wanted.format, there.format):
        changes.append("format")
    if parameters != dict(there.parameters):
        changes.append("properties")
    properties = dict(there.format.serde_properties)
    wanted_properties = wanted.format.serde_properties.items()
    properties.update({k: v for k, v in wanted_properties if not _same_property(k, v, properties.get(k))})
    format = replace(wanted.format, serde_properties=properties)
    merged = replace(
        wanted,
        columns=columns,
        location=there.location or wanted.location,
        format=format,
        parameters=parameters,
        managed=there.managed,
    )
    return merged, tuple(changes)


def _merged_parameters(wanted: Mapping[str, str], there: Mapping[str, str]) -> dict[str, str]:
    """Return the wanted parameters, and the parameters of other programs; parts of an earlier schema are removed."""
    # Whether a table is managed or external was decided when it was created.
    own = {key: value for key, value in wanted.items() if key != "EXTERNAL"}
    if _is_same_for_spark(own, there):
        own = {key: value for key, value in own.items() if not key.startswith(_SPARK_SCHEMA)}
    replaces = any(key.startswith(_SPARK_SCHEMA) for key in own)
    return {**{k: v for k, v in there.items() if not (replaces and k.startswith(_SPARK_SCHEMA))}, **own}


def _is_same_for_spark(wanted: Mapping[str, str], there: Mapping[str, str]) -> bool:
    """Return whether schemas differ only in the length of their pieces, or in whether arrays and maps contain null.

    Hudi 0.15 declares that arrays contain no null, Hudi 1.2 that they do. In Spark, Hudi divides a schema by a Spark
    setting and not by its option.
    """
    ours, theirs = (
        (
            _CONTAINS_NULL.sub(r"\1:true", _spark_schema(parameters)),
            {key: value for key, value in parameters.items() if key.startswith((_PROVIDER, *_SPARK_COLUMNS))},
        )
        for parameters in (wanted, there)
    )
    return ours == theirs


def _spark_schema(parameters: Mapping[str, str]) -> str:
    """Return Spark's schema; empty if no parameter contains it."""
    number = parameters.get(f"{_SPARK_SCHEMA}numParts", "")
    pieces = range(int(number)) if number.isdecimal() else ()
    return "".join(parameters.get(f"{_SPARK_SCHEMA}part.{piece}", "") for piece in pieces)
