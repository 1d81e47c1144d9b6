"""The index of a table, as far as it is kept in files: bloom filters in the footers of base files.

    check    which of the newest base files have none: written without, or by an engine that makes none
    build    these file groups are clustered, each by itself: as it is, with a filter

Without a filter nothing is wrong: keys are looked up in the file itself, which takes longer. With the bucket index
nobody asks a filter, so there is nothing to build.
"""

from __future__ import annotations

from functools import partial

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.files.base_reader import BLOOM_FOOTER, BaseFileReader
from lakehouse.core.operations.commit.bucket_counts import bucket_rules
from lakehouse.core.operations.commit.clustering_conflicts import groups_of_active_writes
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.load.pending import pending_clustering, pending_compactions
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.damage import checked_slices
from lakehouse.core.operations.services import clustering
from lakehouse.core.planning.clustering import metrics_of
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import UserError
from lakehouse.model.attempt import Attempt
from lakehouse.model.clustering import ClusteredSlice, ClusteringGroup, ClusteringPlan
from lakehouse.model.files import FileSlice
from lakehouse.spec.options.policies import Policies

_BLOOM = "hoodie.parquet.bloom.filter.enabled"


def without_filter(table: LoadedTable, engine: Engine, policies: Policies) -> tuple[FileSlice, ...]:
    """Return the newest slices whose base file has no bloom filter; each footer is read, near the data."""
    if bucket_rules(table, policies.index) is not None:
        return ()
    slices = [piece for piece in load_slices(table) if piece.base is not None]
    paths = [piece.base.path for piece in slices if piece.base is not None]
    found = engine.run(partial(_has_filter, table.env.storage), paths, light=True)
    return tuple(piece for piece, has in zip(slices, found, strict=True) if not has)


def build(table: LoadedTable, engine: Engine, policies: Policies) -> Committed | NothingToDo:
    """Give all files a filter, in one commit that changes no row.

    Raises UserError where files are to be written without filters, UnsupportedError for tables that are not clustered,
    RetryableError while a write is in flight that has not said yet what it changes.
    """
    if not policies.write.bloom_enabled:
        raise UserError(
            f"{table.env.storage.root}: files are written without bloom filters ({_BLOOM}=false), so none can be built",
            option=_BLOOM,
        )
    table = table.reload()
    table.store.refuse_during_restore(table.timeline)
    bare = frozenset(piece.base.path for piece in without_filter(table, engine, policies) if piece.base is not None)
    if not bare:
        return NothingToDo(reason="every base file has what its index needs")
    clustering.require_clusterable(table, policies)
    clustering.require_known_writers(table, policies, None)
    planned = clustering.request(table, policies, partial(_proposed, policies=policies, bare=bare))
    if isinstance(planned, NothingToDo):
        return planned
    return clustering.execute(table.reload(), engine, policies, planned)


def _has_filter(storage: Storage, _attempt: Attempt, path: str) -> bool:
    reader = BaseFileReader(storage, path)
    try:
        return reader.footer(BLOOM_FOOTER[0]) is not None
    finally:
        reader.close()


def _proposed(table: LoadedTable, *, policies: Policies, bare: frozenset[str]) -> ClusteringPlan | None:
    held = frozenset(pending_compactions(table)) | frozenset(pending_clustering(table))
    held |= groups_of_active_writes(table, policies.transaction)
    chosen = [
        piece
        for piece in checked_slices(table, policies.write)
        if piece.base is not None and piece.base.path in bare and (piece.partition, piece.file_id) not in held
    ]
    size = policies.write.max_file_bytes
    groups = tuple(
        ClusteringGroup(slices=(ClusteredSlice.of(piece),), outputs=1, metrics=metrics_of([piece], size))
        for piece in chosen
    )
    return ClusteringPlan(groups=groups, params={}, extra={}) if groups else None
