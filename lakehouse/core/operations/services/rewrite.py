"""The commit of services that rewrite file groups: compaction, log compaction and clustering."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.format.avro.schema import arrow_to_avro
from lakehouse.core.format.internal_schema import LATEST_SCHEMA
from lakehouse.core.metadata.change import change_of_commit
from lakehouse.core.metadata.partitions.record_index import RECORD_INDEX
from lakehouse.core.metadata.staged import StagedUpdate
from lakehouse.core.operations.commit.cleanup import WriteMarkers, delete_unreported, markers_of_single_tries
from lakehouse.core.operations.commit.completion import Completion, complete_action
from lakehouse.core.operations.commit.index_staging import IndexStaging
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.operations.load.commits import key_scope, latest_extra, mark_of
from lakehouse.core.operations.load.schema import declared_schema
from lakehouse.core.operations.load.schema_history import ids_extra, save_history
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.services.plan_executor import ClaimedPlan, claim_of
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.instant import Action, Instant, State

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrittenFiles:
    """The result of an executed plan: the metadata of its commit, the markers of its files, and index records.

    `ran_once` is whether each task ran once, in this process.
    """

    metadata: CommitMetadata
    markers: WriteMarkers
    ran_once: bool = False
    staged: Mapping[str, StagedUpdate] = field(default_factory=dict)


def announce_markers(claimed: ClaimedPlan, names: Iterable[Sequence[str]]) -> WriteMarkers:
    """Create the markers of all planned tasks before the first task creates a file."""
    markers = WriteMarkers(claimed.table, claimed.instant.requested, claimed.policies.write)
    markers.announce([name for of_task in names for name in of_task])
    return markers


def staging_of(claimed: ClaimedPlan, engine: Engine) -> IndexStaging:
    """Return the staging of index records for the files of a plan."""
    return IndexStaging(table=claimed.table, engine=engine, policies=claimed.policies, instant=claimed.instant)


def complete_rewrite(
    claimed: ClaimedPlan, rewritten: RewrittenFiles, now: LoadedTable, lock: TableLock
) -> tuple[Committed, list[str]]:
    """Commit the rewritten files, under the lock; return the commit and the markers to delete.

    Files without a WriteStat are deleted first: tasks may have run twice.
    """
    table, instant, metadata = claimed.table, claimed.instant, rewritten.metadata
    # Files of newer claims are kept: if this executor was suspended and taken over, they belong to its successor.
    if claimed.is_first and rewritten.ran_once and not claimed.policies.write.marks_each_file:
        markers = markers_of_single_tries(instant.requested, metadata.stats, rewritten.markers.known)
    else:
        markers = delete_unreported(
            table,
            instant.requested,
            metadata.stats,
            ours=lambda path: claim_of(path) <= claimed.claim,
            created=rewritten.markers.known,
        )
    # The newest commit declares the schema of the table, so columns that writers added since must stay.
    # In a table with column ids, the files have the version of the plan's time, and so has the commit.
    declared = declared_schema(now)
    history = None if declared is None else declared.history
    if history is None:
        schema = latest_extra(now, "schema") or metadata.extra["schema"]
        metadata = replace(metadata, extra={**metadata.extra, "schema": schema})
    elif LATEST_SCHEMA not in metadata.extra:
        # The first change of columns was made while the plan was executed.
        ids = ids_extra(history.at(int(instant.requested)))
        metadata = replace(metadata, extra={**metadata.extra, **ids})
    if RECORD_INDEX in table.config.metadata_partitions:
        # The next write need not read the commits before this one.
        metadata = replace(metadata, extra={**metadata.extra, **mark_of(now, instant, now.timeline, key_scope(now))})
    started = Instant(requested=instant.requested, action=instant.action, state=State.INFLIGHT)
    replaces = instant.action is Action.CLUSTERING
    data = table.config.layout.encode_commit(metadata, replace=replaces)
    change = change_of_commit(metadata, staged=rewritten.staged)
    if declared is not None and history is not None:
        newest = arrow_to_avro(declared.schema, table=table.config.name)
        change = replace(change, schema=newest, evolved=history.evolved)
        save_history(table, started, now.timeline, history)
    # A clustering stores the state of resized buckets after its commit.
    completion = Completion(
        instant=started, timeline=now.timeline, data=data, change=change, is_last=instant.action is Action.COMPACTION
    )
    completed = complete_action(table, completion, lock)
    root = table.env.storage.root
    logger.info("%s: completed %s %s, %d files", root, instant.action, instant.requested, len(metadata.stats))
    return Committed(instant=completed, metadata=metadata), markers
