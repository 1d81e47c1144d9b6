"""The table services, and the settings of a service in a table spec or in a policy of the catalog.

    services:
      compaction: {max_delta_commits: 5, deadline: 2h}
      clean: {commits_retained: 10}
      clustering: {enabled: false}

A setting is a field of the service's policy (`lakehouse.spec.options`) or its full `hoodie.*` key. The scheduler reads
more settings of each service: `enabled`, `priority`, `deadline`, and those of `lakehouse.spec.table.scheduling`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from lakehouse.errors import SettingError, UserError, nearest
from lakehouse.model.commit import Operation
from lakehouse.model.instant import Action
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.options.policies import POLICIES
from lakehouse.spec.spec_key import key_names
from lakehouse.spec.table.publish_keys import SERVICE_KEYS
from lakehouse.spec.table.scheduling import Scheduling, deadline_s, parse_scheduling


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceSpec:
    """One table service: the value from which CLI verbs, spec sections, decisions, runs and DAGs are derived.

    Attributes:
        name: Name of the CLI verb, of the section of the table spec, of the policy and of the DAG `services.<name>`.
        options: Field of `Policies` that holds the options of the service.
        action: Action of the plans that the service puts on the timeline; None if a run plans and executes in one step.
        operation: Operation in the metadata of the commits that the service makes; None if it makes no such commits.
        by_partition: Whether a run can be limited to some partitions, for example to those of a data interval.
        holds_file_groups: Whether pending plans hold file groups. Two such services never run on a table together.
        needs_spark: Whether a run uses the executors of a Spark session if there is one.
        conflicts_with_writers: Whether a writer that commits during a run can make the run useless.
        takes_pins: Whether a call can name instants (clean) or partitions (ttl) that must be kept.
        merge_on_read_only: Whether the service works on merge-on-read tables only.
        enabled_by_default: Whether the scheduler runs the service without a policy that enables it.
        pattern_settings: Settings that a policy may declare for the partitions that match a pattern.
        pattern_advice: What to do instead for settings that apply to whole tables.
    """

    name: str
    options: str
    action: Action | None = None
    operation: Operation | None = None
    by_partition: bool = False
    holds_file_groups: bool = False
    needs_spark: bool = True
    conflicts_with_writers: bool = False
    takes_pins: bool = False
    merge_on_read_only: bool = False
    enabled_by_default: bool = True
    pattern_settings: tuple[str, ...] = ()
    pattern_advice: str = "set it for the table, without a pattern"


_RUN_OF_PARTITIONS = "run `lakehouse {} run --partition` for these partitions with `--option`"

#: All services. A later service cleans up what an earlier one leaves behind, so ties are broken in this order.
SERVICE_SPECS = (
    ServiceSpec(
        name="compaction",
        options="compaction",
        action=Action.COMPACTION,
        operation=Operation.COMPACT,
        by_partition=True,
        holds_file_groups=True,
        merge_on_read_only=True,
        pattern_settings=("enabled", "log_bytes_threshold", "log_files_threshold"),
        pattern_advice=f"set it for the table, without a pattern, or {_RUN_OF_PARTITIONS.format('compaction')}",
    ),
    ServiceSpec(
        name="logcompaction",
        options="compaction",
        action=Action.LOGCOMPACTION,
        operation=Operation.LOG_COMPACT,
        by_partition=True,
        holds_file_groups=True,
        merge_on_read_only=True,
        pattern_settings=("enabled", "log_blocks_threshold"),
    ),
    ServiceSpec(
        name="clustering",
        options="clustering",
        action=Action.CLUSTERING,
        operation=Operation.CLUSTER,
        by_partition=True,
        holds_file_groups=True,
        pattern_settings=(
            "enabled",
            "small_file_bytes",
            "target_file_bytes",
            "group_bytes",
            "single_group",
            "whole_partitions",
        ),
        pattern_advice=f"set it for the table, without a pattern, or {_RUN_OF_PARTITIONS.format('clustering')}",
        conflicts_with_writers=True,
    ),
    ServiceSpec(name="index", options="indexing", action=Action.INDEXING),
    ServiceSpec(
        name="ttl",
        options="ttl",
        operation=Operation.DELETE_PARTITION,
        needs_spark=False,
        takes_pins=True,
        pattern_settings=("enabled",),
        pattern_advice="declare a rule of the table with `lakehouse ttl policy set --pattern`, such as --partition-age",
    ),
    ServiceSpec(
        name="clean",
        options="clean",
        action=Action.CLEAN,
        takes_pins=True,
        pattern_advice="a clean retains versions of the whole table: set it for the table, without a pattern, or keep "
        "versions with `lakehouse savepoint create`",
    ),
    ServiceSpec(name="archive", options="archive", needs_spark=False),
    ServiceSpec(name="orphans", options="orphans", needs_spark=False, enabled_by_default=False),
    ServiceSpec(name="validation", options="validation", enabled_by_default=False),
    ServiceSpec(name="sync", options="sync", needs_spark=False),
)
#: The names of all services, in the same order.
SERVICES = tuple(spec.name for spec in SERVICE_SPECS)
#: The names of the services that can be limited to some partitions.
BY_PARTITION = tuple(spec.name for spec in SERVICE_SPECS if spec.by_partition)
_LARGEST_PRIORITY = 1_000_000_000
#: Settings of the scheduler, which every service has.
_SCHEDULING = key_names(SERVICE_KEYS)


def service_spec(name: str) -> ServiceSpec:
    """Return the spec of a service; raise UserError with the nearest name if there is no such service."""
    for spec in SERVICE_SPECS:
        if spec.name == name:
            return spec
    raise UserError(f"unknown service {name!r}.{nearest(name, SERVICES)} Known: {', '.join(SERVICES)}.", service=name)


def require_by_partition(spec: ServiceSpec) -> None:
    """Raise UserError if runs of a service cannot be limited to some partitions."""
    if not spec.by_partition:
        raise UserError(
            f"{spec.name} works on whole tables; only {', '.join(BY_PARTITION)} can be limited to partitions",
            service=spec.name,
        )


def pattern_settings(service: str, settings: Mapping[str, Any]) -> dict[str, Any]:
    """Return those settings of a service that it honours for the partitions of a pattern."""
    spec, keys = service_spec(service), _keys(service)
    honoured = {*spec.pattern_settings, *(keys[name] for name in spec.pattern_settings if name in keys)}
    return {name: value for name, value in settings.items() if name in honoured}


def require_pattern_settings(service: str, settings: Mapping[str, Any]) -> None:
    """Raise SettingError for a setting that a service cannot honour for the partitions of a pattern."""
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
    """The settings of one service of one table.

    Services with a higher `priority` run first. `deadline_s` is the number of seconds for which the service may be due
    without a run. `options` maps option keys of the service's policy to texts. `scheduling` are restrictions of runs.
    """

    enabled: bool = True
    priority: float = 1.0
    deadline_s: float | None = None
    options: Mapping[str, str]
    scheduling: Scheduling = field(default_factory=Scheduling)


def service_settings(service: str, settings: Mapping[str, Any]) -> ServiceSettings:
    """Parse the settings of a service.

    Raises UserError for an unknown service, an unknown setting (with the nearest known one) and an invalid value.
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
            known = tuple(dict.fromkeys((*_SCHEDULING, *keys)))
            raise SettingError(
                f"services.{service}: unknown setting {name!r}.{nearest(name, known)} Known: {', '.join(known)}.",
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
    """Format a YAML value as an option text: booleans in lower case, lists separated by commas."""
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
