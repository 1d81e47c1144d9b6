"""Validation: every invariant of a table that we know, looked at; nothing is written.

    shallow    properties, timeline, archive, listing: what names and plans say of each other
    deep       every file is read to the end as well, by the engine: one task for a slice, then one for each partition

A table is validated while others write to it. So what looks corrupt is looked at again: files are listed before the
timeline is read, and what another process did in between is seen the second time.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.format.file_names import parse_instant
from lakehouse.core.format.timeline.clean import decode_clean_metadata, decode_clean_plan
from lakehouse.core.operations.commit.bucket_counts import readable_bucket_rules
from lakehouse.core.operations.load.archive_checks import check_archive
from lakehouse.core.operations.load.cleaned_files import cleaned_files
from lakehouse.core.operations.load.pending import pending_writes
from lakehouse.core.operations.load.savepoints import savepointed_paths
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.table import PROPERTIES, LoadedTable
from lakehouse.core.operations.services.orphans import files_of_hudi, list_files
from lakehouse.core.operations.validate.planned import check_plans
from lakehouse.core.operations.validate.validated_files import Seen, check_global_keys, read_files, seen_slices
from lakehouse.core.planning.orphans import Found, plan_orphans
from lakehouse.core.planning.validate import (
    check_buckets,
    check_files,
    check_partitions,
    check_properties,
    check_timeline,
)
from lakehouse.core.state.file_system_view import visible_timeline
from lakehouse.core.storage.protocol import FileInfo, NotFoundError, is_temporary
from lakehouse.core.timeline.heartbeat import active_writes
from lakehouse.errors import CorruptTableError, LakehouseError, RetryableError, UnsupportedError, UserError, nearest
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Action, Instant, Timeline
from lakehouse.model.validation import Finding, KeyScope, ValidationReport, worst_first
from lakehouse.spec.bucket_rules import BucketRules
from lakehouse.spec.options.policies import Policies

_LEFT_IN = (".staging", ".temp", ".heartbeat")
_EVERY_AGE = 1 << 62


def validate(
    table: LoadedTable, engine: Engine, policies: Policies, *, deep: bool = False, keys: str = KeyScope.PARTITION
) -> ValidationReport:
    """Look at a table and return what is wrong with it; `deep` reads all of its newest slices.

    `keys` is a KeyScope: with "global" keys that are in several partitions are looked for, too, deep or not.

    Raises UserError and UnsupportedError for what is no table or one of a version or kind that is not read here.
    """
    if keys not in set(KeyScope):
        raise UserError(f"keys={keys!r} is none of {', '.join(KeyScope)}.{nearest(keys, KeyScope)}", argument="keys")
    seen = _look(table, policies)
    rows, read = read_files(seen, engine, policies) if deep else (0, [])
    if keys == KeyScope.GLOBAL:
        read = [*read, *check_global_keys(seen, engine, policies)]
    doubted = {f for f in seen.findings if f.invariant in _REPEATED} | {f for f in read if f.invariant == _GONE}
    again = {_place(finding) for finding in _look(table, policies).findings} if doubted else set()
    found = [f for f in (*seen.findings, *read) if f not in doubted or _place(f) in again]
    return ValidationReport(
        location=table.env.storage.root,
        deep=deep,
        findings=worst_first(found),
        instants=len(seen.table.timeline),
        files=len(seen.sizes),
        file_groups=len(seen.slices),
        rows=rows,
    )


_GONE = "file.present"
#: What others may be in the middle of changing.
_REPEATED = frozenset(
    {"timeline.unique", "timeline.requested", "timeline.archived", "timeline.readable", "timeline.dead", "leftover"}
    | {"plan.files", "savepoint.files", "file.present", "file.size", "partition.metadata", "archive.readable"}
    | {"properties.present", "file.orphan"}
)


def _place(finding: Finding) -> tuple[str, str]:
    return finding.invariant, finding.path or finding.instant


def _look(table: LoadedTable, policies: Policies) -> Seen:
    """Look at listing and timeline once."""
    listed = list_files(table)
    files = list(files_of_hudi(listed))
    table = table.reload()
    sizes = {file.path: file.size_bytes for file in listed}
    findings = [*_check_properties(table), *_check_timeline(table), *check_archive(table)]
    commits, unreadable = _readable_commits(table)
    findings += unreadable
    if unreadable:
        # The rest is told as far as it goes without them.
        broken = {finding.instant for finding in unreadable}
        kept = tuple(i for i in table.timeline if i.requested not in broken)
        table = replace(table, timeline=Timeline(kept))
    findings += check_plans(table, sizes)
    slices: tuple[FileSlice, ...] = ()
    try:
        findings += _check_files(table, commits, sizes)
        slices, wrong = seen_slices(table, files)
        findings += wrong
        if not unreadable and table.config.layout != 1 and table.timeline.pending_restore() is None:
            findings += _orphans(table, files)
    except (CorruptTableError, pa.ArrowException) as error:
        # That is named above, or else it is nothing we know.
        if not findings:
            raise
        findings.append(Finding(invariant="unchecked", problem=f"files were not looked at: {error}"))
    findings += check_partitions(slices, sizes)
    findings += _check_schema(table)
    rules, wrong = _rules(table, policies)
    findings += wrong
    if rules is not None:
        findings += check_buckets(slices, rules)
    findings += _leftovers(table, policies, listed)
    return Seen(table=table, commits=commits, sizes=sizes, slices=slices, rules=rules, findings=tuple(findings))


def _check_properties(table: LoadedTable) -> Iterator[Finding]:
    yield from check_properties(table.config.raw)
    try:
        table.env.storage.get(PROPERTIES)
    except NotFoundError:
        yield Finding(invariant="properties.present", problem="the backup of the file counts", path=PROPERTIES)


def _check_timeline(table: LoadedTable) -> Iterator[Finding]:
    config = table.config
    files, _ = table.env.storage.list_dir(".hoodie" if config.layout == 1 else f".hoodie/{config.timeline_path}")
    found = [instant for file in files if (instant := parse_instant(file.name)) is not None]
    archived: set[tuple[str, Action]] = set()
    if found and table.store.archived_timeline is not None:
        try:
            first = min(instant.requested for instant in found)
            archived = {instant.key for instant in table.store.archived_timeline.instants(requested_from=first)}
        except (CorruptTableError, pa.ArrowException, OSError):
            # Told by itself.
            archived = set()
    yield from check_timeline(found, archived, layout=config.layout)


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
            # Undone since the timeline was read.
            continue
        except CorruptTableError as error:
            problem = f"what the {instant.action} did cannot be read: {error.message}"
            findings.append(Finding(invariant="timeline.readable", problem=problem, instant=instant.requested))
    return commits, findings


def _check_files(
    table: LoadedTable, commits: Sequence[tuple[Instant, CommitMetadata]], sizes: Mapping[str, int]
) -> list[Finding]:
    if not commits:
        return []
    first, layout = min(instant.requested for instant, _ in commits), table.config.layout
    gone = {file.path for file in cleaned_files(table, first)}
    findings = list(check_files(commits, sizes, gone, layout=layout))
    if any(finding.invariant == _GONE for finding in findings):
        # Hudi archives cleans by their own count, so some may be archived that are younger than what they cleaned.
        for held in table.store.archived_actions(Action.CLEAN, first):
            if held.plan:
                gone.update(decode_clean_plan(held.plan, base_path=table.env.storage.root).paths)
            if held.metadata:
                gone.update(decode_clean_metadata(held.metadata).deleted)
        findings = list(check_files(commits, sizes, gone, layout=layout))
    return findings


def _rules(table: LoadedTable, policies: Policies) -> tuple[BucketRules | None, list[Finding]]:
    try:
        return readable_bucket_rules(table, policies.index), []
    except (CorruptTableError, UserError) as error:
        kind = "unchecked" if isinstance(error, UnsupportedError) else "bucket.layout"
        return None, [Finding(invariant=kind, problem=error.message)]


def _orphans(table: LoadedTable, files: Iterable[Found]) -> Iterator[Finding]:
    named = [file for file in files if file.data is not None]
    orphans = plan_orphans(
        named,
        table.timeline,
        table.store.commit,
        archived_before=visible_timeline(table.timeline, ()).archived_before,
        kept=savepointed_paths(table),
        older_than_ms=_EVERY_AGE,
    )
    for orphan in orphans:
        yield Finding(invariant="file.orphan", problem=orphan.reason, path=orphan.path)


def _check_schema(table: LoadedTable) -> Iterator[Finding]:
    try:
        table_schema(table)
    except UnsupportedError as error:
        yield Finding(invariant="unchecked", problem=error.message)
    except (LakehouseError, ValueError, KeyError, TypeError) as error:
        yield Finding(invariant="schema.readable", problem=f"the newest schema does not parse: {error}")


def _leftovers(table: LoadedTable, policies: Policies, listed: Iterable[FileInfo]) -> Iterator[Finding]:
    """Yield what dead writes left: directories, unfinished files that are older than a lock's lease, pending writes."""
    storage, policy = table.env.storage, policies.transaction
    files, directories = storage.list_dir(".hoodie")
    left: dict[str, str] = {}
    for directory in (name for name in _LEFT_IN if name in directories):
        found, names = storage.list_dir(f".hoodie/{directory}")
        files = files + found
        left |= {
            name: f".hoodie/{directory}/{name}"
            for name in (*names, *(f.name for f in found))
            if name.isascii() and name.isdigit()
        }
    living = active_writes(table.env, policy)
    pending = {instant.requested for instant in table.timeline.where(pending=True)}
    for requested in sorted(left.keys() - living - pending):
        yield Finding(invariant="leftover", problem="the write is over", path=left[requested], instant=requested)
    oldest = table.env.clock.now_ms() - policy.lock.lease_ms
    for file in (*files, *table.store.unfinished, *listed):
        if is_temporary(file.name) and file.modified_ms < oldest:
            yield Finding(invariant="leftover", problem="its writer died before it had a name", path=file.path)
    try:
        writes = pending_writes(table)
    except CorruptTableError:
        # A pending plan cannot be read, which is told by itself.
        return
    for instant in writes:
        if instant.requested not in living:
            problem = f"the {instant.action} is pending, and its writer gives no sign of life"
            yield Finding(invariant="timeline.dead", problem=problem, instant=instant.requested)
