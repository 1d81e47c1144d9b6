"""One run of the simulation: a seed selects a table and its actors; recovery follows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random

from lakehouse.core.env import Env
from lakehouse.core.metadata.place import DEFINITIONS_PATH, METADATA
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.read.partition_statistics import STATISTICS
from lakehouse.core.table.table import Table
from lakehouse.core.timeline.locks.storage import LOCK_PATH
from lakehouse.model.instant import Action
from tests.simulation.actors import (
    CLUSTERING,
    UNDOING,
    Setting,
    change_of,
    look,
    options_of,
    serve,
    undo,
    write,
)
from tests.simulation.invariants import Checker
from tests.simulation.model import Change
from tests.simulation.processes import simulated
from tests.simulation.store import Plan, SimulatedStorage, plan_of
from tests.simulation.tables import KINDS, Shape, batch, plans_of, prepared, row_of
from tests.simulation.world import HOUR_MS, Process, Violation, World
from tests.support.killed import copy_of, leftovers
from tests.support.metadata_check import check_metadata
from tests.support.unconditional import UnconditionalStorage

Actor = Callable[[SimulatedStorage, Process], None]


class Run:
    """A world with a table and its actors."""

    def __init__(self, seed: int, *, version: int = 9, **indexes: bool) -> None:
        """Prepare the run of a seed; `indexes` are fields of `Shape`."""
        self.seed = seed
        self.world = World(seed)
        random = self.world.random
        shape = _shape(random, version)
        if indexes.get("record_index") and not shape.is_clustered:
            # A merge-on-read table with buckets cannot have a record index.
            shape = replace(shape, kind=f"{shape.kind[:3]}_SIMPLE")
        self.shape = replace(shape, **indexes)
        stored, versions = prepared(self.shape)
        conditional = random.random() < 0.85
        self.storage = copy_of(stored) if conditional else UnconditionalStorage(stored)
        # The names of bulk insert files are digests that include the location of the table.
        self.storage.root = "memory://lake" if conditional else "s3://before-2024/lake"
        self.checker = Checker(self.world, self.storage, versions, self.shape)
        self.setting = Setting(
            shape=self.shape,
            non_blocking=self.shape.kind.startswith("MOR_BUCKET") and random.random() < 0.6 and version != 6,
            options=options_of(random, conditional=conditional),
            checker=self.checker,
        )
        self.faults = plan_of(random)
        #: The names of the actors; if empty, the seed selects them.
        self.cast: tuple[str, ...] = ()
        self.numbers = 0

    def play(self) -> None:
        """Run all actors, then recover; raise the first violation."""
        # Small batches stay in memory, so half of the runs store them.
        with simulated(stages_in_storage=self.seed % 2 == 1):
            for name in self.cast or self._cast():
                self._enter(name)
            self.world.play()
            self.world.now_ms += HOUR_MS
            doctor = self.world.process("doctor", "host")
            doctor.protected = True
            store = SimulatedStorage(self.storage, doctor, Plan((), 0), self.checker)
            self.world.start(doctor, partial(recover, self.setting, store, doctor))
            self.world.play()

    def _cast(self) -> list[str]:
        """Return names of actors that the seed selects."""
        random = self.world.random
        names = ["write"] * random.choice((1, 2, 2, 3))
        if self.shape.merges:
            names += random.sample(self.shape.compacting, random.choice((0, 1, 1, 2)))
        if self.shape.plan and random.random() < 0.5:
            names += [self.shape.plan] * 2
        if self.shape.is_clustered and random.random() < 0.25:
            names += random.sample(CLUSTERING, random.choice((1, 1, 2)))
        if random.random() < 0.3:
            names.append("rollback")
        if random.random() < 0.4:
            names.append("read")
        if random.random() < 0.25:
            names.append("clean")
        if random.random() < 0.2 and self.shape.version != 6:
            names.append("archive")
        if random.random() < 0.3:
            names += random.sample(UNDOING, random.choice((1, 2, 3)))
        # A separate generator, so that recorded seeds keep their schedule in runs without ttl.
        if Random(f"ttl {self.seed}").random() < 0.15:
            names.append("ttl")
        return names

    def _enter(self, name: str, restarted: int = 0) -> None:
        world, random = self.world, self.world.random
        host = random.choice(("host", "host", f"host-{len(world.processes)}"))
        process = world.process(f"{len(world.processes)}:{name}", host, random.choice((0, 0, -200, 200, 37)))
        store = SimulatedStorage(self.storage, process, self.faults, self.checker)

        def live() -> None:
            try:
                self._act(name, store, process)
            finally:
                if process.crashed and world.failure is None and restarted < 2 and random.random() < 0.5:
                    self._enter(random.choice((name, "rollback")), restarted + 1)

        world.start(process, live)

    def _act(self, name: str, store: SimulatedStorage, process: Process) -> None:
        if name == "write":
            self.numbers += 1
            non_blocking = self.setting.non_blocking
            change = change_of(self.world.random, self.shape, self.numbers, non_blocking=non_blocking)
            self.world.trace.append(f"{process.name} begins {change}")
            write(self.setting, store, process, change)
        elif name == "read":
            look(self.setting, store, process)
        elif name in UNDOING:
            undo(self.setting, store, process, name)
        else:
            serve(self.setting, store, process, name)


def recover(setting: Setting, store: SimulatedStorage, process: Process) -> None:
    """Roll back failed writes, run pending plans and write once as the only writer; no leftover file may remain."""
    checker, shape = setting.checker, setting.shape
    table = setting.open(store, process)
    for target in list(checker.restoring.values()):
        table.restore(target)
    table.rollback_failed()
    for half in table.timeline.where(action=Action.SAVEPOINT, pending=True):
        table.delete_savepoint(half.requested)
    checker.check_rows()
    services = [table.services.named(name).run for name in shape.compactions]
    for service in (*services, *([table.services.clustering.run] if shape.is_clustered else [])):
        while not isinstance(service(), NothingToDo):
            pass
    rows = {
        ("a", "a0"): row_of(10_000, ordered=shape.ordered),
        ("d", "d0"): row_of(9, ordered=shape.ordered),
    }
    checker.changes["last"] = Change(name="last", verb="upsert", rows=rows)
    table.upsert(batch(rows), commit_metadata={"did": "last"})
    # The file of Hudi's storage lock stays, because object stores have no conditional delete.
    # The partition statistics stay for the next ttl.
    expected = {LOCK_PATH, STATISTICS, *(f"missing {path}" for path in checker.cleaned), *checker.named_by_archived()}
    remaining = [path for path in leftovers(checker.storage) if path not in expected]
    remaining = [path for path in remaining if not path.startswith((METADATA, DEFINITIONS_PATH))]
    # The next clean executes the plan of a clean that was killed; this recovery runs none.
    planned = [clean.requested for clean in table.refresh().timeline.where(action=Action.CLEAN, pending=True)]
    remaining = [path for path in remaining if not any(requested in path for requested in planned)]
    if remaining:
        checker.violated("NothingLeftBehind", ", ".join(remaining))
    if shape.metadata:
        check_metadata(Table.open(checker.storage.root, env=Env(storage=checker.storage)))


def _shape(random: Random, version: int) -> Shape:
    kind = random.choice(KINDS)
    plan = random.choice(("", *plans_of(kind, version)))
    return Shape(kind, random.random() < 0.3, plan, version=version)


def version_of(seed: int) -> int:
    """Return the table version of a seed: a third of the runs have version 6."""
    return 6 if seed % 3 == 2 else 9


def failure_of(seed: int, *, version: int = 9, **indexes: bool) -> tuple[str, str] | None:
    """Run a seed; return None, or the name of the violated invariant and a report for the replay."""
    return failure_in(Run(seed, version=version, **indexes))


def failure_in(run: Run) -> tuple[str, str] | None:
    """Run `run`; return the same as `failure_of`."""
    try:
        run.play()
    except AssertionError as error:
        name = error.invariant if isinstance(error, Violation) else "Assertion"
        return name, report(run, error)
    except Exception as error:
        return "UnexpectedError", report(run, error)
    return None


def report(run: Run, error: BaseException) -> str:
    """Return a report of a failed run: seed, table, all steps and the error."""
    head = f"seed {run.seed}: {run.shape}, {run.faults}, {run.setting.options or 'filesystem lock'}"
    again = f"replay: LAKEHOUSE_SEED={run.seed} pytest tests/simulation/test_simulation.py"
    return "\n".join([head, *run.world.trace, f"{type(error).__name__}: {error}", again])
