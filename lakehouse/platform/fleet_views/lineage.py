"""The lineage of one table from the specs of the catalog: sources, tables, derived tables, publications.

All specs are read by one query. Nothing is read from tables, so the lineage shows only declarations in specs; a
program that writes to a table without a spec is missing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import select
from sqlalchemy.orm import Session

from lakehouse.errors import LakehouseError, UserError
from lakehouse.platform.catalog.entries import InvalidEntry, TableEntry, registered_entry
from lakehouse.platform.catalog.models import SpecRow, TableRow
from lakehouse.platform.fleet_views.names import table_row
from lakehouse.spec.contracts.table_lineage import LineageEdge, LineageNode, LineageNodeKind, TableLineage
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.sources.table_source import TableSourceSpec
from lakehouse.spec.table.location import resolve
from lakehouse.spec.table.table_spec import TableSpec

#: Maximum number of tables in one picture; tables farther away are left out.
MOST_TABLES = 60


@dataclass(frozen=True, slots=True, kw_only=True)
class _Member:
    """A table in the catalog, and the locations whose changes its spec reads."""

    row: TableRow
    spec: SpecRow
    reads: tuple[str, ...]

    @property
    def identifier(self) -> str:
        return f"{self.row.namespace}.{self.row.name}"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Fleet:
    """All tables of the catalog by identifier and by location."""

    members: Mapping[str, _Member]
    environ: Mapping[str, str]
    by_location: Mapping[str, str] = field(default_factory=dict)

    def table_at(self, location: str) -> str | None:
        """Return the identifier of the table at a location in a spec; None if the catalog contains no table there."""
        place = self.place(location)
        if place in self.by_location:
            return self.by_location[place]
        if location.startswith("/") or "://" in location:
            return None
        # A relative location is below the folder of the jobs, which this process does not know.
        ends = [name for at, name in self.by_location.items() if at.endswith(f"/{location.strip('/')}")]
        return ends[0] if len(ends) == 1 else None

    def place(self, location: str) -> str:
        """Return a location with variables replaced; unchanged if they are not set here."""
        try:
            return resolve(location, self.environ, name="location").rstrip("/")
        except UserError:
            return location.rstrip("/")

    def upstream(self, identifier: str) -> list[str]:
        """Return the tables of the catalog that a table is derived from."""
        names = (self.table_at(location) for location in self.members[identifier].reads)
        return [name for name in names if name is not None]


def table_lineage(session: Session, identifier: str, now_ms: int, environ: Mapping[str, str]) -> TableLineage:
    """Return the lineage of a table over several steps, upstream and downstream.

    Raises UnknownTableError for a table that is not in the catalog.
    """
    table_row(session, identifier)
    fleet = _fleet(session, environ)
    downstream: dict[str, list[str]] = {}
    for name in fleet.members:
        for above in fleet.upstream(name):
            downstream.setdefault(above, []).append(name)
    before = _reached(identifier, fleet.upstream)
    after = _reached(identifier, lambda name: downstream.get(name, []))
    chosen = list(dict.fromkeys([identifier, *before, *after]))
    picture = _Picture(fleet=fleet)
    for name in chosen[:MOST_TABLES]:
        picture.add(name, publications=name == identifier or name in after)
    shown = {node.id for node in picture.nodes.values()}
    return TableLineage(
        now_ms=now_ms,
        table=identifier,
        nodes=tuple(picture.nodes.values()),
        edges=tuple(edge for edge in picture.edges if edge.source in shown and edge.target in shown),
        shortened=len(chosen) > MOST_TABLES,
    )


def _fleet(session: Session, environ: Mapping[str, str]) -> _Fleet:
    current = (SpecRow.table_id == TableRow.id) & (SpecRow.version == TableRow.spec_version)
    pairs = session.execute(select(TableRow, SpecRow).join(SpecRow, current)).all()
    members = [_Member(row=row, spec=spec, reads=tuple(_locations(spec.document))) for row, spec in pairs]
    return _Fleet(
        members={member.identifier: member for member in members},
        environ=environ,
        by_location={member.row.location.rstrip("/"): member.identifier for member in members},
    )


def _locations(document: Mapping[str, Any]) -> Iterator[str]:
    """Yield the locations whose changes a stored spec reads, without parsing the whole spec."""
    ingest = document.get("ingest")
    inputs = ingest.get("inputs", {"": ingest}) if isinstance(ingest, Mapping) else {}
    for section in inputs.values() if isinstance(inputs, Mapping) else ():
        if isinstance(section, Mapping) and section.get("source") == TableSourceSpec.KIND:
            for key in ("tables", "join"):
                tables = section.get(key)
                yield from (str(location) for location in (tables.values() if isinstance(tables, Mapping) else ()))


def _reached(start: str, following: Any) -> list[str]:
    """Return the tables in one direction, by distance."""
    reached: dict[str, None] = {}
    step = [start]
    while step and len(reached) <= MOST_TABLES:
        step = [name for name in dict.fromkeys(n for one in step for n in following(one)) if name not in reached]
        step = [name for name in step if name != start]
        reached.update(dict.fromkeys(step))
    return list(reached)


@dataclass(slots=True, kw_only=True)
class _Picture:
    """The nodes by identity, and the edges."""

    fleet: _Fleet
    nodes: dict[str, LineageNode] = field(default_factory=dict)
    edges: list[LineageEdge] = field(default_factory=list)

    def add(self, identifier: str, *, publications: bool) -> None:
        """Add a table in the catalog with its sources, and its publications if requested."""
        member = self.fleet.members[identifier]
        me = f"table:{identifier}"
        self.nodes[me] = LineageNode(
            id=me, kind=LineageNodeKind.TABLE, name=identifier, detail=member.row.location, table=identifier
        )
        entry = registered_entry(member.row, member.spec)
        if isinstance(entry, InvalidEntry):
            # This version refuses the spec, but the tables that it reads are known.
            self._tables(me, "", {location: location for location in member.reads})
            return
        for spec in entry.spec.ingestions:
            self._sources(me, spec)
        if publications:
            self._publications(me, entry)

    def _sources(self, me: str, spec: TableSpec) -> None:
        assert spec.ingest is not None, "an ingestion has a source"
        source, label = spec.ingest.source, spec.input or ""
        if isinstance(source, TableSourceSpec):
            self._tables(me, label or "changes", source.tables)
            self._tables(me, f"{label} join".strip(), source.join)
            return
        connections = ", ".join(source.connections)
        detail = f"{source.KIND}, connection {connections}" if connections else source.KIND
        self._edge(LineageNodeKind.SOURCE, source.description, detail, me, label)

    def _tables(self, me: str, label: str, locations: Mapping[str, str]) -> None:
        for location in locations.values():
            identifier = self.fleet.table_at(location)
            if identifier is None:
                self._edge(LineageNodeKind.TABLE, location, "not in this catalog", me, label)
            else:
                self.edges.append(LineageEdge(source=f"table:{identifier}", target=me, label=label))

    def _publications(self, me: str, entry: TableEntry) -> None:
        for name, detail, label in _published(entry):
            target = f"publication:{name} {detail}"
            self.nodes[target] = LineageNode(
                id=target, kind=LineageNodeKind.PUBLICATION, name=name, detail=detail, table=entry.identifier
            )
            self.edges.append(LineageEdge(source=me, target=target, label=label))

    # parameters: the parts of a node, and its edge
    def _edge(self, kind: LineageNodeKind, name: str, detail: str, target: str, label: str) -> None:
        source = f"{kind}:{name}"
        self.nodes.setdefault(source, LineageNode(id=source, kind=kind, name=name, detail=detail))
        self.edges.append(LineageEdge(source=source, target=target, label=label))


def _published(entry: TableEntry) -> Iterable[tuple[str, str, str]]:
    """Yield name, metastore and mechanism (`publish` or `sync`) for each metastore table that shows this table."""
    publish = entry.spec.publication()
    if publish is not None:
        name = f"{publish.database}.{publish.table or entry.name}"
        yield name, publish.metastore or "Hive Metastore of the deployment", "publish"
    try:
        sync = parse_options(entry.spec.call_options()).sync
    except LakehouseError:
        return
    if sync.enabled:
        yield f"{sync.database}.{sync.table or entry.name}", sync.uris or "Hive Metastore of the deployment", "sync"
