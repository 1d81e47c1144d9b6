"""Show the effective policies of a table: the origin of each setting, and the settings without effect; pure.

    default < properties < spec `options:` < namespace < spec `services:` < table < pattern

Imports neither core nor pyarrow, so that pages of Airflow show the same document as `lakehouse policy show`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from lakehouse.platform.catalog.policies import ServicePolicies
from lakehouse.platform.catalog.policies import ServicePolicy as DeclaredPolicy
from lakehouse.spec.contracts.policies import (
    DeadPolicy,
    DeadPolicyReason,
    PolicyOrigin,
    PolicySetting,
    ServicePolicy,
    TablePolicies,
)
from lakehouse.spec.options.declarations import canonical_key
from lakehouse.spec.options.policies import POLICIES
from lakehouse.spec.secrets import redact_text
from lakehouse.spec.table.publish_keys import SERVICE_KEYS
from lakehouse.spec.table.scheduling import ALL_SERVICES
from lakehouse.spec.table.service_settings import pattern_settings, service_settings
from lakehouse.spec.table.services import SERVICE_SPECS, ServiceSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyFacts:
    """The facts about a table to compare its policies with.

    Attributes:
        namespace: The namespace of the table.
        name: The name of the table in it.
        merge_on_read: Whether the table has log files.
        partitioned: Whether the table has partition columns.
        declared: The `services:` section of the table's spec.
        options: The `options:` section of the table's spec.
        stored: Options in the properties of the table; empty if they were not read.
        spec: The file of the spec, or empty.
        partitions: Paths of the partitions; None if they were not listed.
        siblings: The `services:` section of each table in the namespace, by name.
    """

    namespace: str
    name: str
    merge_on_read: bool
    partitioned: bool
    declared: Mapping[str, Any]
    options: Mapping[str, str] = field(default_factory=dict)
    stored: Mapping[str, str] = field(default_factory=dict)
    spec: str = ""
    partitions: Sequence[str] | None = None
    siblings: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    """The settings of one service that one place declares; `covered` are the partitions of its pattern, if known."""

    origin: PolicyOrigin
    scope: str
    settings: Mapping[str, str]
    pattern: str = ""
    author: str = ""
    covered: frozenset[str] | None = None


def table_policies(facts: PolicyFacts, policies: ServicePolicies, *, partition: str | None = None) -> TablePolicies:
    """Return the effective policies of a table or one of its partitions.

    Raises UserError for declared settings that do not parse.
    """
    shown, dead = [], []
    for spec in SERVICE_SPECS:
        layers = _layers(spec, facts, policies)
        dead += [*_dead(spec, layers, facts, policies)]
        merged = policies.settings_of(facts.namespace, facts.name, facts.declared, spec.name, partition)
        settings = service_settings(spec.name, merged)
        shown.append(
            ServicePolicy(
                service=spec.name,
                enabled=settings.enabled,
                priority=settings.priority,
                deadline_s=settings.deadline_s,
                options={key: redact_text(value) for key, value in settings.options.items()},
                settings=tuple(_effective(spec, layers, partition)),
            )
        )
    return TablePolicies(
        table=f"{facts.namespace}.{facts.name}",
        policies=(*shown, *_of_all_services(facts, policies)),
        partition=partition,
        dead=tuple(dead),
        partitions_known=facts.partitions is not None,
    )


def _of_all_services(facts: PolicyFacts, policies: ServicePolicies) -> Iterator[ServicePolicy]:
    """Yield the limits that a policy sets for all services in the namespace together."""
    settings = [
        PolicySetting(
            setting=name,
            value=_shown(value),
            origin=PolicyOrigin.NAMESPACE,
            scope=facts.namespace,
            author=policy.author,
        )
        for policy in policies.declared(facts.namespace, "", ALL_SERVICES)
        for name, value in policy.settings.items()
    ]
    if settings:
        yield ServicePolicy(service=ALL_SERVICES, enabled=True, priority=1.0, settings=tuple(settings))


def _layers(spec: ServiceSpec, facts: PolicyFacts, policies: ServicePolicies) -> list[_Layer]:
    """Return the layers of settings for a service, from wide to narrow."""
    keys, own = _keys(spec), f"{facts.namespace}.{facts.name}"
    by_key = {key: name for name, key in keys.items()}

    def options(of: Mapping[str, str]) -> dict[str, str]:
        return {by_key[canonical_key(key)]: str(value) for key, value in of.items() if canonical_key(key) in by_key}

    def declared(origin: PolicyOrigin, scope: str, policy: DeclaredPolicy) -> _Layer:
        covered = None
        if policy.pattern and facts.partitions is not None:
            covered = frozenset(path for path in facts.partitions if policy.covers(path))
        return _Layer(
            origin=origin,
            scope=scope,
            settings=_named(policy.settings, by_key),
            pattern=policy.pattern,
            author=policy.author,
            covered=covered,
        )

    of_table = policies.declared(facts.namespace, facts.name, spec.name)
    layers = [
        _Layer(origin=PolicyOrigin.DEFAULT, scope="", settings=_defaults(spec)),
        _Layer(origin=PolicyOrigin.PROPERTIES, scope=own, settings=options(facts.stored)),
        _Layer(origin=PolicyOrigin.OPTIONS, scope=facts.spec, settings=options(facts.options)),
        *(
            declared(PolicyOrigin.NAMESPACE, facts.namespace, policy)
            for policy in policies.declared(facts.namespace, "", spec.name)
        ),
        _Layer(
            origin=PolicyOrigin.SPEC,
            scope=facts.spec,
            settings=_named(facts.declared.get(spec.name) or {}, by_key),
        ),
        *(declared(PolicyOrigin.TABLE, own, policy) for policy in of_table if not policy.pattern),
        *(declared(PolicyOrigin.PATTERN, own, policy) for policy in of_table if policy.pattern),
    ]
    return [layer for layer in layers if layer.settings]


def _effective(spec: ServiceSpec, layers: Iterable[_Layer], partition: str | None) -> Iterator[PolicySetting]:
    """Yield the effective settings. If no partition is given, pattern settings follow the table settings."""
    keys, chosen, beside = _keys(spec), dict[str, _Layer](), list[tuple[str, _Layer]]()
    for layer in layers:
        if layer.origin is PolicyOrigin.PATTERN:
            honoured = pattern_settings(spec.name, layer.settings)
            if partition is None:
                beside += [(name, layer) for name in honoured]
            elif _covers(layer, partition):
                chosen |= dict.fromkeys(honoured, layer)
        else:
            chosen |= dict.fromkeys(layer.settings, layer)
    for name, layer in (*chosen.items(), *beside):
        yield PolicySetting(
            setting=name,
            value=layer.settings[name],
            origin=layer.origin,
            scope=layer.scope,
            pattern=layer.pattern,
            key=keys.get(name),
            author=layer.author,
        )


def _covers(layer: _Layer, partition: str) -> bool:
    policy = DeclaredPolicy(namespace="", name="", pattern=layer.pattern, service="", settings={})
    return policy.covers(partition)


def _dead(
    spec: ServiceSpec, layers: Sequence[_Layer], facts: PolicyFacts, policies: ServicePolicies
) -> Iterator[DeadPolicy]:
    """Yield the declared settings of a service that have no effect."""
    refusal = _not_applicable(spec, facts)
    for number, layer in enumerate(layers):
        if layer.origin in (PolicyOrigin.DEFAULT, PolicyOrigin.PROPERTIES, PolicyOrigin.OPTIONS):
            continue
        honoured = pattern_settings(spec.name, layer.settings) if layer.pattern else layer.settings
        for name in layer.settings:
            cause = None
            if layer.origin is PolicyOrigin.NAMESPACE:
                cause = _overridden_in_namespace(spec, name, facts, policies)
            elif refusal is not None:
                cause = DeadPolicyReason.NOT_APPLICABLE, refusal
            elif name not in honoured:
                cause = DeadPolicyReason.NOT_HONOURED, f"it applies to whole tables; {spec.pattern_advice}"
            elif layer.pattern and layer.covered is not None and not layer.covered:
                cause = DeadPolicyReason.NO_PARTITION, "the pattern matches no partition; a pattern must match the path"
            else:
                cause = _overridden(name, layer, layers[number + 1 :], facts)
            if cause is not None:
                yield DeadPolicy(
                    service=spec.name,
                    setting=name,
                    origin=layer.origin,
                    reason=cause[0],
                    text=_text(spec, name, layer, cause[1]),
                    pattern=layer.pattern,
                )


def _overridden(
    name: str, layer: _Layer, later: Sequence[_Layer], facts: PolicyFacts
) -> tuple[DeadPolicyReason, str] | None:
    """Return why a layer's setting applies to no partition, or None if it may apply to some."""
    setting = [other for other in later if name in other.settings]
    whole = next((other for other in setting if not other.pattern), None)
    if whole is not None:
        return DeadPolicyReason.OVERRIDDEN, f"the policy of the {whole.origin} sets it to {whole.settings[name]}"
    mine = layer.covered if layer.pattern else frozenset(facts.partitions or ())
    covered = frozenset[str]().union(*(other.covered or () for other in setting))
    if name in ("priority", "deadline") or not mine or not mine <= covered:
        return None
    patterns = " and ".join(repr(other.pattern) for other in setting)
    return DeadPolicyReason.OVERRIDDEN, f"the policies of the patterns {patterns} set it for all its partitions"


