"""Validates the invariants of a table; nothing is written.

    shallow    properties, timeline, archive and listing agree with each other
    deep       the engine also reads every file: one task for each slice, then one for each partition

A table can be validated while other processes write to it. Files are listed before the timeline is read, so a
concurrent change can look like corruption. Such findings are checked again, and reported only if they persist.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial

import pyarrow as pa

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.format.file_names import parse_instant
from lakehouse.core.format.timeline.clean import decode_clean_metadata, decode_clean_plan
from lakehouse.core.layout.registry import has_completion_times
from lakehouse.core.operations.load.archive_checks import check_archive
from lakehouse.core.operations.load.cleaned_files import cleaned_files
from lakehouse.core.operations.load.pending import pending_writes
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.load.unnamed_files import has_old_log_names, unnamed_instants
from lakehouse.core.operations.placement.validation import validated_places
from lakehouse.core.operations.services.orphans import files_of_hudi, list_files, orphans_among
from lakehouse.core.operations.validate.planned import check_plans
from lakehouse.core.operations.validate.validated_files import Seen, check_global_keys, read_files, seen_slices
from lakehouse.core.planning.orphans import Found
from lakehouse.core.planning.restore import slice_paths
from lakehouse.core.planning.validate import (
    check_files,
    check_partitions,
    check_properties,
    check_timeline,
)
from lakehouse.core.storage.protocol import FileInfo, is_temporary
from lakehouse.core.timeline.heartbeat import active_writes
from lakehouse.core.timeline.table_properties import PROPERTIES, stored_properties
from lakehouse.errors import CorruptTableError, LakehouseError, RetryableError, UnsupportedError, UserError, nearest
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.files import FileSlice, LogFile
from lakehouse.model.instant import Action, Instant, Timeline
from lakehouse.model.validation import Finding, KeyScope, ValidationReport, worst_first
from lakehouse.spec.options.policies import Policies

_WRITE_DIRECTORIES = (".staging", ".temp", ".heartbeat")
_ANY_AGE_MS = 1 << 62
_INITIAL_VERSION = "hoodie.table.initial.version"
#: The first table version with completion times.


def validate(
    table: LoadedTable, engine: Engine, policies: Policies, *, deep: bool = False, keys: str = KeyScope.PARTITION
) -> ValidationReport:
    """Validate a table and return a report of its findings.

    Args:
        table: The loaded table.
        engine: Runs the tasks that read files.
        policies: Options of the table.
        deep: Also read all files of the newest slices.
        keys: A KeyScope; "global" also finds keys that are in several partitions.

    Raises:
        UserError: `keys` is not a KeyScope.
    """
    if keys not in set(KeyScope):
        raise UserError(f"keys={keys!r} is not one of {', '.join(KeyScope)}.{nearest(keys, KeyScope)}", argument="keys")
    seen = _inspect(table, policies)
    rows, read = read_files(seen, engine, policies) if deep else (0, [])
    if keys == KeyScope.GLOBAL:
        read = [*read, *check_global_keys(seen, engine, policies)]
    uncertain = {f for f in seen.findings if f.invariant in _REPEATED} | {f for f in read if f.invariant == _GONE}
    again = {_subject(finding) for finding in _inspect(table, policies).findings} if uncertain else set()
    findings = [f for f in (*seen.findings, *read) if f not in uncertain or _subject(f) in again]
    return ValidationReport(
        location=table.env.storage.root,
        deep=deep,
        findings=worst_first(findings),
        instants=len(seen.table.timeline),
        files=len(seen.sizes),
        file_groups=len(seen.slices),
        rows=rows,
    )


_GONE = "file.present"
#: Invariants that a concurrent process may violate temporarily.
_REPEATED = frozenset(
    {"timeline.unique", "timeline.requested", "timeline.archived", "timeline.readable", "timeline.dead", "leftover"}
    | {"plan.files", "savepoint.files", "file.present", "file.size", "partition.metadata", "archive.readable"}
    | {"properties.present", "file.orphan", "file.unnamed", "bucket.layout"}
)


def _subject(finding: Finding) -> tuple[str, str]:
    return finding.invariant, finding.path or finding.instant


def _inspect(table: LoadedTable, policies: Policies) -> Seen:
    """Compare properties, timeline, archive and listing once."""
    listed = list_files(table)
    files = list(files_of_hudi(listed))
    table = table.reload()
    sizes = {file.path: file.size_bytes for file in listed}
    findings = [*_check_properties(table), *_check_timeline(table), *check_archive(table)]
    commits, unreadable = _readable_commits(table)
    findings += unreadable
    if unreadable:
        # The other checks continue without these commits.
        broken = {finding.instant for finding in unreadable}
        readable = tuple(i for i in table.timeline if i.requested not in broken)
        table = replace(table, timeline=Timeline(readable))
    findings += check_plans(table, sizes)
    slices: tuple[FileSlice, ...] = ()
    try:
        findings += _check_files(table, commits, sizes)
        slices, wrong = seen_slices(table, files)
        findings += wrong
        if not unreadable and table.config.layout.has_completion_times and table.timeline.pending_restore() is None:
            findings += with_shown_files(table, files, slices, _orphans(table, files))
    except (CorruptTableError, pa.ArrowException) as error:
        # If another check has a finding, it explains this error. Otherwise the error is unexpected.
        if not findings:
            raise
        findings.append(Finding(invariant="unchecked", problem=f"files were not checked: {error}"))
    findings += check_partitions(slices, sizes)
    findings += _check_schema(table)
    places, wrong = validated_places(table, policies, slices)
    findings += wrong
    findings += _leftovers(table, policies, listed)
    return Seen(
        table=table,
        commits=commits,
        sizes=sizes,
        slices=slices,
        places=places,
        findings=tuple(findings),
    )


def _check_properties(table: LoadedTable) -> Iterator[Finding]:
    yield from check_properties(table.config.raw)
    _, is_main = stored_properties(table.env.storage)
    if not is_main:
        problem = "missing or incomplete; its backup is used"
        yield Finding(invariant="properties.present", problem=problem, path=PROPERTIES)


def _check_timeline(table: LoadedTable) -> Iterator[Finding]:
    config = table.config
    files, _ = table.env.storage.list_dir(config.layout.timeline_folder(config.timeline_path))
    instants = [instant for file in files if (instant := parse_instant(file.name)) is not None]
    archived: set[tuple[str, Action]] = set()
    if instants:
        try:
            first = min(instant.requested for instant in instants)
            archived = {instant.key for instant in table.store.archived_timeline.instants(requested_from=first)}
        except (CorruptTableError, pa.ArrowException, OSError):
            # `check_archive` reports an archive that cannot be read.
            archived = set()
    is_upgraded = not has_completion_times(config.raw.get(_INITIAL_VERSION, str(config.version)))
    yield from check_timeline(instants, archived, layout=config.layout, is_upgraded=is_upgraded)


def _readable_commits(table: LoadedTable) -> tuple[list[tuple[Instant, CommitMetadata]], list[Finding]]:
    writes = table.timeline.writes()
    try:
        return table.store.commits(writes), []
    except (CorruptTableError, RetryableError):
        pass
    commits, findings = [], []
    for instant in writes:
        try:
            commits.append((instant, table.store.commit(instant)))
        except RetryableError:
            # The write was rolled back after the timeline was read.
            continue
        except CorruptTableError as error:
            problem = f"the metadata of the {instant.action} cannot be read: {error.message}"
            findings.append(Finding(invariant="timeline.readable", problem=problem, instant=instant.requested))
    return commits, findings


def _check_files(
    table: LoadedTable, commits: Sequence[tuple[Instant, CommitMetadata]], sizes: Mapping[str, int]
) -> list[Finding]:
    if not commits:
        return []
    first = min(instant.requested for instant, _ in commits)
    check = partial(
        check_files,
        commits,
        sizes,
        layout=table.config.layout,
        upgraded=table.config.is_upgraded,
        compacting=[i.requested for i in table.timeline.where(action=Action.COMPACTION, pending=True)],
    )
    gone = {file.path for file in cleaned_files(table, first)}
    findings = list(check(gone))
    if any(finding.invariant == _GONE for finding in findings):
        # Hudi archives cleans by their own number, so the clean of a file may be archived before its commit.
        for held in table.store.archived_actions(Action.CLEAN, first):
            if held.plan:
                gone.update(decode_clean_plan(held.plan, base_path=table.env.storage.root).paths)
            if held.metadata:
                gone.update(decode_clean_metadata(held.metadata).deleted)
        findings = list(check(gone))
    return findings


def _orphans(table: LoadedTable, files: Iterable[Found]) -> Iterator[Finding]:
    named = [file for file in files if file.data is not None]
    for orphan in orphans_among(table, named, older_than_ms=_ANY_AGE_MS):
        yield Finding(invariant="file.orphan", problem=orphan.reason, path=orphan.path)


def _check_schema(table: LoadedTable) -> Iterator[Finding]:
    try:
        table_schema(table)
    except UnsupportedError as error:
        yield Finding(invariant="unchecked", problem=error.message)
    except (LakehouseError, ValueError, KeyError, TypeError) as error:
        yield Finding(invariant="schema.readable", problem=f"the newest schema does not parse: {error}")


def _leftovers(table: LoadedTable, policies: Policies, listed: Iterable[FileInfo]) -> Iterator[Finding]:
    """Yield leftovers of failed writes: directories, temporary files older than a lock's lease, pending writes."""
    storage, policy = table.env.storage, policies.transaction
    files, directories = storage.list_dir(".hoodie")
    leftovers: dict[str, str] = {}
    for directory in (name for name in _WRITE_DIRECTORIES if name in directories):
        entries, names = storage.list_dir(f".hoodie/{directory}")
        files = files + entries
        leftovers |= {
            name: f".hoodie/{directory}/{name}"
            for name in (*names, *(f.name for f in entries))
            if name.isascii() and name.isdigit()
        }
    living = active_writes(table.env, policy)
    pending = {instant.requested for instant in table.timeline.where(pending=True)}
    for requested in sorted(leftovers.keys() - living - pending):
        yield Finding(invariant="leftover", problem="the write has ended", path=leftovers[requested], instant=requested)
    oldest = table.env.clock.now_ms() - policy.lock.lease_ms
    for file in (*files, *table.store.unfinished, *listed):
        if is_temporary(file.name) and file.modified_ms < oldest:
            yield Finding(invariant="leftover", problem="a temporary file of a failed write", path=file.path)
    try:
        writes = pending_writes(table)
    except CorruptTableError:
        # `check_plans` reports a pending plan that cannot be read.
        return
    for instant in writes:
        if instant.requested not in living:
            problem = f"the {instant.action} is pending, and its heartbeat has expired"
            yield Finding(invariant="timeline.dead", problem=problem, instant=instant.requested)


