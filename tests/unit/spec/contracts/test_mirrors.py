"""Contracts that mirror a value: each has all fields of the value, apart from declared ones, with the same contents."""

from __future__ import annotations

import types
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import partial
from typing import Any, Union, get_args, get_origin, get_type_hints

import pytest

from lakehouse.cli import alarms, plan_views
from lakehouse.model.metadata_report import MetadataCheck, MetadataPartition, MetadataReport, MetadataSummary
from lakehouse.model.ttl import Expiry
from lakehouse.model.validation import INVARIANTS, Finding, ValidationReport
from lakehouse.platform.catalog.alarms import Alarm
from lakehouse.platform.catalog.silences import Silence
from lakehouse.spec.contracts.document import encode, mirror
from lakehouse.spec.contracts.metadata import (
    MetadataCheckInfo,
    MetadataDescription,
    MetadataPartitionInfo,
    MetadataValidation,
)
from lakehouse.spec.contracts.publication import PartitionEvent, PartitionStatus
from lakehouse.spec.contracts.tables import FindingInfo, TableValidation

#: The function that makes the contract, the type of its argument, and the fields that the contract leaves out.
MIRRORS: dict[str, tuple[Callable[[Any], Any], type, set[str]]] = {
    "MetadataPartitionInfo": (MetadataPartitionInfo.of, MetadataPartition, set()),
    "MetadataCheckInfo": (MetadataCheckInfo.of, MetadataCheck, {"allows_surplus"}),
    "MetadataDescription": (MetadataDescription.of, MetadataSummary, set()),
    "MetadataValidation": (MetadataValidation.of, MetadataReport, {"is_fault", "is_absent"}),
    "FindingInfo": (FindingInfo.of, Finding, set()),
    "TableValidation": (TableValidation.of, ValidationReport, set()),
    "PartitionEvent": (
        partial(PartitionEvent.of, "sales.orders"),
        PartitionStatus,
        {"state", "code", "reason", "lag_s", "files", "size_bytes", "visibility", "visible_version"},
    ),
    "ExpiredPartition": (plan_views.expired_view, Expiry, {"size_bytes"}),
    "AlarmEntry": (
        alarms.alarm_entry,
        Alarm,
        {"table_id", "seen_ms", "raised_ms", "resolved_ms", "silenced_until_ms", "sent"},
    ),
    "SilenceEntry": (alarms.silence_entry, Silence, {"until_ms", "created_ms"}),
}


def sample(kind: Any, name: str = "") -> Any:
    """Return a value of a type that differs from its default; `name` is the field that has it."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin in (Union, types.UnionType):
        return sample(next(part for part in arguments if part is not type(None)), name)
    if origin is tuple:
        return (sample(arguments[0], name),)
    if origin is not None:
        return {}
    if is_dataclass(kind):
        hints = get_type_hints(kind)
        return kind(**{each.name: sample(hints[each.name], each.name) for each in fields(kind)})
    if issubclass(kind, Enum):
        return next(iter(kind))
    if name == "invariant":
        return next(iter(INVARIANTS))
    return kind(f"{name} 1") if kind is str else kind(1 + sum(map(ord, name)) % 97)


@pytest.mark.parametrize("name", MIRRORS)
def test_mirror_has_the_fields_of_its_source_with_the_same_contents(name: str) -> None:
    make, source_type, left_out = MIRRORS[name]
    source = sample(source_type)
    contract = encode(make(source))
    copied = {each.name for each in fields(source_type)} - left_out
    assert copied <= set(contract), "a field of the source is neither copied nor declared as left out"
    assert left_out & set(contract) == set(), "a field is declared as left out and copied"
    assert left_out <= {each.name for each in fields(source_type)}
    for field in sorted(copied):
        value = encode(getattr(source, field))
        if isinstance(value, list) and value and isinstance(value[0], dict):
            # Parts are mirrors of their own.
            assert len(contract[field]) == len(value)
        else:
            assert contract[field] == value, field


def test_mirror_refuses_a_source_without_a_field() -> None:
    @dataclass
    class Source:
        partition: str = "files"

    with pytest.raises(AttributeError, match="state"):
        mirror(MetadataPartitionInfo, Source())
    assert mirror(MetadataPartitionInfo, MetadataPartition(partition="files", state="usable"), state="building") == (
        MetadataPartitionInfo(partition="files", state="building")
    )