def _overridden_in_namespace(
    spec: ServiceSpec, name: str, facts: PolicyFacts, policies: ServicePolicies
) -> tuple[DeadPolicyReason, str] | None:
    """Return why a namespace setting applies to no table; None if it applies to a table."""
    by_key = {key: setting for setting, key in _keys(spec).items()}
    for table, declared in facts.siblings.items():
        own = [p.settings for p in policies.declared(facts.namespace, table, spec.name) if not p.pattern]
        if not any(name in _named(settings, by_key) for settings in (declared.get(spec.name) or {}, *own)):
            return None
    if not facts.siblings:
        return None
    return DeadPolicyReason.OVERRIDDEN, f"each of the {len(facts.siblings)} tables of the namespace sets it itself"


def _not_applicable(spec: ServiceSpec, facts: PolicyFacts) -> str | None:
    if spec.merge_on_read_only and not facts.merge_on_read:
        return "a copy-on-write table has no logs to compact"
    if spec.name == "ttl" and not facts.partitioned:
        return "a table without partitions has none that could expire"
    return None


def _text(spec: ServiceSpec, name: str, layer: _Layer, why: str) -> str:
    place = f"pattern {layer.pattern!r}" if layer.pattern else f"{layer.origin} {layer.scope}".strip()
    where = f"--pattern {layer.pattern!r} " if layer.pattern else ""
    kind = "--namespace" if layer.origin is PolicyOrigin.NAMESPACE else "--table"
    way_out = (
        "remove it from the spec"
        if layer.origin is PolicyOrigin.SPEC
        else f"change it, or remove it with `lakehouse policy remove {kind} {layer.scope} {where}--service {spec.name}`"
    )
    return f"{spec.name}.{name}={layer.settings[name]} of {place} has no effect: {why}; {way_out}"


def _keys(spec: ServiceSpec) -> dict[str, str]:
    return {declared.name: declared.metadata["key"] for declared in fields(POLICIES[spec.options])}


def _defaults(spec: ServiceSpec) -> dict[str, str]:
    scheduling = {key.name: key.default for key in SERVICE_KEYS if key.default}
    scheduling["enabled"] = str(spec.enabled_by_default).lower()
    return scheduling | {option.name: _shown(option.default) for option in fields(POLICIES[spec.options])}


def _named(settings: Mapping[str, Any], by_key: Mapping[str, str]) -> dict[str, str]:
    """Return settings by their short names, with values as strings."""
    return {by_key.get(canonical_key(name), name): _shown(value) for name, value in settings.items()}


def _shown(value: object) -> str:
    # An earlier version stored passwords of URLs.
    return str(value).lower() if isinstance(value, bool) else redact_text(str(value))
