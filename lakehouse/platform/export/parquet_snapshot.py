"""Export a snapshot of a table to plain Parquet files, for programs that know nothing of tables.

    _lakehouse_export.json     the snapshot, and so the rows; created first
    <column>=<value>/part-...  the rows, in folders as Hive and Spark write them
    _lakehouse_export/<n>      journal: the task is done
    _SUCCESS                   created last: the export is complete

A repeated run continues: it skips the tasks that are done, and a task that runs again replaces its files by equal ones.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from functools import partial

import pyarrow as pa

from lakehouse.core.engine.adapters import session_engine
from lakehouse.core.engine.progress import observed_stage
from lakehouse.core.files.base.parquet_export import Copied, CopyContext, CopyTask, bins_of, copy_slices
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.operations.load.table import LoadedTable, stage_of
from lakehouse.core.rows.partition_path import DEFAULT_PARTITION, escape, parse_partition_path
from lakehouse.core.rows.stored_names import without_stored_names
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.errors import UserError
from lakehouse.model.attempt import Attempt
from lakehouse.model.display import Readable, Shown, count_text, sentence, size_text
from lakehouse.platform.export.snapshot import Snapshot, kept_snapshot, snapshot_reader, snapshot_schema
from lakehouse.spec.options.policies import Policies

MANIFEST, SUCCESS, _JOURNAL = "_lakehouse_export.json", "_SUCCESS", "_lakehouse_export"
_FILE_BYTES = 256 << 20
#: Bytes of stored files that one task reads.
_TASK_BYTES = 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ParquetSnapshot(Readable):
    """A complete export. `instant` is the newest write that it contains."""

    location: str
    instant: str
    files: int
    rows: int
    size_bytes: int
    partitions: int

    def _shown(self) -> Shown:
        line = sentence(
            f"export to {self.location}: {count_text(self.rows, 'row')}",
            count_text(self.files, "file"),
            size_text(self.size_bytes),
            count_text(self.partitions, "partition"),
        )
        return Shown(line, {"instant": self.instant})


def export_parquet(
    table: LoadedTable, policies: Policies, target: Storage, *, file_bytes: int = _FILE_BYTES
) -> ParquetSnapshot:
    """Write the newest version of a table to `target`, or continue an export that did not end.

    Partition columns are in the names of folders if they are strings, integers or dates. Otherwise, and with a global
    index, all files are in one folder and contain them.

    Raises:
        UserError: The location has other files, or the complete export of another version.
        MissingFileError: A clean removed files of the snapshot since the export began.
    """
    _check_target(table, target)
    snapshot = kept_snapshot(table, target, MANIFEST)
    schema = snapshot_schema(table, snapshot)
    folders = _hive_columns(table, schema)
    budget = policies.write.memory_budget_bytes
    columns = without_stored_names(
        pa.schema([f for f in schema if f.name not in folders and f.name not in META_COLUMNS])
    )
    context = CopyContext(
        read=snapshot_reader(table, snapshot, schema, budget // 2),
        columns=pa.schema([schema.field(name) for name in columns.names]),
        sort_by=(),
        target=target,
        file_bytes=file_bytes,
        budget_bytes=budget,
    )
    tasks = _tasks(table, snapshot, folders)
    done = _done(target)
    missing = [(number, task) for number, task in enumerate(tasks) if number not in done]
    sizes = [_size(task) for _, task in missing]
    engine = session_engine(None, budget)
    with observed_stage(stage_of(table, "export of files", "task", sizes)) as running, running.tasks(sizes):
        engine.run(partial(_copy, context), missing)
    done = _done(target)
    files = [file for number in range(len(tasks)) for file in done[number]]
    # Written after all files, and before the journals are deleted: from now on the export is complete.
    target.create(SUCCESS, json.dumps({"instant": snapshot.instant, "files": len(files)}).encode())
    return ParquetSnapshot(
        location=target.root,
        instant=snapshot.instant,
        files=len(files),
        rows=sum(file.rows for file in files),
        size_bytes=sum(file.size_bytes for file in files),
        partitions=len(snapshot.partitions),
    )


def _check_target(table: LoadedTable, target: Storage) -> None:
    own, other = f"{table.env.storage.root.rstrip('/')}/", f"{target.root.rstrip('/')}/"
    if own.startswith(other) or other.startswith(own):
        raise UserError(f"the export {target.root} and the table {table.env.storage.root} contain each other")
    files, directories = target.list_dir("")
    names = {file.name for file in files}
    if MANIFEST not in names and (names or directories):
        raise UserError(
            f"{target.root} is not empty, and its files are of no export; choose an empty location",
            location=target.root,
        )
    newest = table.timeline.writes().by_completion()
    if SUCCESS in names and newest and Snapshot.from_json(target.get(MANIFEST)).instant != newest[-1].requested:
        raise UserError(
            f"{target.root} has the complete export of an earlier version; delete it, or export to another location",
            location=target.root,
        )


def _hive_columns(table: LoadedTable, schema: pa.Schema) -> tuple[str, ...]:
    """Return the partition columns that names of folders can replace; none if a row may be in another partition."""
    keys = table.config.path_keys
    simple = all(kind == "SIMPLE" for kind in keys.partition_types)
    types = [schema.field(name).type for name in keys.partition_fields if name in schema.names]
    has_text = all(pa.types.is_string(t) or pa.types.is_integer(t) or pa.types.is_date32(t) for t in types)
    return keys.partition_fields if simple and has_text and len(types) == len(keys.partition_fields) else ()


def _tasks(table: LoadedTable, snapshot: Snapshot, folders: tuple[str, ...]) -> list[CopyTask]:
    if not folders:
        slices = [piece for pieces in snapshot.partitions.values() for piece in pieces]
        return list(bins_of("", slices, _TASK_BYTES))
    tasks: list[CopyTask] = []
    keys = table.config.keys
    for partition, of_partition in snapshot.partitions.items():
        # Hudi keeps the folders of a bootstrapped source, whatever the property of the table says.
        own = replace(keys, hive_style=partition.startswith(f"{folders[0]}="))
        values = parse_partition_path(partition, own)
        texts = [DEFAULT_PARTITION if value is None else escape(value) for value in values]
        folder = "/".join(f"{name}={text}" for name, text in zip(folders, texts, strict=True))
        tasks += bins_of(folder, of_partition, _TASK_BYTES)
    return tasks


def _size(task: CopyTask) -> int:
    return sum((piece.base.size_bytes if piece.base else 0) + piece.total_log_bytes for piece in task.slices)


def _copy(context: CopyContext, attempt: Attempt, numbered: tuple[int, CopyTask]) -> None:
    """Task: write the files of a task, then its journal."""
    number, task = numbered
    copied = copy_slices(context, attempt, task)
    context.target.put(f"{_JOURNAL}/{number:06d}.json", json.dumps([asdict(file) for file in copied]).encode())


def _done(target: Storage) -> dict[int, list[Copied]]:
    """Return the files of the tasks that are done, by the number of the task."""
    done = {}
    for file in target.list(_JOURNAL):
        try:
            records = json.loads(target.get(file.path))
        except NotFoundError:
            continue
        done[int(file.name.partition(".")[0])] = [Copied(**record) for record in records]
    return done
