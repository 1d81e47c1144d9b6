"""The settings of a service in a table spec or in a policy of the catalog.

    services:
      compaction: {max_delta_commits: 5, deadline: 2h}
      clean: {commits_retained: 10}
      clustering: {enabled: false}

A setting is a field of the service's policy (`lakehouse.spec.options`) or its full `hoodie.*` key. The scheduler reads
more settings of each service: `enabled`, `priority`, `deadline`, and the ones in `lakehouse.spec.table.scheduling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from lakehouse.errors import SettingError, nearest
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.options.policies import POLICIES
from lakehouse.spec.spec_key import key_names
from lakehouse.spec.table.publish_keys import SERVICE_KEYS
from lakehouse.spec.table.scheduling import Scheduling, deadline_s, parse_scheduling
from lakehouse.spec.table.services import SERVICES, service_spec

_LARGEST_PRIORITY = 1_000_000_000
#: Settings of the scheduler, which every service has.
_SCHEDULING = key_names(SERVICE_KEYS)


def pattern_settings(service: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that a service can apply to only the partitions of a pattern."""
    spec, keys = service_spec(service), _keys(service)
    honoured = {*spec.pattern_settings, *(keys[name] for name in spec.pattern_settings if name in keys)}
    return {name: value for name, value in settings.items() if name in honoured}


def require_pattern_settings(service: str, settings: Mapping[str, Any]) -> None:
    """Raise SettingError for a setting that a service cannot apply to only the partitions of a pattern."""
    spec, honoured = service_spec(service), pattern_settings(service, settings)
    refused = next((name for name in settings if name not in honoured), None)
    if refused is None:
        return
    able = f"only {', '.join(spec.pattern_settings)}" if spec.pattern_settings else "no setting of this service"
    raise SettingError(
        f"services.{service}: {refused} cannot be set for the partitions of a pattern; {able} can. Instead, "
        f"{spec.pattern_advice}",
        service=service,
        setting=refused,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSettings:
    """The settings of one table service.

    Services with a higher `priority` run first. `deadline_s` is the maximum number of seconds that the service may be
    due without a run. `options` maps option keys of the service's policy to strings. `scheduling` restricts runs.
    """

    enabled: bool = True
    priority: float = 1.0
    deadline_s: float | None = None
    options: Mapping[str, str]
    scheduling: Scheduling = field(default_factory=Scheduling)


def service_settings(service: str, settings: Mapping[str, Any]) -> ServiceSettings:
    """Parse the settings of a service.

    Raises UserError for an unknown service, an unknown setting (with a similar valid name) and an invalid value.
    """
    service_spec(service)
    options = setting_options(service, settings)
    parse_options(options)
    return ServiceSettings(
        enabled=_flag(service, settings.get("enabled", service_spec(service).enabled_by_default)),
        priority=_number(service, settings.get("priority", 1.0)),
        deadline_s=deadline_s(service, settings),
        options=options,
        scheduling=parse_scheduling(service, settings),
    )


def setting_options(service: str, settings: Mapping[str, Any]) -> dict[str, str]:
    """Translate settings into options, without checking the values; raise UserError for an unknown setting."""
    keys = _keys(service)
    options: dict[str, str] = {}
    for name, value in settings.items():
        if name in _SCHEDULING:
            continue
        if name not in keys and name not in keys.values():
            names = tuple(dict.fromkeys((*_SCHEDULING, *keys)))
            raise SettingError(
                f"services.{service}: unknown setting {name!r}.{nearest(name, names)} Known: {', '.join(names)}.",
                setting=name,
            )
        options[keys.get(name, name)] = _text(value)
    return options


def service_options(services: Mapping[str, Any]) -> dict[str, str]:
    """Translate all settings of a `services:` section into options; raise UserError as `service_settings` does."""
    options: dict[str, str] = {}
    for service, settings in services.items():
        if service in SERVICES:
            options |= service_settings(service, settings or {}).options
    return options


def _keys(service: str) -> dict[str, str]:
    """Map the fields of the service's policy to their option keys."""
    policy = POLICIES[service_spec(service).options]
    return {declared.name: declared.metadata["key"] for declared in fields(policy)}


def _text(value: object) -> str:
    """Format a YAML value as an option: booleans in lower case, lists separated by commas."""
    if isinstance(value, bool):
        return str(value).lower()
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def _flag(service: str, value: object) -> bool:
    if str(value).lower() not in ("true", "false"):
        raise SettingError(f"services.{service}.enabled: {value!r} is neither true nor false", setting="enabled")
    return str(value).lower() == "true"


def _number(service: str, value: object) -> float:
    try:
        number = float(str(value))
    except ValueError:
        raise SettingError(f"services.{service}.priority: {value!r} is not a number", setting="priority") from None
    # Not a number compares false.
    if not abs(number) <= _LARGEST_PRIORITY:
        raise SettingError(
            f"services.{service}.priority: {value!r} is not between -{_LARGEST_PRIORITY:,} and {_LARGEST_PRIORITY:,}",
            setting="priority",
        )
    return number
