"""The index definitions of a table: `.hoodie/.index_defs/index.json` (MDT-6)."""

from __future__ import annotations

import json
from collections.abc import Mapping

from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.core.metadata.place import DEFINITIONS_PATH
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.errors import CorruptTableError
from lakehouse.model.document import parse_json

DEFINITIONS_FOLDER, _, DEFINITIONS_NAME = DEFINITIONS_PATH.rpartition("/")


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


def write_definitions(storage: Storage, definitions: Mapping[str, Definition], layout: TableLayout) -> bool:
    """Write the definitions and return whether the table stores them; call under the table lock.

    Hudi 0.15 has no such file, so a table of its version gets none. A file that Hudi 1.x created there is updated.
    """
    if not layout.stores_definitions and DEFINITIONS_NAME not in storage.list_names(DEFINITIONS_FOLDER):
        return False
    storage.put(DEFINITIONS_PATH, encode_definitions(definitions))
    return True


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
