"""The publications of a spec, and the statements that complete them.

A table in a publication of updates refuses the application's UPDATE and DELETE statements if its replica identity lacks
the key. So tables whose rows are appended are in a publication of inserts. Both publications exist before the slot,
because the server looks them up at the time of each change.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lakehouse.errors import UserError
from lakehouse.platform.sources.databases.server import SourceTable
from lakehouse.platform.sources.postgres.connection import Questions
from lakehouse.platform.sources.postgres.keys import quoted, quoted_table

_INSERTS = "_inserts"
_ALL = ("insert", "update", "delete", "truncate")
_APPENDED = ("insert", "truncate")
_LOCK_TIMEOUT_MS = 10_000
#: Since this version a publication may leave out rows and columns of a table.
_FILTERS_SINCE = 150_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Publications:
    """The publications of a spec.

    Attributes:
        server: The server.
        name: The name of the publication; the publication of inserts has a suffix.
    """

    server: Questions
    name: str

    @property
    def names(self) -> tuple[str, str]:
        """The names of both publications."""
        return self.name, f"{self.name}{_INSERTS}"

    def published(self) -> frozenset[str]:
        """Return the names of the tables in the publications."""
        rows = self._tables()
        return frozenset(f"{row['schemaname']}.{row['tablename']}" for row in rows)

    def memberships(self) -> dict[int, str]:
        """Return a version string per table in a publication, by table OID.

        The string changes if the table was removed and added again, or if the publication's settings were changed: the
        log lacks changes in between. It has two parts: one for the table's entry and one for the settings.
        """
        names = list(self.names)
        settings = self.server.rows(_SETTINGS, (names,))
        by_table = {(row["schemaname"], row["tablename"]): str(row["changed"]) for row in settings}
        return {
            int(row["oid"]): f"{row['added'] or ''}:{by_table.get((row['nspname'], row['relname']), '')}"
            for row in self.server.rows(_ENTRIES, (names, names))
        }

    def narrowed(self) -> frozenset[str]:
        """Return the names of tables in publications that leave out kinds of changes, or publish partition names."""
        publications = {str(row["pubname"]): row for row in self.server.rows(_PUBLICATIONS, (list(self.names),))}
        narrow = {
            name
            for name, kinds in zip(self.names, (_ALL, _APPENDED), strict=True)
            if name in publications and not _publishes(publications[name], kinds)
        }
        rows = self.server.rows(_MEMBERS, (sorted(narrow),)) if narrow else []
        return frozenset(f"{row['nspname']}.{row['relname']}" for row in rows)

    def missing(self, tables: Sequence[SourceTable]) -> list[str]:
        """Return the statements required to add changes of tables to the log; raise UserError for filters."""
        rows = {str(row["pubname"]): row for row in self.server.rows(_PUBLICATIONS, (list(self.names),))}
        has = self._tables()
        self._refuse_filters(has, {table.name: table for table in tables})
        statements = []
        for name, wanted, kinds in (
            (self.names[0], [table for table in tables if table.key], _ALL),
            (self.names[1], [table for table in tables if not table.key], _APPENDED),
        ):
            its = {f"{row['schemaname']}.{row['tablename']}" for row in has if row["pubname"] == name}
            absent = sorted(table.name for table in wanted if table.name not in its)
            statements += _completed(name, rows.get(name), absent, kinds, needs_kinds=bool(wanted))
        return statements

    def complete(self, statements: Iterable[str]) -> None:
        """Run statements; raise UserError with all of them if the account may not."""
        statements = [*statements]
        if not statements:
            return
        try:
            self.server.rows(f"set lock_timeout = {_LOCK_TIMEOUT_MS}")
            for statement in statements:
                self.server.rows(statement)
        except UserError as error:
            raise UserError(self.request(statements, error.message)) from error
        finally:
            self.server.rows("set lock_timeout = 0")

    def request(self, statements: Iterable[str], why: str) -> str:
        """Return a message with the statements that an administrator has to run."""
        return (
            f"the user {self.server.access.user!r} may not publish the tables ({why}). An owner of the tables, with "
            f"the right CREATE on the database, has to run: {'; '.join(statements)}"
        )

    def may_complete(self, tables: Sequence[SourceTable]) -> bool:
        """Return whether the account owns tables and may create publications."""
        owned = self.server.value(
            "select coalesce(bool_and(pg_has_role(c.relowner, 'USAGE')), true) and has_database_privilege("
            "current_database(), 'CREATE') from pg_class c join pg_namespace n on n.oid = c.relnamespace "
            "where n.nspname || '.' || c.relname = any(%s)",
            ([table.name for table in tables],),
        )
        return bool(owned)

    def _tables(self) -> list[dict[str, Any]]:
        filters = ", attnames, rowfilter" if self._has_filters() else ""
        return self.server.rows(
            f"select pubname, schemaname, tablename{filters} from pg_publication_tables where pubname = any(%s)",
            (list(self.names),),
        )

    def _has_filters(self) -> bool:
        return int(self.server.setting("server_version_num")) >= _FILTERS_SINCE

    def _refuse_filters(self, rows: Sequence[Mapping[str, Any]], tables: Mapping[str, SourceTable]) -> None:
        for row in rows:
            name = f"{row['schemaname']}.{row['tablename']}"
            if name not in tables:
                continue
            columns = row.get("attnames")
            absent = [one.name for one in tables[name].columns if columns is not None and one.name not in columns]
            what = f"rows of {name}: it has those where {row['rowfilter']}" if row.get("rowfilter") else ""
            what = what or (f"columns of {name}: {', '.join(absent)}" if absent else "")
            if what:
                raise UserError(
                    f"the publication {row['pubname']!r} leaves out {what}. Run ALTER PUBLICATION "
                    f"{quoted(row['pubname'])} DROP TABLE {quoted_table(name)}; the next run adds the whole table",
                    table=name,
                )


_PUBLICATIONS = (
    "select pubname, puballtables, pubviaroot, pubinsert, pubupdate, pubdelete, pubtruncate from pg_publication "
    "where pubname = any(%s)"
)
#: Each change of a publication changes the version of its catalog row.
_SETTINGS = (
    "select t.schemaname, t.tablename, string_agg(p.oid || '-' || p.xmin, '+' order by p.oid) as changed "
    "from pg_publication_tables t join pg_publication p on p.pubname = t.pubname where t.pubname = any(%s) "
    "group by 1, 2"
)
_ENTRIES = (
    "select c.oid, n.nspname, c.relname, string_agg(r.oid::text, '+' order by r.oid) as added from pg_class c "
    "join pg_namespace n on n.oid = c.relnamespace "
    "left join (pg_publication_rel r join pg_publication p on p.oid = r.prpubid and p.pubname = any(%s)) "
    "on r.prrelid = c.oid where r.oid is not null or (n.nspname, c.relname) in "
    "(select schemaname, tablename from pg_publication_tables where pubname = any(%s)) group by 1, 2, 3"
)
_MEMBERS = (
    "select n.nspname, c.relname from pg_publication_rel r join pg_publication p on p.oid = r.prpubid "
    "join pg_class c on c.oid = r.prrelid join pg_namespace n on n.oid = c.relnamespace where p.pubname = any(%s)"
)


def _publishes(row: Mapping[str, Any], kinds: Sequence[str]) -> bool:
    """Return whether a publication has all kinds of changes, and publishes changes of partitions as their table's."""
    return bool(row["pubviaroot"]) and all(row[f"pub{kind}"] for kind in kinds)


def _completed(
    name: str, rows: Mapping[str, Any] | None, absent: Sequence[str], kinds: Sequence[str], *, needs_kinds: bool
) -> list[str]:
    """Return the statements that create or complete a publication."""
    tables = ", ".join(quoted_table(one) for one in absent)
    published = ", ".join(kinds)
    if rows is None:
        of = f" FOR TABLE {tables}" if tables else ""
        return [
            f"CREATE PUBLICATION {quoted(name)}{of} WITH (publish = '{published}', publish_via_partition_root = true)"
        ]
    statements = []
    if needs_kinds and not _publishes(rows, kinds):
        statements.append(
            f"ALTER PUBLICATION {quoted(name)} SET (publish = '{published}', publish_via_partition_root = true)"
        )
    if tables and not rows["puballtables"]:
        statements.append(f"ALTER PUBLICATION {quoted(name)} ADD TABLE {tables}")
    return statements
