"""TableWrites: the methods of a table that write rows.

A Spark DataFrame is processed on its session. Other rows become Arrow data (`input_rows`), which is processed in this
process. Both run the same operations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING, Any, Unpack

import pyarrow as pa

from lakehouse.core.engine.adapters import frame_engine, is_frame
from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.env import Env
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.operations.commit.results import Committed, Conflict, NothingToDo
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable, stored_options
from lakehouse.core.operations.read.queries import Query, ScanRequest
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.table import operations
from lakehouse.core.table.arguments import Outcome, WriteCall, option_texts, refuse_keys, require_stored_keys
from lakehouse.core.table.scan import TableScan
from lakehouse.core.table.source_batch import SourceBatch
from lakehouse.errors import ConflictError, SettingError, UserError
from lakehouse.model.commit import Operation
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.model.texts import text_list
from lakehouse.spec.options.declarations import service_of
from lakehouse.spec.options.parser import check_known
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.options.schema import NEW_COLUMN

if TYPE_CHECKING:
    # Imported when they are used first.
    from lakehouse.core.engine.protocol import Engine
    from lakehouse.core.operations.placement.protocol import WriteRequest
    from lakehouse.core.planning.statement import ClauseText
    from lakehouse.core.table.input_rows import InputRules
    from lakehouse.core.table.merge import MergeBuilder
    from lakehouse.core.table.statements import TableAccess


class TableWrites:
    """The write methods of `lakehouse.Table`."""

    def __init__(self, env: Env, policies: Policies, loaded: LoadedTable) -> None:
        self._env, self._policies, self._loaded = env, policies, loaded

    @property
    def location(self) -> str:
        """The URL or path of the table."""
        return self._env.storage.root

    @property
    def config(self) -> TableConfig:
        """The configuration in the properties of the table."""
        return self._loaded.config

    def refresh(self) -> LoadedTable:
        """Reload properties and timeline, and return the table. Commit metadata that was already read is reused."""
        self._loaded = self._loaded.refresh()
        return self._loaded

    def upsert(self, rows: Any, **call: Unpack[WriteCall]) -> Outcome:
        """Insert rows with new keys and update rows with stored keys, by the table's merge mode."""
        return self._write(Operation.UPSERT, rows, call)

    def insert(self, rows: Any, **call: Unpack[WriteCall]) -> Outcome:
        """Insert rows without key lookup; rows are added to small files first."""
        return self._write(Operation.INSERT, rows, call)

    def bulk_insert(self, rows: Any, **call: Unpack[WriteCall]) -> Outcome:
        """Insert rows into new files without key lookup; the fastest way to load many rows."""
        return self._write(Operation.BULK_INSERT, rows, call)

    def delete(self, keys: Any, **call: Unpack[WriteCall]) -> Outcome:
        """Delete rows by their keys.

        `keys` are rows with the record key columns, in any form that `upsert` takes, one record key (a string), or a
        list of record keys. Without partition columns in the rows, all partitions are searched. A table with several
        key or partition columns stores keys with names, as Hudi does: `"id:7"`, `"id:7,line:1"`.
        """
        if isinstance(keys, str):
            keys = [keys]
        if isinstance(keys, Sequence | Set) and all(isinstance(key, str) for key in keys):
            if not keys and not call.get("allow_empty"):
                reason = "the list of keys is empty, so there is no row to delete"
                return NothingToDo(code=NothingToDoReason.NO_CHANGES, reason=reason)
            require_stored_keys(keys, self._loaded)
            keys = pa.table({META_COLUMNS[2]: pa.array(text_list(keys, "keys"), pa.string())})
        elif not is_frame(keys) and not operations.has_rows(keys):
            raise refuse_keys(keys, self.refresh())
        return self._write(Operation.DELETE, keys, call)

    def delete_where(self, where: str, *, spark: Any = None, **call: Unpack[WriteCall]) -> Outcome:
        """Delete the rows that meet a condition; their keys are streamed from the files into the write.

        The write fails with ConflictError if another writer changes the files that were read. See `update` for `spark`.
        """
        return self._statement(_clause("delete", {}), where, spark, call)

    def update(
        self, set: Mapping[str, Any], where: str | None = None, *, spark: Any = None, **call: Unpack[WriteCall]
    ) -> Outcome:
        """Set columns of the rows that meet a condition, or of all rows.

        Args:
            set: Values by column: a string is an SQL expression over the columns of the row, such as `"price * 1.1"`
                or `"'text'"`; other values are literals.
            where: SQL condition on the rows.
            spark: Spark session whose executors read and write the rows, if the files to read have more bytes than
                `lakehouse.statement.driver.bytes`. Without it this process streams them.
            **call: See `WriteCall`.

        Returns:
            The commit, or `NothingToDo` if no row meets the condition. `ignored_updates` counts rows whose new ordering
            value is lower than the stored one: every reader of the table prefers the stored row.

        Raises:
            UserError: A name or a type does not fit, a value overflows, or the update changes a key or a partition.
            ConflictError: Another writer changed the files that were read, several times.
        """
        return self._statement(_clause("update", set), where, spark, call)

    # parameters: the names of both sides are part of the interface of deltalake
    def merge(
        self,
        source: Any,
        on: str | Sequence[str],
        *,
        source_alias: str = "source",
        target_alias: str = "target",
    ) -> MergeBuilder:
        """Return a MERGE of the source's rows; `execute` runs it in one commit.

        Args:
            source: Rows in any form that `upsert` takes, or a table or a scan of one. Rows that exceed a quarter of the
                memory budget are divided into local files by the columns that `on` compares. With a DataFrame, Spark's
                executors read and write all rows; if it and the files to read have at most
                `lakehouse.statement.driver.bytes`, this process does.
            on: SQL condition, such as `"target.id = source.id"`, or names of columns that are equal.
            source_alias: The name of the source in the texts of the statement.
            target_alias: The name of this table in the texts of the statement.
        """
        module = import_module("lakehouse.core.table.merge")
        builder: MergeBuilder = module.MergeBuilder(
            table=self._access(),
            source=source,
            on=on if isinstance(on, str) else tuple(text_list(on, "on", ordered=True)),
            source_alias=source_alias,
            target_alias=target_alias,
        )
        return builder

    def _access(self) -> TableAccess:
        module = import_module("lakehouse.core.table.statements")
        access: TableAccess = module.TableAccess(
            location=self.location,
            refresh=self.refresh,
            policies_of=self._policies_of,
            write=self._write_request,
        )
        return access

    def _policies_of(self, call: WriteCall) -> Policies:
        commit_metadata_of(call.get("commit_metadata"))
        return policies_of_call(self._policies, call)

    def _write_request(
        self, loaded: LoadedTable, policies: Policies, request: WriteRequest, engine: Engine | None
    ) -> Outcome:
        engine = engine or frame_engine(request.frame, policies.write.memory_budget_bytes)
        return settled(operations.write(loaded, engine, policies, request))

    # parameters: the statement, the session that runs it, and the call
    def _statement(self, clause: ClauseText, where: str | None, spark: Any, call: WriteCall) -> Outcome:
        """Run UPDATE or DELETE: a statement without a source."""
        merge = import_module("lakehouse.core.table.merge")
        loaded, policies = self.refresh(), self._policies_of(call)
        if table_schema(loaded) is None:
            raise UserError(f"{self.location}: the table has no rows yet, so there is nothing to {clause.verb}")
        run = merge.without_source(self._access(), loaded, policies, clause, where)
        outcome: Outcome = merge.run_on(spark, run, loaded, policies).execute(loaded, policies, call)
        return outcome

    def insert_overwrite(self, rows: Any, **call: Unpack[WriteCall]) -> Outcome:
        """Replace the partitions that occur in `rows` by the rows."""
        return self._write(Operation.INSERT_OVERWRITE, rows, call)

    def insert_overwrite_table(self, rows: Any, **call: Unpack[WriteCall]) -> Outcome:
        """Replace the whole table by `rows`."""
        return self._write(Operation.INSERT_OVERWRITE_TABLE, rows, call)

    def delete_partitions(
        self, partitions: str | Sequence[str], *, commit_metadata: Mapping[str, str] | None = None
    ) -> Outcome:
        """Delete whole partitions by their relative paths; raise UserError for a path that is not a partition."""
        paths = [path.strip("/") for path in text_list(partitions, "partitions", allow_empty=True)]
        table = self.refresh()
        stored = set(load_slices(table, paths).partitions.to_pylist())
        for partition in paths:
            if partition not in stored:
                raise UserError(f"{partition!r} is not a partition of {self.location}", partition=partition)
        request = operations.WriteRequest(
            operation=Operation.DELETE_PARTITION, partitions=tuple(paths), extra=commit_metadata_of(commit_metadata)
        )
        return settled(operations.write(table, LocalEngine(), self._policies, request))

    def _scan(
        self, table: LoadedTable, query: Query, columns: str | Sequence[str] | None, where: str | None
    ) -> TableScan:
        request = ScanRequest(
            query=query,
            columns=None if columns is None else text_list(columns, "columns", ordered=True),
            where=where,
            memory_budget_bytes=self._policies.write.memory_budget_bytes,
            skips_damage=self._policies.write.skips_damage,
            trusts_keys=self._policies.indexing.trusts_keys,
        )
        return TableScan(table=table, request=request)

    def _write(self, operation: Operation, rows: Any, call: WriteCall) -> Outcome:
        policies = policies_of_call(self._policies, call)
        batch = rows if isinstance(rows, SourceBatch) else self._batch(operation, rows, policies, call)
        batch.require(operation)
        request = operations.WriteRequest(
            operation=operation,
            frame=batch.rows,
            extra=commit_metadata_of(call.get("commit_metadata")),
            allow_empty=call.get("allow_empty", False),
            precondition=call.get("precondition"),
            columns=batch.columns,
            deletes_yield=batch.deletes_yield,
        )
        engine = frame_engine(batch.rows, policies.write.memory_budget_bytes)
        return settled(operations.write(self.refresh(), engine, policies, request))

    def _batch(self, operation: Operation, rows: Any, policies: Policies, call: WriteCall) -> SourceBatch:
        """Return rows of any kind in a form that an engine reads."""
        if is_frame(rows):
            return SourceBatch(rows)
        return operations.input_batch(rows, partial(self._input_rules, operation, policies, call))

    def _input_rules(self, operation: Operation, policies: Policies, call: WriteCall) -> InputRules:
        """Return how rows without declared types are converted."""
        table, policy = self.refresh(), policies.schema
        options = {**stored_options(table.config), **(call.get("options") or {})}
        return operations.InputRules(
            schema=table_schema(table),
            # Arrow data adds columns by default. A key of a dict is more often misspelt than new.
            adds_columns=policy.new_column != "add" or options.get(NEW_COLUMN, "").strip().lower() == "add",
            separates_absent=operation is Operation.UPSERT and policy.missing == "keep",
            budget_bytes=policies.write.memory_budget_bytes,
        )


