"""Client of a Hive Metastore over Thrift: databases, external tables and partitions, in pages.

Every change is idempotent: if a reply is lost, the next run may send the same request again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeVar

from pymetastore.hive_metastore.ttypes import (
    AddPartitionsRequest,
    AlreadyExistsException,
    Database,
    DropPartitionsRequest,
    EnvironmentContext,
    InvalidObjectException,
    InvalidOperationException,
    NoSuchObjectException,
    Partition,
    RequestPartsSpec,
    Table,
)

from lakehouse.core.timeline.locks.metastore_client import MetastoreClient
from lakehouse.errors import RetryableError, UserError
from lakehouse.platform.metastore.hive_values import ColumnFields, of_partition, of_table, to_partition, to_table
from lakehouse.platform.metastore.names import partition_name, partition_values
from lakehouse.platform.metastore.protocol import Column, HivePartition, HiveTable
from lakehouse.spec.options.sync import METASTORE_URIS

PAGE = 1000
_ALL = -1
# New columns cascade to partitions. Statistics are not updated, because the metastore would list the table.
_CASCADE = {"CASCADE": "true", "DO_NOT_UPDATE_STATS": "true"}
_NO_STATISTICS = {"DO_NOT_UPDATE_STATS": "true"}
T = TypeVar("T")


class HiveMetastore:
    """Implement `Metastore` with one connection, opened by the first call; not thread-safe.

    Example: `HiveMetastore("thrift://localhost:9083").partition_names("sales", "orders")`.
    """

    def __init__(self, uris: str, *, timeout_s: float = 60, page: int = PAGE) -> None:
        """Store the comma-separated addresses `uris` (thrift://host:port) and the reply timeout in seconds."""
        self._name, self._page = uris, page
        self._client = MetastoreClient(uris, option=METASTORE_URIS, timeout_s=timeout_s)

    @property
    def name(self) -> str:
        """Return the addresses."""
        return self._name

    def create_database(self, database: str) -> bool:
        """See `Metastore.create_database`."""
        try:
            self._client.call(lambda c: c.get_database(database), NoSuchObjectException)
            return False
        except NoSuchObjectException:
            wanted = Database(name=database, parameters={})
        try:
            self._client.call(lambda c: c.create_database(wanted), AlreadyExistsException, InvalidObjectException)
        except AlreadyExistsException:
            return False
        except InvalidObjectException as error:
            raise UserError(f"{self._name}: {database!r} is not a valid database name: {error.message}") from error
        return True

    def databases(self) -> tuple[str, ...]:
        """Return the names of all databases, sorted."""
        names: list[str] = self._client.call(lambda c: c.get_all_databases())
        return tuple(sorted(names))

    def table_names(self, database: str) -> tuple[str, ...]:
        """Return the names of all tables and views of a database, sorted; empty if it does not exist."""
        names: list[str] = self._client.call(lambda c: c.get_all_tables(database))
        return tuple(sorted(names))

    def table(self, database: str, name: str) -> HiveTable | None:
        """See `Metastore.table`."""
        table = self._table(database, name)
        return None if table is None else of_table(table)

    def create_table(self, table: HiveTable) -> bool:
        """See `Metastore.create_table`."""
        refused = (AlreadyExistsException, InvalidObjectException, NoSuchObjectException)
        try:
            self._client.call(lambda c: c.create_table(to_table(table)), *refused)
        except AlreadyExistsException:
            return False
        except (InvalidObjectException, NoSuchObjectException) as error:
            raise UserError(
                f"{self._name}: table {table.database}.{table.name} cannot be created: {error.message}",
                table=f"{table.database}.{table.name}",
            ) from error
        return True

    def alter_table(self, table: HiveTable) -> None:
        """See `Metastore.alter_table`."""
        present = self._table(table.database, table.name)
        if present is None:
            raise self._missing(table.database, table.name)
        cascade = of_table(present).columns != table.columns
        context = EnvironmentContext(properties=_CASCADE if cascade else _NO_STATISTICS)
        wanted = to_table(table, present)
        try:
            self._client.call(
                lambda c: c.alter_table_with_environment_context(table.database, table.name, wanted, context),
                InvalidOperationException,
            )
        except InvalidOperationException as error:
            if self._table(table.database, table.name) is None:
                raise self._missing(table.database, table.name) from error
            raise UserError(
                f"{self._name}: table {table.database}.{table.name} cannot be altered: {error.message}",
                table=f"{table.database}.{table.name}",
            ) from error

    def drop_table(self, database: str, name: str) -> bool:
        """See `Metastore.drop_table`."""
        try:
            self._client.call(lambda c: c.drop_table(database, name, False), NoSuchObjectException)
        except NoSuchObjectException:
            return False
        return True

    def partition_names(self, database: str, name: str) -> tuple[str, ...]:
        """See `Metastore.partition_names`."""
        self._require(database, name)
        return tuple(sorted(self._client.call(lambda c: c.get_partition_names(database, name, _ALL))))

    def partitions(self, database: str, name: str, names: Sequence[str]) -> tuple[HivePartition, ...]:
        """See `Metastore.partitions`."""
        self._require(database, name)
        shared: dict[ColumnFields, tuple[Column, ...]] = {}
        partitions = {values: of_partition(there, shared) for values, there in self._raw(database, name, names)}
        return tuple(partitions[values] for values in map(partition_values, names) if values in partitions)

    def add_partitions(self, database: str, name: str, partitions: Sequence[HivePartition]) -> None:
        """See `Metastore.add_partitions`."""
        columns = [column.name for column in self._found(database, name).partition_columns]
        for partition in partitions:
            if len(partition.values) != len(columns):
                raise self._refused(database, name, f"{partition.values} are not values of {columns}")
        for page in _pages(partitions, self._page):
            request = AddPartitionsRequest(
                dbName=database,
                tblName=name,
                parts=[to_partition(database, name, partition) for partition in page],
                ifNotExists=True,
                needResult=False,
            )
            self._add(database, name, request)

    def alter_partitions(self, database: str, name: str, partitions: Sequence[HivePartition]) -> None:
        """See `Metastore.alter_partitions`."""
        columns = [column.name for column in self._found(database, name).partition_columns]
        context = EnvironmentContext(properties=_NO_STATISTICS)
        for page in _pages(partitions, self._page):
            names = [partition_name(columns, partition.values) for partition in page]
            there = dict(self._raw(database, name, names))
            for wanted_name in names:
                if partition_values(wanted_name) not in there:
                    raise self._gone(database, name, wanted_name)
            altered = [
                to_partition(database, name, wanted, there[partition_values(wanted_name)])
                for wanted, wanted_name in zip(page, names, strict=True)
            ]
            self._alter(database, name, altered, context, names)

    def drop_partitions(self, database: str, name: str, names: Sequence[str]) -> None:
        """See `Metastore.drop_partitions`."""
        self._require(database, name)
        for page in _pages(names, self._page):
            request = DropPartitionsRequest(
                dbName=database,
                tblName=name,
                parts=RequestPartsSpec(names=list(page)),
                deleteData=False,
                ifExists=True,
                needResult=False,
            )
            self._drop(database, name, request)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def _table(self, database: str, name: str) -> Table | None:
        try:
            return self._client.call(lambda c: c.get_table(database, name), NoSuchObjectException)
        except NoSuchObjectException:
            return None

    def _found(self, database: str, name: str) -> HiveTable:
        table = self.table(database, name)
        if table is None:
            raise self._missing(database, name)
        return table

    def _require(self, database: str, name: str) -> None:
        self._found(database, name)

    def _raw(self, database: str, name: str, names: Sequence[str]) -> Iterator[tuple[tuple[str, ...], Partition]]:
        for page in _pages(names, self._page):
            for partition in self._named(database, name, list(page)):
                yield tuple(partition.values), partition

    def _named(self, database: str, name: str, names: list[str]) -> list[Partition]:
        return self._client.call(lambda c: c.get_partitions_by_names(database, name, names))

    def _add(self, database: str, name: str, request: AddPartitionsRequest) -> None:
        try:
            self._client.call(lambda c: c.add_partitions_req(request), AlreadyExistsException, InvalidObjectException)
        except AlreadyExistsException as error:
            # Another program concurrently added some of these partitions.
            raise RetryableError(f"{self._name}: {database}.{name}: {error.message}; run again") from error
        except InvalidObjectException as error:
            self._require(database, name)
            raise self._refused(database, name, error.message) from error

    def _alter(
        self, database: str, name: str, altered: list[Partition], context: EnvironmentContext, names: Sequence[str]
    ) -> None:
        try:
            self._client.call(
                lambda c: c.alter_partitions_with_environment_context(database, name, altered, context),
                InvalidOperationException,
            )
        except InvalidOperationException as error:
            raise self._gone(database, name, f"one of {names[0]} to {names[-1]}") from error

    def _drop(self, database: str, name: str, request: DropPartitionsRequest) -> None:
        try:
            self._client.call(lambda c: c.drop_partitions_req(request), NoSuchObjectException)
        except NoSuchObjectException as error:
            # Another program dropped the table or a partition; the next run reads the new state.
            self._require(database, name)
            raise RetryableError(f"{self._name}: {database}.{name}: {error.message}; run again") from error

    def _refused(self, database: str, name: str, why: str) -> UserError:
        return UserError(
            f"{self._name}: partitions of {database}.{name} cannot be added: {why}", table=f"{database}.{name}"
        )

    def _missing(self, database: str, name: str) -> UserError:
        return UserError(f"{self._name}: there is no table {database}.{name}", table=f"{database}.{name}")

    def _gone(self, database: str, name: str, partition: str) -> RetryableError:
        return RetryableError(
            f"{self._name}: {database}.{name}: partition {partition} does not exist any more; run again"
        )


def _pages(items: Sequence[T], size: int) -> Iterator[Sequence[T]]:
    return (items[start : start + size] for start in range(0, len(items), size))
