"""The settings of the source `postgres` in the `ingest` section of a table spec.

A run reads chunks of the tables together with the log: logical replication through a slot and a publication, which
belong to the spec. It continues from the position in the newest commit. Host, database and password are in the
connection, see `lakehouse.spec.sources.postgres_connection`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from lakehouse.spec.sources.database_source import DATABASE_KEYS, DatabaseSettings, DatabaseSource
from lakehouse.spec.spec_key import SpecKey
from lakehouse.spec.yaml_section import Section

CONNECTION = "postgres_default"
_SLOT = re.compile(r"[a-z0-9_]{1,63}")
_PUBLICATION = re.compile(r"[^\"\x00,]{1,55}")
_PREFIX = "lakehouse_"
_LONGEST = 55
REFUSE, APPLY = "refuse", "apply"
ROW_SECURITY = (REFUSE, APPLY)

POSTGRES_KEYS = (
    *DATABASE_KEYS,
    SpecKey(
        name="connection",
        type="text",
        text="Airflow connection with host, port, database (schema), login and password of the server.",
        example="postgres_eu",
        default=CONNECTION,
    ),
    SpecKey(
        name="slot",
        type="text",
        text="Replication slot, which no other reader uses; the default is `lakehouse_` and the name of the table. The "
        "first run creates it.",
        example="lakehouse_shop",
    ),
    SpecKey(
        name="publication",
        type="text",
        text="Publication of the tables; the default is the name of the slot. Runs create it and add tables to it, and "
        "a second one, `<publication>_inserts`, for tables whose rows are appended.",
        example="lakehouse_shop",
    ),
    SpecKey(
        name="row_security",
        type="choice",
        text="What a run does with a table whose row level security applies to the account: refuse it, or apply the "
        "policies, so that snapshots have only the rows that they allow. The log has all rows.",
        example=APPLY,
        default=REFUSE,
        choices=ROW_SECURITY,
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PostgresSourceSpec(DatabaseSource):
    """Tables of a PostgreSQL database.

    Attributes:
        database: The settings that all database sources have.
        connection: The id of the Airflow connection.
        slot: The name of the replication slot; empty means a name derived from the table.
        publication: The name of the publication; empty for the slot's name.
        row_security: One of `ROW_SECURITY`.
    """

    KIND: ClassVar[str] = "postgres"
    KEYS: ClassVar[tuple[SpecKey, ...]] = POSTGRES_KEYS

    database: DatabaseSettings
    connection: str = CONNECTION
    slot: str = ""
    publication: str = ""
    row_security: str = REFUSE

    def slot_of(self, table: str) -> str:
        """Return the name of the slot for the spec of a table."""
        return self.slot or f"{_PREFIX}{re.sub('[^a-z0-9_]', '_', table.lower())}"[:_LONGEST]

    def publication_of(self, table: str) -> str:
        """Return the name of the publication for the spec of a table."""
        return self.publication or self.slot_of(table)[:_LONGEST]

    @classmethod
    def parse(cls, section: Section) -> Self:
        """Read the settings from the `ingest` section; raise UserError with file and line."""
        slot, publication = section.text("slot").strip(), section.text("publication").strip()
        if slot and not _SLOT.fullmatch(slot):
            raise section.error(f"slot: {slot!r} is not a name of lower-case letters, digits and '_'.", "slot")
        if publication and not _PUBLICATION.fullmatch(publication):
            raise section.error(
                f"publication: {publication!r} is not a name of at most {_LONGEST} characters without ',' and '\"'.",
                "publication",
            )
        return cls(
            database=DatabaseSettings.parse(section),
            connection=section.text("connection", CONNECTION).strip(),
            slot=slot,
            publication=publication,
            row_security=section.choice("row_security", ROW_SECURITY, REFUSE),
        )

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings as in the YAML file, without default values."""
        mapping = self.database.to_mapping()
        if self.connection != CONNECTION:
            mapping["connection"] = self.connection
        for name in ("slot", "publication"):
            if getattr(self, name):
                mapping[name] = getattr(self, name)
        if self.row_security != REFUSE:
            mapping["row_security"] = self.row_security
        return mapping
