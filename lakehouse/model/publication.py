"""Publications: the table version that each partition of a metastore table shows, and the state of each partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Stage(StrEnum):
    """The state of a published partition. In a state that ends in `-ing`, a run is active or was interrupted."""

    PUBLISHING = "publishing"
    PUBLISHED = "published"
    ARCHIVING = "archiving"
    ARCHIVED = "archived"
    WITHDRAWING = "withdrawing"
    WITHDRAWN = "withdrawn"
    #: The version of the partition was cleaned; see `reason`. A run by force or at the newest version publishes the
    #: partition.
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version of a table: its content after the write `instant`, which completed at `completion`."""

    instant: str
    completion: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPartition:
    """One partition in a publication. Times are UTC milliseconds.

    Attributes:
        stage: The state of the partition.
        version: The table version that it shows.
        manifest: The path, in the table, of its file list; the files are pinned while it is named here.
        copy: The folder of its copied files, below the publication's location.
        before: The partition that the metastore shows until it is updated.
        paths: The table's partitions that it shows; None means the whole table.
        event_time_ms: The end of its events.
        ready_ms: When it became ready.
        published_ms: When it was published.
        files, size_bytes: The number and the size of its files.
        needs_copy: Whether its logs have to be merged, so that it is published as a copy immediately.
        reason: Why it is lost.
    """

    stage: Stage
    version: Version
    manifest: str = ""
    copy: str = ""
    before: PublishedPartition | None = None
    paths: tuple[str, ...] | None = None
    event_time_ms: int | None = None
    ready_ms: int = 0
    published_ms: int | None = None
    files: int = 0
    size_bytes: int = 0
    needs_copy: bool = False
    reason: str = ""

    @property
    def is_shown(self) -> bool:
        """Whether the metastore shows the partition when the active run is completed."""
        return self.stage not in (Stage.WITHDRAWING, Stage.WITHDRAWN, Stage.LOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """A manifest or a copy to which the metastore no longer refers; it is kept for a while for active readers."""

    manifest: str = ""
    copy: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSpan:
    """The range of event times, in UTC milliseconds, of all writes completed up to `up_to`; None if there are no
    events.

    A publication stores it, so that its first partitions stay due after their commits were archived.
    """

    up_to: str = ""
    first_ms: int | None = None
    last_ms: int | None = None


NO_EVENTS = EventSpan()


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The partitions of one metastore table.

    Attributes:
        partitions: The partitions by their Hive names.
        signals: The times of ready signals in UTC milliseconds, by Hive name.
        retired: Manifests and copies to which the metastore no longer refers.
        span: The range of the table's event times at the last run that stored it.
    """

    partitions: Mapping[str, PublishedPartition] = field(default_factory=dict)
    signals: Mapping[str, int] = field(default_factory=dict)
    retired: tuple[Retired, ...] = ()
    span: EventSpan = NO_EVENTS

    def put(self, name: str, partition: PublishedPartition) -> Publication:
        """Return the publication with this partition."""
        return replace(self, partitions={**self.partitions, name: partition})

    def without(self, name: str) -> Publication:
        """Return the publication without this partition."""
        return replace(self, partitions={n: p for n, p in self.partitions.items() if n != name})

    def heeded(self, name: str) -> Publication:
        """Return the publication without the signal of this partition, if the partition is newer than the signal."""
        signal_ms, partition = self.signals.get(name), self.partitions[name]
        if signal_ms is None or signal_ms > partition.ready_ms:
            return self
        return replace(self, signals={n: at_ms for n, at_ms in self.signals.items() if n != name})

    def retire(self, manifest: str, copy: str, at_ms: int) -> Publication:
        """Return the publication with this manifest and this copy as retired; both may be empty."""
        if not manifest and not copy:
            return self
        return replace(self, retired=(*self.retired, Retired(manifest=manifest, copy=copy, at_ms=at_ms)))

    @property
    def shown(self) -> frozenset[str]:
        """The manifests and copies of all partitions, and those that the metastore shows until it is updated."""
        shown = {text for p in self.partitions.values() for text in (p.manifest, p.copy)}
        before = {text for p in self.partitions.values() if p.before for text in (p.before.manifest, p.before.copy)}
        return frozenset((shown | before) - {""})

    @property
    def copies(self) -> frozenset[str]:
        """The folders of all copies, including retired copies."""
        named = {p.copy for p in self.partitions.values()}
        named |= {p.before.copy for p in self.partitions.values() if p.before is not None}
        return frozenset((named | {retired.copy for retired in self.retired}) - {""})

    @property
    def manifests(self) -> frozenset[str]:
        """The manifests whose files are pinned."""
        named = {p.manifest for p in self.partitions.values()}
        named |= {p.before.manifest for p in self.partitions.values() if p.before is not None}
        return frozenset((named | {retired.manifest for retired in self.retired}) - {""})
