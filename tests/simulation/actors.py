"""Who acts: writers of every verb and mode, planners, executors, rollback, readers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random

from lakehouse.errors import CommitStateUnknownError, LakehouseError, RetryableError, UserError
from lakehouse.operations.results import Committed
from lakehouse.storage.protocol import Storage
from lakehouse.table import Table
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
#: Keys that several writers may bring as new ones.
_NEW: tuple[Key, ...] = (("a", "n0"), ("b", "n1"), ("c", "n2"))
VERBS = ("upsert", "upsert", "upsert", "insert", "delete", "partial", "insert_overwrite", "delete_partitions")
SERVICES: dict[str, Callable[[Table], object]] = {
    "plan": lambda table: table.services.plan_compaction(force=True),
    "plan log": lambda table: table.services.plan_compaction(force=True, logs_only=True),
    "compaction": lambda table: table.services.compaction(force=True),
    "log compaction": lambda table: table.services.log_compaction(),
    "rollback": lambda table: table.rollback_failed(),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """What all actors of a run share."""

    shape: Shape
    non_blocking: bool
    options: dict[str, str]
    checker: Checker

    def open(self, storage: Storage, process: Process, **options: str) -> Table:
        """Open the table as this process."""
        return Table.open(storage.root, options=CALLS | self.options | options, env=process.env(storage))


def options_of(random: Random) -> dict[str, str]:
    """Draw what all actors must agree on: the provider of the lock."""
    return dict(_STORAGE_LOCK) if random.random() < 0.25 else {}


def change_of(random: Random, shape: Shape, number: int, *, non_blocking: bool) -> Change:
    """Draw what a writer brings; `number` is above those of all before, so a row tells who wrote it."""
    name, verb = f"w{number}", random.choice(VERBS)
    if shape.ordered and verb in ("delete", "partial"):
        verb = "upsert"
    # Logs of one group are merged in the order of their requests, which only writers that exclude each other complete
    # in the same order: where nobody waits an ordering column decides, or there is nothing to decide.
    apart = non_blocking and not shape.ordered
    if apart and verb in ("upsert", "delete"):
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
        names = (f"x{number}",) if apart else random.choice((("v",), ("w",), ("v", f"x{number}")))
        rows = {key: dict.fromkeys(names, value) for key in keys}
    return Change(name=name, verb=verb, rows=rows)


def write(setting: Setting, storage: Storage, process: Process, change: Change) -> None:
    """Make a change, and hold the answer against what happened."""
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
        if change.name in checker.committed:
            checker.violated("HonestAnswers", f"{change.name} was told {error}, and is committed")
        return
    if isinstance(outcome, Committed) != (change.name in checker.committed):
        checker.violated("HonestAnswers", f"{change.name} was told {outcome}, and committed is {checker.committed}")


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
        SERVICES[service](setting.open(storage, process, **OPTIMISTIC))
    except (RetryableError, CommitStateUnknownError):
        return
    except UserError as error:
        # Somebody else completed the plan that was about to be claimed.
        if "is completed" not in str(error):
            raise


def look(setting: Setting, storage: Storage, process: Process) -> None:
    """Read the table, which must be as it was at some moment of the read."""
    checker = setting.checker
    before = len(checker.versions) - 1
    try:
        found = rows_of(setting.open(storage, process))
    except RetryableError as error:
        if not str(error).startswith(("refused", "no reply")):
            raise
        return
    checker.compare(found, checker.versions[before:])
