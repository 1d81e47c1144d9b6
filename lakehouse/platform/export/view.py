"""What the formats of views have in common: the loaded state of a view, and the change that one export commits."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from lakehouse.core.env import Env
from lakehouse.platform.export.columns import ViewColumns
from lakehouse.platform.export.facts import FileFacts
from lakehouse.platform.export.mark import ExportMark

#: Names of the properties of a view.
MARK, VIEW_OF, ENGINE = "lakehouse.export.mark", "lakehouse.export.view", "lakehouse"
INSTANT, COMPLETION = "lakehouse.export.instant", "lakehouse.export.completion"
#: Property of a view without partitions: why its files do not have one value of each partition column.
MIXED = "lakehouse.export.unpartitioned"
#: Values of `VIEW_OF`: all rows of the table, or those of base files.
SNAPSHOT, READ_OPTIMIZED = "snapshot", "read_optimized"


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewState:
    """The newest version of a view.

    Attributes:
        version: Its number; -1 if there is no view.
        mark: The writes of the table in it; None if another program wrote this version.
        columns: Its columns and partition columns; None if they cannot be determined.
        properties: Properties of the view.
        unusable: Why all files of the view have to be written again; empty if they have not.
        first_version: Number of the first version of a view.
        internal: What the format needs for the next version.
    """

    version: int = -1
    mark: ExportMark | None = None
    columns: ViewColumns | None = None
    properties: Mapping[str, str] = field(default_factory=dict)
    unusable: str = ""
    first_version: int = 0
    internal: Any = None

    @property
    def exists(self) -> bool:
        """Whether there is a view."""
        return self.version >= 0

    @property
    def next_version(self) -> int:
        """The number of the version that an export commits."""
        return self.version + 1 if self.exists else self.first_version


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewChange:
    """One new version of a view.

    Attributes:
        mark: The writes of the table in the new version.
        columns: Its columns.
        added, removed: Facts about the files to add, and the paths of the files to remove.
        replaces_all: The view is written again, with other columns or partitions; `added` are all of its files.
        view_of: `SNAPSHOT` or `READ_OPTIMIZED`.
        retained: Number of older versions that stay readable while their files exist.
        properties: More properties of the view, by name.
    """

    mark: ExportMark
    columns: ViewColumns
    added: tuple[FileFacts, ...] = ()
    removed: tuple[str, ...] = ()
    replaces_all: bool = False
    view_of: str = SNAPSHOT
    retained: int = 10
    properties: tuple[tuple[str, str], ...] = ()


class ViewFormat(Protocol):
    """A format of views."""

    name: str

    def columns(self, columns: ViewColumns, root: str) -> ViewColumns:
        """Return the columns with the types of the format.

        Raises UnsupportedError, with the column, for a type that the format cannot represent.
        """
        ...

    def load(self, env: Env) -> ViewState:
        """Load the newest version; raise UnsupportedError for a table of another program at the place of the view."""
        ...

    def paths(self, env: Env, state: ViewState, groups: pa.Table | None = None) -> pa.Array:
        """Return the paths of the files in a version, relative to the table.

        `groups` has the columns `partition` and `file_id`: only files of these file groups are needed.
        """
        ...

    def commit(self, env: Env, state: ViewState, change: ViewChange) -> bool:
        """Create the next version; return False if another exporter created it.

        Raises MixedPartitionError for a partition value that the format does not have.
        """
        ...

    def finish(self, env: Env, state: ViewState, *, retained: int) -> None:
        """Complete what an export that stopped after its commit left: hints, checkpoints, expired metadata."""
        ...
