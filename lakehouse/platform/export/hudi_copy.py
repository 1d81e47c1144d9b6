"""Copy a snapshot of a table into another table of Hudi: its rows, keys and options, in new base files.

    .hoodie/.aux/.lakehouse_bootstrap/0.json   the snapshot, and so the rows; created first
    bulk inserts                              one commit for some partitions
    metadata table                            if the options switch it on
    hoodie.properties                         now the table is visible, complete (see `storage.unpublished`)

The history is not copied: time travel and incremental reads begin with the copy. A repeated run continues.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import pyarrow as pa

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.engine.progress import ProgressObserver, Stage, observed_stage
from lakehouse.core.env import Env
from lakehouse.core.files.log.log_reader import SliceContext
from lakehouse.core.files.log.slice_reader import read_slice
from lakehouse.core.format.avro.schema import arrow_to_avro
from lakehouse.core.metadata.place import DEFINITIONS_KEY
from lakehouse.core.operations.commit.precondition import Precondition
from lakehouse.core.operations.commit.results import Committed, Conflict
from lakehouse.core.operations.create.create import create_table
from lakehouse.core.operations.load.schema_history import HISTORY_KEY
from lakehouse.core.operations.load.table import LoadedTable, load_table, stage_of, stored_options
from lakehouse.core.operations.metadata.rebuild import rebuild_metadata
from lakehouse.core.operations.placement.protocol import WriteRequest
from lakehouse.core.operations.write.write import write
from lakehouse.core.rows.stored_names import without_stored_names
from lakehouse.core.storage.unpublished import UnpublishedStorage
from lakehouse.core.timeline.table_properties import read_properties
from lakehouse.errors import ConflictError, UserError
from lakehouse.model.commit import Operation
from lakehouse.model.display import Readable, Shown, count_text, sentence
from lakehouse.model.files import FileSlice
from lakehouse.model.table_identity import TABLE_ID
from lakehouse.platform.export.snapshot import Snapshot, kept_snapshot, snapshot_reader, snapshot_schema
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.options.policies import Policies

_MANIFEST = ".hoodie/.aux/.lakehouse_bootstrap/0.json"
_PARTITIONS = "lakehouse.export.partitions"
_COPY_BYTES = 512 << 20
#: Properties of the table that do not hold for its copy.
_OWN = (TABLE_ID, DEFINITIONS_KEY, HISTORY_KEY, "hoodie.table.metadata.partitions", "hoodie.table.create.schema")
_OWN_STARTS = ("hoodie.bootstrap.", "hoodie.table.metadata.partitions", "lakehouse.bootstrap.")


@dataclass(frozen=True, slots=True, kw_only=True)
class TableCopy(Readable):
    """A complete copy. `instant` is the newest write in it, and `rows` the number of rows that this run copied."""

    location: str
    instant: str
    partitions: int
    rows: int

    def _shown(self) -> Shown:
        line = sentence(f"copy in {self.location}: {count_text(self.partitions, 'partition')}", f"{self.rows:,} rows")
        return Shown(line, {"instant": self.instant})


def export_hudi(table: LoadedTable, target: Env) -> TableCopy:
    """Copy the newest version of a table to the empty location of `target`, or continue a copy that did not end.

    Raises:
        UserError: There is a table or another copy at the location.
        MissingFileError: A clean removed files of the snapshot since the copy began.
        ConflictError: Another process makes the copy at the same time.
    """
    root = target.storage.root
    own, other = f"{table.env.storage.root.rstrip('/')}/", f"{root.rstrip('/')}/"
    if own.startswith(other) or other.startswith(own):
        raise UserError(f"the copy {root} and the table {table.env.storage.root} contain each other", location=root)
    if read_properties(target.storage) is not None:
        raise UserError(f"{root} is already a table; choose an empty location", location=root)
    hidden = UnpublishedStorage(target.storage)
    inner = replace(target, storage=hidden)
    if read_properties(hidden) is None:
        files, directories = target.storage.list_dir("")
        if files or set(directories) - {".hoodie"}:
            raise UserError(f"{root} is not empty; choose an empty location", location=root)
    snapshot = kept_snapshot(table, target.storage, _MANIFEST)
    schema = snapshot_schema(table, snapshot)
    if read_properties(hidden) is None:
        create_table(inner, _properties(table, schema), exist_ok=True)
    copy = load_table(inner, allowed_functions=table.config.allowed_functions)
    policies = parse_options(stored_options(copy.config))
    rows = _copy(table, copy, policies, snapshot, schema)
    if policies.transaction.metadata.enable:
        rebuild_metadata(copy.refresh(), policies, LocalEngine())
    hidden.publish()
    target.storage.delete_many([_MANIFEST])
    return TableCopy(location=root, instant=snapshot.instant, partitions=len(snapshot.partitions), rows=rows)


def _properties(table: LoadedTable, schema: pa.Schema) -> dict[str, str]:
    """Return the properties of the table with its present columns, for the copy."""
    held = {
        key: value for key, value in table.config.raw.items() if key not in _OWN and not key.startswith(_OWN_STARTS)
    }
    return {**held, "hoodie.table.create.schema": arrow_to_avro(without_stored_names(schema), table=table.config.name)}


def _copy(table: LoadedTable, copy: LoadedTable, policies: Policies, snapshot: Snapshot, schema: pa.Schema) -> int:
    """Copy the partitions that no commit contains yet; return the number of rows."""
    transaction = replace(policies.transaction, metadata=replace(policies.transaction.metadata, enable=False))
    policies = replace(policies, transaction=transaction)
    reader = snapshot_reader(table, snapshot, schema, policies.write.memory_budget_bytes // 2)
    sizes = [_size(slices) for slices in snapshot.partitions.values()]
    stage = stage_of(copy, "copy of partitions", "partition", sizes)
    rows = 0
    with observed_stage(stage) as running:
        while some := _next_partitions(copy := copy.refresh(), snapshot):
            rows += _insert(copy, policies, some, _reader(reader, [snapshot.partitions[name] for name in some], schema))
            running.report(partial(_advance, stage, len(some), sum(_size(snapshot.partitions[name]) for name in some)))
    return rows


def _advance(stage: Stage, count: int, size: int, observer: ProgressObserver) -> None:
    observer.advanced(stage, count, size)


def _next_partitions(copy: LoadedTable, snapshot: Snapshot) -> list[str]:
    done: set[str] = set()
    for _, metadata in copy.store.summaries(copy.timeline.writes().by_completion()):
        done.update(json.loads(metadata.extra.get(_PARTITIONS, "[]")))
    some: list[str] = []
    size = 0
    for name, slices in snapshot.partitions.items():
        if name not in done and size < _COPY_BYTES:
            some.append(name)
            size += _size(slices)
    return some


def _size(slices: Sequence[FileSlice]) -> int:
    return sum((piece.base.size_bytes if piece.base else 0) + piece.total_log_bytes for piece in slices)


def _reader(
    context: SliceContext, partitions: Sequence[Sequence[FileSlice]], schema: pa.Schema
) -> pa.RecordBatchReader:
    plain = without_stored_names(schema)

    def batches() -> Iterator[pa.RecordBatch]:
        for slices in partitions:
            for piece in slices:
                for _, rows in read_slice(context, piece, schema):
                    yield from rows.select(plain.names).cast(plain).combine_chunks().to_batches()

    return pa.RecordBatchReader.from_batches(plain, batches())


def _insert(copy: LoadedTable, policies: Policies, names: Sequence[str], rows: pa.RecordBatchReader) -> int:
    request = WriteRequest(
        operation=Operation.BULK_INSERT,
        frame=rows,
        extra={_PARTITIONS: json.dumps(list(names))},
        allow_empty=True,
        precondition=Precondition(timeline=copy.timeline, marks={_PARTITIONS: None}),
    )
    outcome = write(copy, LocalEngine(), policies, request)
    if isinstance(outcome, Conflict):
        raise ConflictError(
            f"{copy.env.storage.root}: another process makes the copy: {outcome.reason}",
            winner=outcome.winner.requested,
        )
    return outcome.rows if isinstance(outcome, Committed) else 0
