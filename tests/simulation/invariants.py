"""Invariants of a run, checked at each change of storage, before another process runs.

ConsistentRead            readers see the completed writes in the order of their completion
NoDuplicateKeys           a read returns each key once
LegalTimeline             times are unique and increase; every instant is requested and then completed, once
NoReferencedFileDeleted   a file that a completed write names exists and does not change; only clean deletes it, when no
                          retained version needs it
CompletedIsForever        only a rollback or restore whose plan names it removes a completed write; archive moves it out
                          of the active timeline, and readers see the same rows
UndoneInOrder             a rollback removes the newest write; readers then see the rows before that write. In version 6
                          the newest write is the one with the latest requested time
RestoredAsTold            when a restore completes, the rows are those of its target
SavepointsStay            a write with a savepoint is not rolled back, and its files are not deleted
LivingAreSpared           an active write is not rolled back, unless by force
OneExecutorPerPlan        a plan is completed once
HonestAnswers             a write reported as committed is committed; one reported as failed is not
MetadataListsFiles        at each commit and rollback, the metadata table lists the files of completed writes, and no
                          other files, except those that a pending clean deletes
NothingLeftBehind         after recovery and one more write, no leftover files exist
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence

from lakehouse.core.env import Env
from lakehouse.core.format.file_names import parse_instant
from lakehouse.core.format.log.blocks import scan_blocks
from lakehouse.core.format.timeline.commit_metadata import decode_commit
from lakehouse.core.format.timeline.restore import decode_restore_plan, decode_savepoint
from lakehouse.core.layout.registry import table_layout
from lakehouse.core.metadata.place import PARTITIONS_KEY
from lakehouse.core.operations.load.metadata import metadata_of
from lakehouse.core.operations.load.table import load_table
from lakehouse.core.operations.services.ttl import RULES_KEY
from lakehouse.core.storage.memory import MemoryStorage
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.archived_timeline import ArchivedTimeline
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, State
from tests.simulation.model import Change, Key, Row, Rows, after
from tests.simulation.store import timeline_name
from tests.simulation.tables import Shape
from tests.simulation.world import Process, Violation, World

_PLANNED = {Action.COMPACTION, Action.LOGCOMPACTION, Action.CLUSTERING}


def read(storage: MemoryStorage) -> Rows:
    """Return the rows of the table that a reader sees."""
    return rows_of(Table.open(storage.root, env=Env(storage=storage)))


def rows_of(table: Table) -> Rows:
    """Return rows by partition and key, without null values; raise Violation for a duplicate key."""
    rows: Rows = {}
    for found in table.scan().to_arrow().to_pylist():
        key: Key = (found.pop("p"), found.pop("id"))
        row: Row = {name: value for name, value in found.items() if value is not None and not name.startswith("_")}
        if key in rows:
            raise Violation("NoDuplicateKeys", f"{key} is {rows[key]} and {row}")
        rows[key] = row
    return rows


class Checker:
    """Checks the changes of one store.

    Attributes:
        changes: The changes of writers by name.
        committed: How often each change was committed.
        taken_back: The names of changes that were rolled back.
        forceful: The processes that roll back by force.
        versions: The rows of the table after each commit and rollback, in order.
        cleaned: The paths of named files that clean deleted.
        undone: How often a reader may have lost files, by rollbacks and cleans.
        restoring: The targets of pending restores by requested time.
    """

    def __init__(self, world: World, storage: MemoryStorage, before: Sequence[Rows], shape: Shape) -> None:
        """Start with the existing writes of `storage`; `before` are the rows after each of them."""
        self.world, self.storage, self.ordered = world, storage, shape.ordered
        self.layout = table_layout(shape.version)
        self.changes: dict[str, Change] = {}
        self.committed: dict[str, int] = {}
        self.taken_back: set[str] = set()
        self.forceful: set[Process] = set()
        self.versions: list[Rows] = list(before[-1:])
        self.cleaned: set[str] = set()
        self.undone = 0
        self.restoring: dict[str, str] = {}
        # Requested time, name and rows of the writes that are not rolled back, oldest first.
        self._stands: list[tuple[str, str, Rows]] = []
        self._archived: set[str] = set()
        self._reader: Table | None = None
        self._to_undo: dict[str, set[str]] = {}
        self._kept: dict[str, set[str]] = {}
        self._files = {file.path for file in storage.list("")}
        self._named: dict[str, str] = {}
        self._owners: dict[str, Process] = {}
        self._requested: dict[str, set[Action]] = {}
        self._completed: dict[str, str] = {}
        for path in sorted(self._files):
            instant = parse_instant(timeline_name(path))
            if instant is not None and instant.is_completed:
                self._completed[instant.requested] = instant.completion
                self._name(instant, storage.get(path))
        first = sorted(self._completed.items(), key=lambda times: times[1])
        self._stands = [(requested, "", rows) for (requested, _), rows in zip(first, before, strict=True)]

    @property
    def rows(self) -> Rows:
        """The current rows of the table."""
        return self.versions[-1]

    def wrote(self, path: str, data: bytes) -> None:
        """Check a file that was written."""
        if path in self._named:
            self.violated("NoReferencedFileDeleted", f"{path}, which {self._named[path]} names, was written again")
        self._files.add(path)
        instant = parse_instant(timeline_name(path))
        if instant is None or (instant.action is Action.SAVEPOINT and not instant.is_completed):
            return
        if instant.action is Action.SAVEPOINT:
            self._keep(instant, data)
        elif instant.state is State.REQUESTED:
            self._owners[instant.requested] = self.world.moving
            self._announce(instant, data)
            actions = self._requested.setdefault(instant.requested, set())
            actions.add(instant.action)
            if len(actions) > 1 or instant.requested in self._completed.values():
                self.violated("LegalTimeline", f"{instant.requested} was used twice: {sorted(actions)}")
        elif instant.is_completed:
            self._complete(instant, data)

    def deleted(self, path: str) -> None:
        """Check a file that was deleted."""
        self._files.discard(path)
        if path in self._named and self.world.moving.name.endswith("clean"):
            # Only older versions need the file. A reader of an older version may miss it from now on.
            self.cleaned.add(path)
            self.undone += 1
            del self._named[path]
            self.check_rows()
        if path in self._named:
            self.violated("NoReferencedFileDeleted", f"{path}, which {self._named[path]} names, was deleted")
        keeping = [savepoint for savepoint, kept in self._kept.items() if path in kept]
        if keeping:
            self.violated("SavepointsStay", f"{path}, which the savepoint of {keeping[0]} keeps, was deleted")
        instant = parse_instant(timeline_name(path))
        if instant is None:
            return
        if instant.action is Action.SAVEPOINT:
            self._kept.pop(instant.requested, None)
        elif instant.is_completed:
            self._take_back(instant, path)
        elif instant.state is State.REQUESTED:
            # A write that ends without files leaves nothing, and another write can use its requested time.
            self._requested.pop(instant.requested, None)

    def check_rows(self) -> None:
        """Compare the rows that a reader sees with the rows of the completed writes."""
        # One reader with a cache of immutable files. The reading actors open the table again each time.
        self._reader = self._reader or Table.open(self.storage.root, env=Env(storage=self.storage))
        self.compare(rows_of(self._reader), self.versions[-1:])
        self.check_metadata()

    def check_metadata(self) -> None:
        """Compare the listing of the metadata table, if the table has one, with the files of completed writes."""
        loaded = load_table(Env(storage=self.storage))
        if "files" not in loaded.config.raw.get(PARTITIONS_KEY, ""):
            return
        metadata = metadata_of(loaded)
        if metadata is None:
            self.violated("MetadataListsFiles", f"the metadata table is not used: {loaded.metadata.cache.opened}")
            return
        listing = metadata.listing()
        paths = zip(listing["partition"].to_pylist(), listing["name"].to_pylist(), strict=True)
        listed = {f"{partition}/{name}".lstrip("/") for partition, name in paths}
        missing, extra = self._named.keys() - listed, listed - self._named.keys() - self.cleaned
        if self.layout.names_logs_by_slice:
            pending = {instant.requested for instant in loaded.timeline.where(pending=True)}
            extra = {path for path in extra if not self._was_rolled_back(path, pending)}
        if missing or extra:
            self.violated("MetadataListsFiles", f"not listed: {sorted(missing)}; not committed: {sorted(extra)}")

    def _was_rolled_back(self, path: str, pending: Collection[str]) -> bool:
        """Return whether a log file has no blocks of pending writes: it stays after a rollback, with its command."""
        if ".log." not in path or path not in self._files:
            return False
        with self.storage.open_input(path) as source:
            return all(block.instant not in pending for block in scan_blocks(source))

    def compare(self, found: Rows, allowed: Iterable[Rows]) -> None:
        """Raise Violation unless the rows equal one of the allowed versions."""
        expected = list(allowed)
        if found not in expected:
            wanted = expected[-1]
            differ = {
                k: (found.get(k), wanted.get(k)) for k in found.keys() | wanted.keys() if found.get(k) != wanted.get(k)
            }
            self.violated("ConsistentRead", f"found and expected differ: {dict(sorted(differ.items()))}")

    def violated(self, invariant: str, message: str) -> None:
        """End the run with a violation."""
        self.world.fail(Violation(invariant, message))

    def _complete(self, instant: Instant, data: bytes) -> None:
        requested, completion = instant.requested, instant.completion
        pending = {path for path in self._files if timeline_name(path).startswith(f"{requested}.")}
        if requested in self._completed:
            planned = self._requested.get(requested, set()) & _PLANNED
            name = "OneExecutorPerPlan" if planned else "LegalTimeline"
            self.violated(name, f"{requested} was completed at {self._completed[requested]} and {completion}")
        if not any(path.endswith(".requested") for path in pending):
            self.violated("LegalTimeline", f"{requested} was completed without a requested file")
        if instant.completed is not None and completion <= max([requested, *self._completed.values()]):
            self.violated("LegalTimeline", f"{requested} was completed at {completion}, which is not the newest time")
        self._completed[requested] = completion
        self._to_undo.pop(requested, None)
        if instant.action is Action.RESTORE:
            target = self.restoring.pop(requested)
            known = [rows for write, _, rows in self._stands if write == target]
            newest = self._newest()
            if known and (newest != target if instant.completed is None else known[0] != self.rows):
                self.violated("RestoredAsTold", f"{requested} restored {target}, but {newest} is still completed")
            self.check_rows()
        if instant.action not in WRITE_ACTIONS:
            return
        metadata = self._name(instant, data)
        missing = sorted(path for path, by in self._named.items() if by == requested and path not in self._files)
        if missing:
            self.violated("NoReferencedFileDeleted", f"{requested} names {missing[0]}, which does not exist")
        did = metadata.extra.get("did")
        if RULES_KEY in metadata.extra:
            # The property tests of ttl plans check which partitions expire. Here only the deleted rows are checked.
            did = f"ttl {requested}"
            partitions = tuple(metadata.replaced)
            self.changes[did] = Change(name=did, verb="delete_partitions", partitions=partitions)
        if did is not None:
            self.committed[did] = self.committed.get(did, 0) + 1
            if self.committed[did] > 1:
                self.violated("HonestAnswers", f"{did} was committed twice")
            self.versions.append(after(self.rows, self.changes[did], ordered=self.ordered))
            self._stands.append((requested, did, self.rows))
        try:
            self.check_rows()
        except Violation:
            raise
        except Exception as error:
            self.world.fail(Violation("ConsistentRead", f"the table cannot be read after {requested}: {error!r}"))

    def _announce(self, instant: Instant, data: bytes) -> None:
        """Record the writes that a requested rollback or restore removes."""
        if instant.action is Action.ROLLBACK:
            target = self.layout.decode_rollback_plan(data, base_path=self.storage.root).target
            self._to_undo[instant.requested] = {target}
            self._spare(target)
        elif instant.action is Action.RESTORE:
            plan = decode_restore_plan(data)
            self._to_undo[instant.requested] = {requested for requested, _ in plan.instants}
            self.restoring[instant.requested] = plan.target or ""

    def _keep(self, instant: Instant, data: bytes) -> None:
        files = decode_savepoint(data).files
        kept = {f"{partition}/{name}" for partition, names in files.items() for name in names}
        if instant.requested not in self._completed:
            self.violated("SavepointsStay", f"a savepoint keeps {instant.requested}, which was rolled back")
        if kept - self._files:
            self.violated("SavepointsStay", f"a savepoint of {instant.requested} keeps {min(kept - self._files)}")
        self._kept[instant.requested] = kept

    def _take_back(self, instant: Instant, path: str) -> None:
        """Check the deletion of a completed file: a rollback, a restore or archive must allow it."""
        requested = instant.requested
        if self._is_archived(instant):
            self._archived.add(requested)
            self.check_rows()
            return
        self._completed.pop(requested, None)
        if instant.action is Action.ROLLBACK:
            return
        if not any(requested in targets for targets in self._to_undo.values()):
            self.violated("CompletedIsForever", f"{path} was deleted")
        if requested in self._kept:
            self.violated("SavepointsStay", f"{path} was deleted, and a savepoint keeps it")
        self.undone += 1
        self._named = {file: by for file, by in self._named.items() if by != requested}
        if requested in {write for write, _, _ in self._stands}:
            if self._newest() != requested:
                self.violated("UndoneInOrder", f"{requested} was rolled back before {self._newest()}, which is newer")
            self._forget(requested)
            self.versions.append(self._stands[-1][2] if self._stands else {})
        self.check_rows()

    def _newest(self) -> str:
        """Return the requested time of the newest write that is not rolled back."""
        times = [requested for requested, _, _ in self._stands]
        return times[-1] if self.layout.has_completion_times else max(times)

    def _forget(self, requested: str) -> None:
        """Remove a write that was rolled back. Later rows are those without its change."""
        stands, self._stands = self._stands, []
        for write, did, rows in stands:
            if write == requested:
                self.taken_back.add(did)
            elif did and self._stands:
                self._stands.append((write, did, after(self._stands[-1][2], self.changes[did], ordered=self.ordered)))
            else:
                self._stands.append((write, did, rows))

    def named_by_archived(self) -> set[str]:
        """Return the paths that archived writes name."""
        return {path for path, by in self._named.items() if by in self._archived}

    def _is_archived(self, instant: Instant) -> bool:
        times = (instant.requested, instant.action, instant.completion)
        history = ArchivedTimeline(self.storage, ".hoodie/timeline/history")
        found = history.instants(requested_from=instant.requested, requested_up_to=instant.requested)
        return times in [(i.requested, i.action, i.completed) for i in found]

    def _spare(self, target: str) -> None:
        owner, moving = self._owners.get(target), self.world.moving
        if moving in self.forceful:
            return
        if owner is not None and owner is not moving and self.world.beats_for(owner, target):
            self.violated("LivingAreSpared", f"{moving.name} rolls back {target}, but {owner.name} is still writing it")

    def _name(self, instant: Instant, data: bytes) -> CommitMetadata:
        metadata = decode_commit(data)
        self._named.update({stat.path: instant.requested for stat in metadata.stats})
        return metadata
