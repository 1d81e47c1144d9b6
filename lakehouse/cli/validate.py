"""`lakehouse table validate`: check the invariants of the format, and report repairs."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence

from lakehouse.cli.arguments import option_pairs
from lakehouse.cli.output import show_document
from lakehouse.cli.table import open_table
from lakehouse.errors import CorruptTableError
from lakehouse.model.validation import INVARIANTS, KeyScope
from lakehouse.spark.session import job_session
from lakehouse.spec.contracts.tables import TableValidation


def validate_command(words: Sequence[str]) -> int:
    """Validate a table and return the exit code. Under spark-submit, executors read the files."""
    given = _parse(words[2:])
    submitted = (given.deep or given.keys == KeyScope.GLOBAL) and "PYSPARK_GATEWAY_PORT" in os.environ
    spark = job_session(f"lakehouse table validate {given.table[:100]}") if submitted else None
    table = open_table(given.table, option_pairs(given.option))
    report = table.validate(deep=given.deep, keys=given.keys, spark=spark)
    show_document(TableValidation.of(report), given.output)
    return CorruptTableError.exit_code if report.corrupt else 0


def _parse(words: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="lakehouse table validate",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        description="Check every invariant of a table; exit code 65 if the table is corrupt, else 0. Nothing is "
        "written.",
        epilog="invariants:\n" + "\n".join(f"  {name:22}{known.holds}" for name, known in INVARIANTS.items()),
    )
    parser.add_argument("--table", required=True)
    parser.add_argument("--deep", action="store_true", help="also read every file of the newest slices")
    parser.add_argument(
        "--keys",
        choices=tuple(str(scope) for scope in KeyScope),
        default=str(KeyScope.PARTITION),
        help="scope of unique keys: the partition (default; checked with --deep), or the whole table, which reads "
        "the key column of every newest slice",
    )
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="hoodie.* option")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    return parser.parse_args(words)
