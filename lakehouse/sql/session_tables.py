"""SessionTables: the tables of a catalog under the names that statements of a session use, and queries on them.

A query that names no table of the catalog goes to the engine as the same string. Each statement opens the tables that
it names, so that new tables and commits are visible; all references to one version of a table in a statement read
the same commit.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import count
from typing import Any

import pyarrow as pa

from lakehouse.core.table.scan import TableScan
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError, nearest
from lakehouse.sql.catalog import Names, SqlCatalog
from lakehouse.sql.engine import NO_PARAMETERS, Parameters, QueryEngine
from lakehouse.sql.references import (
    QueryReferences,
    Reference,
    UnparsedStatement,
    find_references,
    named_tables,
    replaced,
)
from lakehouse.sql.scans import narrowed, scan_of
from lakehouse.sql.statements import Name

Views = dict[str, TableScan | pa.Table]
#: Options of SET that select the operation of a statement.
OPERATION, OVERWRITE_MODE = "hoodie.spark.sql.insert.into.operation", "hoodie.datasource.overwrite.mode"
#: Their values; the first one is the default.
CHOICES = {OPERATION: ("insert", "upsert", "bulk_insert"), OVERWRITE_MODE: ("dynamic", "static")}
_NUMBERS = count(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredView:
    """A view that reads tables of the catalog: its query is expanded in each statement.

    Its names mean the tables that they meant when it was defined: `namespace` was the current one, and `tables` are
    the names without a namespace that were tables of the catalog, in lower case.
    """

    query: str
    columns: tuple[str, ...] = ()
    namespace: str = ""
    tables: frozenset[str] = frozenset()


def checked_choice(key: str, value: str) -> str:
    """Return the value of an option in `CHOICES` in lower case; raise UserError if it is none of its values."""
    chosen, choices = value.strip().lower(), CHOICES[key]
    if chosen not in choices:
        raise UserError(f"{key}={value!r}: must be one of {', '.join(choices)}.{nearest(chosen, choices)}".rstrip())
    return chosen


@dataclass(slots=True)
class SessionTables:
    """The state of a session: current namespace, options of SET, and views.

    Attributes:
        catalog: The catalog.
        engine: The engine that evaluates queries.
        warehouse: Location below which CREATE TABLE without LOCATION puts `namespace/table`.
        options: Options for the writes of this session.
        views: Views by name in lower case.
    """

    catalog: SqlCatalog
    engine: QueryEngine
    warehouse: str = ""
    options: dict[str, str] = field(default_factory=dict)
    views: dict[str, StoredView] = field(default_factory=dict)
    names: Names = field(init=False)

    def __post_init__(self) -> None:
        self.names = Names(self.catalog)

    def belongs(self, name: Name) -> bool:
        """Return whether a name is a table in the catalog, and not a view."""
        if len(name) == 1 and (self.view(name[0]) is not None or self.engine.has_view(name[0])):
            return False
        return self.names.exists(name)

    def view(self, name: str) -> StoredView | None:
        """Return a view of this session; none if the engine got a newer view or table with its name."""
        stored = self.views.get(name.lower())
        if stored is not None and self.engine.has_view(name):
            del self.views[name.lower()]
            return None
        return stored

    def open(self, name: Name) -> Table:
        """Open a table for a write, with the options of this session."""
        return self.names.open(name, self.options_of_writes())

    def options_of_writes(self) -> dict[str, str]:
        """Return the options that SET declared, without those that select an operation."""
        return {key: value for key, value in self.options.items() if key not in CHOICES}

    def choice(self, key: str) -> str:
        """Return the value of an option in `CHOICES` that SET declared, here or in the engine; see `checked_choice`."""
        return checked_choice(key, self.options.get(key) or self.engine.option(key) or CHOICES[key][0])

    def passed(self, text: str, parameters: Parameters) -> Any:
        """Run a statement by the engine, with a view in place of each reference to a table of the catalog.

        Raises UnparsedStatement if the statement cannot be parsed but names a table of the catalog.
        """
        try:
            rewritten, views = self.rewritten(text)
        except UnparsedStatement as error:
            if self.mentions(text):
                raise error
            return self.engine.run(text, {}, parameters)
        if not views:
            return self.engine.run(text, {}, parameters)
        return self.engine.run(rewritten, views, parameters)

    def query(self, text: str, parameters: Parameters) -> Any:
        """Run a query that is a part of a statement, such as the source of INSERT."""
        try:
            rewritten, views = self.rewritten(text)
        except UnparsedStatement as error:
            if self.mentions(text):
                raise UserError(
                    f"{text.strip()[:60]!r}: this query cannot be parsed{error.detail and f': {error.detail}'}"
                ) from None
            rewritten, views = text, {}
        return self.engine.run(rewritten, views, parameters)

    def rewritten(self, text: str) -> tuple[str, Views]:
        """Return a query with views in place of references, and the scans of the views."""
        views: Views = {}
        rewritten = self._rewrite(text, views, {}, ())
        return rewritten, views

    def reads_catalog(self, query: str) -> bool:
        """Return whether a query reads tables of the catalog, directly or by views of this session."""
        try:
            return bool(self.rewritten(query)[1])
        except UnparsedStatement:
            return self.mentions(query)

    def define_view(self, name: str, query: str, columns: tuple[str, ...]) -> None:
        """Define a view, in place of a view of the engine; raise the error of its query if it cannot be read."""
        self.query(query, NO_PARAMETERS)
        references = find_references(query, self.engine.dialect).references
        single = {reference.name for reference in references if len(reference.name) == 1 and not reference.function}
        tables = frozenset(table[0].lower() for table in single if self.belongs(table))
        if name in {table[0].lower() for table in single} - tables:
            raise UserError(f"the view {name} would read itself; choose another name")
        self.engine.drop_view(name)
        self.views[name] = StoredView(query=query, columns=columns, namespace=self.names.current, tables=tables)

    def engine_namespaces(self) -> tuple[str, ...]:
        """Return the namespaces of the engine's own catalog."""
        return self.engine.namespaces()

    def mentions(self, text: str) -> bool:
        """Return whether a statement that cannot be parsed names a table of the catalog."""
        names = set(named_tables(text, self.engine.dialect))
        if any(len(name) > 1 and self.names.exists(name) for name in names):
            return True
        words = {name[0].lower() for name in names if len(name) == 1}
        # Spark makes a temporary view on the data source itself, from a location in OPTIONS.
        if "using" in words and words & {"lakehouse", "hudi"} and "view" not in words:
            return True
        if (
            names
            and any(name[0].lower() == "call" for name in names)
            and any(len(name) > 1 and name[0].lower() == "lakehouse" for name in names)
        ):
            return True
        if self.names.current not in self.catalog.list_namespaces():
            return False
        return any(entry.name.lower() in words for entry in self.catalog.list_tables(self.names.current))

    # parameters: the text, the results for all texts of a statement, and the views that contain the text
    def _rewrite(
        self,
        text: str,
        views: Views,
        scans: dict[Any, TableScan | pa.Table],
        path: tuple[str, ...],
        tables: frozenset[str] = frozenset(),
    ) -> str:
        """Return a query with views in place of references; `tables` are names that no view hides."""
        query = find_references(text, self.engine.dialect)
        self._require_new_name(query)
        replacements: dict[Reference, str] = {}
        for reference in query.references:
            is_table = len(reference.name) == 1 and reference.name[0].lower() in tables
            stored = None if is_table else self._stored(reference)
            if stored is not None:
                name = reference.name[0].lower()
                if name in path:
                    raise UserError(f"the view {name} refers to itself")
                inner = self._expanded(stored, views, scans, (*path, name))
                replacements[reference] = _named(inner, stored.columns, self.engine.mark)
            elif is_table or reference.function or self.belongs(reference.name):
                view = f"lakehouse_view_{next(_NUMBERS)}"
                if not query.is_read:
                    raise UnparsedStatement
                views[view] = self._scan(reference, query, scans)
                replacements[reference] = view
        return replaced(text, replacements, self.engine.mark) if replacements else text

    def _expanded(
        self, stored: StoredView, views: Views, scans: dict[Any, TableScan | pa.Table], path: tuple[str, ...]
    ) -> str:
        """Return the query of a view with the names that it had when it was defined."""
        current = self.names.current
        self.names.current = stored.namespace
        try:
            return self._rewrite(stored.query, views, scans, path, stored.tables)
        finally:
            self.names.current = current

    def _require_new_name(self, query: QueryReferences) -> None:
        """Raise UserError for a new table or view of the engine that a table of the catalog would hide, or that ends.

        DuckDB has its tables in memory: a table that is not declared as temporary would be lost with the session.
        """
        name = query.created
        if not name:
            return
        if self.belongs(name):
            raise UserError(
                f"table {'.'.join(name)} exists already in the catalog. Choose another name, or write CREATE TEMPORARY "
                "for an object of this session that comes first, or INSERT INTO to add rows"
            )
        if query.makes_table and self.engine.session is None and len(name) == 1:
            raise UserError(
                f"CREATE TABLE {name[0]}: the table would be lost when this session ends. Write CREATE TEMPORARY TABLE "
                "if it is for this session only, or CREATE TABLE namespace.name (id INT, ...) USING lakehouse "
                "TBLPROPERTIES (primaryKey = 'id')"
            )

    def _stored(self, reference: Reference) -> StoredView | None:
        if len(reference.name) != 1 or reference.function:
            return None
        return self.view(reference.name[0])

    def _scan(
        self, reference: Reference, query: QueryReferences, scans: dict[Any, TableScan | pa.Table]
    ) -> TableScan | pa.Table:
        version = None if reference.version is None else (reference.version.kind, reference.version.value)
        key = (self.names.find(reference.name) or reference.name, version, reference.function, reference.arguments)
        if key not in scans:
            scans[key] = scan_of(self.names.open(reference.name), reference)
        rows = scans[key]
        if isinstance(rows, pa.Table):
            return rows
        return self._narrowed(rows, reference, query)

    def _narrowed(self, scan: TableScan, reference: Reference, query: QueryReferences) -> TableScan:
        """Return a scan with the columns and conditions of a reference."""
        return narrowed(scan, reference, query, self.engine)


def _named(query: str, columns: tuple[str, ...], mark: str) -> str:
    if not columns:
        return f"({query})"
    names = ", ".join(f"{mark}{column.replace(mark, mark * 2)}{mark}" for column in columns)
    return f"(SELECT * FROM ({query}) AS lakehouse_columns({names}))"
