"""The `services:` section of a table spec, and policies in the catalog: what a table service is told.

    services:
      compaction: {max_delta_commits: 5, deadline: 2h}
      clean: {commits_retained: 10}
      clustering: {enabled: false}

A setting is a field of the service's policy (`lakehouse.spec.options`) or the full `hoodie.*` key; besides these every
service has `enabled`, `priority` and `deadline`, which are the scheduler's.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from lakehouse.errors import SettingError, UserError, nearest
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.options.policies import POLICIES
from lakehouse.spec.quantities import parse_duration

#: The services, in the order in which they help each other: what one leaves behind, a later one takes away.
SERVICES = ("compaction", "logcompaction", "clustering", "ttl", "clean", "archive")
#: Log compaction is a kind of compaction and goes by its policy.
_POLICY_OF = {"logcompaction": "compaction"}
_SCHEDULING = ("enabled", "priority", "deadline")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """What one service of one table is told. `options` are keys of the service's policy.

    Of what is due at the same time, that with the higher `priority` comes first; `deadline_s` is how long it may be due
    without having run.
    """

    enabled: bool = True
    priority: float = 1.0
    deadline_s: float | None = None
    options: Mapping[str, str]


def service_settings(service: str, settings: Mapping[str, Any]) -> ServiceSettings:
    """Return the settings of a service as values.

    Raises UserError naming the setting that is unknown, with the nearest known one, or whose value does not fit.
    """
    if service not in SERVICES:
        raise UserError(f"unknown service {service!r}.{nearest(service, SERVICES)} Known: {', '.join(SERVICES)}.")
    options = setting_options(service, settings)
    parse_options(options)
    deadline = settings.get("deadline")
    return ServiceSettings(
        enabled=_flag(service, settings.get("enabled", True)),
        priority=_number(service, settings.get("priority", 1.0)),
        deadline_s=None if deadline is None else parse_duration(f"services.{service}.deadline", str(deadline)),
        options=options,
    )


def setting_options(service: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Return the options that settings stand for, values as they are; raise UserError for one that is unknown."""
    keys = _keys(service)
    options: dict[str, str] = {}
    for name, value in settings.items():
        if name in _SCHEDULING:
            continue
        if name not in keys and name not in keys.values():
            known = (*_SCHEDULING, *keys)
            raise SettingError(
                f"services.{service}: unknown setting {name!r}.{nearest(name, known)} Known: {', '.join(known)}.",
                setting=name,
            )
        options[keys.get(name, name)] = _text(value)
    return options


def service_options(services: Mapping[str, Any]) -> dict[str, str]:
    """Return the options that all settings of a `services:` section stand for; see `service_settings` for errors."""
    options: dict[str, str] = {}
    for service, settings in services.items():
        if service in SERVICES:
            options |= service_settings(service, settings or {}).options
    return options


def _keys(service: str) -> dict[str, str]:
    """Return field -> option key of the service's policy."""
    policy = POLICIES.get(_POLICY_OF.get(service, service))
    return {} if policy is None else {declared.name: declared.metadata["key"] for declared in fields(policy)}


def _text(value: object) -> str:
    """Return a value of YAML as options have it: flags in lower case, lists comma separated."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _flag(service: str, value: object) -> bool:
    if str(value).lower() not in ("true", "false"):
        raise SettingError(f"services.{service}.enabled: {value!r} is neither true nor false", setting="enabled")
    return str(value).lower() == "true"


def _number(service: str, value: object) -> float:
    try:
        return float(str(value))
    except ValueError:
        raise SettingError(f"services.{service}.priority: {value!r} is no number", setting="priority") from None
