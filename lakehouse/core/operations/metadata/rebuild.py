"""Rebuild the metadata table: drop it, and build it again from a listing of the table (MDT-7, MDT-11).

Files that no write lists are skipped, and files older than the archived timeline are treated as committed; the result
lists both (see `load.unnamed_files`).

    under the lock   pending index builds are removed   properties   files of the metadata table
                     storage listing   each partition   properties

Between the two changes of the properties the table has no metadata table, and readers list storage. A crash leaves the
table in that state; run the command again.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass

from lakehouse.core.engine.progress import observed_stage
from lakehouse.core.engine.protocol import Engine
from lakehouse.core.metadata.definitions import read_definitions, write_definitions
from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.core.metadata.partitions.registry import wanted_partitions
from lakehouse.core.metadata.place import DEFINITIONS_KEY
from lakehouse.core.metadata.write.drop import drop_metadata
from lakehouse.core.metadata.write.initialise import build_partitions
from lakehouse.core.operations.load.table import LoadedTable, stage_of
from lakehouse.core.operations.read.table_files import table_files
from lakehouse.core.operations.services.index_definition import definition_of, listed_in, refusal
from lakehouse.core.planning.indexing import FILES, declared_partitions, in_build_order
from lakehouse.core.state.table_config import require_writable
from lakehouse.core.timeline.heartbeat import active_writes
from lakehouse.core.timeline.table_lock import table_lock
from lakehouse.errors import RetryableError
from lakehouse.model.display import Readable, Shown, count_text, sentence, some
from lakehouse.model.instant import Action
from lakehouse.spec.options.policies import Policies

logger = logging.getLogger(__name__)
#: Maximum number of paths in a printed result.
_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Rebuilt(Readable):
    """The partitions of the rebuilt metadata table, the files that it lists, and partitions that were not built again.

    Attributes:
        partitions: The partitions of the metadata table; none if the options switch it off.
        files: The number of files that it lists.
        dropped: Previous partitions that this package cannot build.
        left_out: Files that no write lists, such as leftover files of failed writes; the metadata table does not list
            them, either. Readers that list storage may show their rows, so delete these files.
        undecided: Listed files that are older than the archived timeline; it is unknown whether a write created them.
    """

    partitions: tuple[str, ...]
    files: int
    dropped: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    undecided: tuple[str, ...] = ()

    def _shown(self) -> Shown:
        if not self.partitions:
            off = "no metadata table, because hoodie.metadata.enable=false; give the option `true` to build one"
            return Shown(off, {"dropped": self.dropped})
        left_out, undecided = len(self.left_out), len(self.undecided)
        line = sentence(
            f"metadata table with {', '.join(self.partitions)}: {count_text(self.files, 'file')}",
            f"{count_text(left_out, 'unnamed file')} left out" if left_out else "",
            f"{count_text(undecided, 'file')} older than the archive" if undecided else "",
        )
        return Shown(line, {"dropped": self.dropped, "left out": some(self.left_out, _SHOWN)})


def rebuild_metadata(table: LoadedTable, policies: Policies, engine: Engine | None = None) -> Rebuilt:
    """Drop the metadata table, if there is one, and build it with its present partitions and those in the options.

    The lock is held meanwhile, so writers wait before they commit. Raises RetryableError while an index build is
    active or a restore is not finished, and UnsupportedError for a table version that is not written.

    With `hoodie.metadata.enable=false` it is removed, and readers list storage. Other writers of the table need the
    option, too.
    """
    if not policies.transaction.metadata.enable:
        return _removed(table, policies)
    require_writable(table.config, table.env.storage.root)
    with table_lock(table.env, policies.transaction) as lock:
        now = table.refresh()
        now.store.refuse_during_restore(now.timeline)
        pending = now.timeline.where(action=Action.INDEXING, pending=True)
        active = active_writes(now.env, policies.transaction) if len(pending) else frozenset()
        building = next((plan.requested for plan in pending if plan.requested in active), None)
        if building is not None:
            raise RetryableError(
                f"{now.env.storage.root}: the indexing {building} is active; wait for it, then run again",
                instant=building,
            )
        listed, definitions = listed_in(now), _definitions(now, policies)
        wanted = _wanted(now, policies, definitions)
        had = {*listed.usable, *listed.building}
        lock.check()
        for plan in pending:
            now.store.remove_pending(plan)
        drop_metadata(now.env)
        now = now.refresh()
        files = table_files(now, policies, engine)
        if definitions:
            write_definitions(now.env.storage, definitions, now.config.layout)
        units = [1] * len(wanted)
        stage = stage_of(now, "build of the metadata table", "index", units)
        with observed_stage(stage) as running, running.tasks(units):
            build_partitions(now.metadata, wanted, files, now.timeline, lock)
    dropped = tuple(sorted(had - set(wanted)))
    logger.info("%s: rebuilt the metadata table with %s", table.env.storage.root, ", ".join(wanted))
    return Rebuilt(
        partitions=wanted,
        files=files.files.num_rows,
        dropped=dropped,
        left_out=files.left_out,
        undecided=files.undecided,
    )


def _removed(table: LoadedTable, policies: Policies) -> Rebuilt:
    """Remove the metadata table, and build none."""
    root = table.env.storage.root
    with table_lock(table.env, policies.transaction) as lock:
        now = table.refresh()
        now.store.refuse_during_restore(now.timeline)
        listed = listed_in(now)
        lock.check()
        for plan in now.timeline.where(action=Action.INDEXING, pending=True):
            now.store.remove_pending(plan)
        drop_metadata(now.env)
    dropped = tuple(sorted({*listed.usable, *listed.building}))
    logger.info("%s: removed the metadata table with %s", root, ", ".join(dropped))
    return Rebuilt(partitions=(), files=0, dropped=dropped)


def _wanted(table: LoadedTable, policies: Policies, definitions: dict[str, Definition]) -> tuple[str, ...]:
    """Return the partitions to build: default partitions, present partitions, and declared partitions."""
    listed, metadata = listed_in(table), policies.transaction.metadata
    declared = declared_partitions(
        policies.indexing,
        statistics=metadata.column_stats,
        is_partitioned=table.config.is_partitioned,
        defined=definitions,
    )
    usual = wanted_partitions(policies, table.config)
    names = {FILES, *usual, *declared, *listed.usable, *listed.building}
    return in_build_order(name for name in names if refusal(table.config, name, definitions.get(name)) is None)


def _definitions(table: LoadedTable, policies: Policies) -> dict[str, Definition]:
    stored = read_definitions(table.env.storage) if DEFINITIONS_KEY in table.config.raw else {}
    return {index.partition: definition_of(table, index) for index in policies.indexing.declared} | stored
