"""In-memory metastore for tests and trials, with the behaviour of a Hive Metastore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from copy import deepcopy
from dataclasses import replace
from typing import TypeVar

from lakehouse.core.rows.partition_path import DEFAULT_PARTITION
from lakehouse.errors import RetryableError, UserError
from lakehouse.platform.metastore.names import partition_name
from lakehouse.platform.metastore.protocol import HivePartition, HiveTable

T = TypeVar("T")
Hook = Callable[[str, int], None]


class MemoryMetastore:
    """Implement `Metastore`. Each page of partitions is one atomic request.

    `before` and `after` are called around each request with its verb and its number, from 1. An exception from `before`
    simulates a request that did not arrive. An exception from `after` simulates a lost reply.
    """

    def __init__(
        self, *, name: str = "memory", page: int = 500, before: Hook | None = None, after: Hook | None = None
    ) -> None:
        self._name, self._page = name, page
        self.before, self.after = before, after
        self.requests: list[str] = []
        self._databases: set[str] = {"default"}
        self._tables: dict[tuple[str, str], HiveTable] = {}
        self._partitions: dict[tuple[str, str], dict[str, HivePartition]] = {}

    @property
    def name(self) -> str:
        """Return the name for messages."""
        return self._name

    def create_database(self, database: str) -> bool:
        """See `Metastore.create_database`."""

        def create() -> bool:
            is_new = database.lower() not in self._databases
            self._databases.add(database.lower())
            return is_new

        return self._request("create_database", create)

    def databases(self) -> tuple[str, ...]:
        """Return the names of all databases, sorted."""
        return self._request("databases", lambda: tuple(sorted(self._databases)))

    def table_names(self, database: str) -> tuple[str, ...]:
        """Return the names of all tables of a database, sorted; empty if it does not exist."""
        return self._request("table_names", lambda: tuple(sorted(n for d, n in self._tables if d == database.lower())))

    def table(self, database: str, name: str) -> HiveTable | None:
        """See `Metastore.table`."""
        return self._request("table", lambda: deepcopy(self._tables.get(_key(database, name))))

    def create_table(self, table: HiveTable) -> bool:
        """See `Metastore.create_table`."""

        def create() -> bool:
            key = _key(table.database, table.name)
            if key[0] not in self._databases:
                raise UserError(f"{self._name}: table {key[0]}.{key[1]} cannot be created: there is no such database")
            if key in self._tables:
                return False
            self._tables[key] = _stored(table)
            self._partitions[key] = {}
            return True

        return self._request("create_table", create)

    def alter_table(self, table: HiveTable) -> None:
        """See `Metastore.alter_table`."""

        def alter() -> None:
            key = _key(table.database, table.name)
            changed = self._require(*key).columns != table.columns
            self._tables[key] = _stored(table)
            if changed:
                there = self._partitions[key]
                there.update({n: replace(p, columns=table.columns) for n, p in there.items()})

        self._request("alter_table", alter)

    def drop_table(self, database: str, name: str) -> bool:
        """See `Metastore.drop_table`."""

        def drop() -> bool:
            self._partitions.pop(_key(database, name), None)
            return self._tables.pop(_key(database, name), None) is not None

        return self._request("drop_table", drop)

    def partition_names(self, database: str, name: str) -> tuple[str, ...]:
        """See `Metastore.partition_names`."""
        self._require(database, name)
        return self._request("partition_names", lambda: tuple(sorted(self._partitions[_key(database, name)])))

    def partitions(self, database: str, name: str, names: Sequence[str]) -> tuple[HivePartition, ...]:
        """See `Metastore.partitions`."""
        self._require(database, name)
        there = self._partitions[_key(database, name)]
        partitions: list[HivePartition] = []
        for page in self._pages(names):

            def read(page: Sequence[str] = page) -> list[HivePartition]:
                return [deepcopy(there[wanted]) for wanted in page if wanted in there]

            partitions += self._request("partitions", read)
        return tuple(partitions)

    def add_partitions(self, database: str, name: str, partitions: Sequence[HivePartition]) -> None:
        """See `Metastore.add_partitions`."""
        table = self._require(database, name)
        for page in self._pages(partitions):
            named = self._named(table, page)

            def add(named: dict[str, HivePartition] = named) -> None:
                there = self._partitions[_key(database, name)]
                there.update({n: p for n, p in named.items() if n not in there})

            self._request("add_partitions", add)

    def alter_partitions(self, database: str, name: str, partitions: Sequence[HivePartition]) -> None:
        """See `Metastore.alter_partitions`."""
        table = self._require(database, name)
        for page in self._pages(partitions):
            named = self._named(table, page)

            def alter(named: dict[str, HivePartition] = named) -> None:
                there = self._partitions[_key(database, name)]
                for gone in named.keys() - there.keys():
                    raise RetryableError(
                        f"{self._name}: {database}.{name}: partition {gone} does not exist any more; run again"
                    )
                there.update(named)

            self._request("alter_partitions", alter)

    def drop_partitions(self, database: str, name: str, names: Sequence[str]) -> None:
        """See `Metastore.drop_partitions`."""
        self._require(database, name)
        for page in self._pages(names):

            def drop(page: Sequence[str] = page) -> None:
                for gone in page:
                    self._partitions[_key(database, name)].pop(gone, None)

            self._request("drop_partitions", drop)

    def close(self) -> None:
        """Do nothing, because there is no connection."""

    def _require(self, database: str, name: str) -> HiveTable:
        table = self._tables.get(_key(database, name))
        if table is None:
            raise UserError(f"{self._name}: there is no table {database}.{name}", table=f"{database}.{name}")
        return table

    def _named(self, table: HiveTable, partitions: Sequence[HivePartition]) -> dict[str, HivePartition]:
        columns = [column.name for column in table.partition_columns]
        for partition in partitions:
            if len(partition.values) != len(columns):
                raise UserError(
                    f"{self._name}: partitions of {table.database}.{table.name} cannot be added: {partition.values} "
                    f"are not values of {columns}"
                )
        # An empty value means null and is stored as the default partition.
        matches = [
            replace(deepcopy(partition), values=tuple(value or DEFAULT_PARTITION for value in partition.values))
            for partition in partitions
        ]
        return {partition_name(columns, partition.values): partition for partition in matches}

    def _pages(self, items: Sequence[T]) -> list[Sequence[T]]:
        return [items[start : start + self._page] for start in range(0, len(items), self._page)]

    def _request(self, verb: str, answer: Callable[[], T]) -> T:
        self.requests.append(verb)
        number = len(self.requests)
        if self.before is not None:
            self.before(verb, number)
        answered = answer()
        if self.after is not None:
            self.after(verb, number)
        return answered


def _key(database: str, name: str) -> tuple[str, str]:
    return database.lower(), name.lower()


def _stored(table: HiveTable) -> HiveTable:
    database, name = _key(table.database, table.name)
    parameters = dict(table.parameters) if table.managed else {"EXTERNAL": "TRUE", **table.parameters}
    return replace(deepcopy(table), database=database, name=name, parameters=parameters)
