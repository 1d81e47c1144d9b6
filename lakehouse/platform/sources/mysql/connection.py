"""Connections to MySQL and MariaDB, and their errors as errors of this package."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from typing import Any

import pymysql
from pymysql.cursors import DictCursor

from lakehouse.errors import LakehouseError, RetryableError, UserError
from lakehouse.spec.sources.mysql_connection import MysqlAccess

_TIMEOUT_S = 30
#: Server errors that users have to correct: sign-in, rights, unknown database, table or column, syntax.
_USER_ERRORS = frozenset({1044, 1045, 1049, 1054, 1064, 1142, 1143, 1146, 1227, 1698, 3159})


def connect(access: MysqlAccess, **settings: Any) -> Any:
    """Return a connection in UTC with autocommit; raise UserError or RetryableError if it fails."""
    tls: dict[str, Any] = {}
    if access.ssl_disabled:
        tls["ssl_disabled"] = True
    elif access.ssl_ca:
        tls["ssl"] = {"ca": access.ssl_ca, "check_hostname": True}
    given = {
        "host": access.host,
        "port": access.port,
        "user": access.user,
        "password": access.password,
        "charset": "utf8mb4",
        "autocommit": True,
        "connect_timeout": _TIMEOUT_S,
        "init_command": "set time_zone = '+00:00'",
        **tls,
        **settings,
    }
    with server_errors(access):
        return pymysql.connect(**given)


@contextmanager
def server_errors(access: MysqlAccess) -> Iterator[None]:
    """Convert PyMySQL errors to errors of this package whose message contains the server."""
    try:
        yield
    except pymysql.err.MySQLError as error:
        code, text = (*error.args, "", "")[:2]
        raise failure(access, int(code) if str(code).isdigit() else 0, str(text or code)) from error


def failure(access: MysqlAccess, code: int, text: str) -> LakehouseError:
    """Convert a server error to an error of this package."""
    message = f"the server {access.address} answers {code}: {text}"
    if code in _USER_ERRORS:
        return UserError(f"{message}. Correct the connection, or grant the user the right", code=code)
    return RetryableError(message, code=code)


class Questions:
    """Queries a server over one connection, which is reopened if the server closed it."""

    def __init__(self, access: MysqlAccess) -> None:
        self.access = access
        self._connection: Any = None

    def rows(self, statement: str, parameters: tuple[object, ...] | None = None) -> list[dict[str, Any]]:
        """Return the rows of a statement, with their columns in lower case."""
        try:
            return self._rows(statement, parameters)
        except pymysql.err.OperationalError:
            # A run waits for its tasks longer than a server keeps an idle connection.
            self.close()
        with server_errors(self.access):
            return self._rows(statement, parameters)

    def value(self, statement: str, parameters: tuple[object, ...] | None = None) -> Any:
        """Return the first value of the first row; None if there is no row."""
        rows = self.rows(statement, parameters)
        return next(iter(rows[0].values())) if rows else None

    def variable(self, name: str) -> str:
        """Return a global variable; an empty string if the server does not have it."""
        rows = self.rows("show global variables where variable_name = %s", (name,))
        return str(rows[0]["value"]) if rows else ""

    def close(self) -> None:
        """Close the connection."""
        if self._connection is not None:
            with closing(self._connection):
                self._connection = None

    def _rows(self, statement: str, parameters: tuple[object, ...] | None) -> list[dict[str, Any]]:
        if self._connection is None:
            self._connection = connect(self.access, cursorclass=DictCursor)
        try:
            with self._connection.cursor() as cursor:
                cursor.execute(statement, parameters)
                return [{name.lower(): value for name, value in row.items()} for row in cursor.fetchall()]
        except pymysql.err.OperationalError:
            raise
        except pymysql.err.MySQLError as error:
            code, text = (*error.args, "", "")[:2]
            raise failure(self.access, int(code) if str(code).isdigit() else 0, str(text)) from error
