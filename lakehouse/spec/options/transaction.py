"""Options of transactions: concurrency mode, conflicts, failed writes, heartbeats, and the table lock."""

from __future__ import annotations

from dataclasses import dataclass, field

from lakehouse.spec.options.lock import LockPolicy
from lakehouse.spec.options.metadata import MetadataPolicy
from lakehouse.spec.options.option import option

FAILED_WRITES_KEYS = ("hoodie.clean.failed.writes.policy", "hoodie.cleaner.policy.failed.writes")

CONCURRENCY = "hoodie.write.concurrency.mode"


@dataclass(frozen=True, slots=True, kw_only=True)
class TransactionPolicy:
    """How concurrent writes commit, and how failed writes are treated."""

    lock: LockPolicy = field(default_factory=LockPolicy)
    metadata: MetadataPolicy = field(default_factory=MetadataPolicy)
    concurrency: str = option(
        CONCURRENCY,
        "SINGLE_WRITER",
        "Whether several writers may write at the same time: no; yes, and of two conflicting commits the first wins; "
        "yes, without conflicts (merge-on-read with the bucket index).",
        choices=("SINGLE_WRITER", "OPTIMISTIC_CONCURRENCY_CONTROL", "NON_BLOCKING_CONCURRENCY_CONTROL"),
    )
    conflict_retries: int = option(
        "hoodie.write.num.retries.on.conflict.failures",
        5,
        "Number of times that a write retries with the same rows after it lost a conflict.",
    )
    early_detection: bool = option(
        "hoodie.write.concurrency.early.conflict.detection.enable",
        False,
        "Optimistic writers abort before they write data if an active write has marked one of their file groups. "
        "Partial updates do not, because markers do not name columns.",
    )
    conflict_strategy: str = option(
        "hoodie.write.lock.conflict.resolution.strategy",
        "",
        "Conflict resolution strategy: file_groups, buckets, Hudi's name of one, or your own function as "
        "package.module:function; default by concurrency mode and index.",
    )
    failed_writes: str = option(
        FAILED_WRITES_KEYS[0],
        "EAGER",
        "Failed writes are rolled back by the next write (EAGER) or by `lakehouse rollback failed` (LAZY; always so "
        "with many writers).",
        choices=("EAGER", "LAZY"),
        aliases=FAILED_WRITES_KEYS[1:],
    )
    heartbeat_interval_ms: int = option(
        "hoodie.client.heartbeat.interval_in_ms", 60_000, "Time between two heartbeats of a write, in milliseconds."
    )
    heartbeat_misses: int = option(
        "hoodie.client.heartbeat.tolerable.misses",
        2,
        "Number of missed heartbeats after which a write counts as failed.",
    )

    @property
    def eager(self) -> bool:
        """Whether there is a single writer, so that pending writes of other writers are failed writes or conflicts."""
        return self.failed_writes == "EAGER" and not self.many_writers

    @property
    def many_writers(self) -> bool:
        """Whether other writers may write at the same time."""
        return self.concurrency != "SINGLE_WRITER"

    @property
    def non_blocking(self) -> bool:
        """Whether concurrent writes of the same file groups all commit instead of conflicting."""
        return self.concurrency == "NON_BLOCKING_CONCURRENCY_CONTROL"

    @property
    def heartbeat_lease_ms(self) -> int:
        """Time since the last renewal after which a heartbeat counts as expired, in milliseconds."""
        return self.heartbeat_interval_ms * (self.heartbeat_misses + 1)
