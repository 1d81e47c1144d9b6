"""`make reliability`: simulate, kill, fuzz, soak and mutate, then print a report; exit status 1 after a violation."""

from __future__ import annotations

import argparse
import logging
import os
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from tests.property.test_ingest_kills import KILLS_PER_TABLE, die_again_and_again
from tests.reliability.actors import KINDS
from tests.reliability.fuzz import fuzz
from tests.reliability.kills import TABLES, case_of, kill, moments, operations_of
from tests.reliability.mutants import MUTANTS, run_mutants
from tests.reliability.soak import Soak, soak
from tests.simulation.run import Run, failure_in
from tests.simulation.store import FAULTS
from tests.support.processes import forked

_CHUNK = 50
_SHOWN = 5
#: A slower recovery of the table after a kill is a violation.
SLOWEST_RECOVERY_S = 10.0
_WIDTH = 100


def simulated(seeds: range) -> tuple[Counter[str], list[str]]:
    """Simulate seeds; return the number of faults of each kind, and the reports of failed seeds."""
    logging.disable(logging.WARNING)
    faults: Counter[str] = Counter()
    failed = []
    for seed in seeds:
        run = Run(seed)
        failure = failure_in(run)
        faults.update(kind for line in run.world.trace for kind in FAULTS if kind in line.split()[4:])
        if failure is not None:
            failed.append(f"simulation, {failure[0]}: {failure[1]}")
    return faults, failed


def simulate(seeds: int) -> tuple[Counter[str], list[str]]:
    """Simulate a number of seeds on all cores."""
    chunks = [range(first, min(first + _CHUNK, seeds)) for first in range(0, seeds, _CHUNK)]
    processes = forked()
    with ProcessPoolExecutor(os.cpu_count(), mp_context=processes) as pool:
        answers = list(pool.map(simulated, chunks))
    return sum((faults for faults, _ in answers), Counter()), [text for _, failed in answers for text in failed]


def kill_all(number: int | None, home: Path) -> tuple[dict[tuple[str, str], list[float]], list[str]]:
    """Kill every operation on both table types at some steps; return the recovery times and the violations."""
    times: dict[tuple[str, str], list[float]] = {}
    violations = []
    for table_type, index in TABLES.items():
        for operation in operations_of(index):
            directory = home / f"{table_type}-{operation}"
            directory.mkdir()
            case = case_of(operation, index, directory)
            for step, mode in moments(case, number):
                try:
                    seconds = kill(case, step, mode, directory / f"{step}-{mode}")
                except Exception as error:
                    violations.append(f"kill: {type(error).__name__}: {error}")
                else:
                    times.setdefault((operation, table_type), []).append(seconds)
    return times, violations


