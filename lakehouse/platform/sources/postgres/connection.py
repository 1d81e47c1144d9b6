"""Connections to PostgreSQL, and their errors as errors of this package."""

from __future__ import annotations

import re
from collections.abc import Sequence
from contextlib import closing
from typing import Any

import psycopg
from psycopg.rows import dict_row

from lakehouse.errors import LakehouseError, RetryableError, SnapshotNeededError, UserError
from lakehouse.spec.sources.postgres_connection import PostgresAccess

#: Error classes that users have to correct: sign-in, rights, names, syntax, server settings.
_USER_CLASSES = ("28", "3D", "3F", "42", "0A")
_USER_STATES = ("55000",)
#: The name already exists: another run, or a request whose connection was lost, has created the object.
_EXISTS = "42710"
IN_USE = "55006"
#: The server's message about a slot whose log was removed.
_LOST = ("has already been removed", "has been invalidated", "can no longer get changes", "cannot be advanced")
#: Server messages if the slot is dropped while it is read, or if the publication did not exist at the time of a change.
#: Creating them again does not help older changes.
_GONE = re.compile(r"(?:publication|replication slot) .* does not exist")
#: libpq messages without a server error, for connections refused because of the account or TLS.
_SIGN_IN = (
    "password authentication failed",
    "pg_hba.conf",
    "does not exist",
    "no password supplied",
    "certificate verify failed",
    "does not match host name",
    "server does not support SSL",
)


def failure(access: PostgresAccess, error: psycopg.Error) -> LakehouseError:
    """Convert a psycopg error to an error of this package."""
    return failure_of(access, error.sqlstate or "", str(error))


def failure_of(access: PostgresAccess, state: str, message: str) -> LakehouseError:
    """Convert a server error, with its SQLSTATE, to an error whose message does not contain the password."""
    text = "; ".join(message.strip().splitlines())
    if access.password:
        text = text.replace(access.password, "...")
    answer = f"the server {access.address} answers{f' {state}' if state else ''}: {text}"
    if any(part in text for part in _LOST) or _GONE.search(text):
        return SnapshotNeededError(
            f"{answer}. The log since the last commit is gone: read all tables of the spec again with --full-refresh",
            code=state,
        )
    is_user = (
        state[:2] in _USER_CLASSES or state in _USER_STATES or (not state and any(one in text for one in _SIGN_IN))
    )
    if is_user and state != _EXISTS:
        return UserError(f"{answer}. Correct the connection, or grant the user the right", code=state)
    return RetryableError(answer, code=state)


class Questions:
    """Queries a server over one connection, which is reopened if the server closed it."""

    def __init__(self, access: PostgresAccess) -> None:
        self.access = access
        self._connection: Any = None

    def rows(self, statement: str, parameters: Sequence[object] | None = None) -> list[dict[str, Any]]:
        """Return the rows of a statement; raise UserError or RetryableError."""
        try:
            return self._rows(statement, parameters)
        except psycopg.OperationalError as error:
            if error.sqlstate is not None:
                raise failure(self.access, error) from None
            # A run waits for its tasks longer than a server or a proxy keeps an idle connection.
            self.close()
        except psycopg.Error as error:
            raise failure(self.access, error) from None
        try:
            return self._rows(statement, parameters)
        except psycopg.Error as error:
            raise failure(self.access, error) from None

    def value(self, statement: str, parameters: Sequence[object] | None = None) -> Any:
        """Return the first value of the first row; None if there is no row."""
        rows = self.rows(statement, parameters)
        return next(iter(rows[0].values())) if rows else None

    def setting(self, name: str) -> str:
        """Return a server parameter; an empty string if the server does not have it."""
        return str(self.value("select current_setting(%s, true)", (name,)) or "")

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with closing(self._connection):
                self._connection = None

    def _rows(self, statement: str, parameters: Sequence[object] | None) -> list[dict[str, Any]]:
        if self._connection is None:
            # The client inserts values into statements, so that the server determines their types.
            self._connection = psycopg.connect(
                **self.access.parameters, autocommit=True, row_factory=dict_row, cursor_factory=psycopg.ClientCursor
            )
        with self._connection.cursor() as cursor:
            cursor.execute(statement, parameters)
            return [dict(row) for row in cursor.fetchall()] if cursor.description is not None else []
