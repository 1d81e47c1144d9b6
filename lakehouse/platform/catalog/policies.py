"""Merge the policies of services by scope; pure.

namespace   <   the spec's `services:`   <   table   <   partitions that match a pattern       (the narrower scope wins)
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from lakehouse.errors import SettingError, UserError
from lakehouse.model.display import Readable
from lakehouse.model.pattern import compile_pattern
from lakehouse.spec.options.partition_rules import (
    EVERY_PARTITION,
    PARTITION_RULES,
    PartitionRule,
    parse_rules,
    rules_text,
)
from lakehouse.spec.table.contradictions import check_settings
from lakehouse.spec.table.service_settings import (
    ServiceSettings,
    pattern_settings,
    service_options,
    service_settings,
)
from lakehouse.spec.table.services import SERVICE_SPECS, SERVICES
from lakehouse.spec.table.table_spec import TableSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class ServicePolicy(Readable):
    """Settings of one service for a namespace, a table (`name`) or its partitions that match `pattern`."""

    namespace: str
    name: str
    pattern: str
    service: str
    settings: Mapping[str, Any]
    author: str = ""

    def covers(self, partition: str) -> bool:
        """Return whether the pattern of the policy matches the whole path of a partition."""
        return bool(self.pattern) and compile_pattern(self.pattern, "pattern of a policy").matches(partition)


class ServicePolicies:
    """All policies of some namespaces in creation order; in the same scope a later policy overrides earlier ones."""

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
            partition: path of a partition, to apply its policies, too.
        """
        merged: dict[str, Any] = {}
        for policy in self.declared(namespace, "", service):
            merged |= policy.settings
        merged |= dict(declared.get(service) or {})
        own = self.declared(namespace, name, service) if name else []
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
        own = spec.call_options()
        rules = [*parse_rules(own.get(PARTITION_RULES, "")), *self._partition_rules(namespace, name, spec.services)]
        return {**own, **service_options(settings), **({PARTITION_RULES: rules_text(rules)} if rules else {})}

    def scheduling_settings(
        self, namespace: str, name: str, declared: Mapping[str, Any], service: str
    ) -> ServiceSettings:
        """Return the settings for deciding on runs of a service on a table.

        A service that is disabled for the table is enabled here if a pattern enables it for some partitions.
        """
        settings = service_settings(service, self.settings_of(namespace, name, declared, service))
        if settings.enabled:
            return settings
        rules = self._partition_rules(namespace, name, declared)
        return replace(settings, enabled=any(rule.enabled for rule in rules if rule.service == service))

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

    def _partition_rules(self, namespace: str, name: str, declared: Mapping[str, Any]) -> list[PartitionRule]:
        """Return the partition rules of a table, with the settings that services support per partition."""
        rules: list[PartitionRule] = []
        for spec in SERVICE_SPECS:
            own = [policy for policy in self.declared(namespace, name, spec.name) if policy.pattern]
            own_rules = [_rule(policy) for policy in own] if spec.pattern_settings else []
            own_rules = [rule for rule in own_rules if rule.enabled is not None or rule.options]
            enabled = service_settings(spec.name, self.settings_of(namespace, name, declared, spec.name)).enabled
            if not enabled and any(rule.enabled for rule in own_rules):
                rules.append(PartitionRule(service=spec.name, pattern=EVERY_PARTITION, enabled=False))
            rules += own_rules
        return rules

    def declared(self, namespace: str, name: str, service: str) -> list[ServicePolicy]:
        """Return the policies of a service for a namespace (`name` is empty) or a table, in creation order."""
        return [policy for policy in self._of.get((namespace, name), ()) if policy.service == service]


def _rule(policy: ServicePolicy) -> PartitionRule:
    """Return a partition policy as a rule, without settings that the service does not support per partition."""
    honoured = pattern_settings(policy.service, policy.settings)
    settings = service_settings(policy.service, honoured)
    enabled = settings.enabled if "enabled" in honoured else None
    return PartitionRule(
        service=policy.service, pattern=policy.pattern, enabled=enabled, options=dict(settings.options)
    )


def _scope(namespace: str, name: str) -> str:
    return f"{namespace}.{name}" if name else f"namespace {namespace}"
