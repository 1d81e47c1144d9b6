"""The command line: noun, verb, flags. Text for people, `--output json` for programs, an exit code per error kind."""

from __future__ import annotations

import argparse
import logging
import os
import sys
from collections.abc import Sequence

from lakehouse import __version__
from lakehouse.errors import LakehouseError, UserError

_HELP = """\
lakehouse: tables in the Apache Hudi format, written and read natively on Spark and Arrow

  table create    make a table from a spec (--table spec.yaml) or from --name, --location and --record-key
  table describe  what a table is: config, schema, partitions, files, last commits
  table read      print rows: --columns, --where, --as-of, --begin/--end, --limit
  table delete    delete rows: --where, --dry-run
  timeline show   the instants of a table
  compaction      due: is one needed, and why; plan: put a plan on the timeline; run: carry a plan out
  logcompaction   plan, run: several log files of a file group become one
  ingest run      bring new files of the spec's source in, in one commit
  rollback        run: undo one write, pending or the newest; failed: undo all whose writers died
  savepoint       create, delete, list: commits that no clean and no rollback takes away
  restore run     go back to a savepoint or a commit (--to), undoing what came after; --dry-run
  options         every option with its default; --markdown for README's table
  demo            generate data, or run the whole demo through Airflow

`--table` is a table spec or a table's location. `lakehouse <noun> <verb> --help` tells the rest.
"""


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code (0, or that of the error's class)."""
    words = list(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    try:
        return _dispatch(words)
    except BrokenPipeError:
        # The reader, such as `head`, has seen enough.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except LakehouseError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return error.exit_code


def _dispatch(words: list[str]) -> int:
    noun = words[0] if words else "help"
    if noun in ("help", "--help", "-h"):
        print(_HELP)
        return 0
    if noun == "--version":
        print(__version__)
        return 0
    if noun == "options":
        return _options(words[1:])
    if noun == "ingest":
        from lakehouse.cli.ingest import ingest

        return ingest(words)
    if noun == "demo":
        from lakehouse.cli.demo import demo

        return demo(words[1:])
    if noun in ("compaction", "logcompaction"):
        from lakehouse.cli.compaction import compaction_command

        return compaction_command(words)
    if noun in ("rollback", "savepoint", "restore"):
        from lakehouse.cli.undo import undo_command

        return undo_command(words)
    if noun in ("table", "timeline"):
        from lakehouse.cli.table import table_command

        return table_command(words)
    raise UserError(f"unknown command {noun!r}\n\n{_HELP}")


def _options(words: list[str]) -> int:
    from lakehouse.spec.options import declarations, options_markdown

    parser = argparse.ArgumentParser(prog="lakehouse options")
    parser.add_argument("--markdown", action="store_true", help="print README's table")
    if parser.parse_args(words).markdown:
        print(options_markdown())
        return 0
    for declared in declarations():
        print(f"{declared['key']} = {declared['default']}\n    {declared['text']}")
    return 0
