"""Options of the services that check a table without changing its rows: orphan cleaning and validation."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.errors import SettingError
from lakehouse.spec.options.option import option
from lakehouse.spec.quantities import LONGEST_HOURS

ORPHANS_EVERY = "lakehouse.orphans.every.hours"
VALIDATION_EVERY = "lakehouse.validation.every.hours"


@dataclass(frozen=True, slots=True, kw_only=True)
class OrphansPolicy:
    """When orphan files are deleted. `lakehouse.clean.orphans.hours` is their minimum age."""

    every_hours: int = option(
        ORPHANS_EVERY, 168, "Hours after which a table is searched for orphan files again.", most=LONGEST_HOURS
    )

    def __post_init__(self) -> None:
        """Raise SettingError if the pause between two searches is not positive."""
        _check(ORPHANS_EVERY, self.every_hours)


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationPolicy:
    """When a table is validated, and how much of it is read."""

    every_hours: int = option(
        VALIDATION_EVERY, 168, "Hours after which a table is validated again.", most=LONGEST_HOURS
    )
    footers: int = option(
        "lakehouse.validation.footers", 100, "Number of newest base files to sample; a validation reads their footers."
    )
    deep: bool = option("lakehouse.validation.deep", False, "A validation also reads all rows of the newest files.")

    def __post_init__(self) -> None:
        """Raise SettingError if the pause between two validations is not positive."""
        _check(VALIDATION_EVERY, self.every_hours)


def _check(key: str, hours: int) -> None:
    if hours < 1:
        raise SettingError(f"option {key}={hours}: must be at least 1, else the service is always due", setting=key)