def ingest_and_die(kills: int) -> tuple[int, list[str]]:
    """Kill ingestion runs; return their number and the violations."""
    logging.disable(logging.WARNING)
    died, violations = 0, []
    for seed in range(-(-kills // KILLS_PER_TABLE)):
        try:
            died += die_again_and_again(seed)[0]
        except AssertionError as error:
            violations.append(f"ingest: {error}")
    logging.disable(logging.NOTSET)
    return died, violations


def main(words: Sequence[str] | None = None) -> int:
    """Run the selected checks and print the report."""
    parser = argparse.ArgumentParser(prog="python -m tests.reliability", description="Simulate, kill, fuzz, soak.")
    parser.add_argument("--minutes", type=float, default=1.0, help="length of the soak (default: 1)")
    parser.add_argument("--seeds", type=int, default=500, help="runs of the simulation (default: 500)")
    parser.add_argument(
        "--kills", default="2", help="kills of each operation on each table type, or 'all' (default: 2)"
    )
    parser.add_argument("--ingest-kills", type=int, default=300, help="kills of ingest runs in memory (default: 300)")
    parser.add_argument("--fuzz", type=int, default=1_000, help="damaged inputs of each decoder (default: 1000)")
    parser.add_argument(
        "--mutants", type=int, default=len(MUTANTS), help="lines that are broken to see tests fail (default: all)"
    )
    chosen = parser.parse_args(words)
    started = time.monotonic()
    number = None if chosen.kills == "all" else int(chosen.kills)
    with tempfile.TemporaryDirectory(prefix="lakehouse-reliability-") as temporary:
        home = Path(temporary)
        faults, violations = simulate(chosen.seeds)
        times, more = kill_all(number, home) if number != 0 else ({}, [])
        violations += more
        died, more = ingest_and_die(chosen.ingest_kills)
        violations += more
        fuzzed = fuzz(chosen.fuzz) if chosen.fuzz else None
        violations += [f"fuzz: {defect}" for defect in (fuzzed.defects if fuzzed else ())]
        soaks = []
        for place, kind in enumerate(KINDS if chosen.minutes else ()):
            (home / f"soak-{place}").mkdir()
            soaks.append(soak(kind, chosen.minutes * 60 / len(KINDS), home / f"soak-{place}"))
            violations += [f"soak, {kind}: {text}" for text in soaks[-1].violations]
            slow = [f"{seconds:.1f} s" for seconds in soaks[-1].recoveries if seconds > SLOWEST_RECOVERY_S]
            violations += [f"soak, {kind}: a recovery took {text}" for text in slow]
        survivors = run_mutants(home, MUTANTS[: chosen.mutants], os.cpu_count() or 1) if chosen.mutants else []
        violations += [f"mutant {text}" for text in survivors]
    _line("Reliability", f"{time.monotonic() - started:,.0f} s")
    _line("simulation", f"{chosen.seeds:,} seeds, {sum(faults.values()):,} faults")
    print("   " + "   ".join(f"{kind} {faults[kind]:,}" for kind in FAULTS))
    _show_kills(times, died)
    if fuzzed is not None:
        _line("damaged inputs", f"{fuzzed.inputs:,}, {len(fuzzed.defects)} neither read nor refused")
        print(f"   {fuzzed.decoders} decoders   {fuzzed.tables} tables, {fuzzed.golden} of them written by Apache Hudi")
    for result in soaks:
        _show_soak(result)
    _line("mutants", f"{chosen.mutants - len(survivors)} of {chosen.mutants} killed")
    _line("violations", str(len(violations)))
    for text in violations[:_SHOWN]:
        print(f"   {text}")
    return 1 if violations else 0


def _show_kills(times: dict[tuple[str, str], list[float]], ingest_kills: int) -> None:
    every = [seconds for found in times.values() for seconds in found]
    _line("processes killed", f"{len(every):,}, recovered within {_spread(every)}")
    types = list(TABLES)
    print(f"   {'':24}" + "".join(f"{name.lower().replace('_', '-'):>36}" for name in types))
    for operation in dict.fromkeys(operation for operation, _ in times):
        cells = [times.get((operation, name), []) for name in types]
        texts = [f"{len(found)} kills, {_spread(found)}" if found else "-" for found in cells]
        print(f"   {operation:24}" + "".join(f"{text:>36}" for text in texts))
    print(f"   {'ingest run (in memory)':24}{f'{ingest_kills:,} kills':>36}")


def _show_soak(result: Soak) -> None:
    _line(f"soak: {result.kind}", f"{result.seconds:,.0f} s")
    killed = ", ".join(f"{name} {number}" for name, number in sorted(result.kills.items()))
    print(f"   commits {result.commits:,}   compactions {result.services:,}   reads checked {result.reads:,}")
    print(f"   conflicts {result.conflicts:,}, committed within five tries {result.settled_share:.1%} (target: 99%)")
    print(f"   killed {sum(result.kills.values())} ({killed}); recovered within {_spread(result.recoveries)}")


def _spread(seconds: Iterable[float]) -> str:
    found = list(seconds)
    return f"{statistics.median(found):.2f} s (median), {max(found):.2f} s" if found else "-"


def _line(title: str, text: str) -> None:
    print(f"\n{title} {'.' * (_WIDTH - len(title) - len(text) - 2)} {text}", flush=True)
