"""The staged strategy: rows are staged, their keys are looked up, then file groups are written (TL-7.1, DATA-7).

stage     key and combine the rows; store them where all tasks can read them
look up   find the stored records with these keys
plan      assign the rows to file groups
inflight  create the inflight file, which names the file groups; announce the markers; early conflict detection
write     each task writes its file group
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.engine.progress import observed_stage
from lakehouse.core.engine.protocol import Engine, TaskFunction
from lakehouse.core.files.base.file_group_writer import write_group
from lakehouse.core.files.keys.key_lookup import tag_files
from lakehouse.core.files.keys.located_keys import tag_located
from lakehouse.core.files.keys.slice_key_lookup import tag_slices
from lakehouse.core.files.log.log_reader import SliceContext
from lakehouse.core.files.log.log_writer import append_group
from lakehouse.core.files.stage.markers import group_markers
from lakehouse.core.files.stage.staged_parts import merge_parts, plan_merges, ways_for, write_parts
from lakehouse.core.files.stage.staging import regroup_run, stage_shard
from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.index.hash.bucket_index import copied_deletes
from lakehouse.core.index.hash.resizes import PendingResize
from lakehouse.core.index.write_tasks import GroupTask, StagedRun, TagResult, TagTask
from lakehouse.core.operations.commit.clustering_conflicts import groups_closed_by_clustering
from lakehouse.core.operations.commit.results import Conflict, NothingToDo
from lakehouse.core.operations.load.hashing import load_rings
from lakehouse.core.operations.load.pending import pending_clustering
from lakehouse.core.operations.load.resizes import ring_resizes
from lakehouse.core.operations.load.stage import stage_of
from lakehouse.core.operations.read.damage import ChangedWhileListedError, check_listing
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.core.operations.write.attempt import WriteAttempt, start_writing
from lakehouse.core.operations.write.early_conflict import AnnouncedWrite, early_conflict, uses_early_detection
from lakehouse.core.operations.write.key_filters import ROWS_HERE, THREADS
from lakehouse.core.operations.write.key_search import plan_search
from lakehouse.core.operations.write.prepare import refuse_if_clustered
from lakehouse.core.state.file_system_view import Group
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import Operation, WriteStat
from lakehouse.model.files import BaseFile
from lakehouse.model.nothing_to_do import NothingToDoReason

# The number of bytes that a task appends in about 0.1 s.
_LIGHT_BYTES = 4 * 1024 * 1024
#: Staged rows that this process appends itself.
_BYTES_HERE = 8 * 1024 * 1024
#: Bytes of base files in which this process looks keys up, the number of keys, and bytes of base files and staged rows
#: from which it writes base files.
_SEARCHED_HERE, _KEYS_HERE, _REWRITTEN_HERE = 8 * 1024 * 1024, 100_000, 12 * 1024 * 1024
#: Look-ups with filters that this process does itself: most of the files are excluded by their filters.
_FILTERED_FILES, _FILTERED_KEYS, _FILTERED_BYTES = 256, 100_000, 512 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class WrittenGroups:
    """The result of the staged strategy.

    Attributes:
        stats: The stats of the written files.
        touched: The stored file groups that the write read or extended.
        resizes: The pending resizes for which rows were copied.
        owners: By file id, the value of each group that got rows of one large value of the spread column only.
    """

    stats: list[WriteStat]
    touched: frozenset[Group]
    resizes: tuple[PendingResize, ...] = ()
    owners: Mapping[str, str] = field(default_factory=dict)


def stage(attempt: WriteAttempt) -> None:
    """Stage the rows of the request, unless an earlier attempt staged them."""
    context = attempt.context
    if not attempt.staged:
        attempt.staged.extend(_staged(attempt))
    if not all(context.layout.fits(run) for run in attempt.staged):
        # The buckets of partitions changed since an earlier attempt staged the rows.
        attempt.staged[:] = attempt.engine.run(partial(regroup_run, context), list(attempt.staged), light=True)


def _staged(attempt: WriteAttempt) -> list[StagedRun]:
    """Stage the rows of the request; rows of a key are brought together only if they are combined."""
    context, engine, frame = attempt.context, attempt.engine, attempt.request.frame
    if not engine.divides(frame):
        return engine.exchange(frame, partial(stage_shard, context), by=attempt.prepared.shard_by, hint="exact")
    if not context.incoming.combine:
        return engine.exchange(frame, partial(stage_shard, context), by=(), hint="none")
    ways = ways_for(engine.parallelism)
    parts = engine.exchange(frame, partial(write_parts, context, ways), by=(), hint="none")
    tasks = plan_merges(parts, engine.parallelism)
    return [run for runs in engine.run(partial(merge_parts, context), tasks) for run in runs]


def write_staged(attempt: WriteAttempt, runs: Sequence[StagedRun]) -> WrittenGroups | NothingToDo | Conflict:
    """Look up the keys of the staged rows `runs`, plan file groups, and write them."""
    table, context, engine = attempt.table, attempt.context, attempt.engine
    entries = [entry for run in runs for entry in run.entries]
    if not entries:
        by_key = attempt.request.operation is Operation.DELETE and context.incoming.ordered_deletes
        return NothingToDo(
            code=NothingToDoReason.NO_CHANGES,
            reason="no stored row matches the batch" if by_key else "the batch has no rows",
        )
    search, in_clustering = plan_search(attempt, runs), pending_clustering(table)
    index, listing, slices = search.index, search.listing, search.slices
    entries = [entry for run in search.runs for entry in run.entries]
    updates = attempt.prepared.updates
    closed = groups_closed_by_clustering(table, table.timeline, updates=updates) if in_clustering else {}
    lookups = index.lookups(entries, slices, parallelism=engine.parallelism, read_logs_of=search.read_logs_of)
    skips, budget = attempt.policies.write.skips_damage, context.policy.memory_budget_bytes
    read = slice_context(table, context.schema, budget=budget, skips_damage=skips)
    tags = _look_up(engine, partial(_tag, context, read), lookups)
    tasks = index.groups(entries, slices, tags, in_clustering=frozenset(in_clustering), new_uuid=table.env.ids.uuid)
    if not tasks:
        return NothingToDo(code=NothingToDoReason.NO_CHANGES, reason="no stored row matches the batch")
    pending = search.resizes
    if in_clustering and context.incoming.deletes_only and not context.layout.hashes_keys:
        pending = _looked_up_resizes(attempt, tasks)
        tasks = (*tasks, *(copy for task in tasks if task.appends for copy in copied_deletes(pending, task)))
    copied = {resize.instant: resize.partitions for resize in pending}
    for task in tasks:
        group = (task.partition, task.file_id)
        # Rows of groups in a resize are copied to the groups that will replace them, so the write may continue.
        if task.partition not in copied.get(closed.get(group, ""), ()):
            refuse_if_clustered(closed, group)
    if listing is not None:
        # Rewriting a file group from a base file that is not its newest one would lose the commits in between.
        rewritten = [task.base.instant for task in tasks if task.base and not task.appends]
        try:
            check_listing(table, listing, skips=skips, completed_after=min(rewritten, default=None))
        except ChangedWhileListedError as error:
            if not attempt.policies.transaction.many_writers:
                raise
            newest = tuple(table.reload().timeline.writes().by_completion())[-1]
            return Conflict(winner=newest, reason=f"other writers changed the table while it was listed: {error}")
    written = _write_groups(attempt, read, tasks, staged_bytes=sum(run.size_bytes for run in runs))
    return replace(written, resizes=tuple(pending)) if isinstance(written, WrittenGroups) else written


def _write_groups(
    attempt: WriteAttempt, read: SliceContext, tasks: Sequence[GroupTask], *, staged_bytes: int
) -> WrittenGroups | NothingToDo | Conflict:
    """Announce the files of the tasks and run them; ends with a Conflict if early detection finds one."""
    context, markers, transaction = attempt.context, attempt.markers, attempt.policies.transaction
    start_writing(attempt, tasks)
    # Start large tasks first, so that no long task remains at the end.
    tasks = tuple(sorted(tasks, key=lambda t: -(t.base.size_bytes if t.base else context.policy.max_file_bytes)))
    touched = frozenset((task.partition, task.file_id) for task in tasks if task.base or task.appends)
    planned = [(Attempt.planned(number), task) for number, task in enumerate(tasks)]
    names = [name for try_, task in planned for name in group_markers(context, try_, task)]
    detects = uses_early_detection(transaction, attempt.prepared)
    markers.announce(names, each=detects)
    if detects:
        announced = AnnouncedWrite(
            prepared=attempt.prepared,
            instant=attempt.instant,
            operation=attempt.request.operation,
            markers=names,
            touched=touched,
        )
        conflict = early_conflict(announced, transaction)
        if conflict is not None:
            markers.withdraw()
            return conflict
    light = all(task.appends for task in tasks) and staged_bytes <= _LIGHT_BYTES * len(tasks)
    sizes = [0] * len(tasks)
    work = stage_of(attempt.prepared.table, "write", "file group", sizes)
    # Appends that read no stored row, and rewrites of small files, take less time than the start of tasks on Spark.
    appends = (
        light
        and staged_bytes <= _BYTES_HERE
        and not (context.incoming.keeps or context.incoming.lacks or context.rule.mixes)
    )
    rewritten = staged_bytes + sum(task.base.size_bytes for task in tasks if task.base is not None)
    rewrites = _starts_slowly(attempt.engine) and not any(task.appends for task in tasks)
    is_here = appends or (rewrites and rewritten <= _REWRITTEN_HERE)
    engine = LocalEngine(THREADS) if is_here else attempt.engine
    with observed_stage(work) as running, running.tasks(sizes):
        written = engine.run(partial(_write_task, context, read), tasks, light=light)
    stats = [stat for of_task in written for stat in of_task]
    if not stats:
        # The tasks wrote no file, so there is nothing to roll back.
        markers.withdraw()
        return NothingToDo(code=NothingToDoReason.NO_CHANGES, reason="the batch changes nothing")
    owners = {task.file_id: task.value for task in tasks if task.value is not None}
    return WrittenGroups(stats=stats, touched=touched, owners=owners)


def find_keys(attempt: WriteAttempt, runs: Sequence[StagedRun], files: Sequence[BaseFile]) -> BaseFile | None:
    """Return one of `files` that contains a key of the staged rows, None if no file does."""
    # A stored row with one of the staged keys is a conflict even if it is newer, so partitions are not compared.
    context = replace(attempt.context, move_partitions=False)
    staged = [entry for run in runs for entry in run.entries]
    tasks = []
    for file in files:
        entries = context.layout.entries_for(staged, file.partition)
        if entries:
            tasks.append(TagTask(bases=(file,), entries=entries))
    found = attempt.engine.run(partial(tag_files, context), tasks, light=True)
    matches = (tag.base for tags in found for tag in tags if tag.matched_rows)
    return next((base for base in matches if isinstance(base, BaseFile)), None)


def _look_up(
    engine: Engine, tag: TaskFunction[TagTask, list[TagResult]], lookups: Sequence[TagTask]
) -> list[TagResult]:
    """Run the look-ups; those of few keys that read little of the table run in this process."""
    trusted = [task for task in lookups if task.trusts_locations]
    if sum(rows.rows for task in trusted for located in task.located for rows in located) > ROWS_HERE:
        trusted = []
    filtered = [task for task in lookups if task.uses_filters and task.bases]
    if not _reads_little(filtered):
        filtered = []
    plain = [task for task in lookups if task.bases and not (task.slices or task.uses_filters or task.located)]
    if not _starts_slowly(engine) or _bytes_of(plain) > _SEARCHED_HERE or _keys_of(plain) > _KEYS_HERE:
        plain = []
    here = [*trusted, *filtered, *plain]
    others = [task for task in lookups if not any(task is one for one in here)]
    found = [*LocalEngine(THREADS).run(tag, here), *engine.run(tag, others, light=True)]
    return [result for results in found for result in results]


def _starts_slowly(engine: Engine) -> bool:
    return not isinstance(engine, LocalEngine)


def _reads_little(tasks: Sequence[TagTask]) -> bool:
    """Return whether look-ups that ask filters first take less time than tasks on Spark need to start."""
    files = sum(len(task.bases) for task in tasks)
    return files <= _FILTERED_FILES and _keys_of(tasks) <= _FILTERED_KEYS and _bytes_of(tasks) <= _FILTERED_BYTES


def _keys_of(tasks: Sequence[TagTask]) -> int:
    return sum(entry.rows for entry in {entry for task in tasks for entry in task.entries})


def _bytes_of(tasks: Sequence[TagTask]) -> int:
    return sum(base.size_bytes for task in tasks for base in task.bases)


def _tag(context: WriteContext, read: SliceContext, attempt: Attempt, task: TagTask) -> list[TagResult]:
    if task.slices:
        return tag_slices(context, read, attempt, task)
    return tag_located(context, attempt, task) if task.located else tag_files(context, attempt, task)


def _write_task(context: WriteContext, read: SliceContext, attempt: Attempt, task: GroupTask) -> list[WriteStat]:
    attempt = attempt.as_planned()
    if task.appends:
        return append_group(context, read, attempt, task)
    stat = write_group(context, attempt, task)
    return [] if stat is None else [stat]


def _looked_up_resizes(attempt: WriteAttempt, tasks: Sequence[GroupTask]) -> Sequence[PendingResize]:
    """Return the pending resizes of the groups in which a delete without partition columns found its keys."""
    if not attempt.policies.index.index_type.has_ring:
        return attempt.prepared.resizes
    return ring_resizes(attempt.table, load_rings(attempt.table, {task.partition for task in tasks}))
