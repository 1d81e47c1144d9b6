"""Publications: which version of a table each partition of a metastore's table shows, and how far that has come."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum


class Stage(StrEnum):
    """How far a partition has come; in the `-ing` ones a run is at it, or died there."""

    PUBLISHING = "publishing"
    PUBLISHED = "published"
    ARCHIVING = "archiving"
    ARCHIVED = "archived"
    WITHDRAWING = "withdrawing"
    WITHDRAWN = "withdrawn"
    #: Its version cannot be built any more; `reason` says why. A run by force or at the newest version publishes it.
    LOST = "lost"


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """A version of a table: the state when the write `instant` had completed, at `completion`."""

    instant: str
    completion: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedPartition:
    """One partition of a publication.

    `manifest` is the path, in the table, of the list of its files, which are pinned as long as it is named here; `copy`
    the folder of the archived files below the publication's location. `before` is what is shown until the metastore
    was told of this. `paths` are the table's partitions that it shows, None for the whole table. `needs_copy`: its logs
    have to be merged, so it appears as files of its own at once. Times are UTC milliseconds: the end of the events it
    holds, when it was ready, when it appeared.
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
        """Whether the metastore should show it, once the run that is at it is through."""
        return self.stage not in (Stage.WITHDRAWING, Stage.WITHDRAWN, Stage.LOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Retired:
    """What the metastore does not name any more: a manifest of the table, or a copy; who reads it may go on a while."""

    manifest: str = ""
    copy: str = ""
    at_ms: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class EventSpan:
    """The range of event times in UTC milliseconds that all writes completed up to `up_to` brought; None: no event.

    A publication keeps it, so that its first partitions stay due when their commits leave the active timeline.
    """

    up_to: str = ""
    first_ms: int | None = None
    last_ms: int | None = None


NO_EVENTS = EventSpan()


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """The partitions that one table of a metastore shows, by Hive's names of them, and what was said to be ready.

    `signals` are times in UTC milliseconds by name of partition. `span` is the range of the table's events as of the
    last run that stored it.
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
        """Return the publication without the signal of a partition that has heeded it."""
        told, partition = self.signals.get(name), self.partitions[name]
        if told is None or told > partition.ready_ms:
            return self
        return replace(self, signals={n: at_ms for n, at_ms in self.signals.items() if n != name})

    def retire(self, manifest: str, copy: str, at_ms: int) -> Publication:
        """Return the publication with a manifest or a copy (or both, or neither) that nobody is to be shown again."""
        if not manifest and not copy:
            return self
        return replace(self, retired=(*self.retired, Retired(manifest=manifest, copy=copy, at_ms=at_ms)))

    @property
    def shown(self) -> frozenset[str]:
        """Return the manifests and copies of all partitions, those shown until the metastore was told as well."""
        found = {text for p in self.partitions.values() for text in (p.manifest, p.copy)}
        before = {text for p in self.partitions.values() if p.before for text in (p.before.manifest, p.before.copy)}
        return frozenset((found | before) - {""})

    @property
    def copies(self) -> frozenset[str]:
        """Return the folders of all copies, retired ones as well."""
        named = {p.copy for p in self.partitions.values()}
        named |= {p.before.copy for p in self.partitions.values() if p.before is not None}
        return frozenset((named | {retired.copy for retired in self.retired}) - {""})

    @property
    def manifests(self) -> frozenset[str]:
        """Return the manifests whose files are pinned."""
        named = {p.manifest for p in self.partitions.values()}
        named |= {p.before.manifest for p in self.partitions.values() if p.before is not None}
        return frozenset((named | {retired.manifest for retired in self.retired}) - {""})
