"""Client of the AWS Glue Data Catalog, in the form in which Hudi's own sync of Glue declares tables.

Glue has no transactions: a batch of partitions may be written in part. Every change is idempotent, so the next run does
the rest. Partitions get new columns before their table does, so that a repeated `alter_table` continues.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, TypeVar

import boto3
from botocore.config import Config
from botocore.exceptions import (
    BotoCoreError,
    ClientError,
    ConnectionError,
    HTTPClientError,
    NoCredentialsError,
    NoRegionError,
    PartialCredentialsError,
)

from lakehouse.core.rows.partition_path import DEFAULT_PARTITION
from lakehouse.errors import RetryableError, UserError
from lakehouse.platform.metastore.glue_values import (
    PARTITION_FIELDS,
    TABLE_FIELDS,
    of_partition,
    of_table,
    to_columns,
    to_partition,
    to_table,
)
from lakehouse.platform.metastore.names import partition_name, partition_values
from lakehouse.platform.metastore.protocol import Column, HivePartition, HiveTable
from lakehouse.spec.options.sync import SyncPolicy

#: Maximum number of partitions per request, by the limits of the service.
_MOST_READ, _MOST_WRITTEN, _MOST_DELETED = 1000, 100, 25
_MISSING, _EXISTS = "EntityNotFoundException", "AlreadyExistsException"
_RETRYABLE = frozenset(
    {
        "ConcurrentModificationException",
        "InternalServiceException",
        "OperationTimeoutException",
        "RequestLimitExceeded",
        "ResourceNotReadyException",
        "ServiceUnavailable",
        "ServiceUnavailableException",
        "ThrottlingException",
        "VersionMismatchException",
    }
)
_ATTEMPTS = 5
_SERVER_ERROR = 500
T = TypeVar("T")


def open_glue(policy: SyncPolicy) -> GlueMetastore:
    """Return a client for the region, the endpoint and the catalog in a policy.

    The default of the region is AWS_REGION, as for storages, or the configuration of the AWS client. AWS_ENDPOINT_URL
    is the address of an object store, so the default endpoint is AWS_ENDPOINT_URL_GLUE or the one of the region.

    Raises UserError if no region is configured. Credentials are read by the first request.
    """
    settings = Config(
        ignore_configured_endpoint_urls=True,
        connect_timeout=policy.timeout_s,
        read_timeout=policy.timeout_s,
        retries={"mode": "standard", "total_max_attempts": _ATTEMPTS},
    )
    try:
        # The default session of boto3 keeps the first credentials, and is not thread-safe.
        client = boto3.Session().client(
            "glue",
            region_name=policy.glue_region or os.environ.get("AWS_REGION") or None,
            endpoint_url=policy.glue_endpoint or os.environ.get("AWS_ENDPOINT_URL_GLUE") or None,
            config=settings,
        )
    except (BotoCoreError, ValueError) as error:
        raise _failure("AWS Glue", error) from error
    if policy.glue_catalog:
        # All requests of this client have the parameter.
        client.meta.events.register("provide-client-params.glue", partial(_of_catalog, policy.glue_catalog))
    return GlueMetastore(client, page=policy.batch, skip_archive=policy.glue_skip_archive)


class GlueMetastore:
    """Implement `Metastore` with a boto3 client of Glue.

    Example: `open_glue(SyncPolicy(glue_region="eu-west-1")).partition_names("sales", "orders")`.
    """

    def __init__(self, client: Any, *, page: int = _MOST_READ, skip_archive: bool = True) -> None:
        """Store the client, the maximum number of partitions per request, and whether changes add no table version."""
        self._client, self._page, self._skip_archive = client, page, skip_archive
        self._name = f"AWS Glue at {client.meta.endpoint_url}"

    @property
    def name(self) -> str:
        """Return the service with its address."""
        return self._name

    def create_database(self, database: str) -> bool:
        """See `Metastore.create_database`."""
        name = database.lower()
        if self._unless(_MISSING, self._client.get_database, Name=name) is not None:
            return False
        made = self._unless(_EXISTS, self._client.create_database, DatabaseInput={"Name": name})
        return made is not None

    def databases(self) -> tuple[str, ...]:
        """Return the names of all databases, sorted."""
        return tuple(sorted(self._names("get_databases", "DatabaseList")))

    def table_names(self, database: str) -> tuple[str, ...]:
        """Return the names of all tables and views of a database, sorted; empty if it does not exist."""
        try:
            return tuple(sorted(self._names("get_tables", "TableList", DatabaseName=database.lower())))
        except _MissingError:
            return ()

    def table(self, database: str, name: str) -> HiveTable | None:
        """See `Metastore.table`."""
        table = self._table(database, name)
        return None if table is None else of_table(table)

    def create_table(self, table: HiveTable) -> bool:
        """See `Metastore.create_table`."""
        request = {"DatabaseName": table.database.lower(), "TableInput": to_table(table)}
        try:
            made = self._unless(_EXISTS, self._client.create_table, **request)
        except _MissingError as error:
            raise UserError(
                f"{self._name}: table {table.database}.{table.name} cannot be created: there is no database "
                f"{table.database}",
                table=f"{table.database}.{table.name}",
            ) from error
        return made is not None

    def alter_table(self, table: HiveTable) -> None:
        """See `Metastore.alter_table`."""
        database, name = table.database.lower(), table.name.lower()
        present = self._require(database, name)
        if of_table(present).columns != table.columns:
            self._cascade(database, name, table.columns)
        input_fields = {key: value for key, value in present.items() if key in TABLE_FIELDS}
        request: dict[str, Any] = {
            "DatabaseName": database,
            "TableInput": to_table(table, input_fields),
            "SkipArchive": self._skip_archive,
        }
        if present.get("VersionId"):
            # Glue refuses the change if another program changed the table since it was read.
            request["VersionId"] = present["VersionId"]
        try:
            self._call(self._client.update_table, **request)
        except _MissingError as error:
            raise self._missing(database, name) from error

    def drop_table(self, database: str, name: str) -> bool:
        """See `Metastore.drop_table`."""
        request = {"DatabaseName": database.lower(), "Name": name.lower()}
        return self._unless(_MISSING, self._client.delete_table, **request) is not None

    def partition_names(self, database: str, name: str) -> tuple[str, ...]:
        """See `Metastore.partition_names`."""
        columns = self._partition_columns(database, name)
        listed = self._listed(database, name, ExcludeColumnSchema=True)
        return tuple(sorted(partition_name(columns, partition["Values"]) for partition in listed))

    def partitions(self, database: str, name: str, names: Sequence[str]) -> tuple[HivePartition, ...]:
        """See `Metastore.partitions`."""
        self._require(database, name)
        shared: dict[tuple[Column, ...], tuple[Column, ...]] = {}
        there = self._named(database, name, [partition_values(wanted) for wanted in names])
        partitions = {values: of_partition(partition, shared) for values, partition in there.items()}
        return tuple(partitions[values] for values in map(partition_values, names) if values in partitions)

    def add_partitions(self, database: str, name: str, partitions: Sequence[HivePartition]) -> None:
        """See `Metastore.add_partitions`."""
        columns = self._partition_columns(database, name)
        for partition in partitions:
            if len(partition.values) != len(columns):
                raise UserError(
                    f"{self._name}: partitions of {database}.{name} cannot be added: {partition.values} are not "
                    f"values of {columns}",
                    table=f"{database}.{name}",
                )
        for page in self._pages(partitions, _MOST_WRITTEN):
            inputs = [to_partition(partition) for partition in page]
            self._change(database, name, self._client.batch_create_partition, _EXISTS, PartitionInputList=inputs)

    def alter_partitions(self, database: str, name: str, partitions: Sequence[HivePartition]) -> None:
        """See `Metastore.alter_partitions`."""
        columns = self._partition_columns(database, name)
        for page in self._pages(partitions, _MOST_WRITTEN):
            there = self._named(database, name, [_filled(partition.values) for partition in page])
            for partition in page:
                if _filled(partition.values) not in there:
                    raise RetryableError(
                        f"{self._name}: {database}.{name}: partition {partition_name(columns, partition.values)} does "
                        "not exist any more; run again"
                    )
            self._update(database, name, [to_partition(p, _kept(there[_filled(p.values)])) for p in page])

    def drop_partitions(self, database: str, name: str, names: Sequence[str]) -> None:
        """See `Metastore.drop_partitions`."""
        self._require(database, name)
        for page in self._pages(names, _MOST_DELETED):
            values = [{"Values": list(partition_values(gone))} for gone in page]
            self._change(database, name, self._client.batch_delete_partition, _MISSING, PartitionsToDelete=values)

    def close(self) -> None:
        """Close the connections."""
        self._client.close()

    def _cascade(self, database: str, name: str, columns: Sequence[Column]) -> None:
        """Give all partitions the new columns of their table."""
        fields = to_columns(columns)
        outdated = [p for p in self._listed(database, name) if p["StorageDescriptor"].get("Columns") != fields]
        for page in self._pages(outdated, _MOST_WRITTEN):
            self._update(
                database,
                name,
                [{**_kept(p), "StorageDescriptor": {**p["StorageDescriptor"], "Columns": fields}} for p in page],
            )

    def _update(self, database: str, name: str, inputs: Iterable[Mapping[str, Any]]) -> None:
        entries = [{"PartitionValueList": given["Values"], "PartitionInput": given} for given in inputs]
        self._change(database, name, self._client.batch_update_partition, "", Entries=entries)

    def _change(self, database: str, name: str, request: Callable[..., Any], expected: str, **arguments: Any) -> None:
        """Send a batch; raise an error for partitions that were not changed, unless all have the `expected` code."""
        try:
            answer = self._call(request, DatabaseName=database.lower(), TableName=name.lower(), **arguments)
        except _MissingError as error:
            raise self._missing(database, name) from error
        details = [failed.get("ErrorDetail") or {} for failed in answer.get("Errors") or ()]
        failures = [detail for detail in details if detail.get("ErrorCode") != expected]
        if failures:
            code, text = failures[0].get("ErrorCode", ""), failures[0].get("ErrorMessage", "")
            message = f"{self._name}: {database}.{name}: {len(failures)} partitions were not changed: {code} {text}"
            if code == _MISSING or code in _RETRYABLE:
                raise RetryableError(f"{message}; run again")
            raise UserError(message, table=f"{database}.{name}")

    def _table(self, database: str, name: str) -> Mapping[str, Any] | None:
        request = {"DatabaseName": database.lower(), "Name": name.lower()}
        answer = self._unless(_MISSING, self._client.get_table, **request)
        return None if answer is None else answer["Table"]

    def _require(self, database: str, name: str) -> Mapping[str, Any]:
        table = self._table(database, name)
        if table is None:
            raise self._missing(database, name)
        return table

    def _partition_columns(self, database: str, name: str) -> list[str]:
        return [column.name for column in of_table(self._require(database, name)).partition_columns]

    def _listed(self, database: str, name: str, **arguments: Any) -> Iterator[Mapping[str, Any]]:
        """Yield all partitions, in pages."""
        token: dict[str, str] = {}
        while True:
            request = {"DatabaseName": database.lower(), "TableName": name.lower(), **arguments, **token}
            answer = self._call(self._client.get_partitions, **request)
            yield from answer["Partitions"]
            if not answer.get("NextToken"):
                return
            token = {"NextToken": answer["NextToken"]}

    def _named(
        self, database: str, name: str, values: Sequence[tuple[str, ...]]
    ) -> dict[tuple[str, ...], Mapping[str, Any]]:
        """Return the partitions with these values that exist."""
        there: dict[tuple[str, ...], Mapping[str, Any]] = {}
        for page in self._pages(values, _MOST_READ):
            keys = [{"Values": list(wanted)} for wanted in page]
            while keys:
                request = {"DatabaseName": database.lower(), "TableName": name.lower(), "PartitionsToGet": keys}
                answer = self._call(self._client.batch_get_partition, **request)
                there.update({tuple(partition["Values"]): partition for partition in answer["Partitions"]})
                unread = answer.get("UnprocessedKeys") or []
                if len(unread) == len(keys):
                    raise RetryableError(f"{self._name}: {database}.{name}: no partition was returned; run again")
                keys = unread
        return there

    def _pages(self, items: Sequence[T], most: int) -> Iterator[Sequence[T]]:
        size = min(self._page, most)
        return (items[start : start + size] for start in range(0, len(items), size))

    def _names(self, request: str, field: str, **arguments: Any) -> list[str]:
        """Return the names in all pages of a listing."""
        pages = self._client.get_paginator(request).paginate(**arguments)
        listed = self._call(lambda: [entry for page in pages for entry in page[field]])
        return [str(entry["Name"]) for entry in listed]

    def _unless(self, code: str, request: Callable[..., Any], **arguments: Any) -> Any:
        """Return the answer of a request, or None if it fails with this error code."""
        try:
            return self._call(request, **arguments)
        except _MissingError:
            if code == _MISSING:
                return None
            raise
        except _ExistsError:
            return None

    def _call(self, request: Callable[..., Any], **arguments: Any) -> Any:
        try:
            return request(**arguments)
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            if code == _MISSING:
                raise _MissingError(f"{self._name}: {error}") from error
            if code == _EXISTS:
                raise _ExistsError(f"{self._name}: {error}") from error
            raise _refusal(self._name, code, error) from error
        except BotoCoreError as error:
            raise _failure(self._name, error) from error

    def _missing(self, database: str, name: str) -> UserError:
        return UserError(f"{self._name}: there is no table {database}.{name}", table=f"{database}.{name}")


class _MissingError(UserError):
    """The database, table or partition of a request does not exist."""


class _ExistsError(UserError):
    """The database or table of a request exists."""


def _refusal(name: str, code: str, error: ClientError) -> Exception:
    status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
    if code in _RETRYABLE or status >= _SERVER_ERROR:
        return RetryableError(f"{name}: {error}; run again")
    return UserError(f"{name}: {error}")


def _failure(name: str, error: Exception) -> Exception:
    """Return the error for a request without an answer."""
    if isinstance(error, NoRegionError):
        return UserError(
            f"{name}: no region is configured: set the option hoodie.aws.glue.region, or AWS_DEFAULT_REGION"
        )
    if isinstance(error, (NoCredentialsError, PartialCredentialsError)):
        return UserError(
            f"{name}: {error}; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or run with a profile or a role of AWS"
        )
    if isinstance(error, (ConnectionError, HTTPClientError)):
        return RetryableError(f"{name}: {error}")
    return UserError(f"{name}: {error}")


def _of_catalog(catalog: str, params: Mapping[str, Any], **_: Any) -> dict[str, Any]:
    return {"CatalogId": catalog, **params}


def _filled(values: Iterable[str]) -> tuple[str, ...]:
    return tuple(value or DEFAULT_PARTITION for value in values)


def _kept(partition: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in partition.items() if key in PARTITION_FIELDS}
