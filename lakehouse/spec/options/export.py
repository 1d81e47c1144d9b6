"""Options of the service `export`: the formats of the views that other engines read."""

from __future__ import annotations

from dataclasses import dataclass

from lakehouse.errors import SettingError
from lakehouse.spec.options.option import option

EXPORT_FORMATS = "lakehouse.export.formats"
RETAINED_VERSIONS = "lakehouse.export.versions.retained"
ICEBERG, DELTA = FORMATS = ("iceberg", "delta")


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportPolicy:
    """Which views of a table exist, and how many older versions of them stay."""

    formats: str = option(
        EXPORT_FORMATS,
        "",
        "Views next to the data for readers of other formats: iceberg, delta, or both, comma separated.",
    )
    partitioned: bool = option(
        "lakehouse.export.partitioned",
        True,
        "Views are partitioned like the table if its partition columns are plain columns. Otherwise readers skip files "
        "by column bounds only.",
    )
    retained_versions: int = option(
        RETAINED_VERSIONS,
        10,
        "Number of older versions of a view whose metadata stays. An older version is readable while clean keeps its "
        "files.",
        most=1_000_000,
    )

    def __post_init__(self) -> None:
        """Raise SettingError for an unknown format and for a number of versions below 1."""
        unknown = [name for name in self.names if name not in FORMATS]
        if unknown:
            raise SettingError(
                f"option {EXPORT_FORMATS}={self.formats}: {unknown[0]!r} is not a format of views; "
                f"{' and '.join(FORMATS)} are",
                setting=EXPORT_FORMATS,
            )
        if self.retained_versions < 1:
            raise SettingError(
                f"option {RETAINED_VERSIONS}={self.retained_versions}: must be at least 1, because readers may have "
                "opened the version before the newest one",
                setting=RETAINED_VERSIONS,
            )

    @property
    def names(self) -> tuple[str, ...]:
        """The formats in the order of `FORMATS`; unknown names follow."""
        given = [part.strip().lower() for part in self.formats.split(",") if part.strip()]
        return tuple(dict.fromkeys((*(name for name in FORMATS if name in given), *given)))
