"""The table services of one table: `table.services.<name>.due()`, `.plan()`, `.schedule()` and `.run()`."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, Unpack

from lakehouse.core.engine.adapters import session_engine
from lakehouse.core.engine.protocol import Engine
from lakehouse.core.operations.commit.results import Committed, NothingToDo
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.metadata import validation
from lakehouse.core.operations.metadata.validation import Validated
from lakehouse.core.operations.services import (
    archive,
    clean,
    clustering,
    compaction,
    filter_build,
    index,
    log_compaction,
    orphan_removal,
)
from lakehouse.core.operations.services.archive import Archived
from lakehouse.core.operations.services.clean import Cleaned
from lakehouse.core.operations.services.filter_build import FiltersDue
from lakehouse.core.operations.services.index import Indexed
from lakehouse.core.operations.services.index_definition import DroppedIndexes, create_index, drop_index
from lakehouse.core.operations.services.orphan_removal import RemovedOrphans
from lakehouse.core.operations.services.orphans import find_orphans, remove_orphans
from lakehouse.core.operations.services.service import (
    Service,
    ServiceCost,
    ServiceDue,
    ServiceOutcome,
    ServiceRequest,
)
from lakehouse.core.operations.services.ttl import PartitionTtl, set_ttl
from lakehouse.core.operations.write.write import write
from lakehouse.core.planning.archive import ArchiveDue
from lakehouse.core.planning.clean import CleanDue
from lakehouse.core.planning.clustering import ClusteringDue
from lakehouse.core.planning.compaction import CompactionDue, LogCompactionDue
from lakehouse.core.planning.orphans import Orphan, OrphanPlan
from lakehouse.core.table.arguments import checks_arguments
from lakehouse.core.table.describe import shown_service
from lakehouse.core.timeline.ttl_policy_log import read_rules, remove_rule
from lakehouse.errors import UserError
from lakehouse.model.archive import ArchivePlan
from lakehouse.model.clean import CleanPlan
from lakehouse.model.clustering import ClusteringPlan
from lakehouse.model.compaction import CompactionPlan
from lakehouse.model.display import Readable, Shown
from lakehouse.model.indexing import DeclaredIndex, IndexDue, IndexPlan
from lakehouse.model.instant import Instant
from lakehouse.model.texts import text_list
from lakehouse.model.ttl import TtlDue, TtlPlan, TtlRule
from lakehouse.model.upkeep import UpkeepDue, ValidationPlan
from lakehouse.spec.options.indexing import expression_index, secondary_index
from lakehouse.spec.options.policies import Policies
from lakehouse.spec.options.ttl import TtlLimits, ttl_rule
from lakehouse.spec.table.services import SERVICE_SPECS, ServiceSpec, require_by_partition, service_spec

DueT = TypeVar("DueT", bound=ServiceDue)
PlanT = TypeVar("PlanT")
OutcomeT = TypeVar("OutcomeT", bound=ServiceOutcome)
_VERBS = ("due()", "plan()", "schedule()", "run()", "cost()")


@checks_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class TableService(Readable, Generic[DueT, PlanT, OutcomeT]):
    """One table service. Every service has these four verbs with the same parameters.

    `pinned` lists objects to keep. Only clean (requested times of instants that stay readable) and ttl (paths of
    partitions, with all below them) accept it. `partitions` limits a new plan to some partition paths. Only services
    whose ServiceSpec sets `by_partition` accept it. UserError is raised otherwise.
    """

    spec: ServiceSpec
    implementation: Service[DueT, PlanT, OutcomeT]
    table: LoadedTable
    policies: Policies

    def due(self, *, pinned: str | Collection[str] = ()) -> DueT:
        """Return whether the service is due now, and why; reads no data and lists no files."""
        return self.implementation.due(self.table, self.policies, self._request(pinned=pinned))

    def plan(
        self, *, force: bool = False, partitions: str | Collection[str] = (), pinned: str | Collection[str] = ()
    ) -> PlanT | NothingToDo:
        """Return the plan that would be scheduled now, without writing anything.

        With `force` it plans even if not due.
        """
        request = self._request(force=force, partitions=partitions, pinned=pinned)
        return self.implementation.plan(self.table, self.policies, request)

    def schedule(
        self, *, force: bool = False, partitions: str | Collection[str] = (), pinned: str | Collection[str] = ()
    ) -> Instant | NothingToDo:
        """Put a plan on the timeline and return its instant; any process may execute it with `run` later.

        archive and ttl plan and execute in one run: they return NothingToDo.
        """
        request = self._request(force=force, partitions=partitions, pinned=pinned)
        return self.implementation.schedule(self.table, self.policies, request)

    def run(
        self,
        *,
        instant: str | None = None,
        force: bool = False,
        partitions: str | Collection[str] = (),
        pinned: str | Collection[str] = (),
        spark: Any = None,
    ) -> OutcomeT | NothingToDo:
        """Execute pending plans. If there are none, make and execute a new plan if the service is due.

        Args:
            instant: Requested time of the pending plan to execute.
            force: Make a new plan even if the service is not due. ttl rebuilds its statistics instead.
            partitions: Relative paths of the partitions to which a new plan is limited.
            pinned: Instants or partitions to retain, even if an older plan deletes them.
            spark: Session whose executors do the work; None means threads of this process.

        Raises:
            UserError: The plan does not exist, or the service does not accept a parameter.
            RetryableError: Another executor is active, or a restore is not finished.
        """
        request = self._request(instant=instant, force=force, partitions=partitions, pinned=pinned)
        engine = engine_of(spark if self.spec.needs_spark else None, self.policies)
        return self.implementation.run(self.table, engine, self.policies, request)

    def cost(self) -> ServiceCost:
        """Return the predicted cost of a run. It is computed from a plan, even if the service is not due."""
        return self.implementation.cost(self.table, self.policies)

    def _shown(self) -> Shown:
        return shown_service(self.table, self.spec.name, _VERBS)

    def _request(
        self,
        *,
        instant: str | None = None,
        force: bool = False,
        partitions: str | Collection[str] = (),
        pinned: str | Collection[str] = (),
    ) -> ServiceRequest:
        request = ServiceRequest(
            force=force,
            instant=instant,
            partitions=text_list(partitions, "partitions", allow_empty=True),
            pinned=text_list(pinned, "pinned"),
        )
        if request.partitions:
            require_by_partition(self.spec)
        if request.pinned and not self.spec.takes_pins:
            raise UserError(
                f"{self.spec.name} does not accept pins: only clean and ttl delete files that a pin keeps",
                service=self.spec.name,
            )
        return request


@checks_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class BloomFilterService(Readable):
    """The bloom filters in the footers of base files, which are built on request only.

    Each verb reads footers, so each takes `spark`.
    """

    table: LoadedTable
    policies: Policies

    def due(self, *, spark: Any = None) -> FiltersDue:
        """Return whether newest base files lack a bloom filter, and their paths.

        With the bucket index the result is empty.
        """
        return filter_build.due(self.table, engine_of(spark, self.policies), self.policies)

    def plan(self, *, spark: Any = None) -> ClusteringPlan | NothingToDo:
        """Return the clustering plan that would be scheduled now, without writing anything."""
        return filter_build.plan(self.table, engine_of(spark, self.policies), self.policies)

    def schedule(self, *, spark: Any = None) -> Instant | NothingToDo:
        """Put the clustering plan on the timeline; `table.services.clustering.run` may execute it later."""
        return filter_build.schedule(self.table, engine_of(spark, self.policies), self.policies)

    def run(self, *, spark: Any = None) -> Committed | NothingToDo:
        """Rewrite the files that lack a bloom filter, in one commit that changes no row."""
        return filter_build.run(self.table, engine_of(spark, self.policies), self.policies)

    def _shown(self) -> Shown:
        return shown_service(self.table, "bloom filters", _VERBS[:-1])


@checks_arguments
@dataclass(frozen=True, slots=True, kw_only=True)
class TableServices(Readable):
    """The services of one table, by name.

    The properties are the registry of the services that need only the table.
    """

    table: LoadedTable
    policies: Policies

    @property
    def compaction(self) -> TableService[CompactionDue, CompactionPlan, Committed]:
        """Log files of merge-on-read tables become base files; writers need not stop."""
        return self._service("compaction", compaction)

    @property
    def log_compaction(self) -> TableService[LogCompactionDue, CompactionPlan, Committed]:
        """Merges several log files of a file group into one; `force` changes nothing."""
        return self._service("logcompaction", log_compaction)

    @property
    def clustering(self) -> TableService[ClusteringDue, ClusteringPlan, Committed]:
        """Small files become large ones, and rows are sorted. A pending plan blocks writes to its file groups."""
        return self._service("clustering", clustering)

    @property
    def index(self) -> TableService[IndexDue, IndexPlan, Indexed]:
        """Declared indexes of the metadata table are built; writers need not stop."""
        return self._service("index", index)

    @property
    def clean(self) -> TableService[CleanDue, CleanPlan, Cleaned]:
        """Files that no retained version needs are deleted."""
        return self._service("clean", clean)

    @property
    def archive(self) -> TableService[ArchiveDue, ArchivePlan, Archived]:
        """The oldest completed actions move to the archived timeline, where readers still find them."""
        return self._service("archive", archive)

    @property
    def ttl(self) -> TableService[TtlDue, TtlPlan, Committed]:
        """Expired partitions are deleted, in one commit."""
        return self._service("ttl", PartitionTtl(write))

    @property
    def orphan_removal(self) -> TableService[UpkeepDue, OrphanPlan, RemovedOrphans]:
        """Deletes data files that belong to no instant; `force` searches even if the last search was recent."""
        return self._service("orphans", orphan_removal)

    @property
    def validation(self) -> TableService[UpkeepDue, ValidationPlan, Validated]:
        """Listing, metadata table and footers are checked; a violation is an error, and nothing is repaired."""
        return self._service("validation", validation)

    @property
    def bloom_filters(self) -> BloomFilterService:
        """Base files without a bloom filter in their footer get one."""
        return BloomFilterService(table=self.table, policies=self.policies)

    def named(self, name: str) -> TableService[Any, Any, Any]:
        """Return the service with the name of a ServiceSpec.

        Raises UserError with a similar name for an unknown one, and for a service of the platform, such as sync.
        """
        spec = service_spec(name)
        if not is_implemented(spec):
            raise UserError(
                f"{name} needs more than the table: run `lakehouse {name} run`, or use "
                "`lakehouse.platform.services.registry.table_service`",
                service=name,
            )
        service: TableService[Any, Any, Any] = getattr(self, spec.property_name)
        return service

    def _service(
        self, name: str, implementation: Service[DueT, PlanT, OutcomeT]
    ) -> TableService[DueT, PlanT, OutcomeT]:
        return TableService(
            spec=service_spec(name), implementation=implementation, table=self.table, policies=self.policies
        )

    def ttl_rules(self) -> tuple[TtlRule, ...]:
        """Return the TTL rules of the table's policy log, in the order in which they were set."""
        return read_rules(self.table.env)

    def set_ttl(self, pattern: str, *, rule_id: str | None = None, **limits: Unpack[TtlLimits]) -> TtlRule:
        """Set the TTL rule of the partitions that a pattern matches, and return it.

        Concurrent edits of different rules are all kept. For the same rule id the last edit is valid.

        Args:
            pattern: A glob of partition paths, or `re:` and a regular expression.
            rule_id: Name of the rule; None means the pattern.
            **limits: partition_age, creation_age and modification_age (such as "400d"), max_partitions, max_bytes (such
                as "5TB"), and format and timezone of partition values. Without any limit the partitions are kept.
        """
        rule = ttl_rule(pattern, rule_id=rule_id, **limits)
        set_ttl(self.table, rule)
        return rule

    def remove_ttl(self, rule_id: str) -> None:
        """Remove a TTL rule; raise UserError that names the existing rules if there is no such rule."""
        remove_rule(self.table.env, rule_id)

    def create_index(self, column: str, *, name: str = "") -> DeclaredIndex:
        """Declare a secondary index of a column, named after it or `name`; `index.run()` builds it.

        Raises UserError if the column does not exist, or if another index has the name.
        """
        declared = secondary_index(column, name)
        create_index(self.table, self.policies, declared)
        return declared

    def create_expression_index(self, declaration: str) -> DeclaredIndex:
        """Declare an index on an expression; `index.run()` builds it.

        It stores bounds of the results, such as `by_hour=hour(at)` or `by_day=from_unixtime(ts, yyyy-MM-dd)`, or bloom
        filters of them: `by_name=bloom_filters:upper(name)`. Times are in UTC.

        Raises UserError for an unknown column or function, and for one that Apache Hudi cannot maintain.
        """
        declared = expression_index(declaration)
        create_index(self.table, self.policies, declared)
        return declared

    def drop_index(self, name: str) -> DroppedIndexes:
        """Drop an index by its name or by the name of its metadata partition, built or being built.

        Raises UserError if there is no such index.
        """
        return drop_index(self.table, self.policies, name)

    def orphans(self, *, remove: bool = False) -> tuple[Orphan, ...]:
        """Return the orphan files that are older than the grace time. With `remove` also delete them.

        The whole table is listed. Check the result first, then call again with `remove`.
        """
        find = remove_orphans if remove else find_orphans
        return find(self.table, self.policies.clean)

    def _shown(self) -> Shown:
        names = [spec.name for spec in SERVICE_SPECS if is_implemented(spec)]
        return shown_service(self.table, "table services", (*names, "bloom_filters"))


def is_implemented(spec: ServiceSpec) -> bool:
    """Return whether the service needs only the table, so that `TableServices` has a property for it."""
    return isinstance(getattr(TableServices, spec.property_name, None), property)


def engine_of(spark: Any, policies: Policies) -> Engine:
    """Return the engine of a Spark session; without one, the engine that uses threads of this process."""
    return session_engine(spark, policies.write.memory_budget_bytes)
