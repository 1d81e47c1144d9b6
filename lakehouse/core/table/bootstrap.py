"""Make a table from a folder of Parquet files: `Table.bootstrap`.

    hidden properties        the table exists for this operation only (`storage.unpublished`)
    skeleton files           of the partitions with mode metadata, in one commit
    bulk inserts             of the partitions with mode full, one commit for some folders
    metadata table           if the options switch it on
    hoodie.properties        now the table is visible, complete

A run that was killed is continued by the same call, which skips the folders that are done.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from lakehouse.core.engine.adapters import session_engine
from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.engine.progress import ProgressObserver, Stage, observed_stage
from lakehouse.core.env import Env
from lakehouse.core.format.avro.schema import arrow_to_avro
from lakehouse.core.operations.commit.precondition import Precondition
from lakehouse.core.operations.commit.results import Committed, Conflict
from lakehouse.core.operations.create.create import create_table
from lakehouse.core.operations.create.declare import TableDeclaration, declared_properties
from lakehouse.core.operations.load.table import LoadedTable, load_table, stage_of, stored_options
from lakehouse.core.operations.metadata.rebuild import rebuild_metadata
from lakehouse.core.operations.placement.protocol import WriteRequest
from lakehouse.core.operations.write.bootstrap import (
    bootstrap_metadata,
    bootstrap_properties,
    folder_batches,
    journal_folder,
    location_of,
    source_files,
    source_schema,
)
from lakehouse.core.operations.write.write import write
from lakehouse.core.planning.bootstrap import BootstrapMode, BootstrapPlan, SourceFolder, plan_bootstrap
from lakehouse.core.state.table_config import parse_table_config
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.storage.unpublished import UnpublishedStorage
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.core.timeline.table_properties import read_properties
from lakehouse.errors import ConflictError, UserError, nearest
from lakehouse.model.commit import Operation
from lakehouse.model.display import Readable, Shown, count_text, sentence
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.options.policies import Policies

logger = logging.getLogger(__name__)

#: The property with the arguments of the bootstrap, and the extra metadata with the folders of a bulk insert.
_REQUEST, _FOLDERS = "lakehouse.bootstrap.request", "lakehouse.bootstrap.folders"
#: Bytes of source files that one bulk insert copies.
_COPY_BYTES = 512 << 20
_HIVE_STYLE = "hoodie.datasource.write.hive_style_partitioning"
_URL_ENCODE = "hoodie.datasource.write.partitionpath.urlencode"


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapRequest:
    """The arguments of a bootstrap that decide its result.

    Attributes:
        source: The location of the Parquet files.
        mode: `metadata` leaves the rows in the source files, `full` copies them.
        partition_pattern: A regular expression for whole partition paths: only the partitions that it matches have
            `mode`, all others have the other mode. Empty for all partitions.
        declaration: The declaration of the table. Without partition columns, folders `column=value` name them.
    """

    source: str
    mode: str
    partition_pattern: str
    declaration: TableDeclaration


@dataclass(frozen=True, slots=True, kw_only=True)
class Bootstrapped(Readable):
    """The result of a bootstrap; rows are counted by mode, and only if this call wrote them."""

    location: str
    metadata_partitions: int
    full_partitions: int
    files: int
    metadata_rows: int
    full_rows: int

    def _shown(self) -> Shown:
        line = sentence(
            f"table {self.location}: {count_text(self.metadata_partitions, 'partition')} by metadata",
            f"{count_text(self.full_partitions, 'partition')} copied",
            count_text(self.files, "source file"),
        )
        return Shown(line, {"metadata rows": self.metadata_rows, "full rows": self.full_rows})


def bootstrap(env: Env, request: BootstrapRequest, *, storage_options: Mapping[str, str] | None = None) -> Bootstrapped:
    """Make the table of `env`, or continue an earlier call with the same arguments that did not end.

    Raises:
        UserError: There is a table at the location, the source has no partitions of Parquet files, a row has no key, or
            the earlier call had other arguments.
        UnsupportedError: The index of the table needs copied rows.
        ConflictError: Another process bootstraps the table at the same time.
    """
    source = open_storage(request.source, storage_options or {}, follow_links=True)
    mode = _mode(request.mode)
    if read_properties(env.storage) is not None:
        raise UserError(
            f"{env.storage.root} is already a table. Bootstrap into an empty location, or drop the table first",
            location=env.storage.root,
        )
    _refuse_overlap(env.storage.root, source.root)
    plan = plan_bootstrap(
        source_files(source), _fields(request.declaration), mode, request.partition_pattern, source.root
    )
    schema = source_schema(source, plan)
    hidden = UnpublishedStorage(env.storage)
    inner = replace(env, storage=hidden)
    _create(inner, request, plan, source, schema)
    table = load_table(inner)
    policies = parse_options({**stored_options(table.config), **request.declaration.call_options()})
    engine = session_engine(None, policies.write.memory_budget_bytes)
    metadata_rows = bootstrap_metadata(table, engine, policies, source, plan)
    full_rows = _copy(table, policies, source, plan, schema)
    if policies.transaction.metadata.enable:
        rebuild_metadata(table.refresh(), policies, engine)
    delete_leftovers(env.storage, [file.path for file in env.storage.list(journal_folder())])
    hidden.publish()
    return Bootstrapped(
        location=env.storage.root,
        metadata_partitions=len(plan.of_mode(BootstrapMode.METADATA)),
        full_partitions=len(plan.of_mode(BootstrapMode.FULL)),
        files=sum(len(folder.files) for folder in plan.folders),
        metadata_rows=metadata_rows,
        full_rows=full_rows,
    )


def _mode(text: str) -> BootstrapMode:
    if text.lower() not in tuple(BootstrapMode):
        raise UserError(
            f"mode={text!r} is not one of {', '.join(BootstrapMode)}.{nearest(text.lower(), tuple(BootstrapMode))}",
            argument="mode",
        )
    return BootstrapMode(text.lower())


def _fields(declaration: TableDeclaration) -> tuple[str, ...]:
    """Return the partition columns. Raises UserError for a TIMESTAMP column, whose folders are formatted."""
    timestamp = next((entry for entry in declaration.partition_by if entry.upper().endswith(":TIMESTAMP")), None)
    if timestamp is not None:
        raise UserError(
            f"partition_by={timestamp}: folders of a source contain values, not formatted times; give the column alone",
            argument="partition_by",
        )
    return tuple(entry.partition(":")[0] for entry in declaration.partition_by)


def _refuse_overlap(table: str, source: str) -> None:
    first, second = f"{table.rstrip('/')}/", f"{source.rstrip('/')}/"
    if first.startswith(second) or second.startswith(first):
        raise UserError(
            f"the table {table} and the source {source} contain each other; services of the table would treat source "
            "files as their own. Choose a location that is not in the source",
            location=table,
        )


def _create(env: Env, request: BootstrapRequest, plan: BootstrapPlan, source: Storage, schema: pa.Schema) -> None:
    """Create the hidden properties, or check that they are of an earlier call with the same arguments."""
    declaration = request.declaration
    missing = next((name for name in declaration.named_columns if name not in schema.names), None)
    if missing is not None:
        raise UserError(
            f"the files of {source.root} have no column {missing!r}.{nearest(missing, schema.names)} Their columns are "
            f"{', '.join(schema.names)}",
            column=missing,
        )
    declared = replace(
        declaration,
        partition_by=plan.fields,
        schema=arrow_to_avro(schema, table=declaration.name),
        options={
            **declaration.options,
            _HIVE_STYLE: str(plan.hive_style).lower(),
            _URL_ENCODE: str(plan.url_encode).lower(),
        },
    )
    properties = declared_properties(declared)
    layout = parse_table_config(properties, env.storage.root).layout
    properties |= bootstrap_properties(source, plan, has_types=layout.has_completion_times)
    properties[_REQUEST] = json.dumps(
        {"source": location_of(source), "mode": request.mode, "pattern": request.partition_pattern}
    )
    stored = read_properties(env.storage)
    if stored is None:
        create_table(env, properties, exist_ok=True)
        return
    ignored = {"hoodie.table.metadata.partitions", "hoodie.table.metadata.partitions.inflight"}
    differs = [key for key, value in properties.items() if key not in ignored and stored.get(key) != value]
    if differs:
        raise UserError(
            f"{env.storage.root} has an unfinished bootstrap with other arguments: {differs[0]} is "
            f"{stored.get(differs[0])!r} there and {properties[differs[0]]!r} here. Repeat the call with the earlier "
            "arguments, or delete the location",
            location=env.storage.root,
        )


def _copy(table: LoadedTable, policies: Policies, source: Storage, plan: BootstrapPlan, schema: pa.Schema) -> int:
    """Copy the folders of mode full that no commit contains yet; return the number of rows."""
    folders = plan.of_mode(BootstrapMode.FULL)
    stage = stage_of(table.refresh(), "copy of partitions", "partition", [folder.size_bytes for folder in folders])
    # The metadata table is built at the end, from all files.
    transaction = replace(policies.transaction, metadata=replace(policies.transaction.metadata, enable=False))
    policies = replace(policies, transaction=transaction)
    rows = 0
    with observed_stage(stage) as running:
        while some := _next_folders(table := table.refresh(), folders):
            batches = folder_batches(source, some, schema)
            rows += _insert(table, policies, some, pa.RecordBatchReader.from_batches(schema, batches))
            count, size = len(some), sum(folder.size_bytes for folder in some)
            running.report(partial(_advance, stage, count, size))
    return rows


def _advance(stage: Stage, count: int, size: int, observer: ProgressObserver) -> None:
    observer.advanced(stage, count, size)


def _next_folders(table: LoadedTable, folders: Sequence[SourceFolder]) -> list[SourceFolder]:
    """Return the folders of the next bulk insert: some that no commit contains yet."""
    done: set[str] = set()
    for _, metadata in table.store.summaries(table.timeline.writes().by_completion()):
        done.update(json.loads(metadata.extra.get(_FOLDERS, "[]")))
    some: list[SourceFolder] = []
    size = 0
    for folder in folders:
        if folder.path not in done and size < _COPY_BYTES:
            some.append(folder)
            size += folder.size_bytes
    return some


def _insert(table: LoadedTable, policies: Policies, folders: Sequence[SourceFolder], rows: pa.RecordBatchReader) -> int:
    """Copy some folders in one commit, unless another process copied folders since `table` was loaded."""
    request = WriteRequest(
        operation=Operation.BULK_INSERT,
        frame=rows,
        extra={_FOLDERS: json.dumps([folder.path for folder in folders])},
        allow_empty=True,
        precondition=Precondition(timeline=table.timeline, marks={_FOLDERS: None}),
    )
    outcome = write(table, LocalEngine(), policies, request)
    if isinstance(outcome, Conflict):
        raise ConflictError(
            f"{table.env.storage.root}: another process bootstraps the table: {outcome.reason}",
            winner=outcome.winner.requested,
        )
    return outcome.rows if isinstance(outcome, Committed) else 0
