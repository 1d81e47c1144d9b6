"""Filter build: add bloom filters to the footers of base files that have none.

due        reads the footers of the newest base files; other engines, or other options, write files without a filter
schedule   a clustering plan with one group for each of these file groups
run        executes that plan: the rows are written again, unchanged

A missing filter is not damage: writes then look up keys in the file itself, which takes longer. Only the bloom indexes
and builds of the metadata table's filters read them; for a table with another index no file is rewritten. This service
runs on request only and has no ServiceSpec.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pyarrow.compute as pc

from lakehouse.core.engine.progress import observed_stage
from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.base.base_reader import BLOOM_FOOTER, BaseFileReader
from lakehouse.core.operations.commit.clustering_conflicts import groups_of_active_writes
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.load.pending import planned_groups
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable, stage_of
from lakehouse.core.operations.read.damage import checked_slices
from lakehouse.core.operations.services import clustering
from lakehouse.core.planning.clustering import LAYOUT_KEY, metrics_of
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UserError
from lakehouse.model.attempt import Attempt
from lakehouse.model.clustering import ClusteredSlice, ClusteringGroup, ClusteringPlan
from lakehouse.model.display import Condition
from lakehouse.model.files import FileSlice
from lakehouse.model.instant import Instant
from lakehouse.model.nothing_to_do import NothingToDoReason
from lakehouse.spec.options.policies import Policies

_BLOOM = "hoodie.parquet.bloom.filter.enabled"
_COMPLETE = "every base file has what its index needs"


@dataclass(frozen=True, slots=True, kw_only=True)
class FiltersDue(Condition):
    """Whether base files lack a bloom filter; `files` are their paths."""

    due: bool
    reason: str
    files: tuple[str, ...] = ()


def without_filter(table: LoadedTable, engine: Engine, policies: Policies) -> tuple[FileSlice, ...]:
    """Return the newest slices whose base file has no bloom filter. Tasks of the engine read the footers."""
    if not _is_read(policies):
        return ()
    newest = load_slices(table)
    off = policies.partitions.switched_off("clustering", pc.unique(newest.partitions).to_pylist())
    slices = [piece for piece in newest if piece.base is not None and piece.partition not in off]
    paths = [piece.base.path for piece in slices if piece.base is not None]
    unsized = [0] * len(paths)
    with (
        observed_stage(stage_of(table, "search for bloom filters", "file", unsized)) as running,
        running.tasks(unsized),
    ):
        has_filter = engine.run(partial(_has_filter, table.env.storage), paths, light=True)
    return tuple(piece for piece, has in zip(slices, has_filter, strict=True) if not has)


def due(table: LoadedTable, engine: Engine, policies: Policies) -> FiltersDue:
    """Return whether base files lack a bloom filter, and which ones."""
    if not _is_read(policies):
        return FiltersDue(due=False, reason=_unread(policies))
    files = tuple(piece.base.path for piece in without_filter(table, engine, policies) if piece.base is not None)
    reason = f"{len(files)} base files have no bloom filter" if files else _COMPLETE
    return FiltersDue(due=bool(files), reason=reason, files=files)


def plan(table: LoadedTable, engine: Engine, policies: Policies) -> ClusteringPlan | NothingToDo:
    """Return the clustering plan that would be scheduled now; writes nothing. Raises as `run` does."""
    paths = _paths_to_build(table, engine, policies)
    if not paths:
        return NothingToDo(code=NothingToDoReason.NO_CANDIDATES, reason=_nothing(policies))
    clustering.require_free_groups(table, policies)
    return _plan(table, policies=policies, paths=paths) or NothingToDo(
        code=NothingToDoReason.NO_CANDIDATES, reason=clustering.NO_GROUPS
    )


def schedule(table: LoadedTable, engine: Engine, policies: Policies) -> Instant | NothingToDo:
    """Put a clustering plan on the timeline that gives all base files a filter. Raises as `run` does."""
    table = table.reload()
    table.store.refuse_during_restore(table.timeline)
    paths = _paths_to_build(table, engine, policies)
    if not paths:
        return NothingToDo(code=NothingToDoReason.NO_CANDIDATES, reason=_nothing(policies))
    clustering.require_free_groups(table, policies)
    clustering.require_recorded_writes(table, policies, None)
    nothing = NothingToDo(code=NothingToDoReason.NO_CANDIDATES, reason=clustering.NO_GROUPS)
    return clustering.SERVICE.schedule_plan(table, policies, partial(_plan, policies=policies, paths=paths), nothing)


def run(table: LoadedTable, engine: Engine, policies: Policies) -> Committed | NothingToDo:
    """Give all base files a bloom filter, in one commit that changes no row.

    Raises UserError if the options disable filters, UnsupportedError for tables that cannot be clustered, and
    RetryableError while a pending write has not recorded its files yet.
    """
    planned = schedule(table, engine, policies)
    if isinstance(planned, NothingToDo):
        return planned
    return clustering.SERVICE.execute(table.reload(), engine, policies, planned, is_new=True)


def _is_read(policies: Policies) -> bool:
    """Return whether the filters are used, by key look-ups of the index or by builds of the metadata table."""
    return policies.index.index_type.uses_filters or policies.indexing.bloom_filters


def _nothing(policies: Policies) -> str:
    return _COMPLETE if _is_read(policies) else _unread(policies)


def _unread(policies: Policies) -> str:
    return f"the index {policies.index.type} reads no bloom filter, so files are not rewritten for one"


def _paths_to_build(table: LoadedTable, engine: Engine, policies: Policies) -> frozenset[str]:
    if not policies.write.bloom_enabled:
        raise UserError(
            f"{table.env.storage.root}: no bloom filter can be built, because {_BLOOM}=false disables them. Set it to "
            "true, or leave it out",
            option=_BLOOM,
        )
    return frozenset(due(table, engine, policies).files)


def _has_filter(storage: Storage, _attempt: Attempt, path: str) -> bool:
    reader = BaseFileReader(storage, path)
    try:
        return reader.footer(BLOOM_FOOTER[0]) is not None
    finally:
        reader.close()


def _plan(table: LoadedTable, *, policies: Policies, paths: frozenset[str]) -> ClusteringPlan | None:
    held = planned_groups(table) | groups_of_active_writes(table, policies.transaction)
    chosen = [
        piece
        for piece in checked_slices(table, policies.write)
        if piece.base is not None and piece.base.path in paths and (piece.partition, piece.file_id) not in held
    ]
    size = policies.write.max_file_bytes
    groups = tuple(
        ClusteringGroup(slices=(ClusteredSlice.of(piece),), outputs=1, metrics=metrics_of([piece], size))
        for piece in chosen
    )
    # The key in `extra` informs writers that the executor aborts after a conflict, so that they need not wait.
    extra = {LAYOUT_KEY: policies.clustering.layout}
    return ClusteringPlan(groups=groups, params={}, extra=extra) if groups else None
