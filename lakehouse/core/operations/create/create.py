"""Creating a table, and changing its properties (TL-2).

hoodie.properties is made by create-if-absent, so a table exists whole or not at all; Hudi's copy of its rule of buckets
follows.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lakehouse.core.env import Env
from lakehouse.core.format.properties import parse_properties, render_properties
from lakehouse.core.operations.commit.bucket_counts import store_bucket_rules
from lakehouse.core.operations.load.table import PROPERTIES, load_config
from lakehouse.core.state.table_config import WRITABLE_VERSIONS, TableConfig
from lakehouse.core.storage.nested_tables import HOODIE, table_above, table_below
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.errors import UserError

_BACKUP = f"{PROPERTIES}.backup"


def create_table(env: Env, properties: Mapping[str, str], *, exist_ok: bool = False) -> TableConfig:
    """Create the table that `properties` describe and return its config.

    Raises UserError if a table is there already (unless `exist_ok`), the place holds other files, or it lies inside
    another table or around one.
    """
    version = properties.get("hoodie.table.version", "")
    if version not in map(str, WRITABLE_VERSIONS):
        raise UserError(f"hoodie.write.table.version={version}: tables of version {WRITABLE_VERSIONS} can be made")
    files, directories = env.storage.list_dir("")
    if HOODIE not in directories and (files or any(not name.startswith((".", "_")) for name in directories)):
        raise UserError(
            f"{env.storage.root} is not empty and not a Hudi table; choose an empty place", location=env.storage.root
        )
    if HOODIE not in directories:
        refuse_nested(env.storage, directories)
    data = render_properties(properties, comments=("Properties of a lakehouse table",))
    made = env.storage.create(PROPERTIES, data)
    if not made and not exist_ok:
        raise UserError(f"{env.storage.root} is a table already; open it, or drop it first", location=env.storage.root)
    config = load_config(env.storage)
    # Second, so that it is always that of the properties; who dies in between is finished by the next write.
    store_bucket_rules(env.storage, config.raw)
    return config


def refuse_nested(storage: Storage, directories: Iterable[str] = ()) -> None:
    """Raise UserError if a store lies in the folder of a table, or some of its directories are tables."""
    other = table_above(storage)
    if other is not None:
        raise UserError(
            f"{storage.root} lies inside the table {other}, whose services would take its files for their own; choose "
            "a place beside that table",
            location=storage.root,
            table=other,
        )
    other = table_below(storage, directories)
    if other is not None:
        raise UserError(
            f"{storage.root} holds the table {other}, whose files services of a table here would take for their own; "
            "choose an empty place",
            location=storage.root,
            table=other,
        )


def update_properties(env: Env, changes: Mapping[str, str | None]) -> None:
    """Set (or with None remove) properties by Hudi's protocol: backup, main, backup gone (TL-2.2)."""
    storage = env.storage
    try:
        old = storage.get(PROPERTIES)
    except NotFoundError:
        # An update died between the two files: the backup is the truth.
        old = storage.get(_BACKUP)
        storage.put(PROPERTIES, old)
    values = parse_properties(old)
    for key, value in changes.items():
        if value is None:
            values.pop(key, None)
        else:
            values[key] = value
    storage.put(_BACKUP, old)
    storage.put(PROPERTIES, render_properties(values, comments=("Updated by lakehouse",)))
    delete_leftovers(storage, [_BACKUP])


def drop_metadata_table(env: Env) -> None:
    """Do what Hudi does with hoodie.metadata.enable=false: readers list files again, then the metadata table goes.

    A table that declares a metadata table must never be committed to without it (TL-9.8).
    """
    update_properties(
        env,
        {"hoodie.table.metadata.partitions": None, "hoodie.table.metadata.partitions.inflight": None},
    )
    delete_leftovers(env.storage, [file.path for file in env.storage.list(".hoodie/metadata")])
