"""Make skeleton files for the Parquet files of a source, and commit them as Hudi's bootstrap does (TL-9.7).

    .hoodie/.aux/.lakehouse_bootstrap/<n>.json   journal: the skeleton files of a folder, when they are complete
    <partition>/<file>                          skeleton files; a repeated task replaces a file with an equal one
    .hoodie/.aux/.bootstrap/...                 the bootstrap index
    00000000000001.commit                       under the lock

The table is not published meanwhile (`storage.unpublished`), so a crash at any line leaves no visible state. The next
run skips the folders with a journal whose source files are unchanged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import pyarrow as pa

from lakehouse.core.engine.progress import observed_stage
from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.base.base_reader import align
from lakehouse.core.files.base.skeleton_writer import (
    SKELETON_SCHEMA,
    SkeletonTask,
    source_columns,
    source_rows,
    write_skeleton,
)
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.format.avro.schema import META_COLUMNS, arrow_to_avro
from lakehouse.core.format.bootstrap_index import (
    FILE_INDEX,
    INDEX_CLASS,
    INDEX_INFO,
    INDEX_TYPE,
    PARTITION_INDEX,
    SOURCE_PROPERTY,
    SourceFile,
    encode_partition,
    encode_source,
    encode_summary,
    file_key,
    partition_key,
)
from lakehouse.core.format.hfile.entries import ENTRIES
from lakehouse.core.format.hfile.writer import SCANNED, HFileWriter
from lakehouse.core.operations.load.table import LoadedTable, stage_of
from lakehouse.core.operations.load.write_settings import require_writes
from lakehouse.core.planning.bootstrap import BootstrapMode, BootstrapPlan, SourceFolder, SourceParquet
from lakehouse.core.planning.schema import normalise
from lakehouse.core.storage.concurrent_requests import send_all
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import CommitMetadata, Operation, WriteStat
from lakehouse.model.index_type import stored_index_type
from lakehouse.model.instant import METADATA_BOOTSTRAP, Action
from lakehouse.spec.options.policies import Policies

_JOURNAL = ".hoodie/.aux/.lakehouse_bootstrap"
_FOLDERS_AT_ONCE = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class _Skeleton:
    """A skeleton file that was written, and its source file."""

    partition: str
    file_id: str
    path: str
    rows: int
    size_bytes: int
    source: SourceParquet


def source_files(source: Storage) -> list[SourceParquet]:
    """Return all files below a source. Raises UserError for a source that is a table of Hudi."""
    files = source.list("")
    if any(file.path.startswith(".hoodie/") for file in files):
        raise UserError(
            f"{source.root} is a table of Hudi; open it, or copy its newest version by `lakehouse export hudi`",
            location=source.root,
        )
    return [SourceParquet(path=file.path, size_bytes=file.size_bytes, modified_ms=file.modified_ms) for file in files]


def source_schema(source: Storage, plan: BootstrapPlan) -> pa.Schema:
    """Return the data columns of all files in the types that tables store; columns of folders are strings.

    Raises UserError for files whose columns have different types, and for a base file of Hudi.
    """
    paths = [(folder, file.path) for folder in plan.folders for file in folder.files]

    def of_file(item: tuple[SourceFolder, str]) -> pa.Schema:
        folder, path = item
        task = SkeletonTask(number=0, source_path=path, partition=folder.path, values=folder.values)
        return normalise(source_columns(source, task))

    whole = pa.schema([])
    for (_, path), schema in zip(paths, send_all(source, of_file, paths), strict=True):
        repeated = next((name for name in schema.names if name in META_COLUMNS), None)
        if repeated is not None:
            raise UserError(
                f"{source.root}/{path} has the column {repeated}, so it belongs to a table of Hudi. Open that table",
                path=path,
            )
        try:
            whole = pa.unify_schemas([whole, schema])
        except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
            raise UserError(
                f"{source.root}/{path} has a column with another type than the files before it: {error}. Copy the "
                "files with one type for each column first",
                path=path,
            ) from error
    return whole


def bootstrap_properties(source: Storage, plan: BootstrapPlan, *, has_types: bool) -> dict[str, str]:
    """Return the properties of a table with skeleton files; none if the plan copies all rows.

    `has_types` is whether the table version names the kind of the bootstrap index, and not its Java class.
    """
    if not plan.of_mode(BootstrapMode.METADATA):
        return {}
    index = INDEX_TYPE if has_types else INDEX_CLASS
    return {SOURCE_PROPERTY: location_of(source), index[0]: index[1], "hoodie.bootstrap.index.enable": "true"}


def location_of(source: Storage) -> str:
    """Return the location of a source as Hudi reads it: a local path without scheme, or a URL."""
    root = source.root
    return root if root.startswith(("/", "memory://")) else source.native("x").removesuffix("/x")


def bootstrap_metadata(
    table: LoadedTable, engine: Engine, policies: Policies, source: Storage, plan: BootstrapPlan
) -> int:
    """Write and commit the skeleton files of the plan; return the number of rows. A repeated call has no effect.

    Raises:
        UserError: A row has no key, or belongs to another partition than its folder.
        UnsupportedError: The index of the table needs copied rows.
    """
    folders = plan.of_mode(BootstrapMode.METADATA)
    done = table.timeline.find(METADATA_BOOTSTRAP)
    if not folders or (done is not None and done.is_completed):
        return 0
    _require_keys(table)
    context = _context(table, policies)
    first, tasks = 0, list[tuple[int, SourceFolder, int]]()
    for number, folder in enumerate(folders):
        tasks.append((number, folder, first))
        first += len(folder.files)
    written: list[_Skeleton] = []
    sizes = [folder.size_bytes for folder in folders]
    with observed_stage(stage_of(table, "bootstrap of partitions", "partition", sizes)) as running:
        for start in range(0, len(tasks), _FOLDERS_AT_ONCE):
            some = tasks[start : start + _FOLDERS_AT_ONCE]
            with running.tasks([folder.size_bytes for _, folder, _ in some]):
                for skeletons in engine.run(partial(_bootstrap_folder, context, source), some):
                    written += skeletons
    _write_index(table, source, written)
    _commit(table, policies, source, plan, written)
    return sum(skeleton.rows for skeleton in written)


def _require_keys(table: LoadedTable) -> None:
    require_writes(table)
    index = stored_index_type(table.config.raw)
    if index.hashes_keys:
        raise UnsupportedError(
            f"{table.env.storage.root}: with the index {index} the file of a row follows from its key, which is not so "
            "in the source files. Bootstrap with mode full, or choose another index, such as BLOOM"
        )
    if table.config.keys.generates_keys:
        raise UnsupportedError(
            f"{table.env.storage.root}: skeleton files need a record key from columns; give record_key (--record-key), "
            "or bootstrap with mode full, which generates keys"
        )


def _context(table: LoadedTable, policies: Policies) -> WriteContext:
    config = table.config
    return WriteContext(
        storage=table.env.storage,
        clock=table.env.clock,
        instant=METADATA_BOOTSTRAP,
        table=config.name,
        schema=pa.schema([]),
        avro_schema=SKELETON_SCHEMA,
        keys=config.keys,
        table_layout=config.layout,
        rule=config.merge_rule,
        policy=policies.write,
        bytes_per_row=1.0,
        indexed=(),
    )


def _bootstrap_folder(
    context: WriteContext, source: Storage, attempt: Attempt, task: tuple[int, SourceFolder, int]
) -> list[_Skeleton]:
    """Task: return the skeleton files of a folder, from its journal or written now."""
    number, folder, first = task
    path = f"{_JOURNAL}/{number:06d}.json"
    journal = _read_journal(context.storage, path, folder)
    if journal is not None:
        return journal
    skeletons = []
    for at, file in enumerate(folder.files, first):
        work = SkeletonTask(number=at, source_path=file.path, partition=folder.path, values=folder.values)
        stat = write_skeleton(context, source, attempt, work)
        skeletons.append(
            _Skeleton(
                partition=folder.path,
                file_id=stat.file_id,
                path=stat.path,
                rows=stat.num_writes,
                size_bytes=stat.size_bytes,
                source=file,
            )
        )
    context.storage.put(path, json.dumps([asdict(skeleton) for skeleton in skeletons]).encode())
    return skeletons


def _read_journal(storage: Storage, path: str, folder: SourceFolder) -> list[_Skeleton] | None:
    """Return the skeleton files of an earlier run; None if it did not complete the folder, or a file has changed."""
    try:
        records: list[dict[str, Any]] = json.loads(storage.get(path))
    except NotFoundError:
        return None
    skeletons = [_Skeleton(**{**record, "source": SourceParquet(**record["source"])}) for record in records]
    return skeletons if [skeleton.source for skeleton in skeletons] == list(folder.files) else None


def _write_index(table: LoadedTable, source: Storage, written: Sequence[_Skeleton]) -> None:
    """Write the two HFiles of the bootstrap index."""
    base, sources = location_of(source), dict[str, dict[str, SourceFile]]()
    files: dict[bytes, bytes] = {}
    for skeleton in written:
        origin = SourceFile(
            uri=_uri(base, skeleton.source.path),
            size_bytes=skeleton.source.size_bytes,
            modified_ms=skeleton.source.modified_ms,
            folder=skeleton.partition,
        )
        sources.setdefault(skeleton.partition, {})[skeleton.file_id] = origin
        files[file_key(skeleton.partition, skeleton.file_id)] = encode_source(skeleton.partition, origin)
    partitions = {partition_key(name): encode_partition(name, name, own) for name, own in sources.items()}
    created_ms = table.env.clock.now_ms()
    for path, entries in ((PARTITION_INDEX, partitions), (FILE_INDEX, files)):
        summary = encode_summary(base, created_ms, list(entries))
        table.env.storage.put(path, _hfile(entries, created_ms, {INDEX_INFO: summary}))


def _hfile(entries: Mapping[bytes, bytes], created_ms: int, info: Mapping[str, bytes]) -> bytes:
    pieces: list[bytes] = []
    writer = HFileWriter(pieces.append, schema="", created_ms=created_ms, layout=SCANNED, bounds=False, info=info)
    keys = sorted(entries)
    writer.add(pa.table([pa.array(keys), pa.array([entries[key] for key in keys])], schema=ENTRIES))
    writer.close()
    return b"".join(pieces)


def _uri(base: str, path: str) -> str:
    return f"file:{base}/{path}" if base.startswith("/") else f"{base}/{path}"


def _commit(
    table: LoadedTable, policies: Policies, source: Storage, plan: BootstrapPlan, written: Sequence[_Skeleton]
) -> None:
    """Commit the skeleton files, unless another process has done so."""
    config = table.config
    schema = source_schema(source, plan)
    metadata = CommitMetadata(
        operation=Operation.BOOTSTRAP.value,
        stats=tuple(_stat(skeleton) for skeleton in written),
        extra={"schema": arrow_to_avro(schema, table=config.name)},
    )
    action = Action.DELTACOMMIT if config.is_merge_on_read else Action.COMMIT
    with table_lock(table.env, policies.transaction) as lock:
        now = table.reload()
        current = now.timeline.find(METADATA_BOOTSTRAP)
        if current is not None and current.is_completed:
            return
        lock.check()
        instant = now.store.begin(METADATA_BOOTSTRAP, action)
        inflight = config.layout.encode_inflight(CommitMetadata(operation=Operation.BOOTSTRAP.value))
        instant = now.store.start(instant, inflight)
        timeline = now.store.load()
        lock.check()
        now.store.complete(instant, timeline, config.layout.encode_commit(metadata), lock)


def _stat(skeleton: _Skeleton) -> WriteStat:
    return WriteStat(
        partition=skeleton.partition,
        file_id=skeleton.file_id,
        path=skeleton.path,
        num_writes=skeleton.rows,
        num_inserts=skeleton.rows,
        size_bytes=skeleton.size_bytes,
    )


def folder_batches(source: Storage, folders: Iterable[SourceFolder], schema: pa.Schema) -> Iterable[pa.RecordBatch]:
    """Yield rows from folders in the columns of `schema`, for a copy into the table."""
    for folder in folders:
        for file in folder.files:
            task = SkeletonTask(number=0, source_path=file.path, partition=folder.path, values=folder.values)
            for rows in source_rows(source, task, None):
                yield from align(rows, schema, rows.num_rows).combine_chunks().to_batches()


def journal_folder() -> str:
    """Return the folder of the journals; it is removed when the table is complete."""
    return _JOURNAL
