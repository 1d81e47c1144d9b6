"""Entries of a catalog: registered tables, and versions of their specs, as they are stored and loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import yaml
from sqlalchemy import ColumnElement, Select, select
from sqlalchemy.orm import Session

from lakehouse.errors import UserError
from lakehouse.model.display import Readable, Shown
from lakehouse.model.table_identity import TableIdentity
from lakehouse.model.texts import error_text
from lakehouse.platform.catalog.identities import recorded_identity
from lakehouse.platform.catalog.models import SpecRow, TableRow
from lakehouse.spec.table.table_spec import TableSpec, parse_spec

_CACHED_SPECS = 10_000
_Dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


@dataclass(frozen=True, slots=True, kw_only=True)
class TableEntry(Readable):
    """A registered table with its current spec version.

    `author` made this version current at `changed_ms` (UTC milliseconds). `source` is the path of its file. `identity`
    identifies the registered table; None if an earlier version wrote the entry last.
    """

    id: int
    namespace: str
    name: str
    location: str
    spec: TableSpec
    spec_version: int
    author: str = ""
    source: str = ""
    changed_ms: int = 0
    identity: TableIdentity | None = None

    @property
    def identifier(self) -> str:
        """Return the full name, `namespace.table`."""
        return f"{self.namespace}.{self.name}"

    def _shown(self) -> Shown:
        version = f"version {self.spec_version} of its spec"
        line = f"catalog entry {self.identifier}: {version}, at {self.location}"
        facts = {"table": self.identifier, "location": self.location, "spec_version": self.spec_version}
        return Shown(line, {**facts, "author": self.author or None, "source": self.source or None})


@dataclass(frozen=True, slots=True, kw_only=True)
class InvalidEntry:
    """A registered table whose stored spec this version refuses, for example after an upgrade; `error` is the reason.

    The other attributes are the same as in `TableEntry`; `document` is the stored spec.
    """

    id: int
    namespace: str
    name: str
    location: str
    spec_version: int
    error: str
    document: Mapping[str, Any]
    source: str = ""
    identity: TableIdentity | None = None

    @property
    def identifier(self) -> str:
        """Return the full name, `namespace.table`."""
        return f"{self.namespace}.{self.name}"

    def refusal(self) -> UserError:
        """Return the error of an operation that needs the spec."""
        return UserError(
            f"the stored spec of {self.identifier} is refused: {self.error}. Correct it in a file and put it in force "
            "with `lakehouse table sync`",
            table=self.identifier,
        )

    def corrected(self, spec: TableSpec) -> TableEntry:
        """Return the entry with a spec that replaces the refused one."""
        return TableEntry(
            id=self.id,
            namespace=self.namespace,
            name=self.name,
            location=self.location,
            spec=spec,
            spec_version=self.spec_version,
            source=self.source,
            identity=self.identity,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SpecVersion(Readable):
    """One version of a table's spec with its author, creation time (UTC milliseconds) and source file."""

    version: int
    spec: TableSpec
    author: str
    source: str
    created_ms: int

    def _shown(self) -> Shown:
        line = f"version {self.version} of the spec of {self.spec.table}"
        facts = {"version": self.version, "author": self.author or None, "source": self.source or None}
        return Shown(f"{line}{f', by {self.author}' if self.author else ''}", facts)


def placed_spec(spec: TableSpec, location: str) -> TableSpec:
    """Return a spec with its resolved location."""
    return parse_spec(spec_yaml({**spec.to_mapping(), "location": location}), source=spec.source or spec.table)


def spec_of_version(row: SpecRow, table: TableRow) -> TableSpec:
    """Return the spec of a stored version."""
    source = f"spec {row.version} of {table.namespace}.{table.name}"
    return _read_spec(json.dumps(row.document), source)


@lru_cache(_CACHED_SPECS)
def _read_spec(document: str, source: str) -> TableSpec:
    """Return the spec of a JSON document. Versions are immutable, so the result is cached."""
    return parse_spec(spec_yaml(json.loads(document)), source=source)


def spec_yaml(document: Mapping[str, Any]) -> str:
    """Return a document as YAML; keep its order, which matters for columns and partition patterns."""
    return str(yaml.dump(document, Dumper=_Dumper, sort_keys=False))


def load_entries(
    session: Session, namespace: str | None, condition: ColumnElement[bool] | None = None
) -> tuple[TableEntry, ...]:
    """Return the entries that meet a condition, of a namespace or all, sorted by name, with one query.

    Raises UserError if a stored spec is refused.
    """
    query = _query(namespace, condition)
    return tuple(table_entry(row, spec) for row, spec in session.execute(query))


def load_registered(
    session: Session, condition: ColumnElement[bool] | None = None
) -> tuple[TableEntry | InvalidEntry, ...]:
    """Return the entries of all tables that meet a condition, sorted by name; a refused spec makes an invalid entry."""
    return tuple(registered_entry(row, spec) for row, spec in session.execute(_query(None, condition)))


def registered_entry(row: TableRow, spec: SpecRow) -> TableEntry | InvalidEntry:
    """Return the entry of a table, or an invalid entry if its stored spec is refused."""
    try:
        return table_entry(row, spec)
    except UserError as error:
        return InvalidEntry(
            id=row.id,
            namespace=row.namespace,
            name=row.name,
            location=row.location,
            spec_version=row.spec_version,
            error=error_text(error),
            document=spec.document,
            source=spec.source,
            identity=recorded_identity(row),
        )


def _query(namespace: str | None, condition: ColumnElement[bool] | None) -> Select[TableRow, SpecRow]:
    query = (
        select(TableRow, SpecRow)
        .join(SpecRow, (SpecRow.table_id == TableRow.id) & (SpecRow.version == TableRow.spec_version))
        .order_by(TableRow.namespace, TableRow.name)
    )
    if namespace is not None:
        query = query.where(TableRow.namespace == namespace)
    return query if condition is None else query.where(condition)


def table_entry(row: TableRow, spec: SpecRow) -> TableEntry:
    """Return the entry of a table with its current spec version."""
    return TableEntry(
        id=row.id,
        namespace=row.namespace,
        name=row.name,
        location=row.location,
        spec=spec_of_version(spec, row),
        spec_version=row.spec_version,
        author=spec.author,
        source=spec.source,
        changed_ms=spec.created_ms,
        identity=recorded_identity(row),
    )
