"""Service settings for partitions that match a pattern. One option stores them; a catalog fills it from its policies.

    lakehouse.services.partitions =
        [{"service": "compaction", "pattern": "day=2019-.*", "enabled": false},
         {"service": "clustering", "pattern": "day=2026-.*", "options": {"lakehouse...": "134217728"}}]

A later rule overrides an earlier one, setting by setting. `lakehouse policy set --pattern` refuses settings that a
service cannot honour for some partitions only (`lakehouse.spec.table.services.require_pattern_settings`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

from lakehouse.errors import SettingError, UserError
from lakehouse.model.pattern import compile_pattern
from lakehouse.spec.options.option import option

PARTITION_RULES = "lakehouse.services.partitions"
#: The pattern of all partitions.
EVERY_PARTITION = "(?s).*"
_KEYS = ("service", "pattern", "enabled", "options")


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionRule:
    """Settings of one service for the partitions whose whole path matches `pattern`.

    `enabled` is None if the rule does not set it. `options` maps option keys of the service's policy to strings.
    """

    service: str
    pattern: str
    enabled: bool | None = None
    options: Mapping[str, str] = field(default_factory=dict)

    def covers(self, partition: str) -> bool:
        """Return whether the pattern matches the whole path of a partition."""
        return compile_pattern(self.pattern, f"pattern in option {PARTITION_RULES}").matches(partition)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionPolicies:
    """Which settings of services apply only to the partitions that match a pattern."""

    rules: str = option(
        PARTITION_RULES,
        "",
        "Settings of services for some partitions, as JSON: a list of service, pattern, enabled and options. A catalog "
        "fills it from `lakehouse policy set --pattern`.",
    )

    def __post_init__(self) -> None:
        """Raise SettingError for a value that is not a list of rules."""
        parse_rules(self.rules)

    def of(self, service: str) -> tuple[PartitionRule, ...]:
        """Return the rules of a service, in the order in which they apply."""
        return tuple(rule for rule in parse_rules(self.rules) if rule.service == service)

    def options_of(self, service: str, partition: str) -> dict[str, str] | None:
        """Return the service options that rules set for a partition, or None if the rules disable the service."""
        rules = [rule for rule in self.of(service) if rule.covers(partition)]
        enabled = next((rule.enabled for rule in reversed(rules) if rule.enabled is not None), True)
        return {key: value for rule in rules for key, value in rule.options.items()} if enabled else None

    def switched_off(self, service: str, partitions: Iterable[str]) -> tuple[str, ...]:
        """Return the partitions in which rules disable a service, sorted."""
        if not self.of(service):
            return ()
        return tuple(path for path in sorted(set(partitions)) if self.options_of(service, path) is None)


def rules_text(rules: Sequence[PartitionRule]) -> str:
    """Encode rules as the value of the option; the value is empty if there are no rules."""
    documents = []
    for rule in rules:
        document: dict[str, Any] = {"service": rule.service, "pattern": rule.pattern}
        document |= {} if rule.enabled is None else {"enabled": rule.enabled}
        document |= {"options": dict(rule.options)} if rule.options else {}
        documents.append(document)
    return json.dumps(documents) if documents else ""


@lru_cache(maxsize=1024)
def parse_rules(text: str) -> tuple[PartitionRule, ...]:
    """Decode the rules from the value of the option; raise SettingError if it is not a list of rules."""
    if not text.strip():
        return ()
    try:
        documents = json.loads(text)
    except ValueError as error:
        raise _wrong(f"is not JSON: {error}") from error
    if not isinstance(documents, list):
        raise _wrong(f"is a JSON {type(documents).__name__}; expected a list of rules")
    return tuple(_rule(document) for document in documents)


def _rule(document: object) -> PartitionRule:
    if not isinstance(document, dict) or not {"service", "pattern"} <= document.keys() <= {*_KEYS}:
        raise _wrong(f"has the rule {document!r}; a rule has service and pattern, and may have enabled and options")
    enabled, options = document.get("enabled"), document.get("options", {})
    if enabled not in (None, True, False) or not isinstance(options, dict):
        raise _wrong(f"has the rule {document!r}; enabled is true or false, and options is an object of strings")
    rule = PartitionRule(
        service=str(document["service"]),
        pattern=str(document["pattern"]),
        enabled=enabled,
        options={str(key): str(value) for key, value in options.items()},
    )
    try:
        rule.covers("")
    except UserError as error:
        raise _wrong(f"has a wrong pattern: {error.message}") from error
    return rule


def _wrong(problem: str) -> SettingError:
    return SettingError(
        f"option {PARTITION_RULES} {problem}. Set it with `lakehouse policy set --pattern`", setting=PARTITION_RULES
    )
