"""The key `partition_by` of a table spec: the columns of the partition path, and the formats of times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from lakehouse.model.keys import BY_COLUMN, TimestampFormat
from lakehouse.spec.spec_key import key_names
from lakehouse.spec.table.table_keys import PARTITION_KEYS
from lakehouse.spec.yaml_section import Section

#: The default time format of a TIMESTAMP column.
DEFAULT_FORMAT = TimestampFormat(type=BY_COLUMN)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionField:
    """A column of the partition path; `type` is SIMPLE or TIMESTAMP, `timestamp` contains the settings in the spec."""

    name: str
    type: str = "SIMPLE"
    timestamp: TimestampFormat | None = None


def parse_partition_by(section: Section) -> tuple[PartitionField, ...]:
    """Return the partition columns of a table spec; raise UserError with file and line."""
    name = "partition_by"
    if section.is_mapping(name):
        fields = _partition_mapping(section.section(name, name))
    elif all(isinstance(entry, str) for entry in section.entries(name)):
        fields = tuple(_partition_text(section, text) for text in section.names(name))
    else:
        fields = tuple(
            column
            for entry in section.entries(name)
            for column in ((_partition_text(section, entry),) if isinstance(entry, str) else _partition_mapping(entry))
        )
    twice = next((column.name for column in fields if [other.name for other in fields].count(column.name) > 1), None)
    if twice is not None:
        raise section.error(f"{name}: column {twice!r} is listed twice.", name)
    return fields


def _partition_text(section: Section, text: str) -> PartitionField:
    name, _, kind = text.strip().rpartition(":") if ":" in text else (text.strip(), "", "SIMPLE")
    if kind.strip().upper() not in ("SIMPLE", "TIMESTAMP") or not name.strip():
        raise section.error(f"partition_by: {text!r} is neither a column nor 'column:TIMESTAMP'.", "partition_by")
    return PartitionField(name=name.strip(), type=kind.strip().upper())


def _partition_mapping(section: Section | None) -> tuple[PartitionField, ...]:
    assert section is not None, "a mapping node is always a section"
    return tuple(_partition_detail(name, section.section(name, f"partition_by of {name!r}")) for name in section.lines)


def _partition_detail(name: str, detail: Section | None) -> PartitionField:
    if detail is None:
        return PartitionField(name=name)
    detail.only(key_names(PARTITION_KEYS))
    kind = detail.choice("type", ("SIMPLE", "TIMESTAMP"), "SIMPLE")
    settings = set(detail.nodes) - {"type"}
    if not settings:
        return PartitionField(name=name, type=kind)
    if kind == "SIMPLE":
        raise detail.error(f"{min(settings)!r} is for 'type: TIMESTAMP' only.", min(settings))
    default = DEFAULT_FORMAT
    timestamp = TimestampFormat(
        type=detail.text("timestamp_type", default.type),
        scalar_unit=detail.text("scalar_unit", default.scalar_unit),
        input_formats=detail.texts("input_formats"),
        input_timezone=detail.text("input_timezone", default.input_timezone),
        output_format=detail.text("output_format", default.output_format),
        output_timezone=detail.text("output_timezone", default.output_timezone),
    )
    return PartitionField(name=name, type=kind, timestamp=timestamp)


def partition_entry(column: PartitionField) -> str | dict[str, Any]:
    """Return a partition column as in the YAML file."""
    if column.timestamp is None:
        return column.name if column.type == "SIMPLE" and ":" not in column.name else f"{column.name}:{column.type}"
    given = {name: getattr(column.timestamp, name) for name in key_names(PARTITION_KEYS)[2:]}
    kind = {} if column.timestamp.type == BY_COLUMN else {"timestamp_type": column.timestamp.type}
    settings = {**kind, **given, "input_formats": list(column.timestamp.input_formats)}
    return {column.name: {"type": column.type, **settings}}
