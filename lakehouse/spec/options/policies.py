"""All policies of a table or a call as one value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from lakehouse.errors import SettingError
from lakehouse.spec.options.archive import ArchivePolicy
from lakehouse.spec.options.clean import CleanPolicy
from lakehouse.spec.options.clustering import ClusteringPolicy
from lakehouse.spec.options.compaction import CompactionPolicy, LogPolicy
from lakehouse.spec.options.deletes import DeletePolicy
from lakehouse.spec.options.event_time import EventTimePolicy
from lakehouse.spec.options.export import ExportPolicy
from lakehouse.spec.options.index import IndexPolicy
from lakehouse.spec.options.indexing import IndexingPolicy
from lakehouse.spec.options.lock_providers import PROVIDER_KEY
from lakehouse.spec.options.partition_rules import PartitionPolicies
from lakehouse.spec.options.schema import SchemaPolicy
from lakehouse.spec.options.spread import SpreadPolicy
from lakehouse.spec.options.sync import SyncPolicy
from lakehouse.spec.options.transaction import FAILED_WRITES_KEYS, TransactionPolicy
from lakehouse.spec.options.ttl import TtlPolicy
from lakehouse.spec.options.upkeep import OrphansPolicy, ValidationPolicy
from lakehouse.spec.options.values import override_fields
from lakehouse.spec.options.write import WritePolicy


@dataclass(frozen=True, slots=True, kw_only=True)
class Policies:
    """All policies of one table or call. The documentation follows the order of these fields."""

    write: WritePolicy = field(default_factory=WritePolicy)
    spread: SpreadPolicy = field(default_factory=SpreadPolicy)
    index: IndexPolicy = field(default_factory=IndexPolicy)
    transaction: TransactionPolicy = field(default_factory=TransactionPolicy)
    schema: SchemaPolicy = field(default_factory=SchemaPolicy)
    compaction: CompactionPolicy = field(default_factory=CompactionPolicy)
    log: LogPolicy = field(default_factory=LogPolicy)
    archive: ArchivePolicy = field(default_factory=ArchivePolicy)
    clustering: ClusteringPolicy = field(default_factory=ClusteringPolicy)
    clean: CleanPolicy = field(default_factory=CleanPolicy)
    ttl: TtlPolicy = field(default_factory=TtlPolicy)
    indexing: IndexingPolicy = field(default_factory=IndexingPolicy)
    event_time: EventTimePolicy = field(default_factory=EventTimePolicy)
    deletes: DeletePolicy = field(default_factory=DeletePolicy)
    sync: SyncPolicy = field(default_factory=SyncPolicy)
    export: ExportPolicy = field(default_factory=ExportPolicy)
    partitions: PartitionPolicies = field(default_factory=PartitionPolicies)
    orphans: OrphansPolicy = field(default_factory=OrphansPolicy)
    validation: ValidationPolicy = field(default_factory=ValidationPolicy)

    def override(self, options: Mapping[str, str]) -> Policies:
        """Return these policies with their values replaced by `options`.

        Keys that no policy declares are ignored; `parser.check_known` refuses them. Raises UserError for a value that
        does not parse, and for values that contradict each other.
        """
        if not options:
            return self
        policies = Policies(**{name: override_fields(getattr(self, name), options) for name in POLICIES})
        _check_many_writers(policies.transaction, options)
        return policies


#: Policy classes by name, in the order of the documentation.
POLICIES: dict[str, type[Any]] = {
    declared.name: type(getattr(Policies(), declared.name)) for declared in fields(Policies)
}


def _check_many_writers(policy: TransactionPolicy, options: Mapping[str, str]) -> None:
    """Raise UserError for options under which concurrent writers could damage each other's work."""
    if not policy.many_writers:
        return
    mode = f"hoodie.write.concurrency.mode={policy.concurrency}"
    for key in FAILED_WRITES_KEYS:
        if options.get(key, "").strip().upper() == "EAGER":
            raise SettingError(
                f"option {key}=EAGER rolls back pending writes, but {mode} allows pending writes of other writers. "
                "Remove the option, or set it to LAZY",
                setting=key,
                related=("hoodie.write.concurrency.mode",),
            )
    if not policy.lock.registered.across_processes:
        raise SettingError(
            f"option {PROVIDER_KEY}={policy.lock.provider} excludes writers of the same process only, and {mode} "
            "allows other writers. Set a provider that all writers share, or remove the option: the default is "
            "filesystem",
            setting=PROVIDER_KEY,
            related=("hoodie.write.concurrency.mode",),
        )
