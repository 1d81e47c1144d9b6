"""SqlSession: executes statements on the tables of a catalog with a query engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from lakehouse.errors import UserError
from lakehouse.sql import run_definitions, run_shows, run_writes
from lakehouse.sql.engine import NO_PARAMETERS, Parameters
from lakehouse.sql.procedures import call
from lakehouse.sql.recognise import recognise
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
        try:
            statement = recognise(text, self.engine.dialect)
        except UserError:
            if self.mentions(text):
                raise
            statement = PassThrough()
        run = _RUNNERS.get(type(statement))
        rows = None if run is None else run(self, statement, parameters)
        if rows is None:
            return self.passed(text, parameters)
        return self.engine.result(rows) if isinstance(rows, pa.Table) else rows


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
