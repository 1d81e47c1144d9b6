"""Commands about a catalog: `table list | register | update | drop`, `policy ...` and `catalog upgrade`."""

from __future__ import annotations

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sqlalchemy import create_engine

from lakehouse.cli.arguments import catalog_argument
from lakehouse.cli.output import rows_of, show_document
from lakehouse.cli.specs import author, drift_warnings, specs_command
from lakehouse.errors import UserError, nearest
from lakehouse.platform.catalog.catalog import load_catalog
from lakehouse.platform.catalog.connect import DEFAULT, catalog_url, upgrade
from lakehouse.spec.contracts.catalog import (
    CatalogTable,
    CatalogTables,
    DroppedTable,
    PolicyChange,
    ServicePolicy,
    TableLocation,
    TablePolicies,
    UpdatedSpec,
    UpgradedCatalog,
)
from lakehouse.spec.services import SERVICES
from lakehouse.spec.table import load_spec
from lakehouse.spec.yaml_section import read_value

#: Verbs of `lakehouse table` that need a catalog.
CATALOG_VERBS = ("list", "register", "update", "drop", "sync", "drift", "history")
_VERBS = {"table": CATALOG_VERBS, "policy": ("set", "remove", "show"), "catalog": ("upgrade",)}


def catalog_command(words: Sequence[str]) -> int:
    """Run one command about tables, policies or the catalog itself."""
    noun, verb = words[0], words[1] if len(words) > 1 else ""
    if verb not in _VERBS[noun]:
        known = ", ".join(_VERBS[noun])
        raise UserError(f"lakehouse {noun} {verb!r} is unknown; verbs are {known}.{nearest(verb, _VERBS[noun])}")
    if noun == "table" and verb in ("sync", "drift", "history"):
        return specs_command(verb, words[2:])
    return {
        ("table", "list"): _list,
        ("table", "register"): _register,
        ("table", "update"): _update,
        ("table", "drop"): _drop,
        ("policy", "set"): _set,
        ("policy", "remove"): _remove,
        ("policy", "show"): _show,
        ("catalog", "upgrade"): _upgrade,
    }[(noun, verb)](words[2:])


def _list(words: Sequence[str]) -> int:
    parser = _parser("table list")
    parser.add_argument("--namespace", help="only the tables of this namespace")
    given = parser.parse_args(words)
    with load_catalog(given.catalog) as catalog:
        entries = catalog.list_tables(given.namespace)
        drift = drift_warnings(catalog)
        tables = [
            CatalogTable(
                table=entry.identifier,
                type=entry.spec.type,
                spec_version=entry.spec_version,
                author=entry.author,
                location=entry.location,
                drift=drift.get(entry.identifier),
            )
            for entry in entries
        ]
    show_document(CatalogTables(tables=tuple(tables)), given.output, rows=rows_of(tables))
    return 0


def _register(words: Sequence[str]) -> int:
    parser = _parser("table register")
    parser.add_argument("table", help="namespace.table")
    parser.add_argument("location", help="location of the Hudi table")
    given = parser.parse_args(words)
    with load_catalog(given.catalog) as catalog:
        table = catalog.register_table(given.table, given.location, author=author(os.environ))
    found = TableLocation(table=given.table, location=table.location, table_version=table.config.version)
    show_document(found, given.output)
    return 0


def _update(words: Sequence[str]) -> int:
    parser = _parser("table update")
    parser.add_argument("--table", required=True, help="a table spec (YAML): the new version of the catalog")
    given = parser.parse_args(words)
    with load_catalog(given.catalog) as catalog:
        spec = load_spec(Path(given.table).absolute())
        version = catalog.update_spec(spec, author=author(os.environ))
    show_document(UpdatedSpec(table=spec.table, spec_version=version), given.output)
    return 0


def _drop(words: Sequence[str]) -> int:
    parser = _parser("table drop")
    parser.add_argument("table", help="namespace.table")
    parser.add_argument("--purge", action="store_true", help="also delete its files")
    given = parser.parse_args(words)
    with load_catalog(given.catalog) as catalog:
        kept = catalog.drop_table(given.table, purge=given.purge)
    show_document(DroppedTable(table=given.table, files_deleted=given.purge, kept=tuple(kept)), given.output)
    return 0


def _set(words: Sequence[str]) -> int:
    parser = _policy("policy set")
    parser.add_argument("settings", nargs="+", metavar="name=value", help="settings of the service")
    given = parser.parse_args(words)
    with load_catalog(given.catalog) as catalog:
        catalog.set_policy(given.scope, given.service, _pairs(given.settings), pattern=given.pattern)
    result = PolicyChange(scope=given.scope, service=given.service, pattern=given.pattern, changed=True)
    show_document(result, given.output)
    return 0


def _remove(words: Sequence[str]) -> int:
    given = _policy("policy remove").parse_args(words)
    with load_catalog(given.catalog) as catalog:
        removed = catalog.remove_policy(given.scope, given.service, pattern=given.pattern)
    result = PolicyChange(scope=given.scope, service=given.service, pattern=given.pattern, changed=removed)
    show_document(result, given.output)
    return 0


def _show(words: Sequence[str]) -> int:
    parser = _parser("policy show")
    parser.add_argument("table", help="namespace.table")
    parser.add_argument("--partition", help="settings of this partition")
    given = parser.parse_args(words)
    with load_catalog(given.catalog) as catalog:
        policies = []
        for service in SERVICES:
            settings = catalog.settings(given.table, service, partition=given.partition)
            policies.append(
                ServicePolicy(
                    service=service,
                    enabled=settings.enabled,
                    priority=settings.priority,
                    deadline_s=settings.deadline_s,
                    options=dict(settings.options),
                )
            )
    found = TablePolicies(table=given.table, policies=tuple(policies))
    show_document(found, given.output, rows=rows_of(policies))
    return 0


def _upgrade(words: Sequence[str]) -> int:
    given = _parser("catalog upgrade").parse_args(words)
    engine = create_engine(catalog_url(given.catalog, os.environ))
    try:
        revision = upgrade(engine)
    finally:
        engine.dispose()
    url = engine.url.render_as_string(hide_password=True)
    show_document(UpgradedCatalog(catalog=url, schema_revision=revision), given.output)
    return 0


def _pairs(settings: Sequence[str]) -> dict[str, Any]:
    wrong = next((setting for setting in settings if "=" not in setting), None)
    if wrong is not None:
        raise UserError(f"{wrong!r}: expected name=value", setting=wrong)
    pairs = (setting.partition("=") for setting in settings)
    return {name: read_value(value, source=name) for name, _, value in pairs}


def _policy(command: str) -> argparse.ArgumentParser:
    parser = _parser(command)
    parser.add_argument("scope", help="a namespace, or namespace.table")
    parser.add_argument("service", choices=SERVICES)
    parser.add_argument("--pattern", default="", help="only for partitions whose path matches this regular expression")
    return parser


def _parser(command: str) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog=f"lakehouse {command}")
    parser.add_argument("--catalog", type=catalog_argument, default=DEFAULT, help="name or URL of the catalog")
    parser.add_argument("--output", choices=("text", "json"), default="text")
    return parser
