"""Record the versions to publish, and pin their files by manifests."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

from lakehouse.core.operations.commit.pins import listings_at, unavailable_files
from lakehouse.core.operations.load.cleaned_files import require_uncleaned
from lakehouse.core.operations.load.renamed_files import reads_by_name
from lakehouse.core.operations.load.slices import load_visible
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.damage import check_listing
from lakehouse.core.operations.read.event_time import watermark
from lakehouse.core.planning.restore import slice_paths
from lakehouse.core.planning.schema_history import reads_without_conversion
from lakehouse.core.rows.stored_names import is_skeleton, path_instant
from lakehouse.core.timeline.publications import change_publication, manifest_path, put_manifests, read_publications
from lakehouse.errors import UnsupportedError, UserError
from lakehouse.model.display import count_text, some
from lakehouse.model.files import FileSlice
from lakehouse.model.publication import EventSpan, Publication, PublishedPartition, Stage
from lakehouse.platform.publish.job import PublishJob, versions_of
from lakehouse.platform.publish.publication_plan import PlannedPartition, PublishPlan

#: Maximum number of partitions that a message names.
_SHOWN = 5
_CLEANED = (
    "a clean removed files of its version before it was published; publish it with --newest or withdraw it, and "
    "retain more versions (hoodie.clean.*)"
)


def begin(job: PublishJob, loaded: LoadedTable, plan: PublishPlan) -> Publication:
    """Record the planned partitions as being published, with the manifests that will pin them."""

    def change(publication: Publication) -> Publication:
        for planned in plan.publish:
            before = publication.partitions.get(planned.name)
            if before is None or before.stage in (Stage.PUBLISHED, Stage.ARCHIVED, Stage.WITHDRAWN, Stage.LOST):
                publication = publication.put(planned.name, _begun(job, planned, before))
        return replace(publication, span=_kept_span(loaded, plan, publication, force=bool(plan.publish)))

    return change_publication(loaded.env, job.target, change)


def require_names_of_versions(job: PublishJob, loaded: LoadedTable, plan: PublishPlan) -> None:
    """Raise UnsupportedError if a version that is published has files with earlier names or types of columns.

    Readers find columns by the present names of the metastore table, so the partition would have nulls; they fail at
    values of another type. Only a table whose columns were renamed, retyped or dropped is listed. Versions that are
    published already were checked then, so their files differ only if they are older than the change.
    """
    is_read = reads_by_name(loaded, reads_without_conversion)
    if is_read is None:
        return
    begun = {planned.name: _begun(job, planned, None) for planned in plan.publish}
    slices = slices_of_versions(loaded, begun.values(), skips=job.policies.write.skips_damage)
    renamed = [
        name
        for name, partition in begun.items()
        for piece in slices[partition.version.completion, partition.paths] or ()
        if not all(is_read(path_instant(path)) for path in slice_paths(piece))
    ]
    stored = read_publications(loaded.env).get(job.target, Publication()).partitions
    shown = {name: partition for name, partition in stored.items() if partition.is_shown and name not in begun}
    renamed += [name for name, partition in shown.items() if not is_read(partition.version.instant)]
    if renamed:
        names = tuple(dict.fromkeys(sorted(renamed)))
        raise UnsupportedError(
            f"{job.target}: {count_text(len(names), 'partition')} would show versions from before a column was "
            "renamed, retyped, or dropped and added again, and readers find columns by name and do not convert their "
            f"values: {some(names, _SHOWN)}. Publish these partitions at the newest version of the table (`lakehouse "
            "publish run --partition NAME --newest`), or withdraw them; all partitions stay as they are until then",
            partitions=list(names),
        )


def store_event_span(job: PublishJob, loaded: LoadedTable, plan: PublishPlan) -> None:
    """Store the event range of a plan if commits in it may be archived; otherwise write nothing."""

    def change(publication: Publication) -> Publication:
        return replace(publication, span=_kept_span(loaded, plan, publication, force=False))

    change_publication(loaded.env, job.target, change)


def _kept_span(loaded: LoadedTable, plan: PublishPlan, publication: Publication, *, force: bool) -> EventSpan:
    """Return the event range to store.

    This is the range of the plan if the stored one ends before the active timeline begins, or with `force`; otherwise
    the stored one. Runs without work therefore write the state once per archive, not once per commit.
    """
    stored, oldest = publication.span, min((i.completion for i in loaded.timeline.writes()), default="")
    if plan.span.up_to <= stored.up_to or not (force or stored.up_to < oldest):
        return stored
    return plan.span


def _begun(job: PublishJob, planned: PlannedPartition, before: PublishedPartition | None) -> PublishedPartition:
    return PublishedPartition(
        stage=Stage.PUBLISHING,
        version=planned.version,
        manifest=manifest_path(job.target, planned.name, planned.version.instant),
        before=before if before is not None and before.is_shown else None,
        paths=planned.paths,
        event_time_ms=planned.event_time_ms,
        ready_ms=planned.ready_ms,
        reason=planned.reason,
    )


def pin(job: PublishJob, loaded: LoadedTable, publication: Publication) -> frozenset[str]:
    """Write the manifests of partitions that are being published; record and return those whose version was cleaned.

    Such a partition is lost, unless the next run would choose another version or a previous version is still shown.
    """
    begun = {n: p for n, p in publication.partitions.items() if p.stage is Stage.PUBLISHING and p.manifest}
    if not begun:
        return frozenset()
    # Cleans that complete after this reload are detected under the lock by `unavailable_files`.
    loaded = loaded.reload()
    versions = _versions(job, loaded, begun)
    paths = {name: version.paths for name, version in versions.items()}
    readable = {begun[name].manifest: paths[name] for name, version in versions.items() if not version.is_cleaned}
    put_manifests(loaded.env, readable)
    instants = {name: partition.version.instant for name, partition in begun.items()}
    cleaned = {name for name, version in versions.items() if version.is_cleaned}
    cleaned |= unavailable_files(loaded, job.policies.transaction, loaded.timeline, paths, instants)
    lost = {name for name in cleaned if _is_lost(job, loaded.reload(), begun[name])}

    def change(now: Publication) -> Publication:
        for name, partition in begun.items():
            if now.partitions.get(name) != partition:
                continue
            if name in cleaned:
                now = _without_version(now, name, partition, is_lost=name in lost)
            else:
                now = now.put(name, versions[name].pinned(partition))
        return now

    change_publication(loaded.env, job.target, change)
    return frozenset(cleaned)


@dataclass(frozen=True, slots=True, kw_only=True)
class _VersionFiles:
    """The file slices of a partition version; `slices` is None if a clean deleted some."""

    slices: tuple[FileSlice, ...] | None

    @property
    def is_cleaned(self) -> bool:
        return self.slices is None

    @property
    def paths(self) -> tuple[str, ...]:
        return tuple(path for piece in self.slices or () for path in slice_paths(piece))

    def pinned(self, partition: PublishedPartition) -> PublishedPartition:
        """Return the partition with the size of its version, and whether readers need a copy with merged files."""
        slices = self.slices or ()
        size = sum((piece.base.size_bytes if piece.base is not None else 0) + piece.total_log_bytes for piece in slices)
        is_merged = any(piece.logs or (piece.base is not None and is_skeleton(piece.base.name)) for piece in slices)
        return replace(partition, files=len(self.paths), size_bytes=size, needs_copy=is_merged)


def _versions(
    job: PublishJob, loaded: LoadedTable, partitions: Mapping[str, PublishedPartition]
) -> dict[str, _VersionFiles]:
    slices = slices_of_versions(loaded, partitions.values(), skips=job.policies.write.skips_damage)
    return {name: _VersionFiles(slices=slices[p.version.completion, p.paths]) for name, p in partitions.items()}


def _without_version(
    publication: Publication, name: str, partition: PublishedPartition, *, is_lost: bool
) -> Publication:
    """Return the publication after the version of a partition was cleaned: with its previous version, if it has one."""
    if partition.before is not None:
        return publication.put(name, partition.before)
    if is_lost:
        return publication.put(name, replace(partition, stage=Stage.LOST, manifest="", reason=_CLEANED))
    return publication.without(name)


def _is_lost(job: PublishJob, loaded: LoadedTable, partition: PublishedPartition) -> bool:
    """Return whether the next run would choose the same version again, although its files were cleaned."""
    if partition.paths is not None or partition.event_time_ms is None:
        return False
    if watermark(loaded, job.policies.event_time).value is None:
        return False
    return versions_of(loaded)(partition.event_time_ms) == partition.version


def slices_of_versions(
    loaded: LoadedTable, partitions: Iterable[PublishedPartition], *, skips: bool
) -> dict[tuple[str, tuple[str, ...] | None], tuple[FileSlice, ...] | None]:
    """Return the file slices of versions by completion time and paths; None if a clean deleted some. Lists once.

    Raises CorruptTableError if a file of a version is missing or damaged, because older rows would be published and
    pinned. With `skips` the damage is only logged.
    """
    wanted = {(p.version.completion, p.paths) for p in partitions}
    paths = {path for _, paths in wanted for path in paths or ()}
    whole = any(paths is None for _, paths in wanted)
    listings = listings_at(loaded, sorted({time for time, _ in wanted}), None if whole else sorted(paths))
    for listing in listings.values():
        check_listing(loaded, listing, skips=skips, completed_after="")
    return {
        (time, paths): _uncleaned(
            loaded, time, paths, [s for s in listings[time].slices if paths is None or s.partition in paths]
        )
        for time, paths in wanted
    }


def _uncleaned(
    loaded: LoadedTable, completion: str, paths: tuple[str, ...] | None, slices: Sequence[FileSlice]
) -> tuple[FileSlice, ...] | None:
    keep = None if paths is None else partial(_leads_to, paths)
    try:
        require_uncleaned(loaded, slices, load_visible(loaded, completed_up_to=completion), completion, keep=keep)
    except UserError:
        return None
    return tuple(slices)


def _leads_to(paths: tuple[str, ...], directory: str) -> bool:
    return any(f"{path}/".startswith(f"{directory}/") for path in paths)
