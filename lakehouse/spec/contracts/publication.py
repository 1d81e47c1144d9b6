"""State of a publication: the output of commands and the input of Airflow's operators and sensors."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from enum import StrEnum

from lakehouse.spec.contracts.document import Document, mirror
from lakehouse.spec.contracts.job import JobStatus


class PartitionState(StrEnum):
    """The progress of one partition in a publication. In the states `...ING` a run is active or was interrupted."""

    #: The table has no such partition.
    ABSENT = "absent"
    #: The condition of the partition does not hold yet.
    WAITING = "waiting"
    #: The next run publishes the partition.
    READY = "ready"
    #: A run is publishing the partition, or was interrupted.
    PUBLISHING = "publishing"
    #: The metastore has the partition, as a pointer to files of the table.
    PUBLISHED = "published"
    #: A run is copying the partition, or was interrupted.
    ARCHIVING = "archiving"
    #: The metastore has the partition, as a copy.
    ARCHIVED = "archived"
    #: A run is withdrawing the partition, or was interrupted.
    WITHDRAWING = "withdrawing"
    #: A user withdrew the partition.
    WITHDRAWN = "withdrawn"
    #: The version of the partition was cleaned before it was published.
    LOST = "lost"
    #: The partition is older than `max_age` and will not be published.
    EXPIRED = "expired"


class PublishReason(StrEnum):
    """Why a partition has its state.

    The first group is for waiting partitions, the second one for ready partitions, and the third one for partitions
    that are not published.
    """

    #: No condition of `services.publish.ready` holds yet.
    WAITS_FOR_CONDITION = "waits_for_condition"
    #: No condition of `services.publish.ready` can become true, so the partition would wait forever.
    UNREACHABLE = "unreachable"
    #: The table has no data of the period.
    NO_DATA = "no_data"

    #: A user requested the partition.
    REQUESTED = "requested"
    #: A signal stated that the partition is complete.
    SIGNAL = "signal"
    #: The data interval of a run covers the partition.
    INTERVAL_ENDED = "interval_ended"
    #: The watermark has passed the end of the partition.
    WATERMARK = "watermark"

    #: The table has no such partition.
    ABSENT = "absent"
    #: Clean deleted files of the version.
    VERSION_CLEANED = "version_cleaned"
    #: The version cannot be read.
    VERSION_UNREADABLE = "version_unreadable"
    #: The partition is older than `max_age`.
    TOO_OLD = "too_old"

    #: The state needs no reason; for example, the partition is published.
    NONE = "none"


class Visibility(StrEnum):
    """The partition version that readers of the metastore see."""

    #: The metastore has no such partition.
    NOTHING = "nothing"
    #: The version that the publication stored.
    PUBLISHED_VERSION = "published_version"
    #: The metastore shows a version that the publication did not store.
    OTHER = "other"


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionStatus:
    """One partition of a publication.

    Attributes:
        partition: Name in the metastore, such as `dt=2026-03-01`.
        state: Progress of the partition.
        code: Reason for the state.
        reason: The same reason as a sentence for people.
        instant: Instant of the published version, empty if there is none.
        event_time: End of the partition's period in ISO 8601, empty if unknown.
        published: Time of publication in ISO 8601, empty before.
        lag_s: For a waiting partition, seconds from the watermark to the end of its period. For a published partition,
            seconds between the time when it was ready and its publication.
        files: Number of files of the version.
        size_bytes: Size of these files.
        visibility: Whether readers see the version.
        visible_version: Instant of the version that readers see, or its location if another program added it.
    """

    partition: str
    state: PartitionState
    code: PublishReason = PublishReason.NONE
    reason: str = ""
    instant: str = ""
    event_time: str = ""
    published: str = ""
    lag_s: float | None = None
    files: int = 0
    size_bytes: int = 0
    visibility: Visibility = Visibility.NOTHING
    visible_version: str = ""

    @property
    def is_visible(self) -> bool:
        """Whether readers see the version that was published."""
        return self.visibility is Visibility.PUBLISHED_VERSION

    @property
    def is_unreachable(self) -> bool:
        """Whether only an action of a user can publish the partition."""
        if self.state in (PartitionState.LOST, PartitionState.EXPIRED):
            return True
        return self.state is PartitionState.WAITING and self.code is PublishReason.UNREACHABLE


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationStatus(Document):
    """The partitions of one publication: `lakehouse publish status --output json`. `target` is `database.table`."""

    target: str
    partitions: tuple[PartitionStatus, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationDue(Document):
    """The work of the next publication run: `lakehouse publish due --output json`.

    `publish`, `archive` and `begun` (interrupted work to continue) are names of partitions, and so is `lost`. `waiting`
    and `expired` are numbers of partitions.
    """

    target: str
    publish: tuple[str, ...] = ()
    archive: tuple[str, ...] = ()
    begun: tuple[str, ...] = ()
    waiting: int = 0
    lost: tuple[str, ...] = ()
    expired: int = 0

    @property
    def is_due(self) -> bool:
        """Whether a run would change anything."""
        return bool(self.publish or self.archive or self.begun)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationPreview(Document):
    """The plan of the next publication run: `lakehouse publish plan --output json`.

    Attributes:
        target: `database.table` of the metastore.
        begun: Names of the partitions whose interrupted work continues.
        publish: Partitions to publish; `instant` is the version that each will show.
        archive: Names of the partitions to archive.
        waiting: Partitions that are not ready.
        missed: Lost and expired partitions.
    """

    target: str
    begun: tuple[str, ...] = ()
    publish: tuple[PartitionStatus, ...] = ()
    archive: tuple[str, ...] = ()
    waiting: tuple[PartitionStatus, ...] = ()
    missed: tuple[PartitionStatus, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class SignalResult(Document):
    """Result of `lakehouse publish signal`: the signalled partitions, and with `--run` the published ones."""

    ready: tuple[str, ...] = ()
    published: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class WithdrawResult(Document):
    """Result of `lakehouse publish withdraw`: names of the partitions that were removed from the metastore."""

    withdrawn: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionEvent(Document):
    """The `extra` value of an asset event: one partition became visible. Also the result of PartitionReadySensor.

    Attributes:
        table: `database.table` of the metastore.
        partition: Name of the partition in the metastore.
        instant: Instant of the version that readers see.
        event_time: End of the partition's period in ISO 8601, empty if unknown.
        published: Time of publication in ISO 8601.
    """

    table: str
    partition: str
    instant: str
    event_time: str = ""
    published: str = ""

    @classmethod
    def of(cls, target: str, status: PartitionStatus) -> PartitionEvent:
        """Return the event for a visible partition in the publication `target`."""
        return mirror(cls, status, table=target)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishResult(Document):
    """The result (XCom value) of PublishPartitionsOperator.

    Attributes:
        status: `committed` if partitions became visible since the run began or if all requested partitions are visible;
            otherwise `nothing_to_do`.
        table: `database.table` of the metastore.
        published: The partitions that became visible since the run began.
        waiting: Number of partitions that are not ready.
        refused: Error message of refused signals, None if no signal was refused.
        lost: Names of partitions whose version no longer exists.
        expired: Number of partitions that are older than `max_age` and were not published.
        interval: Data interval of the run as `start/end` in ISO 8601, None if the run had none.
    """

    status: JobStatus
    table: str
    published: tuple[PartitionEvent, ...] = ()
    waiting: int = 0
    refused: str | None = None
    lost: tuple[str, ...] = ()
    expired: int = 0
    interval: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SensorEvent(Document):
    """The event that the trigger of PartitionReadySensor sends: a visible partition, or an error.

    Attributes:
        partition: The visible partition, None for an error.
        error: Error message, empty for a partition.
        final: Whether the error fails the task without a retry.
    """

    partition: PartitionEvent | None = None
    error: str = ""
    final: bool = False


def visible_since(status: PublicationStatus, since: datetime) -> tuple[PartitionEvent, ...]:
    """Return events for the visible partitions that were published at `since` or later.

    Times are compared in whole seconds.
    """
    since = since.replace(microsecond=0)
    return tuple(
        PartitionEvent.of(status.target, row)
        for row in status.partitions
        if row.is_visible and row.published and datetime.fromisoformat(row.published) >= since
    )
