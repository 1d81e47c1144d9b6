"""Count the SQL statements of a database engine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlalchemy import Engine, event


@contextmanager
def counted(engine: Engine) -> Iterator[list[str]]:
    """Yield the list of statements that run in the block, without those that begin and end transactions."""
    statements: list[str] = []

    # parameters: the arguments of SQLAlchemy's event
    def note(connection: Any, cursor: Any, statement: str, parameters: Any, context: Any, many: bool) -> None:
        del connection, cursor, parameters, context, many
        if not statement.startswith(("BEGIN", "PRAGMA")):
            statements.append(statement)

    event.listen(engine, "before_cursor_execute", note)
    try:
        yield statements
    finally:
        event.remove(engine, "before_cursor_execute", note)
