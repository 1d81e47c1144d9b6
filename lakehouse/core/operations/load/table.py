"""Load a table: its properties and its timeline."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from lakehouse.core.engine.progress import Stage
from lakehouse.core.env import Env
from lakehouse.core.metadata.store import MetadataStore
from lakehouse.core.rows.custom_merger import load_merger
from lakehouse.core.state.table_config import TableConfig, parse_table_config
from lakehouse.core.storage.concurrent_requests import send_both
from lakehouse.core.storage.nested_tables import table_above, tables_below
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.timeline.table_properties import PROPERTIES, read_properties
from lakehouse.core.timeline.timeline_store import TimelineStore
from lakehouse.core.timeline.version_marks import VersionChangedError
from lakehouse.errors import LakehouseError, UnsupportedError, UserError
from lakehouse.model.display import Readable, Shown, some
from lakehouse.model.index_type import BUCKET_ENGINE, INDEX_TYPE
from lakehouse.model.instant import Timeline
from lakehouse.model.keys import KEY_ENCODING
from lakehouse.model.merge import MERGER_PROPERTY
from lakehouse.spec.function import deployment_functions
from lakehouse.spec.options.deletes import DELETE_RETENTION
from lakehouse.spec.options.metadata import STATISTICS_COLUMNS, STATISTICS_LIMIT
from lakehouse.spec.table.bucket_rules import EXPRESSIONS, HASH_FIELD, MADE_WITH, NUM_BUCKETS

_TABLE_TYPES = ("COPY_ON_WRITE", "MERGE_ON_READ")
#: Write options that the table stores, because they must not change later.
STORED_OPTIONS = (
    INDEX_TYPE,
    BUCKET_ENGINE,
    NUM_BUCKETS,
    HASH_FIELD,
    KEY_ENCODING,
)
#: Start of the properties that store the other options of a new table, as defaults for each later open. Under
#: their own names Hudi would read them, and it does not accept all values that are accepted here.
OPTION_PREFIX = "lakehouse.option."
#: Write options that the table stores under their own names as defaults for all writers; a caller may override them.
_SHARED_OPTIONS = (DELETE_RETENTION, STATISTICS_COLUMNS, STATISTICS_LIMIT)
#: All options that are stored under their own names.
OWN_OPTIONS = (*STORED_OPTIONS, *_SHARED_OPTIONS)


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTable(Readable):
    """The properties and the timeline of a table at the time of loading."""

    env: Env
    config: TableConfig
    store: TimelineStore
    timeline: Timeline
    metadata: MetadataStore

    def reload(self) -> LoadedTable:
        """Return the table with its current timeline. Commit metadata that was already read stays cached."""
        return replace(self, timeline=self.store.load())

    def refresh(self) -> LoadedTable:
        """Return the table with its current timeline and properties, which another writer may have upgraded.

        Raises UserError if the location now contains a different table.
        """

        def properties() -> TableConfig:
            return _readable_config(self.env, self.config.allowed_functions)

        def listed() -> Timeline | None:
            # After a change of the version the timeline may be in another folder.
            with suppress(VersionChangedError):
                return self.store.load()
            return None

        config, timeline = send_both(self.env.storage, properties, listed)
        if timeline is None:
            config = properties()
        before, now = self.config.identity.id, config.identity.id
        if before and now != before:
            raise UserError(
                f"{self.env.storage.root} contains another table since this one was opened: its id is "
                f"{now or 'missing'}, not {before}. The operation would mix the two tables. Open the table again if "
                "the new one is meant",
                location=self.env.storage.root,
            )
        if config == self.config and timeline is not None:
            return replace(self, timeline=timeline)
        return _loaded(self.env, config)

    def _shown(self) -> Shown:
        line = f"loaded table {self.config.name} ({self.config.table_type.lower()}, at {self.env.storage.root})"
        return Shown(line, {"timeline": self.timeline})


def load_table(env: Env, *, allowed_functions: Iterable[str] = ()) -> LoadedTable:
    """Read the properties and the timeline of a table.

    Args:
        env: Storage of the table, clock, ids and locks.
        allowed_functions: Functions to which the table's properties may refer, in addition to the functions that the
            deployment allows.

    Raises:
        UserError: There is no table at this location.
        UnsupportedError: The table uses a type or a file format that cannot be read.
    """
    try:
        return _loaded(env, _readable_config(env, tuple(allowed_functions)))
    except VersionChangedError:
        # The version was changed between the read of the properties and the listing of the timeline.
        return _loaded(env, _readable_config(env, tuple(allowed_functions)))


def _loaded(env: Env, config: TableConfig) -> LoadedTable:
    store = TimelineStore(env, config)
    metadata = MetadataStore(env, config)
    return LoadedTable(env=env, config=config, store=store, timeline=store.load(), metadata=metadata)


def _readable_config(env: Env, allowed_functions: tuple[str, ...]) -> TableConfig:
    config = load_config(env.storage, allowed_functions)
    if config.table_type not in _TABLE_TYPES:
        raise UnsupportedError(
            f"{env.storage.root}: table type {config.table_type} is not supported; {' and '.join(_TABLE_TYPES)} are"
        )
    if config.base_file_format != "PARQUET":
        raise UnsupportedError(
            f"{env.storage.root}: base file format {config.base_file_format} is not supported; PARQUET is"
        )
    return config


def load_config(storage: Storage, allowed_functions: tuple[str, ...] = ()) -> TableConfig:
    """Read hoodie.properties, or its backup after an interrupted update (TL-2.2).

    See `load_table` for `allowed_functions`. Raises UserError if there is no table.
    """
    raw = read_properties(storage)
    if raw is not None:
        deployment = deployment_functions(os.environ) if raw.get(MERGER_PROPERTY) else ()
        allowed = tuple(dict.fromkeys((*allowed_functions, *deployment)))
        return parse_table_config(raw, storage.root, allowed_functions=allowed)
    raise UserError(
        f"{storage.root} is not a Hudi table: it has no {PROPERTIES}. {_nearby(storage)}",
        location=storage.root,
    )


def require_merger(config: TableConfig) -> None:
    """Raise UserError if the table's merger is allowed but cannot be loaded in this process.

    A merger that is not allowed is not loaded. The table can then be described, but operations that merge rows are
    refused.
    """
    rule = config.merge_rule
    if rule.merger and rule.merger_allowed:
        load_merger(rule.merger)


def stored_options(config: TableConfig) -> dict[str, str]:
    """Return the write options that the table stores."""
    start = len(OPTION_PREFIX)
    others = {key[start:]: value for key, value in config.raw.items() if key.startswith(OPTION_PREFIX)}
    own = {key: config.raw[key] for key in OWN_OPTIONS if key in config.raw}
    stored = {**others, **own}
    return {**stored, EXPRESSIONS: config.raw[MADE_WITH]} if MADE_WITH in config.raw else stored


def _nearby(storage: Storage) -> str:
    """Return advice for a location that is not a table. It lists tables near the location, with few requests."""
    create = "Create it with `lakehouse table create` or Table.create(...)"
    if storage.root.startswith("/") and os.path.isfile(storage.root):
        return "It is a file; give the directory of a table"
    try:
        above = table_above(storage)
        if above is not None:
            return f"It is inside the table {above}; open that"
        below = tables_below(storage, storage.list_dir("")[1])
    except LakehouseError as error:
        return f"{create} (tables around it are unknown: {error})"
    return f"It contains the tables {some(below, 5)}; open one of them" if below else create


def stage_of(
    table: LoadedTable, name: str, unit: str, sizes: Sequence[int], *, units: Sequence[int] | None = None
) -> Stage:
    """Return the progress stage for tasks with these sizes in bytes.

    Each task counts as one unit, or as the number in `units`.
    """
    total = len(sizes) if units is None else sum(units)
    return Stage(name=name, table=table.config.name, unit=unit, total=total, total_bytes=sum(sizes))
