"""Commands on one table, and functions that open the table of `--table`. No command needs a Spark session."""

from __future__ import annotations

import itertools
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from lakehouse.cli.group import Given
from lakehouse.cli.output import show, show_document
from lakehouse.cli.progress import terminal_progress
from lakehouse.cli.specs import author
from lakehouse.core.env import Env
from lakehouse.core.format.avro.schema import META_COLUMNS
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.opened_tables import OpenedTables
from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError, UserError
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.catalog.connect import DEFAULT, is_configured
from lakehouse.platform.catalog.declared_tables import (
    create_declared_table,
    require_declared_key,
    require_declared_name,
)
from lakehouse.platform.catalog.open_table import open_table as open_registered
from lakehouse.spec.contracts.catalog import TableLocation
from lakehouse.spec.contracts.tables import DeletedRows
from lakehouse.spec.table.location import location_of
from lakehouse.spec.table.table_spec import TableSpec, load_spec

logger = logging.getLogger(__name__)
_SPECS = (".yaml", ".yml")
# Matches a catalog name, which is neither a path nor a URL.
_IDENTIFIER = re.compile(r"(?:(\w+):)?([\w-]+\.[\w-]+)")
#: Tables that stay open between the commands of a process; None if every command opens its tables itself.
_KEPT: ContextVar[OpenedTables | None] = ContextVar("kept_tables", default=None)


@contextmanager
def keep_tables() -> Iterator[None]:
    """Keep catalog tables open between the commands of a `with` block, which then read only new instants."""
    token = _KEPT.set(OpenedTables())
    try:
        yield
    finally:
        _KEPT.reset(token)


def open_table(name: str, options: Mapping[str, str] | None = None) -> Table:
    """Open a table by its spec file, its location, or its catalog name: `[catalog:]namespace.table`.

    A table from a spec or catalog is opened with its declared options; `options` override them. Raises UserError if the
    location contains a different table than the declared or registered one.
    """
    spec = spec_of(name)
    if spec is not None:
        return _table_of(identified(spec), options or {})
    identifier = catalog_name(name)
    if identifier is None:
        return Table.open(name, options=options)
    with load_catalog(identifier[0]) as catalog:
        entry = catalog.entry(identifier[1])
        return open_registered(entry, catalog.policies(entry.namespace), options, _KEPT.get())


def identified(spec: TableSpec) -> TableSpec:
    """Add the table identities of the default catalog to a spec, if a catalog is configured."""
    if not is_configured(os.environ):
        return spec
    try:
        with load_catalog() as catalog:
            return replace(spec, identities={**spec.identities, **catalog.identities(spec)})
    except LakehouseError as error:
        logger.warning("%s: the table is compared with its spec only, not with the catalog: %s", spec.table, error)
        return spec


def catalog_name(name: str) -> tuple[str, str] | None:
    """Split a table name into catalog and identifier. Return None if it is a spec file, a path or a URL."""
    match = _IDENTIFIER.fullmatch(name)
    if match is None or Path(name).suffix in _SPECS or Path(name).exists():
        return None
    return match[1] or DEFAULT, match[2]


def catalog_table(given: Given) -> tuple[str, str]:
    """Return the catalog and the table name from `--table` and `--catalog`."""
    return _named(given.table, given.catalog)


def catalog_tables(given: Given) -> tuple[str, list[str]]:
    """Return the catalog and the table names from repeated `--table` and from `--catalog`."""
    identifiers = [_named(table, given.catalog) for table in given.table]
    catalogs = sorted({catalog for catalog, _ in identifiers})
    if len(catalogs) > 1:
        raise UserError(f"the tables must be in one catalog, not in {', '.join(catalogs)}")
    return catalogs[0] if catalogs else given.catalog, [name for _, name in identifiers]


def _named(table: str, catalog: str) -> tuple[str, str]:
    spec = spec_of(table)
    if spec is not None:
        return catalog, spec.table
    prefix, colon, name = table.partition(":")
    if not colon or "/" in table:
        return catalog, table
    if catalog not in (DEFAULT, prefix):
        raise UserError(f"--table {table} names the catalog {prefix!r}, but --catalog names {catalog!r}; give one")
    return prefix, name


def create(given: Given) -> None:
    """Create a table from a spec, or from flags."""
    if given.table:
        spec = load_spec(Path(given.table).absolute())
        if given.catalog:
            with load_catalog(given.catalog) as catalog:
                table = catalog.create_table(spec, author=author(os.environ))
            _created(table, given.output)
            return
        location = location_of(spec, os.environ)
        table = create_declared_table(_at(spec, location), spec.write_options(), Env(storage=open_storage(location)))
    else:
        for flag in ("name", "location"):
            if not getattr(given, flag):
                raise UserError(f"table create needs --{flag.replace('_', '-')}, or --table spec.yaml")
        table = Table.create(
            given.location,
            name=given.name,
            record_key=_split(given.record_key),
            partition_by=_split(given.partition_by),
            ordering=_split(given.ordering),
            table_type=given.type,
            options=given.option,
        )
    _created(table, given.output)


def bootstrap(given: Given) -> None:
    """Make a table from a folder of Parquet files, with progress on stderr."""
    for flag in ("source", "name", "location"):
        if not getattr(given, flag):
            raise UserError(f"table bootstrap needs --{flag}")
    with terminal_progress():
        table = Table.bootstrap(
            given.location,
            source=given.source,
            name=given.name,
            record_key=_split(given.record_key),
            partition_by=_split(given.partition_by),
            mode=given.mode,
            partition_pattern=given.partition_pattern,
            ordering=_split(given.ordering),
            table_type=given.type,
            options=given.option,
        )
    _created(table, given.output)


