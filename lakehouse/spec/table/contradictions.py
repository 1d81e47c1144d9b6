"""Check a table's service settings and options for contradictions.

The check runs when settings are declared, in a spec or in the policies of a catalog, before any service runs.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse.errors import SettingError
from lakehouse.spec.options.declarations import canonical_key
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.table.service_settings import service_settings
from lakehouse.spec.table.services import SERVICES

_COMMITS_KEPT, _COMMITS_CLEANED = "hoodie.keep.min.commits", "hoodie.clean.commits.retained"


def check_settings(services: Mapping[str, Mapping[str, Any]], options: Mapping[str, str] | None = None) -> None:
    """Raise SettingError if service settings and `options` of the same table contradict each other.

    The error names the service and the setting. Contradictions are:

    * one option with two values, in two services or in a service and the options
    * values that contradict each other, such as a minimum above its maximum
    * an archive that keeps fewer commits than clean needs; it would then keep more commits than declared
    """
    declared: dict[str, tuple[str, str, str]] = {}
    for key, value in (options or {}).items():
        declared[canonical_key(key)] = ("options", key, value)
    for service in SERVICES:
        for key, value in service_settings(service, services.get(service) or {}).options.items():
            first = declared.setdefault(canonical_key(key), (f"services.{service}", key, value))
            if first[2].strip().lower() != value.strip().lower():
                raise SettingError(
                    f"services.{service}: {key} is {value!r} here and {first[2]!r} in {first[0]}, but it is one option "
                    "of the table. Set it once",
                    service=service,
                    setting=key,
                )
    together = {key: value for key, (_, _, value) in declared.items()}
    _check_history(together)


def _check_history(options: Mapping[str, str]) -> None:
    if not {_COMMITS_KEPT, _COMMITS_CLEANED} <= options.keys():
        return
    policies = parse_options(
        {key: value for key, value in options.items() if key.startswith(("hoodie.keep.", "hoodie.clean."))}
    )
    archived, cleaned = policies.archive.min_commits, policies.clean.commits_retained
    if policies.clean.policy == "KEEP_LATEST_COMMITS" and archived <= cleaned:
        raise SettingError(
            f"services.archive leaves {_COMMITS_KEPT}={archived} commits on the timeline, but services.clean needs "
            f"{_COMMITS_CLEANED}={cleaned} of them and one more: the first must be greater than the second",
            service="archive",
            setting=_COMMITS_KEPT,
        )
