"""The settings of a PostgreSQL server in an Airflow connection of the type `postgres`.

The connection's schema is the database. The extra may contain `sslmode` and `sslrootcert`, with libpq's names.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lakehouse.errors import SettingError
from lakehouse.spec.secrets import connection_fields

_PORT = 5432
_TLS = ("sslmode", "sslrootcert")
#: The connection timeout in seconds.
CONNECT_S = 30
#: With these settings the string form of values does not depend on the server, the database or the user, and no
#: statement of a run waits for standbys.
_SESSION = {
    "TimeZone": "UTC",
    "DateStyle": "ISO",
    "IntervalStyle": "postgres",
    "bytea_output": "hex",
    "extra_float_digits": "1",
    "lc_monetary": "C",
    "xmlbinary": "base64",
    "standard_conforming_strings": "on",
    "synchronous_commit": "local",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresAccess:
    """Host, database and sign-in of a server.

    Attributes:
        host: The host.
        port: The port.
        database: The database.
        user: The user.
        password: The password; never shown.
        tls: Settings of TLS by their names in libpq.
        applies_policies: Whether row-level security may hide rows from reads. If False, the server refuses such reads.
    """

    host: str
    port: int
    database: str
    user: str
    password: str = field(default="", repr=False)
    tls: Mapping[str, str] = field(default_factory=dict)
    applies_policies: bool = False

    @property
    def session(self) -> dict[str, str]:
        """The parameters of a session."""
        return {**_SESSION, "row_security": "on" if self.applies_policies else "off"}

    @property
    def parameters(self) -> dict[str, Any]:
        """The parameters of a libpq connection, including the password."""
        session = " ".join(f"-c {name}={value}" for name, value in self.session.items())
        given = {
            "host": self.host,
            "port": str(self.port),
            "dbname": self.database,
            "user": self.user,
            "password": self.password,
            "client_encoding": "UTF8",
            "connect_timeout": str(CONNECT_S),
            "options": session,
            **self.tls,
        }
        return {name: value for name, value in given.items() if value}

    @property
    def address(self) -> str:
        """Host, port and database, for messages."""
        return f"{self.host}:{self.port}/{self.database}"


def postgres_access(connection: str, environ: Mapping[str, str]) -> PostgresAccess:
    """Return the settings of a connection; raise SettingError if it is unreadable or lacks host, login or schema."""
    fields = connection_fields(connection, environ, name="ingest.connection")
    for name, what in (("host", "host"), ("login", "login"), ("schema", "schema, which is the database")):
        if not getattr(fields, name):
            raise SettingError(
                f"the connection {connection!r} has no {what}: add it to the connection", setting="ingest.connection"
            )
    return PostgresAccess(
        host=fields.host,
        port=fields.port or _PORT,
        database=fields.schema,
        user=fields.login,
        password=fields.password,
        tls={name: str(fields.extra[name]) for name in _TLS if fields.extra.get(name)},
    )
