"""The staged strategy: rows are staged, their keys are looked up, then file groups are written (TL-7.1, DATA-7).

stage     key and combine the rows; store them where all tasks can read them
look up   find the stored records with these keys
plan      assign the rows to file groups
inflight  create the inflight file, which lists the file groups; announce the markers; early conflict detection
write     each task writes its file group
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from lakehouse.core.engine.local import LocalEngine
from lakehouse.core.engine.progress import observed_stage
from lakehouse.core.engine.protocol import Engine
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
from lakehouse.core.index.write_tasks import GroupTask, StagedRun, TagResult, TagTask
from lakehouse.core.operations.commit.clustering_conflicts import groups_closed_by_clustering
from lakehouse.core.operations.commit.results import Conflict, NothingToDo
from lakehouse.core.operations.load.pending import pending_clustering
from lakehouse.core.operations.load.slices import Listing
from lakehouse.core.operations.load.table import stage_of
from lakehouse.core.operations.placement.protocol import (
    ROWS_HERE,
    THREADS,
    KeySearch,
    PlacedTasks,
    PreparedWrite,
    WrittenRows,
)
from lakehouse.core.operations.read.damage import ChangedWhileListedError, check_listing
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.core.operations.write.attempt import WriteAttempt, start_writing
from lakehouse.core.operations.write.early_conflict import AnnouncedWrite, early_conflict
from lakehouse.core.operations.write.insert_duplicates import counted, insert_duplicates
from lakehouse.core.operations.write.prepare import refuse_if_clustered
from lakehouse.core.operations.write.slice_order import start_in_order, with_log_names
from lakehouse.core.state.file_system_view import Group
from lakehouse.model.attempt import Attempt
from lakehouse.model.commit import Operation, WriteStat
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.spec.options.write import InsertDuplicates

# Number of bytes that a task appends in about 0.1 s, the start time of a Spark task.
_LIGHT_BYTES = 4 * 1024 * 1024
#: Maximum number of staged rows that this process appends itself.
_BYTES_HERE = 8 * 1024 * 1024
#: Limits for work in this process instead of tasks: base file bytes and keys of a key look-up, and bytes of base files
#: and staged rows of a rewrite.
_SEARCHED_HERE, _KEYS_HERE, _REWRITTEN_HERE = 8 * 1024 * 1024, 100_000, 12 * 1024 * 1024
#: Limits for look-ups with filters in this process. They are higher, because the filters exclude nearly all files.
_FILTERED_FILES, _FILTERED_KEYS, _FILTERED_BYTES = 256, 100_000, 512 * 1024 * 1024
#: Tasks that one process runs at the same time. An append needs an eighth of the memory budget, a rewrite all of it.
_APPENDS_AT_ONCE, _REWRITES_AT_ONCE = 6, 2
_NO_MATCH = "no stored row matches the batch"


def stage(attempt: WriteAttempt) -> None:
    """Stage the rows of the request, unless an earlier attempt staged them."""
    context = attempt.write.context
    if not attempt.staged:
        attempt.staged.extend(_staged(attempt.write))
    if not all(context.layout.fits(run) for run in attempt.staged):
        # Stage again, because the bucket counts of partitions changed since an earlier attempt staged the rows.
        regroup = partial(regroup_run, context)
        attempt.staged[:] = attempt.write.engine.run(regroup, list(attempt.staged), light=True)


def _staged(write: PreparedWrite) -> list[StagedRun]:
    """Stage the rows of the request. Rows with the same key are grouped only if they are to be combined."""
    context, engine, frame = write.context, write.engine, write.request.frame
    count, function = write.request.incoming, partial(stage_shard, context)
    count[0] = 0
    if context.incoming.generates_keys:
        return engine.exchange(frame, partial(stage_shard, context), by=(), hint="none")
    if isinstance(engine, LocalEngine):
        # The rows of this process are counted when they are read.
        return engine.exchange(
            frame,
            lambda attempt, batches: function(attempt, counted(count, batches)),
            by=write.shard_by,
            hint="exact",
        )
    counts = insert_duplicates(write.policies.write, write.request.operation) is not InsertDuplicates.NONE
    counts |= context.incoming.drops_repeated
    if not engine.divides(frame) and not counts:
        runs = engine.exchange(frame, function, by=write.shard_by, hint="exact")
        count[0] = sum(run.rows for run in runs)
        return runs
    if not context.incoming.combine:
        return engine.exchange(frame, function, by=(), hint="none")
    ways = ways_for(engine.parallelism)
    parts = engine.exchange(frame, partial(write_parts, context, ways), by=(), hint="none")
    count[0] = sum(part.incoming for part in parts)
    tasks = plan_merges(parts, engine.parallelism)
    return [run for runs in engine.run(partial(merge_parts, context), tasks) for run in runs]


def write_staged(attempt: WriteAttempt, runs: Sequence[StagedRun]) -> WrittenRows | NothingToDo | Conflict:
    """Look up the keys of the staged rows `runs`, plan file groups, and write them."""
    write = attempt.write
    if not any(run.entries for run in runs):
        by_key = write.request.operation is Operation.DELETE and write.context.incoming.ordered_deletes
        return _no_changes(_NO_MATCH if by_key else "the batch has no rows")
    search, in_clustering = write.placement.search(write, runs), frozenset(pending_clustering(write.table))
    skips, budget = write.policies.write.skips_damage, write.context.policy.memory_budget_bytes
    read = slice_context(write.table, write.context.schema, budget=budget, skips_damage=skips)
    placed = write.placement.tasks(write, search, look_up(write, search, read), in_clustering)
    if not placed.tasks:
        return _no_changes(_NO_MATCH)
    if in_clustering:
        _refuse_clustered(write, placed)
    conflict = None if search.listing is None else _changed_listing(write, search.listing, placed.tasks)
    if conflict is not None:
        return conflict
    tasks = with_log_names(write, placed.tasks) if write.table.config.names_logs_by_slice else placed.tasks
    written = _write_groups(attempt, read, tasks, staged_bytes=sum(run.size_bytes for run in runs))
    return replace(written, resizes=placed.resizes) if isinstance(written, WrittenRows) else written


def _no_changes(reason: str) -> NothingToDo:
    return NothingToDo(code=NothingToDoReason.NO_CHANGES, reason=reason)


def _refuse_clustered(write: PreparedWrite, placed: PlacedTasks) -> None:
    """Raise RetryableError if a task changes a file group that a pending clustering holds.

    Rows of groups in a resize are copied to the groups that will replace them, so the write may continue.
    """
    closed = groups_closed_by_clustering(write.table, write.table.timeline, updates=write.policies.clustering.updates)
    copied = {resize.instant: resize.partitions for resize in placed.resizes}
    for task in placed.tasks:
        group = (task.partition, task.file_id)
        if task.partition not in copied.get(closed.get(group, ""), ()):
            refuse_if_clustered(closed, group)


def _changed_listing(write: PreparedWrite, listing: Listing, tasks: Sequence[GroupTask]) -> Conflict | None:
    """Return the conflict with a write that changed the table while it was listed, if several writers are allowed.

    Rewriting a file group from a base file that is not its newest one would lose the commits in between.
    """
    rewritten = [task.base.instant for task in tasks if task.base and not task.appends]
    skips = write.policies.write.skips_damage
    try:
        check_listing(write.table, listing, skips=skips, completed_after=min(rewritten, default=None))
    except ChangedWhileListedError as error:
        if not write.policies.transaction.many_writers:
            raise
        newest = tuple(write.table.reload().timeline.writes().by_completion())[-1]
        return Conflict(winner=newest, reason=f"other writers changed the table while it was listed: {error}")
    return None


def _write_groups(
    attempt: WriteAttempt, read: SliceContext, tasks: Sequence[GroupTask], *, staged_bytes: int
) -> WrittenRows | NothingToDo | Conflict:
    """Announce the files of the tasks and run them; ends with a Conflict if early detection finds one."""
    write, markers = attempt.write, attempt.markers
    profile = tasks
    # Start large tasks first, so that no long task remains at the end.
    most = write.context.policy.max_file_bytes
    tasks = tuple(sorted(tasks, key=lambda task: -(task.base.size_bytes if task.base else most)))
    touched = frozenset((task.partition, task.file_id) for task in tasks if task.base or task.appends)
    conflict = _announce(attempt, profile, tasks, touched)
    if conflict is not None:
        markers.withdraw()
        return conflict
    light = all(task.appends for task in tasks) and staged_bytes <= _LIGHT_BYTES * len(tasks)
    engine = LocalEngine(THREADS) if _writes_here(write, tasks, staged_bytes, light=light) else write.engine
    engine, context = _within_budget(engine, write.context, tasks)
    sizes = [0] * len(tasks)
    with observed_stage(stage_of(write.table, "write", "file group", sizes)) as running, running.tasks(sizes):
        written = engine.run(partial(_write_task, context, read), tasks, light=light)
    stats = [stat for of_task in written for stat in of_task]
    if not stats:
        # The tasks wrote no file, so there is nothing to roll back.
        markers.withdraw()
        return _no_changes("the batch changes nothing")
    owners = {task.file_id: task.value for task in tasks if task.value is not None}
    return WrittenRows(stats=stats, touched=touched, owners=owners)


def _within_budget(engine: Engine, context: WriteContext, tasks: Sequence[GroupTask]) -> tuple[Engine, WriteContext]:
    """Return the engine and the settings with which concurrent tasks of this process share one memory budget.

    The share does not depend on the number of threads, because the size of row groups and filters depends on it.
    """
    if not isinstance(engine, LocalEngine):
        return engine, context
    if all(task.appends for task in tasks):
        return engine.limited(_APPENDS_AT_ONCE), context
    rewrites = min(_REWRITES_AT_ONCE, len(tasks))
    return engine.limited(rewrites), _with_share(context, rewrites)


def _with_share(context: WriteContext, tasks: int) -> WriteContext:
    """Return the settings of one of several concurrent tasks of a process."""
    share = context.policy.memory_budget_bytes // tasks
    return replace(context, policy=replace(context.policy, memory_budget_bytes=share))


def _announce(
    attempt: WriteAttempt, profile: Sequence[GroupTask], tasks: Sequence[GroupTask], touched: frozenset[Group]
) -> Conflict | None:
    """Create the inflight file and the markers for the tasks' files; return the conflict that early detection finds."""
    write = attempt.write
    planned = [(Attempt.planned(number), task) for number, task in enumerate(tasks)]
    names = [name for try_, task in planned for name in group_markers(write.context, try_, task)]
    if write.table.config.names_logs_by_slice:
        conflict = start_in_order(attempt, profile, tasks)
        if conflict is None:
            attempt.markers.announce(names)
        return conflict
    if not write.detects_early:
        start_writing(attempt, profile, attempt.markers.requests(names))
        return None
    start_writing(attempt, profile)
    attempt.markers.announce(names, each=True)
    return early_conflict(AnnouncedWrite(write=write, instant=attempt.instant, markers=names, touched=touched))


