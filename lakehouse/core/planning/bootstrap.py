"""Plan a bootstrap: the partitions in a folder with Parquet files, and how each becomes part of a table.

    metadata    skeleton files with meta columns; the rows stay in the source files
    full        the rows are copied to base files

Names of files and folders that begin with `.` or `_` belong to other programs and are skipped, as in Spark.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from lakehouse.core.rows.partition_path import parse_partition_path, segment, unescape
from lakehouse.errors import UserError
from lakehouse.model.keys import KeyConfig, KeyGeneratorType

_HIVE = re.compile(r"([^=/]+)=(.*)", re.DOTALL)


class BootstrapMode(StrEnum):
    """How a partition becomes part of the table."""

    METADATA = "metadata"
    FULL = "full"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceParquet:
    """A Parquet file of the source: its path below the source, its size, and its time of change in milliseconds."""

    path: str
    size_bytes: int
    modified_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFolder:
    """The files of a partition in the source; `values` are its partition values by column."""

    path: str
    files: tuple[SourceParquet, ...]
    values: Mapping[str, str | None]
    mode: BootstrapMode

    @property
    def size_bytes(self) -> int:
        """The size of its files."""
        return sum(file.size_bytes for file in self.files)


@dataclass(frozen=True, slots=True, kw_only=True)
class BootstrapPlan:
    """The folders of a source in order, and the partition columns of the table."""

    fields: tuple[str, ...]
    hive_style: bool
    url_encode: bool
    folders: tuple[SourceFolder, ...]

    def of_mode(self, mode: BootstrapMode) -> tuple[SourceFolder, ...]:
        """Return the folders of one mode."""
        return tuple(folder for folder in self.folders if folder.mode is mode)


def plan_bootstrap(
    files: Iterable[SourceParquet], fields: Sequence[str], mode: BootstrapMode, pattern: str, source: str
) -> BootstrapPlan:
    """Return the plan for the files of a source.

    Args:
        files: All files below the source.
        fields: The partition columns; empty to take them from folders `column=value`.
        mode: The mode of partitions that `pattern` matches, or of all partitions without a pattern; the others get the
            other mode.
        pattern: A regular expression that matches whole partition paths; empty for all partitions.
        source: The location of the source, for messages.

    Raises:
        UserError: There are no Parquet files, or the folders are not partitions; the message names the folder.
    """
    by_folder: dict[str, list[SourceParquet]] = {}
    for file in files:
        if not any(map(_is_skipped, file.path.split("/"))) and file.path.endswith(".parquet"):
            by_folder.setdefault(file.path.rpartition("/")[0], []).append(file)
    if not by_folder:
        raise UserError(f"{source} has no Parquet files; their names must end with .parquet", location=source)
    names = tuple(fields) or _fields_of(min(by_folder), source)
    hive_style = bool(names) and min(by_folder).startswith(f"{names[0]}=")
    keys = KeyConfig(
        generator=KeyGeneratorType.COMPLEX, record_key_fields=(), partition_fields=names, hive_style=hive_style
    )
    if hive_style and any(unescape(folder) != folder for folder in by_folder):
        # Spark and Hive encode the names of such folders always.
        keys = replace(keys, url_encode=True)
    values = {folder: _values(folder, keys, source) for folder in sorted(by_folder)}
    wrong = next((folder for folder in values if not _is_written_as(folder, values[folder], keys)), None)
    if wrong is not None:
        raise UserError(
            f"{source}/{wrong}: a row with these partition values would be written to another folder, because some "
            "folders of the source are URL-encoded and this one is not. Rename the folder, or copy the rows by "
            "CREATE TABLE ... AS SELECT",
            path=wrong,
        )
    matches = _pattern(pattern)
    other = BootstrapMode.FULL if mode is BootstrapMode.METADATA else BootstrapMode.METADATA
    folders = tuple(
        SourceFolder(
            path=folder,
            files=tuple(sorted(by_folder[folder], key=lambda file: file.path)),
            values=values[folder],
            mode=mode if matches is None or matches.fullmatch(folder) else other,
        )
        for folder in values
    )
    return BootstrapPlan(fields=names, hive_style=hive_style, url_encode=keys.url_encode, folders=folders)


def _is_skipped(level: str) -> bool:
    return level.startswith(".") or (level.startswith("_") and "=" not in level)


def _fields_of(folder: str, source: str) -> tuple[str, ...]:
    """Return the columns in the names of a folder; none for the source itself."""
    if not folder:
        return ()
    parts = [_HIVE.fullmatch(level) for level in folder.split("/")]
    if not all(parts):
        raise UserError(
            f"{source}/{folder}: the folder does not show the name of the partition column, as column=value does. Give "
            "the columns with partition_by (--partition-by), one for each level of folders",
            path=folder,
        )
    return tuple(part[1] for part in parts if part is not None)


def _values(folder: str, keys: KeyConfig, source: str) -> dict[str, str | None]:
    try:
        return dict(zip(keys.partition_fields, parse_partition_path(folder, keys), strict=True))
    except UserError as error:
        raise UserError(
            f"{source}/{folder or '.'}: this folder has Parquet files but does not fit the partition columns "
            f"{', '.join(keys.partition_fields) or '(none)'}: {error}. All files must be at the same level of folders; "
            "move the others away, or give partition_by (--partition-by)",
            path=folder,
        ) from error


def _is_written_as(folder: str, values: Mapping[str, str | None], keys: KeyConfig) -> bool:
    """Return whether a row with these partition values is written to a partition with the path of the folder."""
    segments = [segment(value, field, keys) for field, value in values.items()]
    return None not in segments and "/".join(text for text in segments if text is not None) == folder


def _pattern(pattern: str) -> re.Pattern[str] | None:
    if not pattern:
        return None
    try:
        return re.compile(pattern)
    except re.error as error:
        raise UserError(
            f"partition_pattern={pattern!r} is not a regular expression: {error}", argument="partition_pattern"
        ) from error
