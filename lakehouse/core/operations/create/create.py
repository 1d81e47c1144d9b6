"""Create a table, and change its properties (TL-2).

hoodie.properties is created by create-if-absent, so a table either exists or does not. The bucket rule file for Hudi is
written afterwards.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from lakehouse.core.env import Env
from lakehouse.core.format.avro.schema import avro_to_arrow
from lakehouse.core.format.properties import render_properties
from lakehouse.core.layout.registry import WRITABLE_VERSIONS
from lakehouse.core.metadata.change import WRITTEN
from lakehouse.core.metadata.partitions.protocol import TableFiles
from lakehouse.core.metadata.partitions.registry import wanted_partitions
from lakehouse.core.metadata.store import MetadataStore
from lakehouse.core.metadata.write.initialise import create_metadata
from lakehouse.core.operations.load.table import OPTION_PREFIX, load_config
from lakehouse.core.operations.placement.bucket_rules import store_bucket_rules
from lakehouse.core.state.table_config import TableConfig, parse_table_config
from lakehouse.core.storage.nested_tables import HOODIE, table_above, table_below
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.timeline.table_properties import PROPERTIES
from lakehouse.errors import SettingError, UserError
from lakehouse.model.table_identity import TABLE_ID
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.secrets import holds_secret, is_secret


def create_table(
    env: Env, properties: Mapping[str, str], *, exist_ok: bool = False, policies: Policies | None = None
) -> TableConfig:
    """Create a table with these properties and return its config.

    If `policies` are given, they decide whether a metadata table is created. The table gets a new id, unless the
    properties contain one.

    Raises UserError if the table exists (unless `exist_ok`), the location contains other files, it is inside another
    table or contains one, or an option is a secret.
    """
    refuse_secrets(properties)
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
    if policies is not None and not (HOODIE in directories and env.storage.list_names(HOODIE)):
        # If the properties list the metadata table, it must exist, so it is written before the properties.
        properties = {**properties, **_metadata_of_new_table(env, properties, policies)}
    properties = {TABLE_ID: env.ids.uuid(), **properties}
    data = render_properties(properties, comments=("Properties of a lakehouse table",))
    is_created = env.storage.create(PROPERTIES, data)
    if not is_created and not exist_ok:
        raise UserError(
            f"{env.storage.root} is already a table: open it, register it with a catalog (in SQL by CREATE TABLE "
            f"namespace.name USING lakehouse LOCATION '{env.storage.root}'), or delete its files",
            location=env.storage.root,
        )
    config = load_config(env.storage)
    # Created second, so that it always agrees with the properties. After a crash in between, the next write creates it.
    store_bucket_rules(env.storage, config.raw)
    return config


def refuse_secrets(properties: Mapping[str, str]) -> None:
    """Raise SettingError if an option that the table would store is a secret."""
    for name, value in properties.items():
        key = name.removeprefix(OPTION_PREFIX)
        if key != name and is_secret(key) and holds_secret(value):
            raise SettingError(
                f"option {key} is a secret, which a table does not store. Write ${{NAME}} of an environment variable "
                "or file:/path, or create the table with store_options=False and give the option to Table.open",
                setting=key,
            )


def _metadata_of_new_table(env: Env, properties: Mapping[str, str], policies: Policies) -> dict[str, str]:
    """Create the metadata table, and return the table properties that refer to it."""
    config = parse_table_config(properties, env.storage.root)
    names = wanted_partitions(policies, config)
    if not policies.transaction.metadata.enable or not names:
        return {}
    declared = config.create_schema
    table = TableFiles(
        env=env,
        config=config,
        instant="",
        files=WRITTEN.empty_table(),
        newest=WRITTEN.empty_table(),
        schema=None if declared is None else avro_to_arrow(declared),
        policies=policies,
    )
    return create_metadata(MetadataStore(env, config), names, table).properties()


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
