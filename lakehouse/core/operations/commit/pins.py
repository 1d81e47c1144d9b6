"""Pins: the files of published versions, which no clean removes.

publisher   store the manifest's name in the state, write the manifest; under the lock, check cleans for its files
clean       read the state, list, plan; under the lock, read the state again, and plan again if it changed

So at least one of the two detects the other. A clean that was planned first wins, and the publisher chooses a newer
version.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lakehouse.core.env import Env
from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.core.format.timeline.clean import decode_clean_metadata, decode_clean_plan
from lakehouse.core.operations.load.commits import archived_writes
from lakehouse.core.operations.load.listing import list_columns, supported_data_files
from lakehouse.core.operations.load.slices import Listing, groups_of, load_visible
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.timeline.publications import pin_id, pinned_paths, read_manifest, read_publications
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import UserError
from lakehouse.model.instant import Action, Instant, State, Timeline
from lakehouse.spec.options.transaction import TransactionPolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Pins:
    """The manifests that pin files."""

    manifests: frozenset[str]

    @property
    def names(self) -> frozenset[str]:
        """Short names of the manifests. A clean stores them to record which pins it respected."""
        return frozenset(map(pin_id, self.manifests))

    def paths(self, env: Env) -> frozenset[str]:
        """Return the paths of the pinned files; reads the manifests."""
        return pinned_paths(env, self.manifests)


def read_pins(env: Env) -> Pins:
    """Read the current pins; one request."""
    manifests = [publication.manifests for publication in read_publications(env).values()]
    return Pins(manifests=frozenset[str]().union(*manifests))


def listings_at(table: LoadedTable, completions: Sequence[str], partitions: Sequence[str] | None) -> dict[str, Listing]:
    """Return the newest slices at each completion time, from a single listing of the partitions (None means all).

    Storage is listed even if the table has a metadata table, because the metadata table also lists lost files. Pins of
    lost files would show readers a version that they cannot read. A table of layout 1 (version 6) has no completion
    times; requested times are used there.
    """
    listed = list_columns(table, partitions)
    files = supported_data_files(table, listed)
    listings = {}
    for completion in dict.fromkeys(completions):
        groups = groups_of(table, files, load_visible(table, completed_up_to=completion))
        listings[completion] = Listing(
            slices=groups.latest(),
            files=listed,
            visible=groups.visible,
            partitions=None if partitions is None else tuple(partitions),
            completed_up_to=completion,
        )
    return listings


def unavailable_files(
    table: LoadedTable,
    policy: TransactionPolicy,
    before: Timeline,
    wanted: Mapping[str, Sequence[str]],
    versions: Mapping[str, str],
) -> frozenset[str]:
    """Return the names of versions whose files a clean removed or may remove, or whose write was undone.

    The caller must store its pins first, so that cleans that are planned later keep the files.

    Args:
        table: The loaded table.
        policy: The options of the table lock.
        before: The timeline from which the files were chosen; its completed cleans are ignored.
        wanted: Paths of the files, by name of the version.
        versions: Requested time of the write, by name of the version.

    Raises:
        RetryableError: A restore is not finished.
    """
    with table_lock(table.env, policy):
        now = table.reload()
        now.store.refuse_during_restore(now.timeline)
        earlier = {clean.key for clean in before.where(action=Action.CLEAN, state=State.COMPLETED)}
        gone: set[str] = set()
        for clean in now.timeline.where(action=Action.CLEAN):
            if clean.is_completed and clean.key in earlier:
                continue
            plan = now.store.read(clean, State.REQUESTED) or now.store.read(clean, State.INFLIGHT)
            if plan:
                gone.update(decode_clean_plan(plan, base_path=now.env.storage.root).paths)
            elif clean.is_completed:
                gone.update(decode_clean_metadata(now.store.read(clean, State.COMPLETED) or b"").deleted)
        undone = {name for name, requested in versions.items() if not _is_there(now, requested)}
    return frozenset(undone | {name for name, paths in wanted.items() if not gone.isdisjoint(paths)})


def require_unpublished(table: LoadedTable, undone: Iterable[Instant]) -> None:
    """Raise UserError, with the partition, if a published partition contains files of writes in `undone`."""
    gone = {instant.requested: instant.completion for instant in undone if instant.is_completed}
    if not gone:
        return
    for target, publication in read_publications(table.env).items():
        for name, partition in publication.partitions.items():
            for shown in filter(None, (partition, partition.before)):
                if not shown.manifest or shown.version.completion < min(gone.values()):
                    continue
                instants = {_instant(path) for path in read_manifest(table.env, shown.manifest) or ()}
                published = sorted(instants & gone.keys())
                if published:
                    raise UserError(
                        f"{table.env.storage.root}: {published[0]} cannot be undone: {target} publishes it in {name}. "
                        f"Withdraw that first (`lakehouse publish withdraw --partition {name}`), or archive it",
                        instant=published[0],
                        partition=name,
                    )


def _is_there(table: LoadedTable, requested: str) -> bool:
    if table.timeline.writes().find(requested) is not None:
        return True
    return bool(archived_writes(table, requested_from=requested, requested_up_to=requested))


def _instant(path: str) -> str:
    partition, _, name = path.rpartition("/")
    file = parse_base_file(name, partition, 0) or parse_log_file(name, partition, 0)
    return "" if file is None else file.instant
