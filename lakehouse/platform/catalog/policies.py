"""Merge the policies of services by scope; pure.

namespace   <   the spec's `services:`   <   table   <   partitions that match a pattern       the narrower scope wins
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from lakehouse.errors import SettingError, UserError
from lakehouse.model.display import Readable
from lakehouse.model.pattern import compile_pattern
from lakehouse.spec.contradictions import check_settings
from lakehouse.spec.services import SERVICES, service_options
from lakehouse.spec.table import TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePolicy(Readable):
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
    """All policies of some namespaces in creation order; a later policy overrides an earlier one of the same scope."""

    def __init__(self, policies: Iterable[ServicePolicy]) -> None:
        self._of: dict[tuple[str, str], list[ServicePolicy]] = {}
        for policy in policies:
            self._of.setdefault((policy.namespace, policy.name), []).append(policy)

    def settings_of(
        self, namespace: str, name: str, declared: Mapping[str, Any], service: str, partition: str | None = None
    ) -> dict[str, Any]:
        """Return the merged settings of a service.

        Args:
            namespace: the namespace.
            name: the table; empty for the settings of the namespace alone.
            declared: the `services:` section of the table's spec.
            service: name of the service.
            partition: path of a partition, whose policies then apply too.
        """
        merged: dict[str, Any] = {}
        for policy in self._about(namespace, "", service):
            merged |= policy.settings
        merged |= dict(declared.get(service) or {})
        own = self._about(namespace, name, service) if name else []
        for policy in own:
            merged |= {} if policy.pattern else policy.settings
        for policy in own:
            matches = partition is not None and policy.covers(partition)
            merged |= policy.settings if matches else {}
        return merged

    def options(self, namespace: str, name: str, spec: TableSpec) -> dict[str, str]:
        """Return the options to open a table with, from its spec and its policies."""
        services = {policy.service for at in ("", name) for policy in self._of.get((namespace, at), ())}
        settings = {
            service: self.settings_of(namespace, name, spec.services, service)
            for service in sorted(services | {*spec.services})
        }
        return {**spec.call_options(), **service_options(settings)}

    def check(self, namespace: str, name: str = "", spec: TableSpec | None = None) -> None:
        """Raise UserError if the merged settings of a table or a namespace contradict each other (`check_settings`)."""
        declared = spec.services if spec is not None else {}
        try:
            merged = {service: self.settings_of(namespace, name, declared, service) for service in SERVICES}
            check_settings(merged)
            for policy in self._of.get((namespace, name), ()) if name else ():
                if policy.pattern:
                    check_settings({**merged, policy.service: {**merged[policy.service], **policy.settings}})
        except SettingError as error:
            raise SettingError(
                f"{_scope(namespace, name)}: {error.message}",
                setting=error.setting,
                service=error.service,
                related=error.related,
            ) from error
        except UserError as error:
            raise UserError(f"{_scope(namespace, name)}: {error.message}") from error

    def _about(self, namespace: str, name: str, service: str) -> list[ServicePolicy]:
        return [policy for policy in self._of.get((namespace, name), ()) if policy.service == service]


def _scope(namespace: str, name: str) -> str:
    return f"{namespace}.{name}" if name else f"namespace {namespace}"
