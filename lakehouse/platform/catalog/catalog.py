"""Catalog of tables: namespaces, tables, spec versions, and service policies, in one database.

    catalog = load_catalog("prod")
    catalog.register_table("sales.orders", "s3://lake/sales/orders")
    catalog.load_table("sales.orders").scan(where="day = '2026-01-31'")

The settings of a service are merged in this order, and a later source overrides single settings of an earlier one: the
namespace's policy, the spec's `services:` section, the table's policy, the policies of partitions that match a pattern.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from types import MappingProxyType
from typing import Any

from sqlalchemy import delete, select, update
from sqlalchemy.orm import Session

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.core.operations.create.create import refuse_nested
from lakehouse.core.operations.version.version_plan import VersionPlan, VersionRequest
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.system.clock import Clock, SystemClock
from lakehouse.core.system.timers import SystemTimers, Timers
from lakehouse.core.table.table import Table
from lakehouse.errors import LakehouseError, RetryableError, UserError, nearest
from lakehouse.model.display import Readable, Shown
from lakehouse.model.pattern import compile_pattern
from lakehouse.model.table_identity import TableIdentity
from lakehouse.model.texts import text_list
from lakehouse.platform.catalog.alarms import Alarms
from lakehouse.platform.catalog.connect import DEFAULT, Database, catalog_url, is_duplicate
from lakehouse.platform.catalog.declared_tables import (
    declared_table,
    require_acceptable,
    require_declared_name,
)
from lakehouse.platform.catalog.entries import (
    InvalidEntry,
    SpecVersion,
    TableEntry,
    load_entries,
    load_registered,
    placed_spec,
    registered_entry,
    spec_of_version,
    spec_yaml,
)
from lakehouse.platform.catalog.existing_tables import spec_of
from lakehouse.platform.catalog.identities import (
    recorded_identities,
    refuse_copy,
    refuse_registered,
    replace_registered,
)
from lakehouse.platform.catalog.models import (
    OF_TABLE,
    ActionRow,
    NamespaceRow,
    PolicyRow,
    SpecRow,
    TableRow,
)
from lakehouse.platform.catalog.new_entries import NewEntry, add_entry, document_of, spec_row
from lakehouse.platform.catalog.open_table import open_table
from lakehouse.platform.catalog.policies import ServicePolicies
from lakehouse.platform.catalog.policy_rows import load_policies
from lakehouse.platform.catalog.registration import (
    adopt_identity,
    assigned_identity,
    purge_registered,
    require_identity,
)
from lakehouse.platform.catalog.run_history import RunHistory
from lakehouse.platform.catalog.run_leases import RunLeases
from lakehouse.platform.catalog.state_rows import batches, mark_changed
from lakehouse.platform.catalog.table_names import check_name, parsed_name
from lakehouse.platform.catalog.table_states import TableStates
from lakehouse.platform.catalog.version_run import run_version_change
from lakehouse.spec.secrets import refuse_in_policy
from lakehouse.spec.table.location import location_of, resolve
from lakehouse.spec.table.scheduling import ALL_SERVICES, parse_common_limits
from lakehouse.spec.table.service_settings import (
    ServiceSettings,
    require_pattern_settings,
    service_settings,
    setting_options,
)
from lakehouse.spec.table.table_spec import TableSpec

#: Maximum number of tables to load one by one; if more are needed, all tables are loaded with one query.
_FEW = 20


def load_catalog(name: str = DEFAULT, *, clock: Clock | None = None) -> Catalog:
    """Open a catalog by its name or URL (see `lakehouse.platform.catalog.connect`).

    Raises UserError if no URL is configured or the schema is outdated, RetryableError if the database does not answer.
    """
    return Catalog(Database(catalog_url(name, os.environ)), clock or SystemClock())


class Catalog(Readable):
    """Tables, policies, leases and the history of runs in one database."""

    def __init__(self, database: Database, clock: Clock, timers: Timers | None = None) -> None:
        self.database, self.clock, self.timers = database, clock, timers or SystemTimers()

    def _shown(self) -> Shown:
        return Shown(f"Catalog at {self.database.where}", {"database": self.database.where})

    def __enter__(self) -> Catalog:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections to the database; a later call opens new ones."""
        self.database.close()

    @cached_property
    def leases(self) -> RunLeases:
        """Return the leases of runs."""
        return RunLeases(self.database, self.clock, self.timers)

    @cached_property
    def history(self) -> RunHistory:
        """Return the requests, decisions and runs of services."""
        return RunHistory(self.database, self.clock)

    @cached_property
    def states(self) -> TableStates:
        """Return the newest numbers, due services and problems of tables."""
        return TableStates(self.database, self.clock)

    @cached_property
    def alarms(self) -> Alarms:
        """Return the alarms and silences."""
        return Alarms(self.database, self.clock)

    def create_namespace(
        self, name: str, properties: Mapping[str, str] | None = None, *, exist_ok: bool = False
    ) -> None:
        """Create a namespace; raise UserError for an invalid name, or an existing one unless `exist_ok`."""
        check_name("namespace", name)
        row = NamespaceRow(name=name, properties=dict(properties or {}), created_ms=self.clock.now_ms())
        try:
            with self.database.session() as session:
                exists = session.get(NamespaceRow, name) is not None
                if not exists:
                    session.add(row)
        except RetryableError as error:
            if not is_duplicate(error):
                raise
            exists = True
        if exists and not exist_ok:
            raise UserError(f"namespace {name!r} exists already", namespace=name)

    def list_namespaces(self) -> tuple[str, ...]:
        """Return the names of all namespaces, sorted."""
        with self.database.session() as session:
            return tuple(session.scalars(select(NamespaceRow.name).order_by(NamespaceRow.name)))

    def drop_namespace(self, name: str) -> None:
        """Drop a namespace and its policies; raise UserError if it contains tables."""
        tables = self.list_tables(name)
        if tables:
            raise UserError(
                f"namespace {name!r} contains {len(tables)} tables, such as {tables[0].identifier}; drop them first"
            )
        with self.database.session() as session:
            session.execute(delete(PolicyRow).where(PolicyRow.namespace == name))
            session.execute(delete(NamespaceRow).where(NamespaceRow.name == name))

    def create_table(self, spec: TableSpec, *, author: str = "") -> Table:
        """Create the table that a spec declares, or accept a matching existing one, and register it.

        Raises UserError if this catalog contains another table with this name or location, if the existing table is a
        copy of a registered table, or if the spec contradicts the existing table or the namespace's policies.
        """
        self._register(spec, author, create=True)
        return self.load_table(spec.table)

    def ensure_table(self, spec: TableSpec, *, author: str = "", create: bool = True) -> TableEntry:
        """Register the table of a spec if needed, make the spec its current version, and return the catalog entry.

        `create` creates a table that does not exist. Otherwise its first rows create it, and until then the entry
        records no identity. Raises UserError as `create_table` and `update_spec` do.
        """
        if not self.table_exists(spec.table):
            try:
                self._register(spec, author, create=create)
            except LakehouseError:
                # Another process may have registered it concurrently. update_spec then compares the specs.
                if not self.table_exists(spec.table):
                    raise
        self.update_spec(spec, author=author, create=create)
        return self.entry(spec.table)

    def table_exists(self, identifier: str) -> bool:
        """Return whether a table of this name is registered."""
        namespace, name = parsed_name(identifier)
        with self.database.session() as session:
            return session.scalar(select(TableRow.id).filter_by(namespace=namespace, name=name)) is not None

    # parameters: the parts of a registration
    def register_table(
        self,
        identifier: str,
        location: str,
        *,
        author: str = "",
        new_id: bool = False,
        policies: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
        options: Mapping[str, str] = MappingProxyType({}),
    ) -> Table:
        """Register an existing Hudi table with a spec derived from its properties.

        A table without id gets an id in its properties; nothing else in the table is changed.

        Args:
            identifier: Name of the table in the catalog.
            location: Path or URL of the table.
            author: Name of the user.
            new_id: Give the table a new id, because it is a copy of a registered table.
            policies: Settings of the table by service, entered in the same transaction as the table.
            options: Options with which the table is opened, such as its lock. They become the options of its spec.

        Raises:
            UserError: The catalog contains a table with this name, location or id, the location is not a table, the
                options are wrong, or the policies contradict each other.
            RetryableError: Another writer is changing the properties of the table.
        """
        parts = parsed_name(identifier)
        place = resolve(location, os.environ, name="location")
        self._refuse_known(parts, place)
        env = Env(storage=open_storage(place))
        refuse_nested(env.storage)
        table = Table.open(place, env=env)
        spec = spec_of(table.config, identifier=".".join(parts), location=place, options=options)
        identity = self._assigned(parts, place, env, table.config, new_id=new_id)
        self._enter(parts, place, spec, author, identity, policies)
        return self.load_table(identifier)

    def accept_table(self, identifier: str, *, new_id: bool = False) -> Table:
        """Accept the table at the location of an entry as the registered one, after it was replaced or renamed.

        The spec, the policies and the history of the entry stay. Open requests of services are deleted, because they
        were made for the previous table.

        Args:
            identifier: Name of the table in the catalog.
            new_id: Give the table a new id, because it is a copy of another registered table.

        Raises:
            UserError: The table contradicts its current spec, for example by other keys, or it is a copy of another
                registered table.
        """
        entry = self.entry(identifier)
        env = Env(storage=open_storage(entry.location))
        config = Table.open(entry.location, env=env, allowed_functions=entry.spec.functions).config
        require_acceptable(entry.identifier, placed_spec(entry.spec, entry.location), config)
        identity = self._assigned((entry.namespace, entry.name), entry.location, env, config, new_id=new_id)
        with self.database.session() as session:
            row = self._row(session, identifier, lock=True)
            replace_registered(session, row, identity)
            mark_changed(session, [row.id], self.clock.now_ms())
        return self.load_table(identifier)

    def adopt(self, entry: TableEntry, table: Table) -> None:
        """Record the identity of an opened table if its entry has no identity or no id.

        Raises UserError if another entry has the id.
        """
        if entry.identity is None or not entry.identity.id:
            adopt_identity(self.database, entry, table)

    def identities(self, spec: TableSpec) -> dict[str, TableIdentity]:
        """Return the recorded identities of the tables that a spec or template declares, by name."""
        return recorded_identities(self.database, spec, location_of(spec, os.environ))

    def load_table(self, identifier: str, *, options: Mapping[str, str] | None = None) -> Table:
        """Open a table with the options of its spec and policies, overridden by `options`."""
        entry = self.entry(identifier)
        return open_table(entry, self.policies(entry.namespace), options or {})

    def change_version(
        self, identifier: str, request: VersionRequest, *, options: Mapping[str, str] | None = None, spark: Any = None
    ) -> VersionPlan | NothingToDo:
        """Change the version of a table as a recorded run, which holds the leases of all services on the table.

        Raises the errors of `run_version_change`.
        """
        return run_version_change(self, identifier, request, options=options or {}, spark=spark).outcome

    def list_tables(self, namespace: str | None = None) -> tuple[TableEntry, ...]:
        """Return the tables of a namespace, or of all namespaces, sorted by name."""
        with self.database.session() as session:
            return load_entries(session, namespace)

    def entry(self, identifier: str) -> TableEntry:
        """Return the entry of a table.

        Raises UserError, with a similar name, if it is not registered. Raises UserError if its stored spec is refused.
        """
        entry = self.registered_entry(identifier)
        if isinstance(entry, InvalidEntry):
            raise entry.refusal()
        return entry

    def registered_entry(self, identifier: str) -> TableEntry | InvalidEntry:
        """Return the entry of a table, even if its stored spec is refused; raise UserError if it is not registered."""
        with self.database.session() as session:
            row = self._row(session, identifier)
            spec = session.get(SpecRow, (row.id, row.spec_version))
            assert spec is not None, "a table is registered with its spec"
            return registered_entry(row, spec)

    def entries(self, identifiers: str | Sequence[str]) -> tuple[TableEntry, ...]:
        """Return the entries of some tables, without duplicates; see `entry` for errors."""
        names = dict.fromkeys(".".join(parsed_name(identifier)) for identifier in text_list(identifiers, "identifiers"))
        if len(names) <= _FEW:
            return tuple(self.entry(name) for name in names)
        by_name = {entry.identifier: entry for entry in self.list_tables()}
        return tuple(by_name.get(name) or self.entry(name) for name in names)

    def registered(self, ids: Collection[int] | None = None) -> dict[int, TableEntry | InvalidEntry]:
        """Return the entries of tables by id (None: all tables), including entries with refused specs.

        A table that was dropped is missing.
        """
        with self.database.session() as session:
            conditions = [None] if ids is None else [TableRow.id.in_(some) for some in batches(ids)]
            return {entry.id: entry for part in conditions for entry in load_registered(session, part)}

    def update_spec(self, spec: TableSpec, *, author: str = "", create: bool = True) -> int:
        """Store a new current version of a table's spec and return its number. An equal spec makes no new version.

        Two concurrent calls with one spec make one version. `create` creates the table if it does not exist. Raises
        UserError if the spec has another location, declares other settings than the table stores, or contradicts
        policies, or if the location contains a table that is not the registered table.
        """
        entry = self.registered_entry(spec.table)
        entry = entry.corrected(spec) if isinstance(entry, InvalidEntry) else entry
        recorded = {} if entry.identity is None else {spec.table: entry.identity}
        placed = replace(placed_spec(spec, location_of(spec, os.environ)), identities=recorded)
        if placed.location != entry.location:
            raise UserError(f"{entry.identifier} is at {entry.location}, but the spec declares {placed.location}")
        self.policies(entry.namespace).check(entry.namespace, entry.name, placed)
        env = Env(storage=open_storage(entry.location))
        table = declared_table(placed, env, create=create)
        if table is not None:
            require_identity(entry, table.config.identity)
            self.adopt(entry, table)
        with self.database.session() as session:
            row = self._row(session, spec.table, lock=True)
            newest = session.get(SpecRow, (row.id, row.spec_version))
            # Different spellings of the same location do not count as a change.
            versions = [document_of(spec), *([] if newest is None else [newest.document])]
            if len({spec_yaml({**document, "location": row.location}) for document in versions}) < len(versions):
                return row.spec_version
            row.spec_version += 1
            session.add(spec_row(row, spec, author, self.clock.now_ms()))
            mark_changed(session, [row.id], self.clock.now_ms())
            return row.spec_version

    def specs(self, identifier: str) -> tuple[tuple[int, TableSpec], ...]:
        """Return all versions of a table's spec, oldest first."""
        return tuple((entry.version, entry.spec) for entry in self.spec_history(identifier))

    def spec_history(self, identifier: str) -> tuple[SpecVersion, ...]:
        """Return all versions of a table's spec with their authors, oldest first."""
        with self.database.session() as session:
            row = self._row(session, identifier)
            query = select(SpecRow).where(SpecRow.table_id == row.id).order_by(SpecRow.version)
            return tuple(
                SpecVersion(
                    version=version_row.version,
                    spec=spec_of_version(version_row, row),
                    author=version_row.author,
                    source=version_row.source,
                    created_ms=version_row.created_ms,
                )
                for version_row in session.scalars(query)
            )

    def drop_table(self, identifier: str, *, purge: bool = False) -> tuple[str, ...]:
        """Remove a table, its specs, policies and history from the catalog; with `purge` also delete its files.

        Returns the paths below its location that a purge kept: files that do not belong to the table, nested tables,
        and symbolic links. Raises UserError, and deletes nothing, if the location contains another table.
        """
        entry = self.entry(identifier)
        remaining = purge_registered(entry) if purge else ()
        with self.database.session() as session:
            # Wait for a scheduler that records decisions, so that no decision is added after the deletion.
            session.execute(select(TableRow.id).where(TableRow.id == entry.id).with_for_update())
            for table in OF_TABLE:
                session.execute(delete(table).where(table.table_id == entry.id))
            # The actions of users are a log, so they stay under the name of the table.
            session.execute(update(ActionRow).where(ActionRow.table_id == entry.id).values(table_id=None))
            mine = (PolicyRow.namespace == entry.namespace) & (PolicyRow.name == entry.name)
            session.execute(delete(PolicyRow).where(mine))
            session.execute(delete(TableRow).where(TableRow.id == entry.id))
        self.leases.forget(f"{entry.identifier}/")
        return remaining

    # parameters: the parts of a policy
    def set_policy(
        self,
        scope: str,
        service: str,
        settings: Mapping[str, Any],
        *,
        pattern: str = "",
        replace: bool = False,
        author: str = "",
    ) -> None:
        """Set settings of a service for a namespace, a table, or partitions of a table.

        The service `all` of a namespace limits the runs of all its services together.

        Args:
            scope: a namespace, or `namespace.table`.
            service: name of the service.
            settings: values by name; other settings of the scope are kept.
            pattern: a regular expression that the whole path of a partition must match; empty for all.
            replace: remove the other settings of the scope.
            author: name of the user.

        Raises:
            UserError: the scope or a setting is unknown, or the settings contradict inherited settings for the scope or
                for a table in it.
        """
        namespace, name = self._scope(scope)
        if service == ALL_SERVICES:
            _check_common_limits(settings, name)
        else:
            refuse_in_policy(setting_options(service, settings))
        if pattern:
            _check_pattern(pattern, name)
            require_pattern_settings(service, settings)
        with self.database.session() as session:
            # Serialise edits: two edits may each be consistent but contradict each other.
            session.get(NamespaceRow, namespace, with_for_update={"key_share": True})
            query = select(PolicyRow).filter_by(namespace=namespace, name=name, pattern=pattern, service=service)
            row = session.scalar(query.with_for_update())
            if row is None:
                row = PolicyRow(
                    namespace=namespace, name=name, pattern=pattern, service=service, settings={}, version=0
                )
                session.add(row)
            row.settings = {**({} if replace else row.settings), **settings}
            row.version += 1
            row.updated_ms, row.author = self.clock.now_ms(), author
            _check_policies(session, namespace, name)
            self._mark_scope(session, namespace, name)

    def remove_policy(self, scope: str, service: str, *, pattern: str = "") -> bool:
        """Remove the settings of a scope, so that it inherits again; return whether there were any.

        Raises UserError if the inherited settings contradict each other.
        """
        namespace, name = self._scope(scope)
        mine = delete(PolicyRow).filter_by(namespace=namespace, name=name, pattern=pattern, service=service)
        with self.database.session() as session:
            session.get(NamespaceRow, namespace, with_for_update={"key_share": True})
            removed = bool(session.execute(mine).rowcount)  # type: ignore[attr-defined]
            _check_policies(session, namespace, name)
            self._mark_scope(session, namespace, name)
            return removed

    def settings(self, identifier: str, service: str, *, partition: str | None = None) -> ServiceSettings:
        """Return the merged settings of a service for a table, or for one of its partitions."""
        entry = self.entry(identifier)
        policies = self.policies(entry.namespace)
        settings = policies.settings_of(entry.namespace, entry.name, entry.spec.services, service, partition)
        return service_settings(service, settings)

    def policies(self, namespace: str | None = None) -> ServicePolicies:
        """Return the policies of a namespace and its tables, or of all namespaces, with one query."""
        with self.database.session() as session:
            return load_policies(session, namespace)

    def _mark_scope(self, session: Session, namespace: str, name: str) -> None:
        """Mark the tables of a policy as changed."""
        tables = select(TableRow.id).where(TableRow.namespace == namespace)
        mine = tables.where(TableRow.name == name) if name else tables
        mark_changed(session, list(session.scalars(mine)), self.clock.now_ms())

    def _scope(self, scope: str) -> tuple[str, str]:
        if "." in scope:
            entry = self.entry(scope)
            return entry.namespace, entry.name
        namespaces = self.list_namespaces()
        if scope not in namespaces:
            raise UserError(
                f"{scope!r} is neither a namespace nor namespace.table.{nearest(scope, namespaces)}", namespace=scope
            )
        return scope, ""

    def _register(self, spec: TableSpec, author: str, *, create: bool) -> None:
        """Add the table of a spec to the catalog; `create` also creates the table if it does not exist."""
        identifier, location = parsed_name(spec.table), location_of(spec, os.environ)
        self._refuse_known(identifier, location)
        placed, env = placed_spec(spec, location), Env(storage=open_storage(location))
        self.policies(identifier[0]).check(*identifier, placed)
        table = declared_table(placed, env, create=create)
        identity = None
        if table is None:
            refuse_nested(env.storage)
        else:
            require_declared_name(placed, table.config)
            identity = self._assigned(identifier, location, env, table.config)
        self._enter(identifier, location, spec, author, identity)

    # parameters: the parts of an entry
    def _enter(
        self,
        identifier: tuple[str, str],
        location: str,
        spec: TableSpec,
        author: str,
        identity: TableIdentity | None,
        policies: Mapping[str, Mapping[str, Any]] = MappingProxyType({}),
    ) -> None:
        self.create_namespace(identifier[0], exist_ok=True)
        entry = NewEntry(identifier=identifier, location=location, spec=spec, author=author, identity=identity)
        with self.database.session() as session:
            add_entry(session, entry, policies, self.clock.now_ms())
            _check_policies(session, *identifier)

    def _refuse_known(self, identifier: tuple[str, str], location: str) -> None:
        with self.database.session() as session:
            refuse_registered(session, identifier, location)

    # parameters: the registration and its table
    def _assigned(
        self, identifier: tuple[str, str], location: str, env: Env, config: TableConfig, *, new_id: bool = False
    ) -> TableIdentity:
        """Return the identity of a table to register; assign an id if it has none."""
        if not new_id:
            with self.database.session() as session:
                refuse_copy(session, identifier, location, config.identity)
        return assigned_identity(env, config, new_id=new_id)

    def _row(self, session: Session, identifier: str, *, lock: bool = False) -> TableRow:
        namespace, name = parsed_name(identifier)
        query = select(TableRow).filter_by(namespace=namespace, name=name)
        row = session.scalar(query.with_for_update() if lock else query)
        if row is None:
            names = [f"{space}.{table}" for space, table in session.execute(select(TableRow.namespace, TableRow.name))]
            raise UserError(
                f"no table {namespace}.{name} in this catalog.{nearest(f'{namespace}.{name}', names)} `lakehouse table "
                "list` lists all; `lakehouse table register` registers an existing table",
                table=identifier,
            )
        return row


def _check_common_limits(settings: Mapping[str, Any], name: str) -> None:
    if name:
        raise UserError(
            f"limits of all services are for a namespace, not for the table {name}: name the namespace, or one service",
            table=name,
        )
    parse_common_limits(settings)


def _check_pattern(pattern: str, table: str) -> None:
    if not table:
        raise UserError(f"pattern {pattern!r} needs a table: a namespace has no partitions; write namespace.table")
    compile_pattern(pattern, "pattern")


def _check_policies(session: Session, namespace: str, name: str) -> None:
    """Raise UserError if the settings of a namespace, or of a table in the scope, contradict each other."""
    session.flush()
    policies = load_policies(session, namespace)
    if not name:
        policies.check(namespace)
    for entry in load_entries(session, namespace):
        if name in ("", entry.name):
            policies.check(namespace, entry.name, entry.spec)
