"""The actors of a run: writers, planners, executors of plans, rollback and readers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.storage.protocol import NotFoundError, Storage
from lakehouse.core.table.table import Table
from lakehouse.errors import CommitStateUnknownError, LakehouseError, RetryableError, UserError
from tests.simulation.invariants import Checker, rows_of
from tests.simulation.model import Change, Key, Rows
from tests.simulation.tables import CALLS, STORED, Shape, batch, row_of
from tests.simulation.world import Process

MODE = "hoodie.write.concurrency.mode"
OPTIMISTIC = {MODE: "OPTIMISTIC_CONCURRENCY_CONTROL"}
NON_BLOCKING = {MODE: "NON_BLOCKING_CONCURRENCY_CONTROL"}
PARTIAL = {"lakehouse.write.partial.update": "true"}
_STORAGE_LOCK = {
    "hoodie.write.lock.provider": "storage",
    "hoodie.write.lock.storage.validity.timeout.secs": "10",
    "hoodie.write.lock.storage.renew.interval.secs": "1",
}
_DATABASE_LOCK = {"hoodie.write.lock.provider": "sqlalchemy", "lakehouse.lock.sqlalchemy.url": "sqlite://"}
#: Clean keeps the files of one commit and archive keeps two commits, so a service that deletes too much is detected.
SERVING = {
    "hoodie.clean.commits.retained": "1",
    "hoodie.keep.min.commits": "2",
    "hoodie.keep.max.commits": "3",
    "hoodie.timeline.compaction.batch.size": "2",
    "lakehouse.ttl.max.partitions": "1",
}
#: New keys that several writers can insert.
_NEW: tuple[Key, ...] = (("a", "n0"), ("b", "n1"), ("c", "n2"))
VERBS = ("upsert", "upsert", "upsert", "insert", "delete", "partial", "insert_overwrite", "delete_partitions")
SERVICES: dict[str, Callable[[Table], object]] = {
    "plan": lambda table: table.services.compaction.schedule(force=True),
    "plan log": lambda table: table.services.log_compaction.schedule(force=True),
    "compaction": lambda table: table.services.compaction.run(force=True),
    "log compaction": lambda table: table.services.log_compaction.run(),
    "rollback": lambda table: table.rollback_failed(),
    "clean": lambda table: table.services.clean.run(force=True),
    "archive": lambda table: table.services.archive.run(force=True),
    "plan clustering": lambda table: table.services.clustering.schedule(force=True),
    "clustering": lambda table: table.services.clustering.run(force=True),
    "ttl": lambda table: table.services.ttl.run(),
}
#: Actors for tables without the bucket index.
CLUSTERING = ("plan clustering", "clustering", "clustering")
UNDOING = ("savepoint", "savepoint", "delete savepoint", "undo", "undo", "restore", "restore")


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """The settings that all actors of a run share."""

    shape: Shape
    non_blocking: bool
    options: dict[str, str]
    checker: Checker

    def open(self, storage: Storage, process: Process, **options: str) -> Table:
        """Open the table as this process."""
        return Table.open(storage.root, options=CALLS | self.options | options, env=process.env(storage))


def options_of(random: Random, *, conditional: bool) -> dict[str, str]:
    """Return random options that all actors share: the lock provider and the updates strategy of clustering.

    A store without conditional writes needs a database as lock provider.
    """
    drawn = random.random()
    updates = {"hoodie.clustering.updates.strategy": random.choice(("reject", "give_way"))}
    if not conditional or drawn > 0.9:
        return _DATABASE_LOCK | updates
    return _STORAGE_LOCK | updates if drawn < 0.25 else updates


def change_of(random: Random, shape: Shape, number: int, *, non_blocking: bool) -> Change:
    """Return a random change of a writer. `number` grows with each change, so a value identifies its writer."""
    name, verb = f"w{number}", random.choice(VERBS)
    if shape.ordered and verb in ("delete", "partial"):
        verb = "upsert"
    # Logs of a file group are merged in the order of their requested times. Non-blocking writers can complete in
    # another order. Without an ordering column they therefore write separate columns.
    separate_columns = non_blocking and not shape.ordered
    if separate_columns and verb in ("upsert", "delete"):
        verb = "partial"
    value = 10 * number
    if verb == "delete_partitions":
        return Change(name=name, verb=verb, partitions=(random.choice(("a", "b")),))
    if verb == "insert":
        keys = [(random.choice(("a", "b", "c")), f"i{number}-{i}") for i in range(2)]
    elif verb == "insert_overwrite":
        keys = [(random.choice(("a", "b", "c")), f"o{number}")]
    else:
        keys = random.sample(STORED, 2) + random.sample(_NEW, random.choice((0, 1, 1, 2)))
    rows: Rows = {key: row_of(value, ordered=shape.ordered) for key in keys}
    if verb == "partial":
        names = (f"x{number}",) if separate_columns else random.choice((("v",), ("w",), ("v", f"x{number}")))
        rows = {key: dict.fromkeys(names, value) for key in keys}
    return Change(name=name, verb=verb, rows=rows)


def write(setting: Setting, storage: Storage, process: Process, change: Change) -> None:
    """Write a change and compare the reported outcome with the timeline."""
    checker = setting.checker
    checker.changes[change.name] = change
    replaces = change.verb in ("insert_overwrite", "delete_partitions")
    mode = NON_BLOCKING if setting.non_blocking and not replaces else OPTIMISTIC
    options = {**mode, **(PARTIAL if change.verb == "partial" else {})}
    try:
        outcome = _call(setting.open(storage, process, **options), change)
    except CommitStateUnknownError:
        return
    except LakehouseError as error:
        if not isinstance(error, RetryableError) and not (change.partitions and isinstance(error, UserError)):
            raise
        if change.name in checker.committed and change.name not in checker.taken_back:
            checker.violated("HonestAnswers", f"{change.name} raised {error}, but is committed")
        return
    if isinstance(outcome, Committed) != (change.name in checker.committed):
        checker.violated("HonestAnswers", f"{change.name} returned {outcome}, but committed are {checker.committed}")


def _call(table: Table, change: Change) -> object:
    did = {"did": change.name}
    if change.verb == "delete_partitions":
        return table.delete_partitions(change.partitions, commit_metadata=did)
    rows = batch(dict(change.rows))
    if change.verb == "delete":
        return table.delete(rows.select(["id", "p"]), commit_metadata=did)
    verb: Callable[..., object] = getattr(table, "upsert" if change.verb == "partial" else change.verb)
    return verb(rows, commit_metadata=did)


def serve(setting: Setting, storage: Storage, process: Process, service: str) -> None:
    """Run a table service."""
    try:
        SERVICES[service](setting.open(storage, process, **OPTIMISTIC, **SERVING))
    except (RetryableError, CommitStateUnknownError):
        return


def undo(setting: Setting, storage: Storage, process: Process, what: str) -> None:
    """Create or delete a savepoint, roll back a write, or restore the table; `what` selects one of UNDOING."""
    checker, random = setting.checker, process.world.random
    try:
        table = setting.open(storage, process, **OPTIMISTIC)
        timeline = table.timeline
        writes = [instant.requested for instant in timeline.writes().by_completion()[-3:]]
        saved = sorted(timeline.savepoints())
        pending = [instant.requested for instant in timeline.where(pending=True)]
        force = random.random() < 0.2
        if force and what in ("restore", "undo"):
            checker.forceful.add(process)
        if len(writes) < 2:
            return
        if what == "savepoint":
            table.savepoint(random.choice(writes))
        elif what == "delete savepoint" and saved:
            table.delete_savepoint(random.choice(saved))
        elif what == "undo":
            table.rollback(random.choice([*writes[-1:], *writes[-1:], *pending]), force=force)
        elif what == "restore":
            begun = sorted(checker.restoring.values())
            table.restore(random.choice(begun or saved or writes), force=force)
    except (RetryableError, CommitStateUnknownError, UserError):
        # Each refusal is a valid outcome. The checker checks the changes themselves.
        return


def look(setting: Setting, storage: Storage, process: Process) -> None:
    """Read the table; the result must be the state of the table at some time during the read."""
    checker = setting.checker
    before, undone = len(checker.versions) - 1, checker.undone
    try:
        found = rows_of(setting.open(storage, process))
    except (RetryableError, NotFoundError) as error:
        if not str(error).startswith(("refused", "no reply")) and checker.undone == undone:
            raise
        return
    # A read that began before a rollback can find some files of the write and miss others.
    if checker.undone != undone:
        return
    checker.compare(found, checker.versions[before:])