def _clause(verb: str, values: Mapping[str, Any]) -> ClauseText:
    clause: ClauseText = import_module("lakehouse.core.table.merge").clause(verb, values)
    return clause


def policies_of_call(policies: Policies, call: WriteCall) -> Policies:
    """Return `policies` with the options of a write.

    Raises SettingError for an option of a table service, because it has no effect on the write.
    """
    options = call.get("options") or {}
    for key in options:
        if service := service_of(key):
            raise SettingError(
                f"option {key} is used by the service {service} only, which runs on its own, so it has no effect on a "
                "write. Store it with the table: Table.create(options=...), or give it to Table.open before the "
                "service runs",
                setting=key,
                service=service,
            )
    return with_overrides(policies, options)


def with_overrides(policies: Policies, options: Mapping[str, str]) -> Policies:
    """Return `policies` with options of a call, parsed together with the stored ones, because some depend on others."""
    if not options:
        return policies
    texts = option_texts(options)
    check_known(texts)
    return policies.override(texts)


def commit_metadata_of(given: Mapping[str, str] | None) -> dict[str, str]:
    """Return the extra metadata of a commit; raise UserError for a value that is not a string."""
    for key, value in (given or {}).items():
        if not isinstance(value, str):
            raise UserError(
                f"commit_metadata[{key!r}]={value!r} is of type {type(value).__name__}, but Hudi stores strings; write "
                f"{str(value)!r}",
                argument="commit_metadata",
            )
    return dict(given or {})


def settled(outcome: Committed | NothingToDo | Conflict) -> Outcome:
    """Return the outcome; raise ConflictError for a lost conflict."""
    if isinstance(outcome, Conflict):
        raise ConflictError(
            f"another writer won{f' {outcome.tries} times' if outcome.tries > 1 else ''}: {outcome.reason}; nothing "
            "was written, run the operation again",
            winner=outcome.winner.requested,
        )
    return outcome
