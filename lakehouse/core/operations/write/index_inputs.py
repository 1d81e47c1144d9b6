"""What the indexes of the metadata table need to know of a write: found by tasks before the lock is taken (MDT-8).

secondary index   the values of the touched file groups before the write and after it
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial

from lakehouse.core.files.secondary_keys import IndexedColumn, IndexedGroup, write_changed_keys
from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.core.metadata.definitions import read_definitions
from lakehouse.core.metadata.place import listed_partitions
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.core.operations.write.attempt import WriteAttempt
from lakehouse.model.commit import CommitMetadata, WriteStat
from lakehouse.model.files import FileSlice
from lakehouse.model.indexing import SECONDARY_PREFIX

#: File groups that one task compares.
_GROUPS_AT_ONCE = 8


def indexed_by_value(table: LoadedTable) -> tuple[str, ...]:
    """Return the secondary indexes of the table, as it was loaded, those that are being built included."""
    usable, building = listed_partitions(table.config.raw)
    return tuple(name for name in dict.fromkeys((*usable, *building)) if name.startswith(SECONDARY_PREFIX))


def index_inputs(attempt: WriteAttempt, metadata: CommitMetadata) -> Mapping[str, tuple[str, ...]]:
    """Return the files with the changed keys of each secondary index, by the name of its partition."""
    table, context = attempt.table, attempt.context
    names = indexed_by_value(table)
    if not names:
        return {}
    definitions = read_definitions(table.env.storage)
    groups = [*_written(metadata.stats, keeps=attempt.prepared.non_blocking), *_replaced(table, metadata)]
    tasks = [groups[start : start + _GROUPS_AT_ONCE] for start in range(0, len(groups), _GROUPS_AT_ONCE)]
    read = slice_context(table, context.schema, budget=context.policy.memory_budget_bytes)
    inputs = {}
    for name in names:
        if name not in definitions or not definitions[name].source_fields:
            # The guard refuses the commit, or drops the index.
            continue
        directory = f".hoodie/.staging/{attempt.instant.requested}/{name}"
        column = IndexedColumn(read=read, column=definitions[name].source_fields[0], directory=directory)
        found = attempt.engine.run(partial(write_changed_keys, column), tasks)
        inputs[name] = tuple(path for path in found if path is not None)
    return inputs


def _written(stats: Iterable[WriteStat], *, keeps: bool) -> list[IndexedGroup]:
    groups: dict[tuple[str, str], list[WriteStat]] = {}
    for stat in stats:
        if stat.path:
            groups.setdefault((stat.partition, stat.file_id), []).append(stat)
    return [_written_group(of_group, keeps=keeps) for of_group in groups.values()]


def _written_group(stats: list[WriteStat], *, keeps: bool) -> IndexedGroup:
    last = max(stats, key=lambda stat: len(stat.log_files))
    partition, file_id = last.partition, last.file_id
    base = parse_base_file(_name(last.path), partition, last.size_bytes)
    if base is not None:
        previous = parse_base_file(last.prev_base_file or "", partition, 0)
        after = FileSlice(partition=partition, file_id=file_id, base_instant=base.instant, base=base)
        if previous is None:
            return IndexedGroup(after=after)
        before = FileSlice(partition=partition, file_id=file_id, base_instant=previous.instant, base=previous)
        return IndexedGroup(before=before, after=after)
    base = parse_base_file(last.base_file, partition, 0)
    names = dict.fromkeys((*last.log_files, *(_name(stat.path) for stat in stats)))
    logs = [log for name in names if (log := parse_log_file(name, partition, 0)) is not None]
    logs.sort(key=lambda log: (log.instant, log.version, log.write_token))
    first = base.instant if base is not None else logs[0].instant
    written = {_name(stat.path) for stat in stats}
    after = FileSlice(partition=partition, file_id=file_id, base_instant=first, base=base, logs=tuple(logs))
    earlier = tuple(log for log in logs if log.name not in written)
    if base is None and not earlier:
        return IndexedGroup(after=after, keeps=keeps)
    return IndexedGroup(before=replace(after, logs=earlier), after=after, keeps=keeps)


def _replaced(table: LoadedTable, metadata: CommitMetadata) -> list[IndexedGroup]:
    """Return the file groups that the write replaces; their keys are removed."""
    gone = {(partition, file_id) for partition, ids in metadata.replaced.items() for file_id in ids}
    if not gone:
        return []
    slices = load_slices(table, sorted(metadata.replaced))
    return [IndexedGroup(before=piece) for piece in slices if (piece.partition, piece.file_id) in gone]


def _name(path: str) -> str:
    return path.rpartition("/")[2]
