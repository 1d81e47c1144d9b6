"""Replay dead letters: parse them again after the cause was repaired, and write the records that now parse.

    letters of commits (or of one folder)  ->  parse as the source does  ->  one commit with
        rows                    the records that parse now
        REPLAYED                the folders whose letters were read; each is replayed once
        dead letters            copies of the letters that are still bad, for a later replay

If no letter becomes a row, nothing is committed. A replayed record is an old record: the ordering column decides
whether it replaces the stored row. A record whose key was deleted in the meantime is inserted again, like every late
record.
"""

from __future__ import annotations

import hashlib
import json
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial

from lakehouse.core.operations.commit.precondition import Precondition
from lakehouse.core.operations.load.commits import latest_commit
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import ConflictError, UserError
from lakehouse.model.instant import Timeline
from lakehouse.platform.catalog.declared_tables import open_declared_table
from lakehouse.platform.ingest.commit_reports import CHECKPOINT, input_key, newest_commit
from lakehouse.platform.ingest.run import (
    DEAD_LETTERS,
    MAX_PLANS,
    REPLAYED,
    IngestContext,
    IngestPlan,
    finished,
    ingest_context,
    ingested,
    nothing_to_do,
    timed,
    without_input,
)
from lakehouse.platform.sources.dead_letters import DeadLetterBox
from lakehouse.platform.sources.letter_readers import NothingReplayedError, open_letters
from lakehouse.platform.sources.source import Batch, Interval, KnownColumns, SourcePlan
from lakehouse.platform.sources.source_context import SourceContext
from lakehouse.spark.sources import FileSet, Session, storage_options_of
from lakehouse.spec.contracts.job import IngestReport
from lakehouse.spec.job_command import ReplayCommand
from lakehouse.spec.table.location import location_of
from lakehouse.spec.table.table_spec import TableSpec

log = logging.getLogger(__name__)

#: Letters with rows from a transform cannot be parsed: they are not source records.
_TRANSFORMED = "/transformed/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayPlan(SourcePlan):
    """The letters to read.

    Attributes:
        files: The files with the letters, with paths relative to the storage root.
    """

    files: FileSet


@dataclass(frozen=True, slots=True)
class _Letters:
    """A source that reads dead letters."""

    context: SourceContext

    def plan(self, checkpoint: str | None, interval: Interval | None, *, full_refresh: bool) -> ReplayPlan:
        """The table's commits determine the letters (see `run_replay`)."""
        raise AssertionError("a replay plans by the commits of its table")

    def read(
        self, plan: ReplayPlan, *, known: KnownColumns, dead_letters: DeadLetterBox
    ) -> AbstractContextManager[Batch | None]:
        """Parse the planned letters (see `Source.read`)."""
        return open_letters(self.context, plan.files, known=known, dead_letters=dead_letters)

    def verify(self, plan: ReplayPlan) -> None:
        """Do nothing: letter files never change."""


def run_replay(
    session: Session,
    spec: TableSpec,
    command: ReplayCommand,
    *,
    environ: Mapping[str, str],
    storage_options: Mapping[str, str] | None = None,
) -> IngestReport:
    """Parse dead letters again, write the records that parse, and report the result.

    Args:
        session: The Spark session.
        spec: The spec of the table.
        command: The command; `commit` or `dead_letters` select letters.
        environ: Environment variables, for `${VAR}` in the spec and for connections.
        storage_options: Storage options in addition to the session's `spark.hadoop.fs.*`.

    Raises:
        UserError: There are no such letters, or it is unknown how to parse them; nothing was committed.
        RetryableError: A fault that may pass; nothing was committed.
    """
    access = {**storage_options_of(session), **(storage_options or {})}
    placed = replace(spec, location=location_of(spec, environ))
    context = SourceContext(session=session, spec=placed, environ=environ, storage_options=access)
    run = ingest_context(context, command, _Letters(context))
    return timed(run, session, partial(_repeated, command=command, access=access))


def _repeated(run: IngestContext, command: ReplayCommand, access: Mapping[str, str]) -> IngestReport:
    """Run once; plan again if a concurrent run replayed letters."""
    for number in range(1, MAX_PLANS + 1):
        try:
            return _run_once(run, command, access)
        except ConflictError as error:
            if number == MAX_PLANS:
                raise
            log.warning("table %s: %s; planning again", run.spec.table, error)
    raise AssertionError("the last plan returns or raises")


