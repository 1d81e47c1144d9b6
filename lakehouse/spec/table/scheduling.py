"""Scheduler settings that all services share: priority, deadline, quiet hours, budgets and job bounds.

A namespace policy for the service `all` limits the runs of all services in its tables together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

from lakehouse.errors import SettingError
from lakehouse.spec.quantities import parse_count, parse_duration, parse_size
from lakehouse.spec.table.quiet_hours import QuietHours, parse_quiet_hours

#: The service name for a namespace policy that limits all services together, and the settings of such a policy.
ALL_SERVICES = "all"
ALL_SERVICES_KEYS = ("max_runs", "bytes_per_hour")
ValueT = TypeVar("ValueT")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scheduling:
    """Restrictions on the runs of one service; None means no restriction.

    Attributes:
        quiet_hours: Hours in which no run starts.
        max_runs: Maximum number of concurrent runs.
        bytes_per_hour: Bytes that runs may move in an hour.
        max_executors: Maximum number of executors per job.
        max_memory: Maximum memory for the driver and for an executor, in bytes.
    """

    quiet_hours: QuietHours | None = None
    max_runs: int | None = None
    bytes_per_hour: int | None = None
    max_executors: int | None = None
    max_memory: int | None = None


def parse_scheduling(service: str, settings: Mapping[str, Any]) -> Scheduling:
    """Parse the restrictions among the settings of a service; raise SettingError for an invalid value."""

    def value(key: str, parse: Callable[[str, str], ValueT]) -> ValueT | None:
        given = settings.get(key)
        return None if given is None else parse(f"services.{service}.{key}", _text(given))

    return Scheduling(
        quiet_hours=value("quiet_hours", parse_quiet_hours),
        max_runs=value("max_runs", parse_count),
        bytes_per_hour=value("bytes_per_hour", parse_size),
        max_executors=value("max_executors", parse_count),
        max_memory=value("max_memory", parse_size),
    )


def parse_common_limits(settings: Mapping[str, Any]) -> Scheduling:
    """Parse the limits for all services in a namespace together.

    Raises SettingError for a setting that is not in `ALL_SERVICES_KEYS`, and for an invalid value.
    """
    unknown = next((name for name in settings if name not in ALL_SERVICES_KEYS), None)
    if unknown is not None:
        raise SettingError(
            f"services.{ALL_SERVICES}: {unknown} cannot be set for all services together; only "
            f"{' and '.join(ALL_SERVICES_KEYS)} can. Set it for each service",
            service=ALL_SERVICES,
            setting=unknown,
        )
    return parse_scheduling(ALL_SERVICES, settings)


def deadline_s(service: str, settings: Mapping[str, Any]) -> float | None:
    """Return the deadline in the settings of a service in seconds, or None if it is not set."""
    given = settings.get("deadline")
    return None if given is None else parse_duration(f"services.{service}.deadline", str(given))


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, list | tuple) else str(value)
