"""The settings of the source `mysql`, for MySQL and MariaDB, in the `ingest` section of a table spec.

A run reads chunks of the tables together with the binlog, and continues from the position in the newest commit. Host
and password are in the connection, see `lakehouse.spec.sources.mysql_connection`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from lakehouse.spec.sources.database_source import DATABASE_KEYS, DatabaseSettings, DatabaseSource
from lakehouse.spec.spec_key import SpecKey
from lakehouse.spec.yaml_section import Section

CONNECTION = "mysql_default"
_SERVER_IDS = (54_000, 54_999)
_RANGE = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?")
_LARGEST_ID = 2**32 - 1

MYSQL_KEYS = (
    *DATABASE_KEYS,
    SpecKey(
        name="connection",
        type="text",
        text="Airflow connection with host, port, login and password of the server.",
        example="mysql_eu",
        default=CONNECTION,
    ),
    SpecKey(
        name="server_ids",
        type="range",
        text="Server ids for reading the binlog, which no other replica of the server has; a read takes one of them.",
        example="54000-54999",
        default="54000-54999",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MysqlSourceSpec(DatabaseSource):
    """Tables of a MySQL or MariaDB server.

    Attributes:
        database: The settings that all database sources have.
        connection: The id of the Airflow connection.
        server_ids: The first and the last server id that binlog reads may use.
    """

    KIND: ClassVar[str] = "mysql"
    KEYS: ClassVar[tuple[SpecKey, ...]] = MYSQL_KEYS

    database: DatabaseSettings
    connection: str = CONNECTION
    server_ids: tuple[int, int] = _SERVER_IDS

    @classmethod
    def parse(cls, section: Section) -> Self:
        """Read the settings from the `ingest` section; raise UserError with file and line."""
        return cls(
            database=DatabaseSettings.parse(section),
            connection=section.text("connection", CONNECTION).strip(),
            server_ids=_server_ids(section),
        )

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings as in the YAML file, without default values."""
        mapping = self.database.to_mapping()
        if self.connection != CONNECTION:
            mapping["connection"] = self.connection
        if self.server_ids != _SERVER_IDS:
            mapping["server_ids"] = f"{self.server_ids[0]}-{self.server_ids[1]}"
        return mapping


def _server_ids(section: Section) -> tuple[int, int]:
    text = section.text("server_ids", f"{_SERVER_IDS[0]}-{_SERVER_IDS[1]}").replace(" ", "")
    match = _RANGE.fullmatch(text)
    first, last = (int(match[1]), int(match[2] or match[1])) if match is not None else (0, 0)
    if not 0 < first <= last <= _LARGEST_ID:
        raise section.error(
            f"server_ids: {text!r} is not a range of numbers from 1 to {_LARGEST_ID}, such as 54000-54999.",
            "server_ids",
        )
    return first, last
