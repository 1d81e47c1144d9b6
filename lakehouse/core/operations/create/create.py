"""Create a table, and change its properties (TL-2).

hoodie.properties is created by create-if-absent, so a table either exists or does not. The bucket rule file for Hudi is
written afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lakehouse.core.env import Env
from lakehouse.core.format.properties import render_properties
from lakehouse.core.operations.commit.bucket_counts import store_bucket_rules
from lakehouse.core.operations.load.table import load_config
from lakehouse.core.state.table_config import WRITABLE_VERSIONS, TableConfig
from lakehouse.core.storage.nested_tables import HOODIE, table_above, table_below
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.core.timeline.table_properties import PROPERTIES, update_properties
from lakehouse.errors import UserError


def create_table(env: Env, properties: Mapping[str, str], *, exist_ok: bool = False) -> TableConfig:
    """Create a table with these properties and return its config.

    Raises UserError if the table exists (unless `exist_ok`), the location contains other files, or it is inside another
    table or contains one.
    """
    version = properties.get("hoodie.table.version", "")
    if version not in map(str, WRITABLE_VERSIONS):
        raise UserError(f"hoodie.write.table.version={version}: tables of version {WRITABLE_VERSIONS} can be created")
    files, directories = env.storage.list_dir("")
    if HOODIE not in directories and (files or any(not name.startswith((".", "_")) for name in directories)):
        raise UserError(
            f"{env.storage.root} is not empty and not a Hudi table; choose an empty location", location=env.storage.root
        )
    if HOODIE not in directories:
        refuse_nested(env.storage, directories)
    data = render_properties(properties, comments=("Properties of a lakehouse table",))
    is_created = env.storage.create(PROPERTIES, data)
    if not is_created and not exist_ok:
        raise UserError(f"{env.storage.root} is already a table; open it, or drop it first", location=env.storage.root)
    config = load_config(env.storage)
    # Written second, so that it always agrees with the properties. After a crash in between, the next write writes it.
    store_bucket_rules(env.storage, config.raw)
    return config


def refuse_nested(storage: Storage, directories: Iterable[str] = ()) -> None:
    """Raise UserError if the location is inside another table, or one of its directories is a table."""
    other = table_above(storage)
    if other is not None:
        raise UserError(
            f"{storage.root} is inside the table {other}, whose services would treat its files as their own; choose "
            "a location beside that table",
            location=storage.root,
            table=other,
        )
    other = table_below(storage, directories)
    if other is not None:
        raise UserError(
            f"{storage.root} contains the table {other}, whose files services of a table here would treat as their "
            "own; choose an empty location",
            location=storage.root,
            table=other,
        )


def drop_metadata_table(env: Env) -> None:
    """Drop the metadata table as Hudi does with hoodie.metadata.enable=false: first the properties, then the files.

    A table that declares a metadata table must never be committed to without it (TL-9.8).
    """
    update_properties(
        env,
        {"hoodie.table.metadata.partitions": None, "hoodie.table.metadata.partitions.inflight": None},
    )
    delete_leftovers(env.storage, [file.path for file in env.storage.list(".hoodie/metadata")])
