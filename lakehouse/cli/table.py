"""`lakehouse table ...` and `lakehouse timeline show`: what works without Spark."""

from __future__ import annotations

import argparse
import itertools
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lakehouse.cli.output import show
from lakehouse.errors import UserError, nearest
from lakehouse.ingest.declared import create_declared
from lakehouse.ingest.paths import location_of
from lakehouse.operations.results import Committed
from lakehouse.spec.table import TABLE_TYPES, TableSpec, load_spec
from lakehouse.storage.locate import open_storage
from lakehouse.table import Table
from lakehouse.txn.env import Env

_VERBS = {
    "table": ("create", "describe", "read", "delete"),
    "timeline": ("show",),
}


def table_command(words: Sequence[str]) -> int:
    """Run one command of this room."""
    noun = words[0]
    verb = words[1] if len(words) > 1 and not words[1].startswith("-") else ""
    if verb not in _VERBS[noun]:
        known = ", ".join(_VERBS[noun])
        raise UserError(f"lakehouse {noun} {verb!r} is unknown; verbs are {known}.{nearest(verb, _VERBS[noun])}")
    rest = list(words[2:] if len(words) > 1 and words[1] == verb else words[1:])
    return {
        ("table", "create"): _create,
        ("table", "describe"): _describe,
        ("table", "read"): _read,
        ("table", "delete"): _delete,
        ("timeline", "show"): _timeline,
    }[(noun, verb)](rest)


def open_table(name: str, options: Mapping[str, str] | None = None) -> Table:
    """Open the table of a spec file, or at a location."""
    spec = _spec(name)
    location = name if spec is None else location_of(spec, os.environ)
    return Table.open(location, options=options)


def _create(words: list[str]) -> int:
    parser = _parser("table create")
    parser.add_argument("--table", help="a table spec (YAML)")
    parser.add_argument("--name")
    parser.add_argument("--location")
    parser.add_argument("--record-key", help="columns, comma separated")
    parser.add_argument("--partition-by", default="", help="columns, comma separated; column:TIMESTAMP needs a spec")
    parser.add_argument("--type", choices=TABLE_TYPES, default=TABLE_TYPES[0])
    parser.add_argument("--ordering", default="", help="columns that decide between versions of a record")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="hoodie.* option")
    given = parser.parse_args(words)
    if given.table:
        spec = load_spec(Path(given.table))
        location = location_of(spec, os.environ)
        table = create_declared(_at(spec, location), spec.write_options(), Env(storage=open_storage(location)))
    else:
        for flag in ("name", "location", "record_key"):
            if not getattr(given, flag):
                raise UserError(f"table create needs --{flag.replace('_', '-')}, or --table spec.yaml")
        table = Table.create(
            given.location,
            name=given.name,
            record_key=_split(given.record_key),
            partition_by=_split(given.partition_by),
            ordering=_split(given.ordering),
            table_type=given.type,
            options=_pairs(given.option),
        )
    show({"created": table.name, "location": table.location, "version": table.config.version}, given.output)
    return 0


def _describe(words: list[str]) -> int:
    parser = _parser("table describe")
    parser.add_argument("--table", required=True)
    given = parser.parse_args(words)
    show(open_table(given.table).describe(), given.output)
    return 0


def _read(words: list[str]) -> int:
    parser = _parser("table read")
    parser.add_argument("--table", required=True)
    parser.add_argument("--columns", help="comma separated; default all data columns")
    parser.add_argument("--where", help="condition, such as \"day >= '2026-01-01' AND fare > 10\"")
    parser.add_argument("--as-of", help="instant or time: the table as it was")
    parser.add_argument("--read-optimized", action="store_true", help="base files alone: as of the last compaction")
    parser.add_argument("--begin", help="changes completed after this instant, or 'earliest'")
    parser.add_argument("--end", help="changes completed up to this instant")
    parser.add_argument("--limit", type=int, default=20)
    given = parser.parse_args(words)
    table = open_table(given.table)
    columns = _split(given.columns) if given.columns else table.schema.names
    if given.begin or given.end:
        scan = table.incremental(given.begin, given.end, columns=columns, where=given.where)
    else:
        scan = table.scan(columns, given.where, as_of=given.as_of, read_optimized=given.read_optimized)
    rows = itertools.islice((row for batch in scan.to_batches() for row in batch.to_pylist()), given.limit)
    show(list(rows), given.output)
    return 0


def _delete(words: list[str]) -> int:
    parser = _parser("table delete")
    parser.add_argument("--table", required=True)
    parser.add_argument("--where", required=True, help="condition, as for `table read`")
    parser.add_argument("--dry-run", action="store_true", help="count the rows, delete none")
    given = parser.parse_args(words)
    table = open_table(given.table)
    if given.dry_run:
        columns = [table.config.keys.record_key_fields[0].partition(".")[0]]
        show({"would delete": table.scan(columns, given.where).count()}, given.output)
        return 0
    outcome = table.delete_where(given.where)
    if isinstance(outcome, Committed):
        deleted = sum(stat.num_deletes for stat in outcome.metadata.stats)
        show({"deleted": deleted, "instant": outcome.instant.requested}, given.output)
    else:
        show({"deleted": 0, "reason": outcome.reason}, given.output)
    return 0


def _timeline(words: list[str]) -> int:
    parser = _parser("timeline show")
    parser.add_argument("--table", required=True)
    given = parser.parse_args(words)
    table = open_table(given.table)
    rows = [
        {"requested": i.requested, "completed": i.completed, "action": str(i.action), "state": i.state.name}
        for i in table.timeline
    ]
    show(rows, given.output)
    return 0


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"lakehouse {name}")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    return parser


def _spec(name: str) -> TableSpec | None:
    path = Path(name)
    return load_spec(path) if path.suffix in (".yaml", ".yml") else None


def _at(spec: TableSpec, location: str) -> TableSpec:
    return replace(spec, location=location)


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _pairs(words: Sequence[str]) -> dict[str, str]:
    for word in words:
        if "=" not in word:
            raise UserError(f"--option {word!r}: expected key=value")
    return dict(word.split("=", 1) for word in words)
