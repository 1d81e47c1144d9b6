"""Columns, keys and replica identities of source tables, from the server's catalog."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse.platform.sources.databases.server import PLACE, SourceColumn, SourceTable
from lakehouse.platform.sources.pgoutput.columns import (
    BOOL,
    BPCHAR,
    BYTEA,
    DATE,
    FLOAT4,
    FLOAT8,
    INT2,
    INT4,
    INT8,
    NUMERIC,
    OID,
    TIMESTAMP,
    TIMESTAMPTZ,
    PgColumn,
    arrow_type,
)
from lakehouse.platform.sources.postgres.connection import Questions

_KINDS = {
    BOOL: "boolean",
    INT2: "signed:16",
    INT4: "signed:32",
    INT8: "signed:64",
    OID: "oid",
    FLOAT4: "float:32",
    FLOAT8: "float:64",
    BYTEA: "bytes",
    DATE: "date",
    TIMESTAMP: "timestamp",
    TIMESTAMPTZ: "timestamptz",
}
_TEXTS = ("text", "varchar", "name")
#: User tables that are not partitions. Changes of temporary and unlogged tables are not in the log.
_TABLES = (
    "select c.oid, n.nspname, c.relname, c.relkind, c.relreplident, c.relispartition, "
    "row_security_active(c.oid) as hides from pg_class c join pg_namespace n on n.oid = c.relnamespace "
    "where c.relkind in ('r', 'p') and c.relpersistence = 'p' and not c.relispartition "
    "and n.nspname <> 'information_schema' and n.nspname !~ '^pg_' "
    "and has_schema_privilege(n.oid, 'USAGE') and has_table_privilege(c.oid, 'SELECT')"
)
_COLUMNS = (
    "select a.attrelid, a.attnum, a.attname, a.atttypid, a.atttypmod, a.attnotnull, a.atthasdef, t.typname "
    "from pg_attribute a join pg_type t on t.oid = a.atttypid where a.attrelid = any(%s) and a.attnum > 0 and not "
    "a.attisdropped and a.attgenerated = '' order by a.attrelid, a.attnum"
)
#: Deferred constraints are checked at the end of a transaction, within which two rows may have the same key.
_INDEXES = (
    "select i.indrelid, i.indisprimary, i.indisreplident, array_agg(a.attname::text order by k.number) as names, "
    "bool_and(a.attnotnull) as has_no_null from pg_index i "
    "join lateral unnest(i.indkey::int2[]) with ordinality k(place, number) on k.number <= i.indnkeyatts "
    "join pg_attribute a on a.attrelid = i.indrelid and a.attnum = k.place "
    "where i.indrelid = any(%s) and i.indisunique and i.indimmediate and i.indisvalid and i.indpred is null and "
    "i.indexprs is null group by i.indexrelid, i.indrelid, i.indisprimary, i.indisreplident order by i.indexrelid"
)
_IDENTITIES = (
    "select distinct p.relid as oid, c.relreplident from (select r.oid as relid, t.relid as leaf from "
    "unnest(%s::oid[]) as r(oid), lateral pg_partition_tree(r.oid) t where t.isleaf) p "
    "join pg_class c on c.oid = p.leaf"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTable:
    """A source table in the server's catalog.

    Attributes:
        table: The table.
        oid: Its OID.
        columns: The columns with resolved domains.
        is_partitioned: Whether it has partitions.
    """

    table: SourceTable
    oid: int
    columns: tuple[PgColumn, ...]
    is_partitioned: bool


def table_names(server: Questions) -> tuple[str, ...]:
    """Return all tables that the account may read, as `schema.table`."""
    return tuple(f"{row['nspname']}.{row['relname']}" for row in server.rows(f"{_TABLES} order by 2, 3"))


def domains(server: Questions) -> dict[int, tuple[int, int]]:
    """Return the base type and modifier per domain, by the domain's OID."""
    rows = server.rows("select oid, typbasetype, typtypmod from pg_type where typtype = 'd'")
    return {int(row["oid"]): (int(row["typbasetype"]), int(row["typtypmod"])) for row in rows}


