"""Protocol of metastore clients. `hive.py` implements it over Thrift, `memory.py` in memory.

Partition names have Hive's format, with escaped values: `dt=2025-03-01/hour=07` (see `partition_name`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column as declared in Hive: a name in lower case and a type such as `bigint` or `struct<a:int>`."""

    name: str
    type: str
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """File format: Java class names, and SerDe properties."""

    input_format: str
    output_format: str
    serde: str
    serde_properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HiveTable:
    """A table of a metastore; external, unless it is `managed`: then dropping it in Hive deletes its files."""

    database: str
    name: str
    columns: tuple[Column, ...]
    partition_columns: tuple[Column, ...] = ()
    location: str
    format: Format
    parameters: Mapping[str, str] = field(default_factory=dict)
    managed: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class HivePartition:
    """A partition; `values` are unescaped, in the order of the table's partition columns."""

    values: tuple[str, ...]
    location: str
    format: Format
    columns: tuple[Column, ...]
    parameters: Mapping[str, str] = field(default_factory=dict)


class Metastore(Protocol):
    """Client of a metastore. A call raises RetryableError if no server answers in time.

    Calls on a missing table raise UserError with its name, unless documented otherwise.
    """

    @property
    def name(self) -> str:
        """Return the name for messages: the addresses."""
        ...

    def create_database(self, database: str) -> bool:
        """Create a database at the server's default location; return False if it exists."""
        ...

    def table(self, database: str, name: str) -> HiveTable | None:
        """Return a table, or None if the table or its database does not exist."""
        ...

    def create_table(self, table: HiveTable) -> bool:
        """Create a table; return False if it exists. Raises UserError if the database does not exist."""
        ...

    def alter_table(self, table: HiveTable) -> None:
        """Replace columns, format, location and parameters of a table; changed columns cascade to its partitions."""
        ...

    def drop_table(self, database: str, name: str) -> bool:
        """Drop a table without its files; return False if it does not exist."""
        ...

    def partition_names(self, database: str, name: str) -> tuple[str, ...]:
        """Return the escaped names of all partitions, sorted."""
        ...

    def partitions(self, database: str, name: str, names: Sequence[str]) -> tuple[HivePartition, ...]:
        """Return the named partitions that exist, in the order of `names`; reads in pages."""
        ...

    def add_partitions(self, database: str, name: str, partitions: Sequence[HivePartition]) -> None:
        """Add partitions in atomic batches; existing partitions are not changed."""
        ...

    def alter_partitions(self, database: str, name: str, partitions: Sequence[HivePartition]) -> None:
        """Replace location, format and parameters of partitions in atomic batches.

        Raises RetryableError if a partition no longer exists.
        """
        ...

    def drop_partitions(self, database: str, name: str, names: Sequence[str]) -> None:
        """Drop partitions without their files; missing partitions are ignored."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...