def _created(table: Table, output: str) -> None:
    created = TableLocation(
        table=table.name,
        location=table.location,
        table_version=table.config.version,
        table_id=table.config.identity.id,
    )
    show_document(created, output)


def describe(given: Given) -> None:
    """Print config, schema, partitions, files and last commits of a table."""
    show_document(open_table(given.table).describe(), given.output)


def read(given: Given) -> None:
    """Print rows of one version of a table, or the changes between two instants."""
    _refuse_contradictions(given)
    table = open_table(given.table)
    columns = _split(given.columns) if given.columns is not None else table.schema.names
    if given.begin or given.end:
        scan = table.incremental(given.begin, given.end, columns=columns, where=given.where)
    else:
        past = {"as_of": given.as_of, "as_of_event_time": given.as_of_event_time}
        scan = table.scan(columns, given.where, read_optimized=given.read_optimized, **past)
    if given.explain:
        show([asdict(step) for step in scan.explain()], given.output)
        return
    rows = (row for batch in scan.to_batches() for row in rows_of_batch(batch))
    # One additional row is read to determine whether the output is complete.
    first_rows = list(itertools.islice(rows, None if given.limit is None else given.limit + 1))
    shown = first_rows[: given.limit]
    show(shown, given.output)
    if len(first_rows) > len(shown):
        note_of_more(len(shown), "rows", "--limit N shows more, --limit all shows every row")


def delete(given: Given) -> None:
    """Delete the rows that match a condition, or count them."""
    _refuse_empty_condition(given)
    table = open_table(given.table)
    if given.dry_run:
        columns = [(*table.config.keys.record_key_fields, META_COLUMNS[2])[0].partition(".")[0]]
        matching = table.scan(columns, given.where).count()
        show_document(DeletedRows(dry_run=True, rows=matching), given.output)
        return
    outcome = table.delete_where(given.where)
    if isinstance(outcome, Committed):
        deleted = sum(stat.num_deletes for stat in outcome.metadata.stats)
        result = DeletedRows(dry_run=False, rows=deleted, instant=outcome.instant.requested)
    else:
        result = DeletedRows(dry_run=False, rows=0, reason=outcome.reason)
    show_document(result, given.output)


def spec_of(name: str) -> TableSpec | None:
    """Load the spec file `name`; return None if `name` is not a spec file."""
    path = Path(name)
    return load_spec(path) if path.suffix in _SPECS else None


def _table_of(spec: TableSpec, options: Mapping[str, str]) -> Table:
    placed = _at(spec, location_of(spec, os.environ))
    declared = {**spec.call_options(), **options}
    table = Table.open(placed.location, options=declared, allowed_functions=spec.functions)
    require_declared_name(placed, table.config)
    require_declared_key(placed, table.config)
    return table


def _at(spec: TableSpec, location: str) -> TableSpec:
    return replace(spec, location=location)


def _split(text: str) -> tuple[str, ...]:
    return tuple(part.strip() for part in text.split(",") if part.strip())


def _refuse_contradictions(given: Given) -> None:
    _refuse_empty_condition(given)
    versions = {"--as-of": given.as_of, "--as-of-event-time": given.as_of_event_time}
    changes = {"--begin": given.begin, "--end": given.end}
    one, other = ([name for name, text in flags.items() if text is not None] for flags in (versions, changes))
    if given.read_optimized and not one:
        one = ["--read-optimized"]
    if len(one) > 1:
        raise UserError(f"{' and '.join(one)} each select the version to read; give one of them")
    if one and other:
        raise UserError(
            f"{one[0]} reads one version of the table, but {other[0]} reads the changes between two instants; give "
            "one of them"
        )
    if given.columns is not None and not _split(given.columns):
        raise UserError("--columns is empty; give comma-separated columns, or leave it out for all columns")


def _refuse_empty_condition(given: Given) -> None:
    if given.where is not None and not given.where.strip():
        raise UserError(
            '--where is empty, perhaps because a variable of the shell is not set; give a condition such as "fare > 10"'
        )


def note_of_more(shown: int, what: str, remedy: str, *, total: int | None = None) -> None:
    """Print on standard error that more values exist than were printed, and which flag shows them."""
    sys.stdout.flush()
    number = f"{total}" if total is not None else f"at least {shown + 1}"
    print(f"{shown} of {number} {what} shown; {remedy}", file=sys.stderr)


def rows_of_batch(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the rows of a batch. A date or time outside of Python's range (year 0, year 58058) becomes a string."""
    columns = [_plain_values(batch.column(name)) for name in batch.schema.names]
    for values in zip(*columns, strict=True):
        yield dict(zip(batch.schema.names, values, strict=True))


def _plain_values(column: pa.Array) -> list[Any]:
    try:
        values: list[Any] = column.to_pylist()
        return values
    except (OverflowError, ValueError):
        return [_plain_value(scalar) for scalar in column]


def _plain_value(scalar: pa.Scalar) -> Any:
    kind = scalar.type
    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        if pa.types.is_struct(kind):
            return {name: _plain_value(part) for name, part in scalar.items()}
        if pa.types.is_map(kind):
            entries = scalar.values
            return list(zip(_plain_values(entries.field(0)), _plain_values(entries.field(1)), strict=True))
        if not pa.types.is_temporal(kind):
            return _plain_values(scalar.values)
    unit: Any = "D" if pa.types.is_date32(kind) else "ms" if pa.types.is_date64(kind) else kind.unit
    text = str(np.datetime64(scalar.value, unit)).replace("T", " ")
    return f"{text}+00:00" if pa.types.is_timestamp(kind) and kind.tz else text
