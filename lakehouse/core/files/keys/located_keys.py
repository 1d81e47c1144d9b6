"""Find the staged rows whose keys have a stored location, and match them with the rows of these file groups (MDT-4).

    locate   staged keys -> record index -> one file per task: key, run, row; one or more batches per file group
    tag      key column of a located file group -> matches file, like for other indexes

On a merge-on-read table the rows of a located key are appended to a log without reading the file group, unless a stored
value decides whether they move.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.files.keys.changed_keys import RecordLocations
from lakehouse.core.files.keys.key_lookup import KEY, Entries, StagedKeys, entry_parts, find, staged_keys
from lakehouse.core.files.keys.key_matches import IN_PLACE, EntryIndex, MatchCollector, Matches
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.index.write_tasks import LocatedRows, StagedEntry, TagResult, TagTask
from lakehouse.model.attempt import Attempt

LOCATED = pa.schema([(KEY, pa.string()), ("run", pa.dictionary(pa.int32(), pa.string())), ("row", pa.int64())])
Group = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocateTask:
    """Look the keys of `entries` up in the record index, or in the index of `partition` if each partition has one."""

    entries: tuple[StagedEntry, ...]
    partition: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LocatedKeys:
    """The result of a look-up: where the located rows of each file group are; `rows` keys have a location."""

    groups: Mapping[Group, LocatedRows]
    rows: int = 0


def plan_locating(entries: Sequence[StagedEntry], *, by_partition: bool) -> tuple[LocateTask, ...]:
    """Return one task per staged run, or per partition if each partition has its own record index."""
    tasks: dict[str, list[StagedEntry]] = {}
    for entry in sorted(entries, key=lambda e: (e.run, e.offset)):
        tasks.setdefault(entry.partition if by_partition else entry.run, []).append(entry)
    return tuple(
        LocateTask(entries=tuple(of_task), partition=name if by_partition else None)
        for name, of_task in sorted(tasks.items())
    )


def locate(context: WriteContext, index: RecordLocations, attempt: Attempt, task: LocateTask) -> LocatedKeys:
    """Look the keys of a task up and write the rows with a location to the staging folder."""
    path = f"{context.staging}/located/{attempt.token}.arrow"
    batches: dict[Group, list[int]] = {}
    rows: dict[Group, int] = {}
    runs = tuple(sorted({entry.run for entry in task.entries}))
    partitions = None if task.partition is None else [task.partition]
    number = 0
    with ExitStack() as stack:
        writer: pa.ipc.RecordBatchFileWriter | None = None
        for part in entry_parts(task.entries, context.policy.memory_budget_bytes):
            keys = staged_keys(context, part).combine_chunks()
            locations = index.locations(keys, partitions)
            if locations.num_rows and writer is None:
                sink = stack.enter_context(context.storage.open_output(path))
                writer = stack.enter_context(pa.ipc.new_file(sink, LOCATED))
            for group, batch in _by_group(keys, locations, part, runs):
                assert writer is not None, "it was opened for the first location"
                writer.write_batch(batch)
                batches.setdefault(group, []).append(number)
                rows[group] = rows.get(group, 0) + batch.num_rows
                number += 1
    groups = {
        group: LocatedRows(path=path, batches=tuple(numbers), rows=rows[group]) for group, numbers in batches.items()
    }
    return LocatedKeys(groups=groups, rows=sum(rows.values()))


def tag_located(context: WriteContext, attempt: Attempt, task: TagTask) -> list[TagResult]:
    """Match the located rows of the task with the rows of its base files, and write the matches of each."""
    results = []
    for number, base in enumerate(task.bases):
        with MatchCollector(context, task.entries) as collector, ExitStack() as stack:
            if task.trusts_locations:
                first = 0
                for staged in located_keys(context, task, number):
                    collector.add(_trusted(staged, first))
                    first += len(staged.keys)
            else:
                reader = BaseFileReader(context.storage, base.path)
                stack.callback(reader.close)
                for staged in located_keys(context, task, number):
                    collector.add(find(context, base, reader, staged))
            results.append(collector.write(attempt, base))
    return results


def located_keys(context: WriteContext, task: TagTask, number: int) -> Iterator[StagedKeys]:
    """Yield the keys that are located in the base file or slice `number` of the task, piece by piece."""
    index = EntryIndex(task.entries)
    starts = np.concatenate([[0], np.cumsum([entry.rows for entry in index.entries])])
    for rows in task.located[number]:
        with context.storage.open_input(rows.path) as source, pa.ipc.open_file(source) as reader:
            for position in rows.batches:
                batch = reader.get_batch(position)
                run = batch.column("run")
                of_run = np.array([index.runs.index(name) for name in run.dictionary.to_pylist()], np.int64)
                entry, row = index.entries_of(of_run[run.indices.to_numpy()], batch.column("row").to_numpy())
                yield StagedKeys(entries=index.entries, keys=batch.column(KEY), positions=starts[entry] + row)


def _trusted(staged: StagedKeys, first: int) -> Matches:
    """Return matches of all keys.

    The stored rows are not read, so their positions in the file are just consecutive numbers.
    """
    count = len(staged.keys)
    entry, position = staged.rows(np.arange(count))
    return staged.matches(first + np.arange(count), entry, position, np.full(count, IN_PLACE, np.int8))


def _by_group(
    keys: pa.Array, locations: pa.Table, entries: Entries, runs: tuple[str, ...]
) -> Iterator[tuple[Group, pa.RecordBatch]]:
    """Yield the located rows of each file group; `keys` are the keys of all rows in `entries`."""
    if not locations.num_rows:
        return
    # A key may be staged several times, for several partitions, so each staged row is looked up in the result.
    place = pc.index_in(keys, value_set=locations.column("key").combine_chunks())
    positions = np.flatnonzero(np.asarray(pc.is_valid(place)))
    place = place.drop_null().to_numpy(zero_copy_only=False)
    groups = locations.group_by(["partition", "file_id"], use_threads=False).aggregate([])
    code = _group_codes(locations, groups)[place]
    order = np.argsort(code, kind="stable")
    staged = StagedKeys(entries=entries, keys=keys)
    entry, position = staged.rows(positions[order])
    row = position + np.array([e.offset for e in entries], np.int64)[entry]
    run = np.array([runs.index(e.run) for e in entries], np.int32)[entry]
    taken = keys.take(pa.array(positions[order]))
    named = pa.DictionaryArray.from_arrays(pa.array(run, pa.int32()), pa.array(runs, pa.string()))
    batch = pa.RecordBatch.from_arrays([taken, named, pa.array(row, pa.int64())], schema=LOCATED)
    ordered = code[order]
    starts = np.flatnonzero(np.append(True, ordered[1:] != ordered[:-1]))
    pairs = list(zip(groups.column("partition").to_pylist(), groups.column("file_id").to_pylist(), strict=True))
    for start, end in zip(starts.tolist(), [*starts[1:].tolist(), len(ordered)], strict=True):
        yield pairs[ordered[start]], batch.slice(start, end - start)


def _group_codes(locations: pa.Table, groups: pa.Table) -> np.ndarray:
    """Return for each location the position of its file group in `groups`."""
    both = [
        pc.binary_join_element_wise(
            t.column("partition").cast(pa.string()), t.column("file_id").cast(pa.string()), "\0"
        )
        for t in (locations, groups)
    ]
    numbers = pc.index_in(both[0], value_set=both[1].combine_chunks())
    result: np.ndarray = numbers.to_numpy()
    return result