def described(
    server: Questions, names: Sequence[str], memberships: Mapping[int, str] | None = None
) -> dict[str, ServerTable]:
    """Return tables by their names, without those that do not exist.

    Args:
        server: The server.
        names: The names of the tables, as `schema.table`.
        memberships: Ids of the tables' entries in publications (see `Publications.memberships`).
    """
    wanted = [f"{name}" for name in names]
    rows = server.rows(f"{_TABLES} and n.nspname || '.' || c.relname = any(%s)", (wanted,))
    oids = [int(row["oid"]) for row in rows]
    columns = _grouped(server.rows(_COLUMNS, (oids,)), "attrelid")
    indexes = _grouped(server.rows(_INDEXES, (oids,)), "indrelid")
    partitioned = [int(row["oid"]) for row in rows if row["relkind"] == "p"]
    leaves = _grouped(server.rows(_IDENTITIES, (partitioned,)) if partitioned else [], "oid")
    made_of = domains(server)
    # If policies apply, only a part of the rows is visible to the account.
    hides = not server.access.applies_policies
    tables: dict[str, ServerTable] = {}
    for row in rows:
        oid, name = int(row["oid"]), f"{row['nspname']}.{row['relname']}"
        its = columns.get(oid, [])
        resolved = tuple(_resolved(one, made_of) for one in its)
        indexes_of = indexes.get(oid, [])
        keys = {
            kind: tuple(map(str, one["names"]))
            for one in indexes_of
            for kind in ("indisprimary", "indisreplident")
            if one[kind]
        }
        identities = {str(one["relreplident"]) for one in leaves.get(oid, [])} or {str(row["relreplident"])}
        # The log contains no generated columns.
        names_of = {str(one["attname"]) for one in its}
        logged = {kind: tuple(name for name in columns_of if name in names_of) for kind, columns_of in keys.items()}
        identity = _identity(identities, logged)
        key = keys.get("indisprimary", ())
        if identity and not (key and set(key) <= set(identity)):
            # The replica identity columns are unique and never null, too.
            key = keys.get("indisreplident", ()) if identities == {"i"} else key
        if not set(key) <= names_of:
            key = ()
        tables[name] = ServerTable(
            table=SourceTable(
                name=name,
                columns=tuple(_column(one, pg) for one, pg in zip(its, resolved, strict=True)),
                key=key,
                identity=identity,
                unique=tuple(tuple(map(str, one["names"])) for one in indexes_of if one["has_no_null"]),
                incarnation=f"{oid}:{(memberships or {}).get(oid, '')}".rstrip(":"),
                has_hidden_rows=hides and bool(row["hides"]),
            ),
            oid=oid,
            columns=resolved,
            is_partitioned=row["relkind"] == "p",
        )
    return {name: tables[name] for name in names if name in tables}


def _identity(identities: set[str], keys: Mapping[str, tuple[str, ...]]) -> tuple[str, ...] | None:
    """Return the columns that the log contains for rows before their changes; None means all columns."""
    if identities == {"f"}:
        return None
    if identities <= {"d", "f"}:
        return keys.get("indisprimary", ())
    return keys.get("indisreplident", ()) if identities == {"i"} else ()


def _column(row: Mapping[str, Any], column: PgColumn) -> SourceColumn:
    return SourceColumn(
        name=column.name,
        kind=f"{kind_of(column, str(row['typname']))}:{PLACE}{row['attnum']}",
        type=arrow_type(column),
        fills_null=not row["attnotnull"] and not row["atthasdef"],
    )


def kind_of(column: PgColumn, type_name: str) -> str:
    """Return the kind that determines a column's values: a name, and sizes that may grow without changing values."""
    if column.oid == NUMERIC:
        digits = column.digits
        return "numeric" if digits is None else f"decimal:{digits[0] - digits[1]}:{digits[1]}"
    if column.oid == BPCHAR:
        return f"char_{column.modifier}"
    return _KINDS.get(column.oid) or ("text" if type_name in _TEXTS else type_name)


def _resolved(row: Mapping[str, Any], made_of: Mapping[int, tuple[int, int]]) -> PgColumn:
    oid, modifier = int(row["atttypid"]), int(row["atttypmod"])
    while oid in made_of:
        oid, modifier = made_of[oid]
    return PgColumn(name=str(row["attname"]), oid=oid, modifier=modifier)


def _grouped(rows: Sequence[Mapping[str, Any]], name: str) -> dict[int, list[Mapping[str, Any]]]:
    groups: dict[int, list[Mapping[str, Any]]] = {}
    for row in rows:
        groups.setdefault(int(row[name]), []).append(row)
    return groups
