"""The services of one table as calls: is one due, what would it do, do it."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Unpack

from lakehouse.core.engine.adapters import session_engine
from lakehouse.core.engine.protocol import Engine
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.services import archive, clean, clustering, compaction, index_build, ttl
from lakehouse.core.operations.services.archive import Archived
from lakehouse.core.operations.services.clean import Cleaned
from lakehouse.core.operations.services.orphans import find_orphans, remove_orphans
from lakehouse.core.operations.services.ttl import TtlRequest
from lakehouse.core.planning.archive import ArchiveDue
from lakehouse.core.planning.clean import CleanDue
from lakehouse.core.planning.clustering import ClusteringDue
from lakehouse.core.planning.compaction import Due
from lakehouse.core.planning.orphans import Orphan
from lakehouse.core.timeline.ttl_policy_log import read_rules, remove_rule
from lakehouse.model.archive import ArchivePlan
from lakehouse.model.clean import CleanPlan
from lakehouse.model.clustering import ClusteringPlan
from lakehouse.model.compaction import CompactionPlan
from lakehouse.model.instant import Instant
from lakehouse.model.texts import text_list
from lakehouse.model.ttl import TtlDue, TtlPlan, TtlRule
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.options.ttl import TtlLimits, ttl_rule


@dataclass(frozen=True, slots=True, kw_only=True)
class TableServices:
    """The services of one table, as calls. A run that is given `spark` works on that session, else in threads."""

    table: LoadedTable
    policies: Policies

    def compaction_due(self) -> Due:
        """Return whether a compaction is due now, and why; reads the timeline alone."""
        return compaction.due(self.table, self.policies)

    def propose_compaction(self, *, logs_only: bool = False) -> CompactionPlan | None:
        """Return what a plan would hold now; nothing is written."""
        return compaction.propose(self.table, self.policies, kind=_kind(logs_only))

    def plan_compaction(self, *, force: bool = False, logs_only: bool = False) -> Instant | NothingToDo:
        """Put a compaction plan on the timeline if one is due; writers need not stop for it."""
        return compaction.plan(self.table, self.policies, force=force, kind=_kind(logs_only))

    def compaction(
        self, *, instant: str | None = None, force: bool = False, spark: Any = None
    ) -> Committed | NothingToDo:
        """Run the plan of `instant`, else the oldest one nobody is at, else a new one if due (or by `force`)."""
        engine = engine_of(spark, self.policies)
        return compaction.run(self.table, engine, self.policies, instant=instant, force=force)

    def log_compaction(
        self, *, instant: str | None = None, force: bool = False, spark: Any = None
    ) -> Committed | NothingToDo:
        """Make one log file of several, in each file group that has enough of them; `force` adds nothing to that."""
        engine = engine_of(spark, self.policies)
        return compaction.run(
            self.table, engine, self.policies, instant=instant, force=force, kind=compaction.LOG_COMPACTION
        )

    def clustering_due(self) -> ClusteringDue:
        """Return whether a clustering is due now, and why; reads the timeline alone."""
        return clustering.due(self.table, self.policies)

    def propose_clustering(self) -> ClusteringPlan | None:
        """Return what a plan would hold now; nothing is written."""
        return clustering.propose(self.table, self.policies)

    def plan_clustering(self, *, force: bool = False) -> Instant | NothingToDo:
        """Put a clustering plan on the timeline if one is due; writes of the files in it are refused from then on."""
        return clustering.plan(self.table, self.policies, force=force)

    def clustering(
        self, *, instant: str | None = None, force: bool = False, spark: Any = None
    ) -> Committed | NothingToDo:
        """Run the plan of `instant`, else the oldest one nobody is at, else a new one if due (or by `force`)."""
        engine = engine_of(spark, self.policies)
        return clustering.run(self.table, engine, self.policies, instant=instant, force=force)

    def clean_due(self) -> CleanDue:
        """Return whether a clean is due now, and why; reads the timeline and what the last clean said of itself."""
        return clean.due(self.table, self.policies)

    def plan_clean(
        self, *, dry_run: bool = False, force: bool = False, pinned: str | Collection[str] = ()
    ) -> Instant | CleanPlan | NothingToDo:
        """Put a plan of files to remove on the timeline if one is due; with `dry_run` return what it would hold.

        What is read as of the instants `pinned` (requested times) is kept, whatever the policy says.
        """
        if dry_run:
            return clean.preview(self.table, self.policies, force=force, pinned=text_list(pinned, "pinned"))
        return clean.plan(self.table, self.policies, force=force, pinned=text_list(pinned, "pinned"))

    def clean(
        self,
        *,
        dry_run: bool = False,
        instant: str | None = None,
        force: bool = False,
        pinned: str | Collection[str] = (),
        spark: Any = None,
    ) -> Cleaned | CleanPlan | NothingToDo:
        """Remove files that no retained instant needs: by the plan of `instant`, else by pending plans and a new one.

        With `dry_run` nothing is removed, and the answer is what would be planned. What is read as of the instants
        `pinned` (requested times) is kept, whatever the policy says.
        """
        if dry_run:
            return clean.preview(self.table, self.policies, force=force, pinned=text_list(pinned, "pinned"))
        engine = engine_of(spark, self.policies)
        return clean.run(
            self.table, engine, self.policies, instant=instant, force=force, pinned=text_list(pinned, "pinned")
        )

    def archive_due(self) -> ArchiveDue:
        """Return whether an archive is due now, and why; reads the timeline, and more only if it has grown long."""
        return archive.due(self.table, self.policies)

    def archive(self, *, dry_run: bool = False, force: bool = False) -> Archived | ArchivePlan | NothingToDo:
        """Move the oldest completed actions from the timeline to the archive, where readers still find them.

        With `dry_run` nothing is moved, and the answer is what would be. `force` leaves only as many commits as have to
        stay, even if no archive is due.
        """
        if dry_run:
            found = archive.propose(self.table, self.policies, force=force)
            return found if found.instants else NothingToDo(reason=found.kept)
        return archive.run(self.table, self.policies, force=force)

    def ttl_due(self, *, pinned: str | Collection[str] = ()) -> TtlDue:
        """Return whether partitions are to expire now, and why; reads commits since the last look, no listing."""
        return ttl.due(self.table, self.policies, TtlRequest(pinned=text_list(pinned, "pinned")))

    def plan_ttl(self, *, pinned: str | Collection[str] = (), force: bool = False) -> TtlPlan:
        """Return which partitions would expire now, and why; nothing is written."""
        return ttl.propose(self.table, self.policies, TtlRequest(pinned=text_list(pinned, "pinned"), rebuild=force))

    def ttl(
        self, *, dry_run: bool = False, pinned: str | Collection[str] = (), force: bool = False
    ) -> Committed | NothingToDo | TtlPlan:
        """Delete the partitions that expired, in one commit; with `dry_run` nothing is, and the answer is the plan.

        `pinned` partitions, and what is below such a path, are kept. `force` lists the table instead of trusting the
        statistics that are kept of it.
        """
        if dry_run:
            return self.plan_ttl(pinned=pinned, force=force)
        return ttl.run(self.table, self.policies, TtlRequest(pinned=text_list(pinned, "pinned"), rebuild=force))

    def ttl_rules(self) -> tuple[TtlRule, ...]:
        """Return the rules of the policy log, in the order in which they were set."""
        return read_rules(self.table.env)

    def set_ttl(self, pattern: str, *, rule_id: str | None = None, **limits: Unpack[TtlLimits]) -> TtlRule:
        """Set the rule for the partitions that `pattern` finds (a glob, or `re:` and an expression), and return it.

        `limits` are partition_age, creation_age and modification_age ("400d"), max_partitions, max_bytes ("5TB"), and
        format and timezone of values; without any limit the partitions are kept. Editors do not overwrite each other:
        the last edit of an id counts.
        """
        rule = ttl_rule(pattern, rule_id=rule_id, **limits)
        ttl.set_ttl(self.table, rule)
        return rule

    def remove_ttl(self, rule_id: str) -> None:
        """Remove a rule of the policy log; raise UserError naming the rules there are if it is none of them."""
        remove_rule(self.table.env, rule_id)

    def files_without_filter(self, *, spark: Any = None) -> tuple[str, ...]:
        """Return the paths of the newest base files that have no bloom filter; none with the bucket index."""
        found = index_build.without_filter(self.table, engine_of(spark, self.policies), self.policies)
        return tuple(piece.base.path for piece in found if piece.base is not None)

    def build_index(self, *, spark: Any = None) -> Committed | NothingToDo:
        """Give the files that have no bloom filter one: their rows are written as they are, in one commit."""
        return index_build.build(self.table, engine_of(spark, self.policies), self.policies)

    def orphans(self, *, remove: bool = False) -> tuple[Orphan, ...]:
        """Return files that no write names and that are older than the grace time; with `remove` they are deleted.

        The whole table is listed. Look at the answer first, then call again to remove.
        """
        found = remove_orphans if remove else find_orphans
        return found(self.table, self.policies.clean)


def engine_of(spark: Any, policies: Policies) -> Engine:
    """Return the engine of a Spark session, or of threads of this process without one."""
    return session_engine(spark, policies.write.memory_budget_bytes)


def _kind(logs_only: bool) -> compaction.Kind:
    return compaction.LOG_COMPACTION if logs_only else compaction.COMPACTION