def _writes_here(write: PreparedWrite, tasks: Sequence[GroupTask], staged_bytes: int, *, light: bool) -> bool:
    """Return whether this process writes the files.

    Appends that read no stored row, and rewrites of small files, take less time than the start of tasks on Spark.
    """
    reads = write.context.incoming.keeps or write.context.incoming.lacks or write.context.rule.mixes
    if light and staged_bytes <= _BYTES_HERE and not reads:
        return True
    rewritten = staged_bytes + sum(task.base.size_bytes for task in tasks if task.base is not None)
    rewrites = _starts_slowly(write.engine) and not any(task.appends for task in tasks)
    return rewrites and rewritten <= _REWRITTEN_HERE


def look_up(write: PreparedWrite, search: KeySearch, read: SliceContext) -> list[TagResult]:
    """Run the look-ups of a search; look-ups of few keys that read little of the table run in this process."""
    entries, engine = [entry for run in search.runs for entry in run.entries], write.engine
    lookups = search.index.lookups(
        entries, search.slices, parallelism=engine.parallelism, read_logs_of=search.read_logs_of
    )
    here = _lookups_here(lookups, engine)
    others = [task for task in lookups if not any(task is local for local in here)]
    context = write.context
    if isinstance(engine, LocalEngine) and others:
        context = _with_share(context, min(engine.parallelism, len(others)))
    tagged = [
        *LocalEngine(THREADS).run(partial(_tag, write.context, read), here),
        *engine.run(partial(_tag, context, read), others, light=True),
    ]
    return [result for results in tagged for result in results]


