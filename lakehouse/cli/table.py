"""`lakehouse table ...` and `lakehouse timeline show`: commands that need no Spark session."""

from __future__ import annotations

import argparse
import itertools
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from lakehouse.cli.arguments import catalog_argument, option_pairs
from lakehouse.cli.catalog import CATALOG_VERBS, catalog_command
from lakehouse.cli.output import rows_of, show, show_document
from lakehouse.cli.specs import author
from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError, nearest
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.catalog.connect import DEFAULT
from lakehouse.platform.catalog.declared_tables import create_declared_table
from lakehouse.spec.contracts.catalog import TableLocation, TimelineInstant, TimelineInstants
from lakehouse.spec.contracts.tables import DeletedRows
from lakehouse.spec.location import location_of
from lakehouse.spec.table import TABLE_TYPES, TableSpec, load_spec

_SPECS = (".yaml", ".yml")
# A name in a catalog, which is neither a path nor a URL.
_IDENTIFIER = re.compile(r"(?:(\w+):)?([\w-]+\.[\w-]+)")
_VERBS = {
    "table": ("create", "describe", "read", "delete", "validate", *CATALOG_VERBS),
    "timeline": ("show",),
}


def table_command(words: Sequence[str]) -> int:
    """Run one command about a table or its timeline."""
    noun = words[0]
    verb = words[1] if len(words) > 1 and not words[1].startswith("-") else ""
    if verb not in _VERBS[noun]:
        known = ", ".join(_VERBS[noun])
        raise UserError(f"lakehouse {noun} {verb!r} is unknown; verbs are {known}.{nearest(verb, _VERBS[noun])}")
    if noun == "table" and verb in CATALOG_VERBS:
        return catalog_command(words)
    rest = list(words[2:] if len(words) > 1 and words[1] == verb else words[1:])
    return {
        ("table", "create"): _create,
        ("table", "describe"): _describe,
        ("table", "read"): _read,
        ("table", "delete"): _delete,
        ("timeline", "show"): _timeline,
    }[(noun, verb)](rest)


def open_table(name: str, options: Mapping[str, str] | None = None) -> Table:
    """Open the table of a spec file, at a location, or of a catalog: `[catalog:]namespace.table`.

    A table of a spec or of a catalog is opened with its declared options; `options` replace these.
    """
    spec = spec_of(name)
    if spec is not None:
        declared = {**spec.call_options(), **(options or {})}
        return Table.open(location_of(spec, os.environ), options=declared, allowed_functions=spec.functions)
    known = catalog_name(name)
    if known is None:
        return Table.open(name, options=options)
    with load_catalog(known[0]) as catalog:
        return catalog.load_table(known[1], options=options)


def catalog_name(name: str) -> tuple[str, str] | None:
    """Return catalog and identifier of a table name; None for a spec, a path or a URL."""
    match = _IDENTIFIER.fullmatch(name)
    if match is None or Path(name).suffix in _SPECS or Path(name).exists():
        return None
    return match[1] or DEFAULT, match[2]


def _create(words: list[str]) -> int:
    parser = _parser("table create")
    parser.add_argument("--table", help="a table spec (YAML)")
    parser.add_argument(
        "--catalog", type=catalog_argument, help="register the table of the spec in this catalog: a name, or a URL"
    )
    parser.add_argument("--name")
    parser.add_argument("--location")
    parser.add_argument(
        "--record-key",
        help="columns, comma separated; unique in each partition, in the whole table only without partitions or with "
        "--option hoodie.index.type=GLOBAL_SIMPLE (see `table validate --keys global`)",
    )
    parser.add_argument("--partition-by", default="", help="columns, comma separated; column:TIMESTAMP needs a spec")
    parser.add_argument("--type", choices=TABLE_TYPES, default=TABLE_TYPES[0])
    parser.add_argument("--ordering", default="", help="columns that decide between versions of a record")
    parser.add_argument("--option", action="append", default=[], metavar="KEY=VALUE", help="hoodie.* option")
    given = parser.parse_args(words)
    if given.table:
        spec = load_spec(Path(given.table).absolute())
        if given.catalog:
            with load_catalog(given.catalog) as catalog:
                table = catalog.create_table(spec, author=author(os.environ))
            return _created(table, given.output)
        location = location_of(spec, os.environ)
        table = create_declared_table(_at(spec, location), spec.write_options(), Env(storage=open_storage(location)))
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
            options=option_pairs(given.option),
        )
    return _created(table, given.output)


def _created(table: Table, output: str) -> int:
    created = TableLocation(table=table.name, location=table.location, table_version=table.config.version)
    show_document(created, output)
    return 0


def _describe(words: list[str]) -> int:
    parser = _parser("table describe")
    parser.add_argument("--table", required=True)
    given = parser.parse_args(words)
    show_document(open_table(given.table).describe(), given.output)
    return 0


def _read(words: list[str]) -> int:
    parser = _parser("table read")
    parser.add_argument("--table", required=True)
    parser.add_argument("--columns", help="comma separated; default all data columns")
    parser.add_argument("--where", help="condition, such as \"day >= '2026-01-01' AND fare > 10\"")
    parser.add_argument("--as-of", help="instant or time of the version to read")
    parser.add_argument("--as-of-event-time", help="time, default UTC: the version with all events before it")
    parser.add_argument("--read-optimized", action="store_true", help="read base files only, as of the last compaction")
    parser.add_argument("--begin", help="changes completed after this instant, or 'earliest'")
    parser.add_argument("--end", help="changes completed up to this instant")
    parser.add_argument("--limit", type=int, default=20)
    given = parser.parse_args(words)
    table = open_table(given.table)
    columns = _split(given.columns) if given.columns else table.schema.names
    if given.begin or given.end:
        scan = table.incremental(given.begin, given.end, columns=columns, where=given.where)
    else:
        past = {"as_of": given.as_of, "as_of_event_time": given.as_of_event_time}
        scan = table.scan(columns, given.where, read_optimized=given.read_optimized, **past)
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
        matching = table.scan(columns, given.where).count()
        show_document(DeletedRows(dry_run=True, rows=matching), given.output)
        return 0
    outcome = table.delete_where(given.where)
    if isinstance(outcome, Committed):
        deleted = sum(stat.num_deletes for stat in outcome.metadata.stats)
        result = DeletedRows(dry_run=False, rows=deleted, instant=outcome.instant.requested)
    else:
        result = DeletedRows(dry_run=False, rows=0, reason=outcome.reason)
    show_document(result, given.output)
    return 0


def _timeline(words: list[str]) -> int:
    parser = _parser("timeline show")
    parser.add_argument("--table", required=True)
    parser.add_argument("--archived", action="store_true", help="the writes in the archive instead")
    given = parser.parse_args(words)
    table = open_table(given.table)
    instants = [
        TimelineInstant(requested=i.requested, completed=i.completed, action=str(i.action), state=i.state.name)
        for i in (table.archived() if given.archived else table.timeline)
    ]
    show_document(TimelineInstants(instants=tuple(instants)), given.output, rows=rows_of(instants))
    return 0


def _parser(name: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"lakehouse {name}")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    return parser


def spec_of(name: str) -> TableSpec | None:
    """Return the spec in the file `name`; None if `name` is not a spec file."""
    path = Path(name)
    return load_spec(path) if path.suffix in _SPECS else None


def _at(spec: TableSpec, location: str) -> TableSpec:
    return replace(spec, location=location)


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())
