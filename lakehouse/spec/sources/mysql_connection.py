"""The settings of a MySQL or MariaDB server in an Airflow connection of the type `mysql`.

The extra may contain `ssl_ca` (a file with certificates; the server's certificate and host name are then verified) and
`ssl_disabled`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from urllib.parse import quote

from lakehouse.errors import SettingError
from lakehouse.spec.secrets import connection_fields

_PORT = 3306


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlAccess:
    """Host and sign-in of a server.

    Attributes:
        host: The host.
        port: The port.
        user: The user.
        password: The password; never shown.
        ssl_ca: The file with CA certificates for the server's certificate; empty to use TLS without verification.
        ssl_disabled: Whether connections use no TLS.
    """

    host: str
    port: int
    user: str
    password: str = field(default="", repr=False)
    ssl_ca: str = ""
    ssl_disabled: bool = False

    @property
    def url(self) -> str:
        """The URL for clients that take one; it contains the password."""
        sign_in = f"{quote(self.user, safe='')}:{quote(self.password, safe='')}"
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"mysql://{sign_in}@{host}:{self.port}/"

    @property
    def address(self) -> str:
        """Host and port, for messages."""
        return f"{self.host}:{self.port}"


def mysql_access(connection: str, environ: Mapping[str, str]) -> MysqlAccess:
    """Return the settings of a connection; raise SettingError if it is unreadable or lacks host or login."""
    fields = connection_fields(connection, environ, name="ingest.connection")
    for name in ("host", "login"):
        if not getattr(fields, name):
            raise SettingError(
                f"the connection {connection!r} has no {name}: add it to the connection", setting="ingest.connection"
            )
    return MysqlAccess(
        host=fields.host,
        port=fields.port or _PORT,
        user=fields.login,
        password=fields.password,
        ssl_ca=str(fields.extra.get("ssl_ca") or ""),
        ssl_disabled=str(fields.extra.get("ssl_disabled") or "").lower() in ("true", "1"),
    )
