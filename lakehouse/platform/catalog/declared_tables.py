"""Open or create the table that a spec declares, and check that spec and table agree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pyarrow as pa

from lakehouse.core.env import Env
from lakehouse.core.operations.create.declare import TableDeclaration, declared_properties
from lakehouse.core.planning.schema import normalise
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.table.opened_tables import OpenedTables
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.keys import BY_COLUMN, TimestampFormat
from lakehouse.model.table_identity import is_name_of
from lakehouse.platform.catalog.declared_settings import (
    Difference,
    check_units,
    columns_of,
    declared_columns,
    declared_fields,
    differences,
)
from lakehouse.spec.options.creation import CREATE_OPTIONS
from lakehouse.spec.table.table_spec import TableSpec


def open_declared_table(
    spec: TableSpec, options: Mapping[str, str], env: Env, tables: OpenedTables | None = None
) -> Table | None:
    """Open the table at the resolved location of a spec; return None if there is none.

    Args:
        spec: the spec, with its location resolved.
        options: the options from spec and run.
        env: the environment of the table.
        tables: the tables that stay open between runs; None to open the table again.

    Raises:
        UserError: the table contradicts the spec, for example by other keys, or the spec declares another table.
    """
    table = find_declared_table(spec, options, env, tables)
    if table is not None:
        require_declared_name(spec, table.config)
    return table


def find_declared_table(
    spec: TableSpec, options: Mapping[str, str], env: Env, tables: OpenedTables | None = None
) -> Table | None:
    """Open the table at the resolved location of a spec like `open_declared_table`, but accept any name."""
    opened = (tables or OpenedTables()).find(env, allowed_functions=spec.functions)
    if opened is None:
        return None
    table = opened.with_options({key: value for key, value in options.items() if key not in CREATE_OPTIONS})
    _check_agreement(spec, options, table.config, table)
    return table


# parameters: a declaration, its environment, and how the table may be created
def create_declared_table(
    spec: TableSpec,
    options: Mapping[str, str],
    env: Env,
    *,
    exist_ok: bool = False,
    columns: pa.Schema | None = None,
) -> Table:
    """Create the table that a spec declares; the first batch defines its columns.

    A lost table that a catalog has registered gets the registered name and id again.

    Args:
        spec: the spec, with its location resolved.
        options: the options from spec and run.
        env: the environment of the table.
        exist_ok: accept an existing table that agrees with the spec. Two concurrent runs then both succeed. The
            caller compares its name (`require_declared_name`).
        columns: the columns of the first rows; None if only the columns in the spec are known.

    Raises:
        UserError: settings contradict each other, the columns or the existing table, or the merger cannot be loaded.
    """
    if exist_ok:
        existing = find_declared_table(spec, options, env)
        if existing is not None:
            return existing
    available = declared_columns(spec) if columns is None else columns_of(normalise(columns))
    check_units(spec, options, available)
    # The spec, whose options change, gives its options to each run.
    table = Table.create(
        spec.location,
        options=options,
        store_options=False,
        env=env,
        exist_ok=exist_ok,
        **declared_fields(spec, available),
    )
    _check_agreement(spec, options, table.config, table)
    return table


def declared_table(spec: TableSpec, env: Env, *, create: bool) -> Table | None:
    """Return the table at the resolved location of a spec. If there is none, create it or check that it can be created.

    Raises UserError in the same cases as `create_declared_table`.
    """
    options = spec.write_options()
    if create:
        return create_declared_table(spec, options, env, exist_ok=True)
    table = find_declared_table(spec, options, env)
    if table is None:
        check_declaration(spec, options)
    return table


def require_declared_name(spec: TableSpec, config: TableConfig) -> None:
    """Raise UserError if the table at the location of a spec is not the table of the spec.

    The table is compared with its identity in a catalog (`TableSpec.identities`). Without an identity, its stored name
    must be the name in the spec, with or without namespace.
    """
    recorded, actual = spec.identities.get(spec.table), config.identity
    if recorded is None and is_name_of(spec.table, actual.name):
        return
    if recorded is None:
        raise UserError(
            f"the table at {spec.location} has the name {actual.name!r}, but the spec declares table {spec.table!r}: "
            "it may be another table, so nothing was done. Correct `location`, or write the name of the stored table, "
            f"`table: {actual.name}`. To use it under another name, register it in a catalog: `lakehouse table "
            f"register --table {spec.table} --location {spec.location}`",
            location=spec.location,
            name=actual.name,
        )
    differences = recorded.differences(actual)
    if differences:
        raise UserError(
            f"{spec.table}: the table at {spec.location} is not the one that the catalog registered: "
            f"{'; '.join(differences)}. Nothing was done. If the table there is meant, `lakehouse table accept --table "
            f"{spec.table}` registers it; otherwise correct `location`",
            location=spec.location,
            name=actual.name,
        )


def require_declared_key(spec: TableSpec, config: TableConfig) -> None:
    """Raise UserError if the record key of the table at the location differs from the spec."""
    declared, stored = (", ".join(columns) for columns in (spec.record_key, config.keys.record_key_fields))
    if declared != stored:
        raise _difference_error(spec, [Difference(name="record_key", declared=declared, stored=stored)])


def require_acceptable(identifier: str, spec: TableSpec, config: TableConfig) -> None:
    """Raise UserError if a table cannot replace a registered table, because it contradicts the spec."""
    try:
        _check_agreement(spec, spec.write_options(), config)
    except UserError as error:
        raise UserError(
            f"{identifier}: the table at {spec.location} cannot be accepted with the spec in force: {error.message} To "
            f"register it with a spec of its own, `lakehouse table drop --table {identifier}`, then `lakehouse table "
            f"register --table {identifier} --location {spec.location}`",
            table=identifier,
            location=spec.location,
        ) from error


def check_declaration(spec: TableSpec, options: Mapping[str, str]) -> None:
    """Check that the table of a spec could be created, without creating it; raise UserError otherwise."""
    check_units(spec, options)
    fields = declared_fields(spec)
    if fields["timestamp"] is not None and fields["timestamp"].type == BY_COLUMN:
        # The first rows decide, and any timestamp type can be declared.
        fields["timestamp"] = replace(fields["timestamp"], type=TimestampFormat().type)
    declared_properties(TableDeclaration(options=dict(options), **fields))


def _check_agreement(
    spec: TableSpec, options: Mapping[str, str], config: TableConfig, table: Table | None = None
) -> None:
    """Raise UserError, with all differences, if the spec declares other settings than the table stores.

    Without `table` only its configuration is compared, without changes of bucket counts since its creation.
    """
    pairs = list(differences(spec, options, config, None if table is None else table.loaded))
    if pairs:
        raise _difference_error(spec, pairs)


def _difference_error(spec: TableSpec, pairs: Sequence[Difference]) -> UserError:
    listed = "; ".join(f"{pair.name} [{pair.declared}]" for pair in pairs)
    stored = "; ".join(f"{pair.name} [{pair.stored}]" if len(pairs) > 1 else f"[{pair.stored}]" for pair in pairs)
    return UserError(
        f"the spec of {spec.table} declares {listed}, but the table at {spec.location} was created with {stored}. "
        "Every writer follows the table, so the declared value would have no effect. Correct the spec, or create a new "
        "table at another location.",
        name=pairs[0].name,
    )
