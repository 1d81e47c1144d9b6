"""Run benches by name and print their tables."""

from __future__ import annotations

import argparse
import tempfile
from importlib import import_module
from pathlib import Path

from tests.bench.measure import show
from tests.bench.setting import Setting

BENCHES = (
    "bulk_insert",
    "upsert",
    "hudi",
    "one_row",
    "memory",
    "requests",
    "merge_on_read",
    "hudi_logs",
    "read",
    "compaction",
    "memory_compaction",
    "clustering",
    "commits",
    "fsync",
    "isolation",
    "decisions",
    "night",
    "sync",
    "publication",
)


def main() -> None:
    """Parse the command line and run what it names, all benches by default."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench", description="Ratios, measured side by side.")
    parser.add_argument("names", nargs="*", metavar="name", help=f"benches to run: {', '.join(BENCHES)} (default: all)")
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of the table (default: 4,000,000)")
    parser.add_argument("--rounds", type=int, default=3, help="runs of each side that count (default: 3)")
    parser.add_argument("--home", type=Path, help="where inputs and tables lie; kept (default: a temporary directory)")
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHES)
    if unknown:
        parser.error(f"no bench {', '.join(sorted(unknown))}; there are {', '.join(BENCHES)}")
    with tempfile.TemporaryDirectory(prefix="lakehouse-bench-") as temporary:
        home = arguments.home or Path(temporary)
        setting = Setting(home=home.absolute(), rows=arguments.rows, rounds=arguments.rounds)
        for name in arguments.names or BENCHES:
            print(f"{name}: {arguments.rows:,} rows", flush=True)
            comparisons = import_module(f"tests.bench.{name}").run(setting)
            if comparisons:
                show(comparisons)


if __name__ == "__main__":
    main()
