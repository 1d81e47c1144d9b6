"""Convert Debezium change events to sample rows: the row's columns, and the facts that order and delete rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from lakehouse.platform.suggest.json_columns import JsonRows, json_columns
from lakehouse.platform.suggest.sample import SampledColumn
from lakehouse.spec.sources.debezium import DELETE, OPERATION

_OPERATIONS = ("c", "r", "u", "d", "t")
#: The column types for Debezium's semantic types, by the end of their names.
_SEMANTIC = {
    ".time.Date": "date",
    ".time.Timestamp": "timestamp",
    ".time.MicroTimestamp": "timestamp",
    ".time.NanoTimestamp": "timestamp",
    ".time.ZonedTimestamp": "timestamp",
    ".connect.data.Date": "date",
    ".connect.data.Timestamp": "timestamp",
}
_POSITIONS: Mapping[str, Mapping[str, str]] = {
    "postgresql": {"_event_lsn": "bigint"},
    "mysql": {"_event_bin_file": "string", "_event_pos": "bigint"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class EventFacts:
    """Additional columns and settings for a table that is loaded from change events.

    Attributes:
        columns: The columns with facts about a change, with their types.
        ordering: The columns that order the changes.
        settings: Settings of the table spec.
        notes: Sentences for comments.
    """

    columns: Mapping[str, str]
    ordering: tuple[str, ...]
    settings: Mapping[str, object] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def is_change_event(record: Mapping[str, Any]) -> bool:
    """Return whether a JSON record is a Debezium change event."""
    event = _event(record)
    return event.get("op") in _OPERATIONS and ("after" in event or "before" in event)


def event_columns(records: Sequence[Mapping[str, Any]]) -> tuple[tuple[SampledColumn, ...], int, EventFacts]:
    """Return the row columns of JSON events, the number of rows, and the facts about changes."""
    images = [image for record in records if isinstance(image := _image(_event(record)), dict)]
    columns, notes = json_columns(JsonRows(rows=images))
    types = _declared_types(records)
    typed = tuple(_with_type(column, types.get(column.name)) for column in columns)
    connectors = {str((_event(record).get("source") or {}).get("connector", "")) for record in records}
    facts = event_facts(connectors)
    return typed, len(images), replace(facts, notes=(*facts.notes, *notes))


def event_facts(connectors: set[str]) -> EventFacts:
    """Return the facts about changes for some connectors, by the `connector` in the events."""
    connector = next((name for name in _POSITIONS if name in connectors), "")
    position = _POSITIONS.get(connector, {"_event_origin_ts_ms": "bigint"})
    notes = ["change events of Debezium: the columns are those of the row after a change, or before a delete"]
    if not connector:
        names = ", ".join(sorted(connectors - {""})) or "unknown"
        notes.append(f"not sure: the connector is {names}, so changes are ordered by the time of the source only")
    settings: dict[str, object] = {"delete_field": OPERATION, "delete_marker": DELETE}
    if connector == "postgresql":
        settings["partial_update"] = "FILL_UNAVAILABLE"
    return EventFacts(
        columns={OPERATION: "string", **position},
        ordering=tuple(position),
        settings=settings,
        notes=tuple(notes),
    )


def _event(record: Mapping[str, Any]) -> Mapping[str, Any]:
    payload = record.get("payload")
    return payload if isinstance(payload, dict) else record


def _image(event: Mapping[str, Any]) -> Any:
    return event.get("before") if event.get("op") == "d" else event.get("after")


def _declared_types(records: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the types of columns that the events declare with Debezium's type names."""
    types = {}
    for record in records:
        schema = record.get("schema")
        fields = schema.get("fields") if isinstance(schema, dict) else None
        for image in fields or ():
            for column in image.get("fields") or () if image.get("field") in ("after", "before") else ():
                name = str(column.get("name") or "")
                kind = next((kind for end, kind in _SEMANTIC.items() if name.endswith(end)), None)
                if kind is not None:
                    types[str(column.get("field"))] = kind
    return types


def _with_type(column: SampledColumn, kind: str | None) -> SampledColumn:
    if kind is None:
        return column
    note = f"Debezium describes it as a {kind}"
    return replace(column, type=kind, key_type="string", notes=(note,), values=column.values)
