"""The identity of a table: its name, its record key, and the id that lakehouse stores in its properties.

A location can be reused, so the catalog records the identity of each registered table. Code that opens a table through
the catalog compares the recorded identity with the properties at the location, and refuses a difference.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Key of the id in hoodie.properties. Hudi ignores unknown keys, and keeps them when it rewrites the file.
TABLE_ID = "lakehouse.table.id"


@dataclass(frozen=True, slots=True, kw_only=True)
class TableIdentity:
    """The identity of a table.

    Attributes:
        name: The property `hoodie.table.name`.
        record_key: The record key columns.
        id: The id of the table; empty if its properties contain none.
    """

    name: str
    record_key: tuple[str, ...]
    id: str = ""

    def differences(self, actual: TableIdentity) -> tuple[str, ...]:
        """Return how the table `actual` differs from this recorded identity; empty if it is the same table.

        A recorded identity without id matches every id: the id was assigned after the registration.
        """
        differences = []
        if self.id and self.id != actual.id:
            differences.append(f"id {self.id} is recorded, and {actual.id or 'none'} is stored there")
        if self.name != actual.name:
            differences.append(f"name {self.name!r} is recorded, and {actual.name!r} is stored there")
        if self.record_key != actual.record_key:
            differences.append(f"record key [{_joined(self)}] is recorded, and [{_joined(actual)}] is stored there")
        return tuple(differences)


def is_name_of(declared: str, stored: str) -> bool:
    """Return whether a stored table name can belong to a declared table, `namespace.table` or `table`.

    Upper and lower case are equal, because Spark SQL stores names in lower case. A missing namespace matches any.
    """
    declared, stored = declared.casefold(), stored.casefold()
    (space, _, name), (stored_space, _, stored_name) = declared.rpartition("."), stored.rpartition(".")
    return name == stored_name and (not space or not stored_space or space == stored_space)


def _joined(identity: TableIdentity) -> str:
    return ", ".join(identity.record_key)
