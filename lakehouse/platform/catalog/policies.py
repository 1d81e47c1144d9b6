"""What tables are told about their services: the rows of the catalog's policies, inherited by name. Pure.

namespace   <   the spec's `services:`   <   table   <   partitions that match a pattern       the narrower one wins
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lakehouse.errors import UserError
from lakehouse.model.pattern import compile_pattern
from lakehouse.spec.contradictions import check_settings
from lakehouse.spec.services import SERVICES, service_options
from lakehouse.spec.table import TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePolicy:
    """Settings of one service for a namespace, a table (`name`) or its partitions that match `pattern`."""

    namespace: str
    name: str
    pattern: str
    service: str
    settings: Mapping[str, Any]

    def covers(self, partition: str) -> bool:
        """Return whether the policy has a pattern that matches the whole path of a partition."""
        return bool(self.pattern) and compile_pattern(self.pattern, "pattern of a policy").matches(partition)


class ServicePolicies:
    """ServicePolicies in the order in which they were first set; of those of one width the later one wins."""

    def __init__(self, policies: Iterable[ServicePolicy]) -> None:
        self._of: dict[tuple[str, str], list[ServicePolicy]] = {}
        for policy in policies:
            self._of.setdefault((policy.namespace, policy.name), []).append(policy)

    def settings_of(
        self, namespace: str, name: str, declared: Mapping[str, Any], service: str, partition: str | None = None
    ) -> dict[str, Any]:
        """Return the settings of a service for a table, or for one of its partitions.

        `declared` is the `services:` section of the table's spec; without a `name` the answer is for the namespace.
        """
        told: dict[str, Any] = {}
        for policy in self._about(namespace, "", service):
            told |= policy.settings
        told |= dict(declared.get(service) or {})
        own = self._about(namespace, name, service) if name else []
        for policy in own:
            told |= {} if policy.pattern else policy.settings
        for policy in own:
            matches = partition is not None and policy.covers(partition)
            told |= policy.settings if matches else {}
        return told

    def options(self, namespace: str, name: str, spec: TableSpec) -> dict[str, str]:
        """Return the options under which a table is opened: those of its spec, and those of all its policies."""
        services = {policy.service for at in ("", name) for policy in self._of.get((namespace, at), ())}
        settings = {
            service: self.settings_of(namespace, name, spec.services, service)
            for service in sorted(services | {*spec.services})
        }
        return {**spec.call_options(), **service_options(settings)}

    def check(self, namespace: str, name: str = "", spec: TableSpec | None = None) -> None:
        """Raise UserError if what a table, or a namespace alone, is told contradicts itself; see `check_settings`."""
        declared = spec.services if spec is not None else {}
        try:
            told = {service: self.settings_of(namespace, name, declared, service) for service in SERVICES}
            check_settings(told)
            for policy in self._of.get((namespace, name), ()) if name else ():
                if policy.pattern:
                    check_settings({**told, policy.service: {**told[policy.service], **policy.settings}})
        except UserError as error:
            where = f"{namespace}.{name}" if name else f"namespace {namespace}"
            raise UserError(f"{where}: {error.message}", **error.facts) from error

    def _about(self, namespace: str, name: str, service: str) -> list[ServicePolicy]:
        return [policy for policy in self._of.get((namespace, name), ()) if policy.service == service]