def _lookups_here(lookups: Sequence[TagTask], engine: Engine) -> list[TagTask]:
    """Return the look-ups that take less time in this process than tasks on Spark need to start."""
    trusted = [task for task in lookups if task.trusts_locations]
    if sum(rows.rows for task in trusted for located in task.located for rows in located) > ROWS_HERE:
        trusted = []
    filtered = [task for task in lookups if task.asks_filters and task.bases]
    plain = [task for task in lookups if task.bases and not (task.slices or task.asks_filters or task.located)]
    return [
        *trusted,
        *(filtered if _reads_little(filtered) else ()),
        *(plain if _starts_slowly(engine) and _searches_little(plain) else ()),
    ]


def _starts_slowly(engine: Engine) -> bool:
    return not isinstance(engine, LocalEngine)


def _reads_little(tasks: Sequence[TagTask]) -> bool:
    """Return whether look-ups that check filters first take less time than tasks on Spark need to start."""
    files = sum(len(task.bases) for task in tasks)
    return files <= _FILTERED_FILES and _keys_of(tasks) <= _FILTERED_KEYS and _bytes_of(tasks) <= _FILTERED_BYTES


def _searches_little(tasks: Sequence[TagTask]) -> bool:
    """Return whether look-ups that read the keys of files take less time than tasks on Spark need to start."""
    return _bytes_of(tasks) <= _SEARCHED_HERE and _keys_of(tasks) <= _KEYS_HERE


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