_UNNAMED = "file.unnamed"


def with_shown_files(
    table: LoadedTable, files: Iterable[Found], slices: Iterable[FileSlice], orphans: Iterable[Finding]
) -> Iterator[Finding]:
    """Yield orphans, with a higher severity in slices that readers show, and shown files of writes that do not exist.

    Args:
        table: The table, with a timeline that was loaded after the listing.
        files: The data files of a listing.
        slices: The newest slices of the listed files.
        orphans: Findings for files of instants that the active timeline reaches.
    """
    shown = {path for file_slice in slices for path in slice_paths(file_slice)}
    for orphan in orphans:
        yield replace(orphan, invariant=_UNNAMED) if orphan.path in shown else orphan
    data = [file.data for file in files if file.data is not None]
    try:
        old = unnamed_instants(table, {file.instant for file in data}).shown
    except (CorruptTableError, pa.ArrowException):
        # Another check reports an archive that cannot be read.
        return
    if not old:
        return
    # A log file of version 6 is named after the base instant of its slice.
    without_logs = has_old_log_names(table)
    for file in data:
        if file.instant in old and not (without_logs and isinstance(file, LogFile)):
            problem = f"there is no write {file.instant}, neither on the timeline nor in the archive"
            yield Finding(invariant=_UNNAMED, problem=problem, path=file.path, instant=file.instant)
