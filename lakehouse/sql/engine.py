"""The protocol of query engines: an engine evaluates queries; everything else is the same for all engines."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import pyarrow as pa

from lakehouse.core.table.scan import TableScan
from lakehouse.errors import UserError


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """Parameters of a statement: values by name or by position, and objects that pyspark puts into braces."""

    values: Mapping[str, Any] | Sequence[Any] | None = None
    objects: Mapping[str, Any] = field(default_factory=dict)


NO_PARAMETERS = Parameters()


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """A column of a table and its value in a write.

    Attributes:
        field: The column of the table.
        source: The number of the column of the query; None for a constant.
        constant: The value of a static partition; None for null.
    """

    field: pa.Field
    source: int | None = None
    constant: str | None = None


class EngineError(UserError):
    """An engine refused a statement; the message is from the engine."""


class QueryEngine(Protocol):
    """Evaluates queries over scans.

    Attributes:
        dialect: The dialect of its statements for `lakehouse.sql.tokens`.
        mark: The quotation mark of identifiers.
        prunes: Whether the engine itself passes columns and filters to scans.
        is_utc: Whether timestamps without a zone are UTC.
        session: The Spark session on which services and writes run; None for threads of this process.
    """

    dialect: str
    mark: str
    prunes: bool
    session: Any

    @property
    def is_utc(self) -> bool:
        """Whether timestamps without a zone are UTC."""

    def text_problem(self, text: str) -> str:
        """Return why a setting of the session gives quotes of a statement another meaning; empty if none does."""

    def has_view(self, name: str) -> bool:
        """Return whether a temporary view with this name exists."""

    def drop_view(self, name: str) -> None:
        """Drop a temporary view with this name, if there is one; raise UserError for a temporary table."""

    def has_relation(self, name: Sequence[str]) -> bool:
        """Return whether the engine itself has a table or view with these parts as its name."""

    def namespaces(self) -> tuple[str, ...]:
        """Return the namespaces of the engine's own catalog."""

    def tables(self, namespace: str) -> tuple[str, ...]:
        """Return the tables of a namespace in the engine's own catalog."""

    def has_namespace(self, namespace: str) -> bool:
        """Return whether the engine's own catalog has a namespace."""

    def run(self, text: str, views: Mapping[str, TableScan | pa.Table], parameters: Parameters) -> Any:
        """Run a statement over temporary views and return its rows as an object of the engine."""

    def result(self, rows: pa.Table) -> Any:
        """Return the result of a statement as an object of the engine."""

    def schema(self, frame: Any) -> pa.Schema:
        """Return the columns of rows."""

    def conform(self, frame: Any, targets: Sequence[Target]) -> Any:
        """Return rows for a write, with the columns and types of a table; raise UserError for a lossy conversion."""

    def source(self, frame: Any) -> Any:
        """Return rows as the source of a MERGE."""

    def option(self, key: str) -> str | None:
        """Return an option that SET changed in the session of the engine; None if it is not set."""
