"""Convert values of the metastore protocol to Thrift structures and back."""

from __future__ import annotations

import getpass
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

from pymetastore.hive_metastore.ttypes import FieldSchema, Partition, SerDeInfo, StorageDescriptor, Table

from lakehouse.platform.metastore.protocol import Column, Format, HivePartition, HiveTable

EXTERNAL, MANAGED = "EXTERNAL_TABLE", "MANAGED_TABLE"
#: Name, type and comment per column in a partition.
ColumnFields = tuple[tuple[str, str, str | None], ...]


def to_table(table: HiveTable, into: Table | None = None) -> Table:
    """Convert to a Thrift table; keep the fields of the existing table `into` that `HiveTable` lacks."""
    made = into or Table(dbName=table.database, tableName=table.name, owner=_user(), ownerType=None)
    made.partitionKeys = _fields(table.partition_columns)
    made.parameters = dict(table.parameters) if table.managed else {"EXTERNAL": "TRUE", **table.parameters}
    made.tableType = MANAGED if table.managed else EXTERNAL
    made.sd = _descriptor(table.columns, table.location, table.format, made.sd)
    return made


def of_table(table: Table) -> HiveTable:
    """Convert a Thrift table; the location of a view is empty."""
    return HiveTable(
        database=table.dbName,
        name=table.tableName,
        columns=_columns(table.sd.cols),
        partition_columns=_columns(table.partitionKeys or ()),
        location=table.sd.location or "",
        format=_format(table.sd),
        parameters=dict(table.parameters or {}),
        managed=table.tableType == MANAGED,
    )


def to_partition(database: str, name: str, partition: HivePartition, into: Partition | None = None) -> Partition:
    """Convert to a Thrift partition; keep the fields of the existing one, `into`, that `HivePartition` lacks."""
    made = into or Partition(values=list(partition.values), dbName=database, tableName=name)
    made.parameters = dict(partition.parameters)
    made.sd = _descriptor(partition.columns, partition.location, partition.format, made.sd)
    return made


def of_partition(partition: Partition, shared: dict[ColumnFields, tuple[Column, ...]]) -> HivePartition:
    """Convert a Thrift partition; `shared` caches column tuples that partitions have in common."""
    fields = tuple((field.name, field.type, field.comment) for field in partition.sd.cols)
    if fields not in shared:
        shared[fields] = _columns(partition.sd.cols)
    return HivePartition(
        values=tuple(partition.values),
        location=partition.sd.location or "",
        format=_format(partition.sd),
        columns=shared[fields],
        parameters=dict(partition.parameters or {}),
    )


def _descriptor(
    columns: Sequence[Column], location: str, format: Format, into: StorageDescriptor | None
) -> StorageDescriptor:
    made = into or StorageDescriptor(
        compressed=False, numBuckets=0, bucketCols=[], sortCols=[], parameters={}, serdeInfo=SerDeInfo()
    )
    made.cols, made.location = _fields(columns), location
    made.inputFormat, made.outputFormat = format.input_format, format.output_format
    made.serdeInfo.serializationLib = format.serde
    made.serdeInfo.parameters = dict(format.serde_properties)
    return made


def _format(descriptor: Any) -> Format:
    serde = descriptor.serdeInfo
    return Format(
        input_format=descriptor.inputFormat or "",
        output_format=descriptor.outputFormat or "",
        serde=serde.serializationLib or "",
        serde_properties=dict(serde.parameters or {}),
    )


def _fields(columns: Sequence[Column]) -> list[FieldSchema]:
    return [FieldSchema(name=column.name, type=column.type, comment=column.comment) for column in columns]


def _columns(fields: Sequence[FieldSchema]) -> tuple[Column, ...]:
    return tuple(Column(name=field.name, type=field.type, comment=field.comment or "") for field in fields)


def _user() -> str:
    """Return the user name, which becomes the owner of a created table."""
    with suppress(KeyError, OSError, ImportError):
        return getpass.getuser()
    return ""
