"""The index definitions of a table: `.hoodie/.index_defs/index.json` (MDT-6)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.core.metadata.place import DEFINITIONS_PATH
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.errors import CorruptTableError
from lakehouse.model.document import parse_json


def read_definitions(storage: Storage) -> dict[str, Definition]:
    """Return the definitions by name of the index partition; {} if the table contains none."""
    try:
        data = storage.get(DEFINITIONS_PATH)
    except NotFoundError:
        return {}
    try:
        return {name: _definition(value) for name, value in parse_json(data)["indexDefinitions"].items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CorruptTableError(f"{storage.root}/{DEFINITIONS_PATH} is unreadable: {error!r}") from error


def write_definitions(storage: Storage, definitions: Mapping[str, Definition]) -> None:
    """Write the definitions; call under the table lock."""
    storage.put(DEFINITIONS_PATH, encode_definitions(definitions))


def encode_definitions(definitions: Mapping[str, Definition]) -> bytes:
    """Return the content of the file."""
    return json.dumps(
        {"indexDefinitions": {name: _record(name, value) for name, value in definitions.items()}}, indent=2
    ).encode()


def _definition(value: Mapping[str, object]) -> Definition:
    fields, options = value.get("sourceFields") or (), value.get("indexOptions") or {}
    assert isinstance(fields, list | tuple)
    assert isinstance(options, dict)
    return Definition(
        index_type=str(value.get("indexType") or ""),
        function=str(value.get("indexFunction") or ""),
        source_fields=tuple(str(field) for field in fields),
        options={str(key): str(text) for key, text in options.items()},
        version=str(value.get("version") or "V1"),
    )


def _record(name: str, value: Definition) -> dict[str, object]:
    return {
        "indexName": name,
        "indexType": value.index_type,
        "indexFunction": value.function,
        "sourceFields": list(value.source_fields),
        "indexOptions": dict(value.options),
        "version": value.version,
    }
