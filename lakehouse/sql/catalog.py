"""The catalog as statements use it, and the resolution of names."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.version.version_plan import VersionPlan, VersionRequest
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.sql.statements import Name

DEFAULT_NAMESPACE, PREFIX = "default", "lakehouse"
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,199}")
_FORMATS = ("lakehouse", "hudi")


class SqlCatalog(Protocol):
    """The methods of `lakehouse.Catalog` that statements use."""

    def table_exists(self, identifier: str) -> bool:
        """Return whether a table of this name is registered."""

    def load_table(self, identifier: str, *, options: Mapping[str, str] | None = None) -> Table:
        """Open a table."""

    def register_table(self, identifier: str, location: str) -> Table:
        """Register an existing table."""

    def change_version(
        self, identifier: str, request: VersionRequest, *, options: Mapping[str, str] | None = None, spark: Any = None
    ) -> VersionPlan | NothingToDo:
        """Change the version of a table as a recorded run that no service of the catalog overlaps."""

    def drop_table(self, identifier: str, *, purge: bool = False) -> tuple[str, ...]:
        """Remove a table from the catalog; with `purge` also delete its files."""

    def list_tables(self, namespace: str | None = None) -> Any:
        """Return the entries of a namespace."""

    def list_namespaces(self) -> tuple[str, ...]:
        """Return the names of all namespaces."""

    def create_namespace(
        self, name: str, properties: Mapping[str, str] | None = None, *, exist_ok: bool = False
    ) -> None:
        """Create a namespace."""

    def drop_namespace(self, name: str) -> None:
        """Drop an empty namespace."""

    def set_policy(self, scope: str, service: str, settings: Mapping[str, Any]) -> None:
        """Set settings of a service for a namespace or a table."""

    def remove_policy(self, scope: str, service: str) -> bool:
        """Remove the settings of a scope."""

    def settings(self, identifier: str, service: str) -> Any:
        """Return the merged settings of a service for a table."""


@dataclass(slots=True)
class Names:
    """Resolves names to tables in a catalog.

    `sales.orders`, `lakehouse.sales.orders` and, in the current namespace, `orders` are tables of the catalog.
    `` lakehouse.`/path` `` and `` hudi.`/path` `` are tables at a location.
    """

    catalog: SqlCatalog
    current: str = DEFAULT_NAMESPACE

    def identifier(self, name: Name) -> str | None:
        """Return the identifier of a name that a table of the catalog can have; None for another name."""
        parts = name[1:] if len(name) == 3 and name[0].lower() == PREFIX else name
        if len(parts) == 1:
            parts = (self.current, *parts)
        if len(parts) != 2 or not all(_PART.fullmatch(part) for part in parts):
            return None
        return ".".join(parts)

    def exists(self, name: Name) -> bool:
        """Return whether a name is a table of the catalog or a location."""
        return location_of(name) is not None or self.find(name) is not None

    def find(self, name: Name) -> str | None:
        """Return the identifier of a registered table.

        The exact name comes first, then the name in lower case, then one that differs only in case. Raises UserError
        if several tables differ from the name only in case.
        """
        identifier = self.identifier(name)
        if identifier is None:
            return None
        for spelling in dict.fromkeys((identifier, identifier.lower())):
            if self.catalog.table_exists(spelling):
                return spelling
        namespace, _, table = identifier.lower().rpartition(".")
        spaces = [space for space in self.catalog.list_namespaces() if space.lower() == namespace]
        spellings = [
            f"{space}.{entry.name}"
            for space in spaces
            for entry in self.catalog.list_tables(space)
            if entry.name.lower() == table
        ]
        if len(spellings) > 1:
            raise UserError(
                f"{'.'.join(name)} may be {' or '.join(sorted(spellings))}, which differ only in case: write one of "
                "these names",
                table=identifier,
            )
        return spellings[0] if spellings else None

    def new_identifier(self, name: Name) -> str | None:
        """Return the identifier for a new table: its namespace has the spelling of an existing one."""
        identifier = self.identifier(name)
        if identifier is None:
            return None
        space, _, table = identifier.rpartition(".")
        return f"{self.namespace((space,)) or space}.{table}"

    def open(self, name: Name, options: Mapping[str, str] | None = None) -> Table:
        """Open the table of a name; raise UserError if there is none."""
        location = location_of(name)
        if location is not None:
            return Table.open(location, options=options)
        identifier = self.find(name) or self.identifier(name)
        if identifier is None:
            raise UserError(f"{'.'.join(name)!r} is not a name of a table: write namespace.table")
        return self.catalog.load_table(identifier, options=options)

    def registered(self, name: Name) -> str:
        """Return the identifier of a registered table; raise UserError if there is none."""
        identifier = self.find(name)
        if identifier is None:
            raise UserError(f"there is no table {'.'.join(name)} in this catalog; SHOW TABLES lists them")
        return identifier

    def namespace(self, name: Name) -> str | None:
        """Return the namespace that a name has in the catalog, if it exists."""
        parts = name[1:] if len(name) == 2 and name[0].lower() == PREFIX else name
        if len(parts) != 1:
            return None
        spaces = self.catalog.list_namespaces()
        exact = next((spelling for spelling in (parts[0], parts[0].lower()) if spelling in spaces), None)
        similar = [space for space in spaces if space.lower() == parts[0].lower()]
        return exact or (similar[0] if len(similar) == 1 else None)


def location_of(name: Name) -> str | None:
    """Return the location in a name such as `` lakehouse.`/data/orders` ``; None for another name."""
    if len(name) == 2 and name[0].lower() in _FORMATS and "/" in name[1]:
        return name[1]
    return None
