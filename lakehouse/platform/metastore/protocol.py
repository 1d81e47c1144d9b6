"""What publication asks of a metastore; `hive.py` asks a Hive Metastore over Thrift, `memory.py` keeps all in a dict.

Names of partitions are Hive's: `dt=2025-03-01/hour=07`, values escaped (`partition_name` and `partition_values`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """A column as Hive declares it: a name in lower case and a type such as `bigint` or `struct<a:int>`."""

    name: str
    type: str
    comment: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """How files are read: Java class names, and properties of the SerDe."""

    input_format: str
    output_format: str
    serde: str
    serde_properties: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HiveTable:
    """An external table of a metastore; `parameters` are those of the table."""

    database: str
    name: str
    columns: tuple[Column, ...]
    partition_columns: tuple[Column, ...] = ()
    location: str
    format: Format
    parameters: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class HivePartition:
    """A partition; `values` are as the partition columns of its table, in order and not escaped."""

    values: tuple[str, ...]
    location: str
    format: Format
    columns: tuple[Column, ...]
    parameters: Mapping[str, str] = field(default_factory=dict)


class Metastore(Protocol):
    """Databases, tables, partitions. A call raises RetryableError if no server answers, or too late.

    Calls on a table that is not there raise UserError naming it, unless they say otherwise.
    """

    @property
    def name(self) -> str:
        """Return what to call it in messages: its addresses."""
        ...

    def create_database(self, database: str) -> bool:
        """Create a database where the server keeps them; False if it is there already."""
        ...

    def table(self, database: str, name: str) -> HiveTable | None:
        """Return a table, None if there is none, or no such database."""
        ...

    def create_table(self, table: HiveTable) -> bool:
        """Create an external table; False if one of this name is there. Raises UserError without the database."""
        ...

    def alter_table(self, table: HiveTable) -> None:
        """Replace columns, format, location and parameters of a table, its partitions too where columns changed."""
        ...

    def drop_table(self, database: str, name: str) -> bool:
        """Drop a table, never its files; False if there is none."""
        ...

    def partition_names(self, database: str, name: str) -> tuple[str, ...]:
        """Return the names of all partitions, as Hive escapes them, in order."""
        ...

    def partitions(self, database: str, name: str, names: Sequence[str]) -> tuple[HivePartition, ...]:
        """Return those of the named partitions that are there, in the order of `names`; asked for in pages."""
        ...

    def add_partitions(self, database: str, name: str, partitions: Sequence[HivePartition]) -> None:
        """Add partitions, in batches, each atomic; those that are there already are left as they are."""
        ...

    def alter_partitions(self, database: str, name: str, partitions: Sequence[HivePartition]) -> None:
        """Replace location, format and parameters of partitions, in batches, each atomic.

        Raises RetryableError if one is not there any more.
        """
        ...

    def drop_partitions(self, database: str, name: str, names: Sequence[str]) -> None:
        """Drop partitions, never their files; those that are gone already count as dropped."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...