def _run_once(run: IngestContext, command: ReplayCommand, access: Mapping[str, str]) -> IngestReport:
    table = open_declared_table(run.spec, run.options, run.env)
    loaded = None if table is None else table.refresh()
    checkpoint_commit = None if loaded is None else latest_commit(loaded, input_key(run.spec, CHECKPOINT))
    newest = None if loaded is None else newest_commit(loaded, run.spec)
    folders = _folders(run, command, table)
    files = _files(folders, access)
    if not files.paths:
        what = (
            "a commit has replayed this folder already"
            if command.dead_letters
            else "no commit names dead letters that were not replayed"
        )
        reason = what if not folders else "the folders that commits name for dead letters are empty"
        return finished(run, table, newest, nothing_to_do(run, reason))
    texts = {f"{REPLAYED}/{folder}": "1" for folder in folders}
    source_plan = ReplayPlan(
        units=len(files.paths),
        reason=f"dead letters of {len(folders)} folders will be parsed again",
        fingerprint=hashlib.blake2b("\n".join(folders).encode(), digest_size=6).hexdigest(),
        metadata={REPLAYED: json.dumps(folders), **texts},
        names=tuple(folders),
        files=files,
    )
    # If another replay commits first, this replay plans again.
    plan = IngestPlan(
        reason=source_plan.reason,
        precondition=Precondition(timeline=Timeline(()) if loaded is None else loaded.timeline, marks={REPLAYED: None}),
        source=source_plan,
        previous={} if checkpoint_commit is None else without_input(run.spec, checkpoint_commit[1].extra),
    )
    try:
        report = finished(run, table, newest, ingested(run, table, plan, source_plan))
    except NothingReplayedError as nothing:
        return replace(nothing_to_do(run, str(nothing)), bad_records=nothing.bad, folders=source_plan.names)
    return replace(report, folders=source_plan.names)


def _folders(run: IngestContext, command: ReplayCommand, table: Table | None) -> list[str]:
    """Return the folders with the letters to read, without those that a commit has replayed.

    Raises UserError for a commit without dead letters.
    """
    key = input_key(run.spec, DEAD_LETTERS)
    if command.dead_letters is not None:
        folder = command.dead_letters.rstrip("/")
        done = None if table is None else latest_commit(table.refresh(), f"{REPLAYED}/{folder}")
        return [] if done is not None else [folder]
    commits = [] if table is None else [(instant, metadata.extra) for instant, metadata in table.commits()]
    if command.commit is not None:
        extra = next((extra for instant, extra in commits if command.commit == instant.requested), None)
        if extra is None or key not in extra:
            problem = "is not on the active timeline" if extra is None else "has no dead letters"
            raise UserError(f"commit {command.commit} {problem}; name its folder with --dead-letters", flag="--commit")
        commits_read = [extra]
    else:
        commits_read = [extra for _, extra in commits]
    replayed = {name for _, extra in commits for name in extra}
    named = [extra[key] for extra in commits_read if extra.get(key)]
    return [folder for folder in dict.fromkeys(named) if f"{REPLAYED}/{folder}" not in replayed]


def _files(folders: Sequence[str], access: Mapping[str, str]) -> FileSet:
    """Return the letter files in folders, which are all in one storage.

    Raises UserError for folders in several storages.
    """
    roots = {_root(folder) for folder in folders} or {"/"}
    if len(roots) > 1:
        raise UserError(
            f"commits name dead letters in several storages, {', '.join(sorted(roots))}: use --commit for each"
        )
    (root,) = roots
    storage: Storage = open_storage(root, access)
    sizes = {
        file.path: file.size_bytes
        for folder in folders
        for file in storage.list(folder.removeprefix(root).strip("/"))
        if file.path.endswith(".json") and _TRANSFORMED not in file.path
    }
    return FileSet(storage=storage, paths=tuple(sorted(sizes)), format="json", bytes=sum(sizes.values()))


def _root(folder: str) -> str:
    """Return the bucket of a URL, or the root of the file system."""
    scheme, separator, rest = folder.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}" if separator else "/"
