"""Convert values of the metastore protocol to the structures of AWS Glue's API and back."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lakehouse.core.rows.partition_path import DEFAULT_PARTITION
from lakehouse.platform.metastore.protocol import Column, Format, HivePartition, HiveTable

#: Fields of a stored table and partition that a request which replaces them also has.
TABLE_FIELDS = frozenset(
    {
        "Name",
        "Description",
        "Owner",
        "LastAccessTime",
        "LastAnalyzedTime",
        "Retention",
        "StorageDescriptor",
        "PartitionKeys",
        "ViewOriginalText",
        "ViewExpandedText",
        "TableType",
        "Parameters",
        "TargetTable",
    }
)
PARTITION_FIELDS = frozenset({"Values", "LastAccessTime", "StorageDescriptor", "Parameters", "LastAnalyzedTime"})
_EXTERNAL = "EXTERNAL_TABLE"


def to_table(table: HiveTable, into: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Convert to a TableInput; keep the fields of the existing one, `into`, that `HiveTable` lacks.

    A managed table differs in its parameters only, as in Hudi's sync.
    """
    given = into or {"TableType": _EXTERNAL}
    return {
        **given,
        "Name": table.name.lower(),
        "PartitionKeys": to_columns(table.partition_columns),
        "Parameters": dict(table.parameters) if table.managed else {"EXTERNAL": "TRUE", **table.parameters},
        "StorageDescriptor": _descriptor(table.columns, table.location, table.format, given),
    }


def of_table(table: Mapping[str, Any]) -> HiveTable:
    """Convert a Glue table; the location of a view is empty."""
    descriptor = table.get("StorageDescriptor") or {}
    parameters = dict(table.get("Parameters") or {})
    return HiveTable(
        database=table["DatabaseName"],
        name=table["Name"],
        columns=_columns(descriptor.get("Columns") or ()),
        partition_columns=_columns(table.get("PartitionKeys") or ()),
        location=descriptor.get("Location") or "",
        format=_format(descriptor),
        parameters=parameters,
        managed=parameters.get("EXTERNAL", "").upper() != "TRUE",
    )


def to_partition(partition: HivePartition, into: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Convert to a PartitionInput; keep the fields of the existing one, `into`, that `HivePartition` lacks."""
    given = into or {}
    return {
        **given,
        "Values": [value or DEFAULT_PARTITION for value in partition.values],
        "Parameters": dict(partition.parameters),
        "StorageDescriptor": _descriptor(partition.columns, partition.location, partition.format, given),
    }


def of_partition(partition: Mapping[str, Any], shared: dict[tuple[Column, ...], tuple[Column, ...]]) -> HivePartition:
    """Convert a Glue partition; `shared` caches column tuples that partitions have in common."""
    descriptor = partition.get("StorageDescriptor") or {}
    columns = _columns(descriptor.get("Columns") or ())
    return HivePartition(
        values=tuple(partition["Values"]),
        location=descriptor.get("Location") or "",
        format=_format(descriptor),
        columns=shared.setdefault(columns, columns),
        parameters=dict(partition.get("Parameters") or {}),
    )


def to_columns(columns: Iterable[Column]) -> list[dict[str, str]]:
    """Convert columns; a missing comment is empty, as in Hudi's sync."""
    return [{"Name": column.name, "Type": column.type, "Comment": column.comment} for column in columns]


def _descriptor(columns: Sequence[Column], location: str, format: Format, given: Mapping[str, Any]) -> dict[str, Any]:
    descriptor = given.get("StorageDescriptor") or {}
    return {
        **descriptor,
        "Columns": to_columns(columns),
        "Location": location,
        "InputFormat": format.input_format,
        "OutputFormat": format.output_format,
        "SerdeInfo": {
            **(descriptor.get("SerdeInfo") or {}),
            "SerializationLibrary": format.serde,
            "Parameters": dict(format.serde_properties),
        },
    }


def _format(descriptor: Mapping[str, Any]) -> Format:
    serde = descriptor.get("SerdeInfo") or {}
    return Format(
        input_format=descriptor.get("InputFormat") or "",
        output_format=descriptor.get("OutputFormat") or "",
        serde=serde.get("SerializationLibrary") or "",
        serde_properties=dict(serde.get("Parameters") or {}),
    )


def _columns(columns: Iterable[Mapping[str, Any]]) -> tuple[Column, ...]:
    return tuple(
        Column(name=column["Name"], type=column.get("Type") or "", comment=column.get("Comment") or "")
        for column in columns
    )
