"""What must hold whatever happens; checked at the moment in which storage changes, before anybody else moves.

ConsistentRead            readers see the completed writes, one after the other in the order of their completion
NoDuplicateKeys           no key shows up twice
LegalTimeline             times are unique and rise, and every instant goes from requested to completed, once
NoReferencedFileDeleted   what a completed write names is there, and stays as it is
CompletedIsForever        what is completed is never taken back
OneExecutorPerPlan        a plan is completed once
HonestAnswers             who was told "committed" is, who was told "try again" is not
NothingLeftBehind         after recovery and one more write, nothing is left of those who died
"""

from __future__ import annotations

from collections.abc import Iterable

from lakehouse.format.metadata import decode_commit
from lakehouse.format.names import parse_instant
from lakehouse.format.rollback import decode_rollback_plan
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, State
from lakehouse.storage.memory import MemoryStorage
from lakehouse.table import Table
from lakehouse.txn.env import Env
from tests.simulation.model import Change, Key, Row, Rows, after
from tests.simulation.world import Process, Violation, World

TIMELINE = ".hoodie/timeline/"
_PLANNED = {Action.COMPACTION, Action.LOGCOMPACTION}


def read(storage: MemoryStorage) -> Rows:
    """Return the rows that a reader sees."""
    return rows_of(Table.open(storage.root, env=Env(storage=storage)))


def rows_of(table: Table) -> Rows:
    """Return rows by partition and key, columns without a value left out; a key that shows up twice is a violation."""
    rows: Rows = {}
    for found in table.scan().to_arrow().to_pylist():
        key: Key = (found.pop("p"), found.pop("id"))
        row: Row = {name: value for name, value in found.items() if value is not None and not name.startswith("_")}
        if key in rows:
            raise Violation("NoDuplicateKeys", f"{key} is {rows[key]} and {row}")
        rows[key] = row
    return rows


class Checker:
    """Watches one store. `versions` are the rows after each completed write; `changes` what its writers are about."""

    def __init__(self, world: World, storage: MemoryStorage, rows: Rows, *, ordered: bool) -> None:
        self.world, self.storage, self.ordered = world, storage, ordered
        self.changes: dict[str, Change] = {}
        self.committed: dict[str, int] = {}
        self.versions: list[Rows] = [rows]
        self._files = {file.path for file in storage.list("")}
        self._named: dict[str, str] = {}
        self._owners: dict[str, Process] = {}
        self._requested: dict[str, set[Action]] = {}
        self._completed: dict[str, str] = {}
        for path in sorted(path for path in self._files if path.startswith(TIMELINE)):
            instant = parse_instant(path.removeprefix(TIMELINE))
            if instant is not None and instant.is_completed:
                self._completed[instant.requested] = instant.completion
                self._name(instant, storage.get(path))

    @property
    def rows(self) -> Rows:
        """The rows that are true now."""
        return self.versions[-1]

    def wrote(self, path: str, data: bytes) -> None:
        """Judge what was written."""
        if path in self._named:
            self.violated("NoReferencedFileDeleted", f"{path}, which {self._named[path]} names, was written again")
        self._files.add(path)
        instant = parse_instant(path.removeprefix(TIMELINE)) if path.startswith(TIMELINE) else None
        if instant is None:
            return
        if instant.state is State.REQUESTED:
            self._owners[instant.requested] = self.world.moving
            if instant.action is Action.ROLLBACK:
                self._spare(decode_rollback_plan(data, base_path=self.storage.root, table_version=9).target)
            actions = self._requested.setdefault(instant.requested, set())
            actions.add(instant.action)
            if len(actions) > 1 or instant.requested in self._completed.values():
                self.violated("LegalTimeline", f"{instant.requested} was given twice: {sorted(actions)}")
        elif instant.is_completed:
            self._complete(instant, data)

    def deleted(self, path: str) -> None:
        """Judge what was deleted."""
        self._files.discard(path)
        if path in self._named:
            self.violated("NoReferencedFileDeleted", f"{path}, which {self._named[path]} names, was deleted")
        instant = parse_instant(path.removeprefix(TIMELINE)) if path.startswith(TIMELINE) else None
        if instant is None:
            return
        if instant.is_completed:
            self.violated("CompletedIsForever", f"{path} was deleted")
        if instant.state is State.REQUESTED:
            # A write that ends before it wrote anything leaves no trace, and its time may be given again.
            self._requested.pop(instant.requested, None)

    def check_rows(self) -> None:
        """Compare what a reader sees with what the completed writes say."""
        self.compare(read(self.storage), self.versions[-1:])

    def compare(self, found: Rows, allowed: Iterable[Rows]) -> None:
        """Require that rows are those of one of some versions."""
        expected = list(allowed)
        if found not in expected:
            wanted = expected[-1]
            differ = {
                k: (found.get(k), wanted.get(k)) for k in found.keys() | wanted.keys() if found.get(k) != wanted.get(k)
            }
            self.violated("ConsistentRead", f"found and expected differ: {dict(sorted(differ.items()))}")

    def violated(self, invariant: str, message: str) -> None:
        """End the run."""
        self.world.fail(Violation(invariant, message))

    def _complete(self, instant: Instant, data: bytes) -> None:
        requested, completion = instant.requested, instant.completion
        pending = {path for path in self._files if path.startswith(f"{TIMELINE}{requested}.")}
        if requested in self._completed:
            planned = self._requested.get(requested, set()) & _PLANNED
            name = "OneExecutorPerPlan" if planned else "LegalTimeline"
            self.violated(name, f"{requested} was completed at {self._completed[requested]} and {completion}")
        if not any(path.endswith(".requested") for path in pending):
            self.violated("LegalTimeline", f"{requested} was completed and not requested")
        if completion <= max([requested, *self._completed.values()]):
            self.violated("LegalTimeline", f"{requested} was completed at {completion}, which is not the newest time")
        self._completed[requested] = completion
        if instant.action not in WRITE_ACTIONS:
            return
        metadata = self._name(instant, data)
        missing = sorted(path for path, by in self._named.items() if by == requested and path not in self._files)
        if missing:
            self.violated("NoReferencedFileDeleted", f"{requested} names {missing[0]}, which is not there")
        did = metadata.extra.get("did")
        if did is not None:
            self.committed[did] = self.committed.get(did, 0) + 1
            if self.committed[did] > 1:
                self.violated("HonestAnswers", f"{did} was committed twice")
            self.versions.append(after(self.rows, self.changes[did], ordered=self.ordered))
        try:
            self.check_rows()
        except Violation:
            raise
        except Exception as error:
            self.world.fail(Violation("ConsistentRead", f"after {requested} nobody can read the table: {error!r}"))

    def _spare(self, target: str) -> None:
        owner, moving = self._owners.get(target), self.world.moving
        if owner is not None and owner is not moving and self.world.beats_for(owner, target):
            self.violated("LivingAreSpared", f"{moving.name} rolls back {target}, and {owner.name} is at it")

    def _name(self, instant: Instant, data: bytes) -> CommitMetadata:
        metadata = decode_commit(data)
        self._named.update({stat.path: instant.requested for stat in metadata.stats})
        return metadata
