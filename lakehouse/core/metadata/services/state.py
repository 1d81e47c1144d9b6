"""The state of the metadata table for its services: file groups, file slices, and the completion of an instant (MDT-5).

Planners of data tables make the plans (`core/planning`). Their inputs are the policies below and the file slices of the
file system view, as for a data table.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, replace

from lakehouse.core.metadata.partitions.protocol import Definition
from lakehouse.core.metadata.place import METADATA
from lakehouse.core.metadata.read.slices import metadata_file, slices_of
from lakehouse.core.metadata.read.validity import validity
from lakehouse.core.metadata.store import MetadataStore, completions_of
from lakehouse.core.metadata.write.files import INIT_TOKEN
from lakehouse.core.planning.clean import FILE_VERSIONS
from lakehouse.core.state.file_system_view import DataFile, Group, VisibleTimeline, all_slices, visible_timeline
from lakehouse.core.storage.concurrent_requests import send_all
from lakehouse.core.storage.protocol import FileInfo
from lakehouse.core.timeline.table_lock import TableLock
from lakehouse.model.files import BaseFile, FileSlice
from lakehouse.model.instant import Instant, State, Timeline
from lakehouse.spec.options.archive import ArchivePolicy
from lakehouse.spec.options.clean import CleanPolicy
from lakehouse.spec.options.compaction import CompactionPolicy
from lakehouse.spec.options.metadata import MetadataPolicy

#: A reader that loaded the timeline before a compaction reads the slice before the newest one.
CLEAN = CleanPolicy(policy=FILE_VERSIONS, versions_retained=2)
#: Hudi's defaults for the data table, plus one.
ARCHIVE = ArchivePolicy(max_commits=31, min_commits=21)


def compaction_policy(policy: MetadataPolicy) -> CompactionPolicy:
    """Return the policy for compactions of the metadata table; a plan contains all file groups."""
    return CompactionPolicy(
        max_delta_commits=policy.compaction_delta_commits,
        log_blocks_threshold=policy.log_compaction_blocks,
        strategy="UnBounded",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceState:
    """The state of the metadata table for a service, under the lock of the data table.

    Attributes:
        store: The metadata table.
        names: The usable index partitions. A partition that is being built gets its base files when its build is
            complete.
        definitions: The index definitions.
        timeline: The timeline of the metadata table.
        data: The timeline of the data table.
    """

    store: MetadataStore
    names: tuple[str, ...]
    definitions: Mapping[str, Definition]
    timeline: Timeline
    data: Timeline

    def reloaded(self) -> ServiceState:
        """Return the state with the present timeline of the metadata table; one listing."""
        return replace(self, timeline=self.store.timeline_store.load())

    def files(self) -> dict[str, DataFile]:
        """Return the files of the file groups by path; folders are listed if another process completed an instant."""
        return self._by_path(self.store.folders(self.names, completions_of(self.timeline)))

    def stored_files(self) -> dict[str, DataFile]:
        """Return the files of the file groups by path, from a listing of every folder."""
        storage = self.store.inner.storage
        return self._by_path(send_all(storage, lambda name: storage.list_dir(name)[0], self.names))

    def visible(self, archived: Mapping[str, str]) -> VisibleTimeline:
        """Return the completed instants; `archived` maps the requested times of archived ones to completion times."""
        return replace(visible_timeline(self.timeline, ()), archived=archived)

    def slices(self, files: Iterable[DataFile], visible: VisibleTimeline) -> dict[Group, tuple[FileSlice, ...]]:
        """Return all slices of all file groups, newest first."""
        return all_slices(files, visible, layout=self.store.config.layout)

    def newest_slices(self, files: Collection[DataFile], before: str) -> list[FileSlice]:
        """Return the newest slice of each group with a base file requested, and logs completed, before a time.

        The logs of archived instants are in older slices: the archive keeps all instants since the last compaction. In
        version 6 the name of a log is the instant of its base, so `before` has no effect, and groups that have nothing
        but the empty log of their build are left out, as in Hudi 0.15.
        """
        if self.store.config.layout.names_logs_by_slice:
            return self._named_slices(files)
        completions = {write.requested: write.completion for write in self.timeline.writes()}
        counted = [file for file in files if isinstance(file, BaseFile) or file.instant in completions]
        newest = []
        for slices in self.slices(counted, self.visible({})).values():
            cut = next((s for s in slices if s.base is None or s.base_instant < before), None)
            logs = () if cut is None else tuple(log for log in cut.logs if completions[log.instant] < before)
            if cut is not None and (cut.base is not None or logs):
                newest.append(replace(cut, logs=logs))
        return newest

    def _named_slices(self, files: Iterable[DataFile]) -> list[FileSlice]:
        held = validity(self.timeline, self.data)
        of_partition: dict[str, list[DataFile]] = {}
        for file in files:
            of_partition.setdefault(file.partition, []).append(file)
        newest = []
        for partition, parsed in of_partition.items():
            for slice_ in slices_of(parsed, held, layout=self.store.config.layout, archived=lambda _: {}):
                instants = [file.instant for file in (slice_.base, *slice_.logs) if file is not None]
                if slice_.base is not None or any(log.write_token != INIT_TOKEN for log in slice_.logs):
                    newest.append(
                        FileSlice(
                            partition=partition,
                            file_id=slice_.file_id,
                            base_instant=slice_.base.instant if slice_.base else min(instants),
                            base=slice_.base,
                            logs=slice_.logs,
                        )
                    )
        return newest

    def complete(self, instant: Instant, data: bytes, lock: TableLock) -> Instant:
        """Create the completed file of an inflight instant."""
        lock.check_lease()
        timeline = Timeline((*(other for other in self.timeline if other.key != instant.key), instant))
        return self.store.timeline_store.complete(instant, timeline, data, lock.below(METADATA))

    def remove_plan(self, pending: Instant, lock: TableLock) -> None:
        """Remove a pending instant whose plan cannot be executed."""
        lock.check()
        self.store.timeline_store.remove_pending(replace(pending, state=State.INFLIGHT))

    def _by_path(self, listings: Iterable[Iterable[FileInfo]]) -> dict[str, DataFile]:
        parsed = (
            metadata_file(file.name, name, file.size_bytes)
            for name, files in zip(self.names, listings, strict=True)
            for file in files
        )
        return {file.path: file for file in parsed if file is not None}
