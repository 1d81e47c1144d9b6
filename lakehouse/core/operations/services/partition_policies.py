"""Apply the settings of a service that are declared for some partitions only (`lakehouse.services.partitions`)."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

from lakehouse.core.operations.load.pending import UnusablePlanError
from lakehouse.spec.options.policies import Policies

Section = TypeVar("Section")


def policies_by_partition(policies: Policies, service: str) -> Callable[[str], Policies | None]:
    """Return a function that maps a partition path to its policies, or to None if the service is disabled there.

    Partitions with the same settings get the same object. The function raises UserError for options that do not fit.
    """
    if not policies.partitions.of(service):
        return lambda _partition: policies
    by_options: dict[tuple[tuple[str, str], ...], Policies] = {}

    def of(partition: str) -> Policies | None:
        options = policies.partitions.options_of(service, partition)
        if options is None:
            return None
        key = tuple(sorted(options.items()))
        if key not in by_options:
            by_options[key] = policies.override(options)
        return by_options[key]

    return of


def sections_by_partition(
    policies: Policies, service: str, section: Callable[[Policies], Section]
) -> Callable[[str], Section | None]:
    """Return a function that maps a partition path to one section of its policies; see `policies_by_partition`."""
    of = policies_by_partition(policies, service)

    def of_partition(partition: str) -> Section | None:
        own = of(partition)
        return None if own is None else section(own)

    return of_partition


def switched_off_reason(policies: Policies, service: str, partitions: Iterable[str]) -> str | None:
    """Return a sentence with the partitions in which a service is disabled, or None if there are none."""
    off = policies.partitions.switched_off(service, partitions)
    if not off:
        return None
    others = f" and {len(off) - 1} more" if len(off) > 1 else ""
    return f"{service} is switched off by a policy for partition {off[0]!r}{others}"


def refuse_switched_off(policies: Policies, service: str, partitions: Iterable[str]) -> None:
    """Raise UnusablePlanError for a pending plan with partitions in which the service was disabled after planning."""
    reason = switched_off_reason(policies, service, partitions)
    if reason is not None:
        raise UnusablePlanError(f"{reason}; the other partitions are planned again")
