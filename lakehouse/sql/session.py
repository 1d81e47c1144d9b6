"""SqlSession: executes statements on the tables of a catalog with a query engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakehouse.errors import UserError
from lakehouse.sql import run_definitions, run_shows, run_writes
from lakehouse.sql.direct_errors import direct_error, unparsed
from lakehouse.sql.engine import NO_PARAMETERS, EngineError, Parameters
from lakehouse.sql.procedures import call
from lakehouse.sql.recognise import recognise
from lakehouse.sql.references import UnparsedStatement
from lakehouse.sql.session_tables import SessionTables
from lakehouse.sql.statements import (
    AlterTable,
    Call,
    CreateIndex,
    CreateTable,
    CreateView,
    Delete,
    Describe,
    DropIndex,
    DropTable,
    DropView,
    Insert,
    Merge,
    Name,
    Namespace,
    PassThrough,
    Refresh,
    SetOption,
    ShowIndexes,
    ShowTable,
    ShowTables,
    Truncate,
    UnsupportedAlter,
    Update,
)


@dataclass(slots=True)
class SqlSession(SessionTables):
    """A session that executes statements; see `SessionTables` for its attributes."""

    def execute(self, text: str, parameters: Parameters = NO_PARAMETERS) -> Any:
        """Execute one statement and return its rows as an object of the engine.

        Raises UserError for wrong syntax, an unknown table, or a statement that the table does not support.
        """
        _check_characters(text)
        problem = self.engine.text_problem(text)
        if problem and self.mentions(text):
            raise UserError(problem)
        wrong_syntax: UserError | None = None
        try:
            statement = recognise(text, self.engine.dialect)
        except UserError as error:
            if self.mentions(text):
                raise
            statement, wrong_syntax = PassThrough(), error
        run = _RUNNERS.get(type(statement))
        self._require_no_view(statement)
        try:
            rows = None if run is None else run(self, statement, parameters)
            if rows is None:
                return self.passed(text, parameters)
        except EngineError as error:
            if wrong_syntax is not None and self.engine.session is None:
                raise wrong_syntax from error
            raise direct_error(self, text, statement, error) from error
        except UnparsedStatement as error:
            raise unparsed(text, self.engine.dialect, error) from None
        return self.engine.result(rows) if isinstance(rows, pa.Table) else rows

    def _require_no_view(self, statement: Any) -> None:
        """Raise UserError for a change of a view of this session."""
        name: Name = getattr(statement, "name", ())
        if isinstance(statement, _CHANGES) and len(name) == 1 and self.view(name[0]) is not None:
            raise UserError(
                f"{name[0]} is a temporary view of this session, which cannot be changed: write the table with its "
                "namespace, or DROP VIEW first"
            )


def _check_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise UserError(
            f"the statement contains {text[error.start]!r} at position {error.start}, one half of a surrogate pair, "
            "which is not a character: decode the text again, for example with errors='replace'"
        ) from None


_CHANGES = (AlterTable, CreateIndex, Delete, DropIndex, Insert, Merge, Truncate, UnsupportedAlter, Update)
Runner = Callable[[SqlSession, Any, Parameters], Any]
_RUNNERS: Mapping[type, Runner] = {
    AlterTable: run_definitions.alter_table,
    Call: call,
    CreateIndex: run_definitions.create_index,
    CreateTable: run_definitions.create_table,
    CreateView: run_definitions.create_view,
    Delete: run_writes.delete,
    Describe: run_shows.describe,
    DropIndex: run_definitions.drop_index,
    DropTable: run_definitions.drop_table,
    DropView: run_definitions.drop_view,
    Insert: run_writes.insert,
    Merge: run_writes.merge,
    Namespace: run_definitions.namespace,
    Refresh: run_definitions.refresh,
    SetOption: run_definitions.set_option,
    ShowIndexes: run_shows.show_indexes,
    ShowTable: run_shows.show_table,
    ShowTables: run_shows.show_tables,
    Truncate: run_writes.truncate,
    UnsupportedAlter: run_definitions.unsupported_alter,
    Update: run_writes.update,
}
