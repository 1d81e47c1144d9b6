"""Open or create the table that a spec declares, and check that spec and table agree."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse.core.env import Env
from lakehouse.core.operations.create.declare import TableDeclaration, declared_properties
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.table.opened_tables import OpenedTables
from lakehouse.core.table.table import Table
from lakehouse.errors import UserError
from lakehouse.model.column_groups import declared_groups, groups_text
from lakehouse.model.keys import TimestampFormat
from lakehouse.model.table_identity import is_name_of
from lakehouse.spec.options.creation import CREATE_OPTIONS
from lakehouse.spec.table import TableSpec


def open_declared_table(
    spec: TableSpec, options: Mapping[str, str], env: Env, tables: OpenedTables | None = None
) -> Table | None:
    """Open the table at the resolved location of a spec; return None if there is none.

    Args:
        spec: the spec, with its location resolved.
        options: the options of the spec and of the run.
        env: the environment of the table.
        tables: the tables that stay open between runs; None to open the table again.

    Raises:
        UserError: the table contradicts the spec, for example by other keys, or it is another table than that of the
            spec.
    """
    found = (tables or OpenedTables()).find(env, allowed_functions=spec.functions)
    if found is None:
        return None
    table = found.with_options({key: value for key, value in options.items() if key not in CREATE_OPTIONS})
    _check_agreement(spec, table.config)
    require_declared_name(spec, table.config)
    return table


def create_declared_table(spec: TableSpec, options: Mapping[str, str], env: Env, *, exist_ok: bool = False) -> Table:
    """Create the table that a spec declares; the first batch defines its columns.

    A table that a catalog has registered, and that is lost, gets the registered name and id again.

    Args:
        spec: the spec, with its location resolved.
        options: the options of the spec and of the run.
        env: the environment of the table.
        exist_ok: accept an existing table that agrees with the spec. Two concurrent runs then both succeed. Its name
            is compared by the caller (`require_declared_name`).

    Raises:
        UserError: settings contradict each other or the existing table, or the merger cannot be loaded.
    """
    table = Table.create(spec.location, options=options, env=env, exist_ok=exist_ok, **_declared(spec))
    _check_agreement(spec, table.config)
    return table


def require_declared_name(spec: TableSpec, config: TableConfig) -> None:
    """Raise UserError if the table at the location of a spec is not the table of the spec.

    The table is compared with the identity that a catalog records of it (`TableSpec.identities`); without one its
    stored name must be the name in the spec, with or without namespace.
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
    """Raise UserError if the table at the location of a spec has another record key than the spec."""
    _refuse_differences(spec, {"record_key": (spec.record_key, config.keys.record_key_fields)})


def require_acceptable(identifier: str, spec: TableSpec, config: TableConfig) -> None:
    """Raise UserError if a table cannot take the place of a registered one, because it contradicts its spec."""
    try:
        _check_agreement(spec, config)
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
    declared_properties(TableDeclaration(options=dict(options), **_declared(spec)))


def _declared(spec: TableSpec) -> dict[str, Any]:
    """Return the fields of the spec's TableDeclaration, without its options."""
    recorded = spec.identities.get(spec.table)
    return {
        "name": spec.table if recorded is None else recorded.name,
        "table_id": None if recorded is None else recorded.id or None,
        "record_key": spec.record_key,
        "partition_by": tuple(f"{column.name}:{column.type}" for column in spec.partition_by),
        "ordering": spec.ordering,
        "table_type": spec.type,
        "key_generator": spec.key_generator,
        "timestamp": _timestamp(spec),
        "merge_mode": spec.merge_mode,
        "merger": spec.merger,
        "column_groups": spec.column_groups,
        "partial_update": spec.partial_update,
        "unavailable_value": spec.unavailable_value,
        "delete_field": spec.delete_field,
        "delete_marker": spec.delete_marker,
    }


def _timestamp(spec: TableSpec) -> TimestampFormat | None:
    """Return the format that all TIMESTAMP partition columns share; None if there are none."""
    declared = [column.timestamp or TimestampFormat() for column in spec.partition_by if column.type == "TIMESTAMP"]
    if any(other != declared[0] for other in declared):
        raise UserError(
            f"table {spec.table}: partition_by declares several timestamp formats, but a table has one; "
            "use the same format in all TIMESTAMP columns"
        )
    return declared[0] if declared else None


def _check_agreement(spec: TableSpec, config: TableConfig) -> None:
    """Raise UserError if the spec contradicts the table, whose keys and merge rule were fixed at creation.

    Merge settings that the spec omits are not compared.
    """
    rule = config.merge_rule
    pairs: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
        "type": ((spec.type,), (config.table_type,)),
        "record_key": (spec.record_key, config.keys.record_key_fields),
        "partition_by": (tuple(column.name for column in spec.partition_by), config.keys.partition_fields),
        "ordering": (spec.ordering, rule.ordering),
    }
    merging = {
        "merge_mode": (spec.merge_mode, rule.mode),
        "merger": (spec.merger, rule.merger),
        "partial_update": (spec.partial_update, rule.partial),
        "unavailable_value": (spec.unavailable_value, rule.unavailable),
        "delete_field": (spec.delete_field, rule.delete_field),
        "delete_marker": (spec.delete_marker, rule.delete_marker),
    }
    pairs |= {
        name: ((declared,), (str(stored or ""),))
        for name, (declared, stored) in merging.items()
        if declared is not None
    }
    if spec.column_groups or rule.groups:
        groups = declared_groups(spec.column_groups)
        pairs["column_groups"] = ((groups_text(groups),), (groups_text(rule.groups),))
    _refuse_differences(spec, pairs)


def _refuse_differences(spec: TableSpec, pairs: Mapping[str, tuple[tuple[str, ...], tuple[str, ...]]]) -> None:
    """Raise UserError for the first setting, by name, whose declared and stored values differ."""
    for name, (declared, stored) in pairs.items():
        if declared != stored:
            raise UserError(
                f"the spec of {spec.table} declares {name} [{', '.join(declared)}], but the table at {spec.location} "
                f"was created with [{', '.join(stored)}]. Correct the spec, or create a new table at another location.",
                name=name,
            )
