"""Detects lost or damaged files of committed writes before older rows are returned or rewritten.

    compare   a listing with the commits that are cached             usual case: no difference, no further request
    confirm   reload the timeline, list the partitions again         the table may have changed in between
    cleaned   files that a clean removed are not damaged
    raise     CorruptTableError with the file, its size and the remedy

A long-running process has cached nearly all commits; a new one has cached only the commits that it read for other
reasons. Planners of services that list storage read all commits of the active timeline. Writers read those that
completed after the oldest file that they rewrite. Archived commits are not compared.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from lakehouse.core.files.log.log_reader import RECOVERY_ADVICE
from lakehouse.core.format.timeline.clean import decode_clean_metadata, decode_clean_plan
from lakehouse.core.operations.load.cleaned_files import cleaned_files
from lakehouse.core.operations.load.slices import Listing, load_listing
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.damage import Damage, find_damage
from lakehouse.core.state.file_slices import FileSlices
from lakehouse.errors import CorruptTableError, RetryableError
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.instant import Action, Instant
from lakehouse.spec.options.write import WritePolicy

logger = logging.getLogger(__name__)

_LOOKS = 5
_NAMED = 5


class ChangedWhileListedError(RetryableError):
    """The table changed between the load of its timeline and the listing; the caller plans again."""


def checked_slices(table: LoadedTable, policy: WritePolicy, partitions: Sequence[str] | None = None) -> FileSlices:
    """Return the newest slices of partitions for a service that rewrites them. Raises the errors of `check_listing`."""
    listing = load_listing(table, partitions, on_storage=policy.skips_damage)
    # Files in the metadata table are committed. A lost file is detected when it is opened.
    compared = None if listing.from_metadata else ""
    check_listing(table, listing, skips=policy.skips_damage, completed_after=compared)
    return listing.slices


def check_listing(
    table: LoadedTable,
    listing: Listing,
    *,
    skips: bool,
    completed_after: str | None = None,
    base_files_only: bool = False,
) -> tuple[Damage, ...]:
    """Compare a listing with the commits and return the damage that is to be skipped.

    Args:
        table: The loaded table; commits whose metadata it has cached are compared.
        listing: The listed files.
        skips: Log and return damage instead of raising CorruptTableError.
        completed_after: Also read and compare all commits that completed after this time.
        base_files_only: Ignore log files.

    Raises:
        CorruptTableError: A committed file is missing or has another size.
        ChangedWhileListedError: The table changed during the call, so the listing cannot be compared.
    """
    damages = _look(table, listing, completed_after, base_files_only)
    if damages:
        damages = _confirmed(table, listing, damages, completed_after, base_files_only)
    if not damages:
        return ()
    root = table.env.storage.root
    if skips:
        for damage in damages:
            logger.warning("%s: rows are skipped: %s", root, damage.problem)
        return damages
    named = "; ".join(damage.problem for damage in damages[:_NAMED])
    more = f"; and {len(damages) - _NAMED} more files" if len(damages) > _NAMED else ""
    raise CorruptTableError(
        f"{root}: committed files are missing or damaged: {named}{more}. A read would return older rows instead. "
        f"{RECOVERY_ADVICE}",
        path=damages[0].path,
        expected=damages[0].expected,
        found=damages[0].actual,
        paths=[damage.path for damage in damages],
    )


def _look(
    table: LoadedTable, listing: Listing, completed_after: str | None, base_files_only: bool
) -> tuple[Damage, ...]:
    damages = find_damage(
        _commits(table, completed_after),
        listing.slices,
        listing.files,
        listing.visible,
        layout=table.config.layout,
        covered=listing.covered,
        upgraded=table.config.is_upgraded,
    )
    return tuple(damage for damage in damages if not (base_files_only and damage.is_log))


def _commits(table: LoadedTable, completed_after: str | None) -> list[tuple[Instant, CommitMetadata]]:
    writes = table.timeline.writes()
    if completed_after is not None:
        table.store.commits(writes.where(completed_after=completed_after))
    return table.store.known_commits(writes)


def _confirmed(
    table: LoadedTable,
    listing: Listing,
    first_damages: tuple[Damage, ...],
    completed_after: str | None,
    base_files_only: bool,
) -> tuple[Damage, ...]:
    """Return the damage that a second listing confirms while the timeline does not change."""
    partitions = sorted({damage.partition for damage in first_damages})
    for _ in range(_LOOKS):
        now = table.reload()
        again = load_listing(
            now,
            partitions,
            as_of=listing.as_of,
            completed_up_to=listing.completed_up_to,
            on_storage=not listing.from_metadata,
        )
        damaged = _look(now, again, completed_after, base_files_only)
        if not damaged:
            break
        cleaned = _cleaned(now, min(damage.instant for damage in damaged))
        damaged = tuple(damage for damage in damaged if damage.path not in cleaned)
        # An operation that removes files of a completed write changes the timeline first.
        if now.reload().timeline == now.timeline:
            return damaged
    raise ChangedWhileListedError(
        f"{table.env.storage.root}: {first_damages[0].path} was removed while the table was read; run again",
        path=first_damages[0].path,
    )


def _cleaned(table: LoadedTable, first: str) -> frozenset[str]:
    """Return the files that cleans since a commit, including archived cleans, removed or may be removing."""
    paths = {file.path for file in cleaned_files(table, first)}
    for held in table.store.archived_actions(Action.CLEAN, first):
        if held.plan:
            paths.update(decode_clean_plan(held.plan, base_path=table.env.storage.root).paths)
        if held.metadata:
            paths.update(decode_clean_metadata(held.metadata).deleted)
    return frozenset(paths)
