"""Input of the checks: environment variables, specs, and the tables in the catalog."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from lakehouse.core.system.clock import Clock, SystemClock
from lakehouse.errors import LakehouseError, UserError
from lakehouse.platform.catalog.catalog import Catalog
from lakehouse.platform.catalog.connect import DEFAULT, Database, catalog_url, database_state
from lakehouse.platform.catalog.entries import InvalidEntry
from lakehouse.spec.table.folder import SpecFolder, read_specs, spec_paths
from lakehouse.spec.table.location import location_of
from lakehouse.spec.table.table_spec import TableSpec

#: Folders of specs: of the DAG that started this process, or of the deployment.
_SPEC_VARIABLES = ("LAKEHOUSE_SYNC_SPECS", "LAKEHOUSE_SPECS")


@dataclass(frozen=True, slots=True)
class Place:
    """The location of a table, with the options for its storage."""

    location: str
    options: Mapping[str, str]
    table: str


class Deployment:
    """The deployment that the environment variables describe. Specs and catalog are read once, when needed."""

    def __init__(self, environ: Mapping[str, str] = os.environ, clock: Clock | None = None) -> None:
        self.environ, self.clock = environ, clock or SystemClock()

    @property
    def spec_folders(self) -> tuple[Path, ...]:
        """The folders of specs; empty if no variable is set."""
        named = next((self.environ[name] for name in _SPEC_VARIABLES if self.environ.get(name)), "")
        return tuple(Path(text) for text in named.split(os.pathsep) if text)

    @cached_property
    def specs(self) -> SpecFolder:
        """The specs in the folders, and the problems of invalid files."""
        return read_specs(spec_paths(folder for folder in self.spec_folders if folder.is_dir()))

    @cached_property
    def catalog_url(self) -> str | None:
        """The URL of the catalog; None if not configured."""
        configured = any(self.environ.get(name) for name in ("LAKEHOUSE_CATALOG", "LAKEHOUSE_HOME"))
        return catalog_url(DEFAULT, self.environ) if configured else None

    @cached_property
    def places(self) -> tuple[Place, ...]:
        """The locations of all tables in specs and catalog.

        Raises LakehouseError if the catalog cannot be read and there are no specs.
        """
        places = {place.location: place for place in self._spec_places()}
        try:
            places |= {place.location: place for place in self._catalog_places() if place.location not in places}
        except LakehouseError:
            # The check `catalog` reports the error.
            if not places:
                raise
        return tuple(places.values())

    @cached_property
    def unplaced(self) -> tuple[str, ...]:
        """The problems of specs whose location contains an unset variable."""
        return tuple(f"{spec.source}: {place}" for spec, place in self._placed() if isinstance(place, UserError))

    def _spec_places(self) -> Iterator[Place]:
        for spec, place in self._placed():
            if not isinstance(place, UserError):
                yield Place(place, spec.call_options(), spec.table)

    def _placed(self) -> Iterator[tuple[TableSpec, str | UserError]]:
        for spec in self.specs.specs:
            try:
                yield spec, location_of(spec, self.environ)
            except UserError as error:
                yield spec, error

    def _catalog_places(self) -> Iterator[Place]:
        state = database_state(self.catalog_url) if self.catalog_url else None
        if self.catalog_url is None or state is None or state.revision != state.newest:
            # Opening an embedded catalog would create or change its database.
            return
        with Catalog(Database(self.catalog_url), self.clock) as catalog:
            for entry in catalog.registered().values():
                # A refused spec has no options; its table is still checked.
                options = {} if isinstance(entry, InvalidEntry) else entry.spec.call_options()
                yield Place(entry.location, options, entry.identifier)
