"""Settings that are right each by itself and wrong together: of one service, of two, and of a service and its table.

They are looked for where people declare them, in a spec and in the policies of a catalog, so that nobody learns of them
from a run at night.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lakehouse.errors import SettingError
from lakehouse.spec.options.declarations import canonical_key
from lakehouse.spec.options.parser import parse_options
from lakehouse.spec.services import SERVICES, service_settings

_COMMITS_KEPT, _COMMITS_CLEANED = "hoodie.keep.min.commits", "hoodie.clean.commits.retained"


def check_settings(services: Mapping[str, Mapping[str, Any]], options: Mapping[str, str] | None = None) -> None:
    """Raise UserError for settings of services, and `options` of the same table, that contradict each other.

    The error's facts name the `service` on which it is to be seen, and the `setting` or `option`.

    * one option told two values, by two services or by a service and the options
    * values that do not go together, such as numbers of commits of which the first must be the lesser
    * an archive that is to leave fewer commits than a clean is to see: it would leave more than it was told
    """
    told: dict[str, tuple[str, str, str]] = {}
    for key, value in (options or {}).items():
        told[canonical_key(key)] = ("options", key, value)
    for service in SERVICES:
        for key, value in service_settings(service, services.get(service) or {}).options.items():
            first = told.setdefault(canonical_key(key), (f"services.{service}", key, value))
            if first[2].strip().lower() != value.strip().lower():
                raise SettingError(
                    f"services.{service}: {key} is {value!r} here and {first[2]!r} in {first[0]}, and it is one option "
                    "of the table. Tell it once",
                    service=service,
                    setting=key,
                )
    together = {key: value for key, (_, _, value) in told.items()}
    _check_history(together)


def _check_history(options: Mapping[str, str]) -> None:
    if not {_COMMITS_KEPT, _COMMITS_CLEANED} <= options.keys():
        return
    policies = parse_options(
        {key: value for key, value in options.items() if key.startswith(("hoodie.keep.", "hoodie.clean."))}
    )
    kept, cleaned = policies.archive.min_commits, policies.clean.commits_retained
    if policies.clean.policy == "KEEP_LATEST_COMMITS" and kept <= cleaned:
        raise SettingError(
            f"services.archive leaves {_COMMITS_KEPT}={kept} commits on the timeline, and services.clean looks at "
            f"{_COMMITS_CLEANED}={cleaned} of them and one more: the first must be greater than the second",
            service="archive",
            setting=_COMMITS_KEPT,
        )
