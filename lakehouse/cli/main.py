"""Entry point of the command line: nouns, verbs, flags, exit codes.

Commands print text for people, and contracts of `lakehouse.spec.contracts` with `--output json`.
"""

from __future__ import annotations

import logging
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from importlib import import_module
from types import TracebackType

from lakehouse import __version__
from lakehouse.core.storage.os_errors import translate
from lakehouse.errors import LakehouseError, UserError
from lakehouse.model.texts import printable
from lakehouse.spec.secrets import redact_text

_HELP = """\
lakehouse: tables in the Apache Hudi format, written and read natively on Spark and Arrow

  table create    create a table from a spec (--table spec.yaml) or from --name, --location and --record-key
  table describe  config, schema, partitions, files and last commits of a table
  table read      print rows: --columns, --where, --as-of, --begin/--end, --limit
  table delete    delete rows: --where, --dry-run
  table validate  check all invariants of a table and report repairs; --deep reads all files; --keys global
                  finds keys in several partitions (a key is unique in its partition, and in the whole table
                  only with a global index)
  timeline show   the instants of a table; --archived: the archived writes
  compaction      due: trigger condition; plan: schedule a plan on the timeline; run: execute a plan
  logcompaction   due, plan, run: several log files of a file group become one
  clustering      due, plan, run: merge small files into large ones and sort rows (--sort-columns)
  index           check, build: add missing bloom filters to base files
  clean           due, plan, run: remove files that no retained write needs; orphans: files without a write (--delete)
  ttl             due, plan, run: partitions expire by age, count or size; policy set, remove, list: rules by pattern
  archive         due, plan, run: move the oldest actions from the active timeline to the archive
  publish         due, plan, run, status: publish ready partitions in a Hive Metastore; signal, withdraw
  sync            plan, run: register a table and its partitions in a Hive Metastore, as Hudi's sync does
  ingest run      ingest new files of the spec's source in one commit
  rollback        run: roll back one write, pending or the newest; failed: roll back all failed writes
  savepoint       create, delete, list: commits that clean and rollback must keep
  restore run     restore a savepoint or commit (--to) by rolling back later writes; --dry-run
  table           list, register, update, drop: the tables of a catalog by name
  table           sync, drift, history: spec files, their versions in the catalog, and the authors of changes
  policy          set, remove, show: settings of services for a namespace, a table or some of its partitions
  services        due: decide which services run now; explain, request, status, health
  catalog upgrade migrate the database schema of a shared catalog
  options         every option with its default; --markdown for docs/reference/options.md
  demo            generate data, or run the demo through Airflow

`--table` is a table spec, a table's location, or namespace.table of a catalog.
`lakehouse <noun> <verb> --help` describes the flags.
"""

#: Control characters that are kept in messages.
_LINES = "\n\t"
#: Module and function of each noun below `lakehouse.cli`. A command is imported when it runs: Spark and Arrow are slow.
_COMMANDS = {
    "ingest": "ingest:ingest",
    "options": "options:options_command",
    "demo": "demo:demo",
    "index": "index:index_command",
    "publish": "publish:publish_command",
    "sync": "sync:sync_command",
    "rollback": "undo:undo_command",
    "savepoint": "undo:undo_command",
    "restore": "undo:undo_command",
    "catalog": "catalog:catalog_command",
    "policy": "catalog:catalog_command",
    "services": "services:services_command",
    "table validate": "validate:validate_command",
    "table": "table:table_command",
    "timeline": "table:table_command",
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command; return its exit code (0, or that of the error's class)."""
    words = list(sys.argv[1:] if argv is None else argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s: %(message)s")
    for handler in logging.getLogger().handlers:
        if not any(isinstance(known, _NoSecrets) for known in handler.filters):
            handler.addFilter(_NoSecrets())
    # Users of an embedded catalog do not need the log of its migrations.
    logging.getLogger("alembic").setLevel(logging.WARNING)
    sys.excepthook = _show
    try:
        return _dispatch(words)
    except BrokenPipeError:
        # The reading process, such as `head`, has ended.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        # The error is about a file outside of a store, such as a report. Errors without a file name are unexpected.
        if error.filename is None:
            raise
        failure = translate(error, str(error.filename), writing=True)
        print(f"{type(failure).__name__}: {failure}", file=sys.stderr)
        return failure.exit_code
    except LakehouseError as error:
        print(f"{type(error).__name__}: {printable(redact_text(str(error)), keep=_LINES)}", file=sys.stderr)
        return error.exit_code


class _NoSecrets(logging.Filter):
    """Log filter that hides passwords and escapes control characters, also in the log lines of libraries."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Redact the record and keep it."""
        try:
            message = record.getMessage()
        except (TypeError, ValueError):
            # The handler reports the record as wrongly formatted.
            return True
        redacted = printable(redact_text(message), keep=_LINES)
        if redacted != message:
            record.msg, record.args = redacted, ()
        if record.exc_info and not record.exc_text:
            # Formatters reuse a text that is already set.
            record.exc_text = "".join(traceback.format_exception(*record.exc_info)).rstrip("\n")
        if record.exc_text:
            shown = redact_text(record.exc_text)
            if shown != record.exc_text and record.exc_info:
                record.exc_info = _without_secrets(*record.exc_info)
            record.exc_text = shown
        return True


def _without_secrets(
    kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """Return an exception with the same name whose message has no passwords.

    Some formatters read the exception instead of the text of its traceback, such as pyspark's JSON formatter.
    """
    named: type[BaseException] = type(kind.__name__ if kind else "Exception", (Exception,), {})
    return named, named(redact_text(str(error))), trace


def _show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """Print an unexpected error and its traceback without passwords."""
    sys.stderr.write(redact_text("".join(traceback.format_exception(kind, error, trace))))


def _dispatch(words: list[str]) -> int:
    noun = words[0] if words else "help"
    if noun in ("help", "--help", "-h"):
        print(_HELP)
        return 0
    if noun == "--version":
        print(__version__)
        return 0
    if words[:2] == ["table", "validate"]:
        noun = "table validate"
    path = _COMMANDS.get(noun)
    if path is None and noun in import_module("lakehouse.spec.services").SERVICES:
        path = "table_service:service_command"
    if path is None:
        raise UserError(f"unknown command {noun!r}\n\n{_HELP}")
    module, _, function = path.partition(":")
    command: Callable[[Sequence[str]], int] = getattr(import_module(f"lakehouse.cli.{module}"), function)
    return command(words)
