"""Run benchmarks by name and print their tables."""

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
    "indexes",
    "hudi",
    "version_6",
    "one_row",
    "sql_statement",
    "memory",
    "requests",
    "scale",
    "alter",
    "merge",
    "merge_on_read",
    "hudi_logs",
    "read",
    "tpch",
    "dataset",
    "compaction",
    "memory_compaction",
    "clustering",
    "buckets",
    "commits",
    "small_commits",
    "fsync",
    "isolation",
    "key_look_up",
    "decisions",
    "fleet",
    "service_batches",
    "sync",
    "publication",
    "sources",
    "kafka",
    "zipf",
    "formats",
    "mysql",
    "binlog",
    "postgres",
    "spark_versions",
)


def main() -> None:
    """Parse the command line and run the named benchmarks; the default is all of them."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.bench", description="Compare the platform with alternatives; print ratios of times."
    )
    parser.add_argument(
        "names", nargs="*", metavar="name", help=f"benchmarks to run: {', '.join(BENCHES)} (default: all)"
    )
    parser.add_argument("--rows", type=int, default=4_000_000, help="rows of the table (default: 4,000,000)")
    parser.add_argument("--rounds", type=int, default=3, help="measured runs of each side (default: 3)")
    parser.add_argument(
        "--home", type=Path, help="directory of inputs and tables; it is kept (default: a temporary directory)"
    )
    arguments = parser.parse_args()
    unknown = set(arguments.names) - set(BENCHES)
    if unknown:
        parser.error(f"unknown benchmark: {', '.join(sorted(unknown))}; available: {', '.join(BENCHES)}")
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
