"""`lakehouse policy set | remove | show`: the policies of services in a catalog."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from lakehouse.cli.backends.open import open_backend
from lakehouse.cli.backends.protocol import PolicyScope
from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document, show_rows
from lakehouse.cli.table import catalog_table
from lakehouse.errors import UserError
from lakehouse.spec.contracts.policies import PolicyOrigin, TablePolicies
from lakehouse.spec.yaml_section import read_value

logger = logging.getLogger(__name__)


def set_policy(given: Given) -> None:
    """Change settings of a service."""
    name, scope = _scope(given)
    settings = _pairs(given.set)
    with open_backend(name) as backend:
        result = backend.set_policy(scope, settings)
    show_document(result, given.output)


def remove_policy(given: Given) -> None:
    """Remove settings of a service."""
    name, scope = _scope(given)
    with open_backend(name) as backend:
        result = backend.remove_policy(scope)
    show_document(result, given.output)


def show_policies(given: Given) -> None:
    """Print all service settings of a table with the place that declares each, and the policies without effect."""
    name, table = catalog_table(given)
    with open_backend(name) as backend:
        policies = backend.policies(table, given.partition)
    if given.output == "json":
        return show_document(policies, given.output)
    show_rows(_rows(policies, defaults=given.defaults))
    for dead in policies.dead:
        print(f"no effect: {dead.text}")
    if not policies.partitions_known:
        print("the table cannot be read, so patterns were not checked against its partitions")
    return None


def _rows(policies: TablePolicies, *, defaults: bool) -> list[dict[str, Any]]:
    return [
        {
            "service": policy.service,
            "setting": setting.setting,
            "value": setting.value,
            "origin": setting.origin.value,
            "scope": setting.scope,
            "pattern": setting.pattern,
            "author": setting.author,
        }
        for policy in policies.policies
        for setting in policy.settings
        if defaults or setting.origin is not PolicyOrigin.DEFAULT or setting.setting == "enabled"
    ]


def _scope(given: Given) -> tuple[str, PolicyScope]:
    """Return the catalog, and the scope of the policy."""
    name, table = (given.catalog, None) if given.table is None else catalog_table(given)
    return name, PolicyScope(service=given.service, table=table, namespace=given.namespace, pattern=given.pattern)


def _pairs(settings: Sequence[str]) -> dict[str, Any]:
    wrong = next((setting for setting in settings if "=" not in setting), None)
    if wrong is not None:
        raise UserError(f"--set {wrong!r}: expected name=value", setting=wrong)
    pairs = (setting.partition("=") for setting in settings)
    return {name: read_value(value, source=name) for name, _, value in pairs}
