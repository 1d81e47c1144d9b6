"""Tables that stay open between the runs of one process.

An opened table caches immutable parts of its metadata: commits, and files of the metadata table. A process that runs
repeatedly on the same tables, such as a stream of ingestions, then reads only new metadata.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from lakehouse.core.env import Env
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.table_properties import PROPERTIES
from lakehouse.errors import UserError

#: The maximum number of open tables. Each caches at most 256 MB of its metadata table
#: (`lakehouse.core.metadata.read.layers`).
KEPT_TABLES = 4
#: Number of uses after which a table is opened again. This limits the number of cached commits.
KEPT_USES = 100


@dataclass(slots=True)
class _Kept:
    """An environment and its table at its last use; None before the first one."""

    env: Env
    allowed: tuple[str, ...] = ()
    table: Table | None = None
    uses: int = 0

    def opened(self, allowed: tuple[str, ...]) -> Table:
        """Open the table again."""
        self.table = Table.open(self.env.storage.root, allowed_functions=allowed, env=self.env)
        self.allowed, self.uses = allowed, 1
        return self.table

    def current(self, allowed: tuple[str, ...]) -> Table | None:
        """Load the current state of the table. Return None if the table must be opened again."""
        table, self.table = self.table, None
        if table is None or self.allowed != allowed or self.uses >= KEPT_USES:
            return None
        before = table.loaded
        newest = before.timeline.where(pending=False).instants[-1:]
        try:
            now = table.refresh()
        except UserError:
            # The table was deleted or cannot be read. Opening it again raises the appropriate error.
            return None
        if not newest or newest[0] not in now.timeline.instants or now.config != before.config:
            return None
        self.table, self.uses = table, self.uses + 1
        return table


class OpenedTables:
    """The tables that one process opened last. Not thread-safe: the runs that share it follow one another.

    A table is opened again if its properties changed, or if the instant that was the newest at its last use left the
    active timeline, because the table was created again, restored or archived.
    """

    def __init__(self, limit: int = KEPT_TABLES) -> None:
        self._limit = limit
        self._kept: dict[tuple[str, tuple[tuple[str, str], ...]], _Kept] = {}

    def env(self, location: str, storage_options: Mapping[str, str]) -> Env:
        """Return the environment of a table. It is the same object as long as the table is kept open.

        Other storage options, such as new credentials, give another environment.

        Raises:
            UserError: There is no storage for this location, or an option is wrong.
        """
        key = (location, tuple(sorted(storage_options.items())))
        entry = self._kept.pop(key, None) or _Kept(Env(storage=open_storage(location, storage_options)))
        self._kept[key] = entry
        while len(self._kept) > self._limit:
            # Drop the least recently used table, which is the first one.
            del self._kept[next(iter(self._kept))]
        return entry.env

    def open(self, env: Env, *, allowed_functions: Iterable[str] = ()) -> Table:
        """Return the table of an environment in its current state. An environment from `env` keeps its table.

        Raises the errors of `Table.open`.
        """
        entry, allowed = self._kept_of(env), tuple(allowed_functions)
        return entry.current(allowed) or entry.opened(allowed)

    def find(self, env: Env, *, allowed_functions: Iterable[str] = ()) -> Table | None:
        """Return the table like `open`, or None if the environment contains no table."""
        entry, allowed = self._kept_of(env), tuple(allowed_functions)
        table = entry.current(allowed)
        if table is not None:
            return table
        directory, _, name = PROPERTIES.rpartition("/")
        if not any(file.name.startswith(name) for file in env.storage.list_dir(directory)[0]):
            return None
        return entry.opened(allowed)

    def _kept_of(self, env: Env) -> _Kept:
        return next((one for one in self._kept.values() if one.env is env), None) or _Kept(env)
