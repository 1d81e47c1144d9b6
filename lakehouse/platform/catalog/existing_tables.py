"""Derive a spec from the properties of an existing table."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import yaml

from lakehouse.core.state.table_config import TableConfig
from lakehouse.model.index_type import stored_index_type
from lakehouse.model.keys import KeyConfig
from lakehouse.spec.table.bucket_rules import HASH_FIELD, MADE_WITH, NUM_BUCKETS, parse_rules
from lakehouse.spec.table.partition_fields import PartitionField, partition_entry
from lakehouse.spec.table.table_spec import TableSpec, parse_spec

#: Prefix of `source` in a derived spec, followed by the location of the table.
PROPERTIES_SOURCE = "the properties of "


def spec_of(
    config: TableConfig, *, identifier: str, location: str, options: Mapping[str, str] = MappingProxyType({})
) -> TableSpec:
    """Return a spec with name `identifier` for the table at `location`; it declares no columns.

    Raises UserError for an option that is unknown or wrong, or that contradicts the properties of the table.
    """
    keys = config.keys
    document: dict[str, Any] = {
        "table": identifier,
        "location": location,
        "type": config.table_type,
    }
    if keys.record_key_fields:
        document["record_key"] = list(keys.record_key_fields)
    if config.ordering_fields:
        document["ordering"] = list(config.ordering_fields)
    if keys.partition_fields:
        document["partition_by"] = _partitions(keys)
    index = stored_index_type(config.raw)
    if index.hashes_keys and config.raw.get(NUM_BUCKETS):
        # The spec parser raises an error with the name of the field if the value is not a number.
        document["index"] = {"type": index.name, "buckets": config.raw[NUM_BUCKETS]}
        if config.raw.get(HASH_FIELD):
            document["index"]["hash_field"] = config.raw[HASH_FIELD].split(",")
        if config.raw.get(MADE_WITH):
            document["index"]["partitions"] = dict(parse_rules(config.raw[MADE_WITH]))
    if options:
        document["options"] = dict(options)
    return parse_spec(yaml.safe_dump(document), source=f"{PROPERTIES_SOURCE}{location}")


def _partitions(keys: KeyConfig) -> list[str | dict[str, Any]]:
    """Return the partition columns in their YAML form, with the time format of the table."""
    kinds = keys.partition_types or ("SIMPLE",) * len(keys.partition_fields)
    return [
        partition_entry(PartitionField(name=name, type=kind, timestamp=keys.timestamp if kind == "TIMESTAMP" else None))
        for name, kind in zip(keys.partition_fields, kinds, strict=False)
    ]
