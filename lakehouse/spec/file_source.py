"""The settings of the source `files` in the `ingest` section of a table spec.

A path with placeholders is read by data interval: `{start:%Y-%m}` and `{end:%Y-%m}` are replaced by the bounds of each
step of the interval, in strftime's letters and UTC (see `lakehouse.spec.interval_path`). A path without placeholders is
read by checkpoint: every run reads the files that no commit has read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from lakehouse.errors import nearest
from lakehouse.spec.interval_path import problem_of
from lakehouse.spec.source import SIZE_KEY, reader_options, size_setting
from lakehouse.spec.spec_key import SpecKey
from lakehouse.spec.yaml_section import Section

FORMATS = ("json", "csv", "parquet")
MISSING = ("skip", "fail", "wait")
_WAIT_FOR_S = 6 * 3600
_FILES_KEY = "max_files"
FILE_KEYS = (
    SpecKey(
        name="path",
        type="path or URL",
        text="File, folder or pattern. `{start:%Y-%m-%d}` and `{end:...}` are bounds of the data interval.",
        example='"s3://landing/orders/{start:%Y-%m-%d}/"',
        required=True,
    ),
    SpecKey(name="format", type="choice", text="Format of the files.", example="csv", default="json", choices=FORMATS),
    SpecKey(
        name="options",
        type="mapping",
        text="Options of Spark's reader of this format; a value that looks like a secret is refused.",
        example='{delimiter: ";"}',
    ),
    SpecKey(
        name="missing",
        type="choice",
        text="What a run does about folders without data; the default is to fail, or by checkpoint if none exists.",
        example="skip",
        choices=MISSING,
    ),
    SpecKey(
        name="wait_for",
        type="duration",
        text="Longest total time that `missing: wait` waits.",
        example="2h",
        default="6h",
        needs="missing: wait",
    ),
    SpecKey(
        name=_FILES_KEY,
        type="integer",
        text="Most files of a run; by checkpoint only.",
        example="1000",
        needs="path: landing/orders/",
    ),
    SpecKey(
        name=SIZE_KEY,
        type="size",
        text="Most stored bytes of a run, at least one file; by checkpoint only.",
        example="20GB",
        needs="path: landing/orders/",
    ),
)
_PLACEHOLDER = re.compile(r"(?<!\$)\{([A-Za-z_]+)(?::([^{}]*))?\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class FileSourceSpec:
    """Files of a landing zone.

    Attributes:
        path: A file, a directory or a pattern, with or without placeholders of the data interval.
        format: One of `FORMATS`.
        options: Options of Spark's reader.
        missing: The treatment of folders without data files: skip them, fail, or wait. None means: a path that is
            read by interval fails; a path that is read by checkpoint fails only if it does not exist.
        wait_for_s: The longest total time that `missing: wait` waits, in seconds.
        max_files: The largest number of files of a run by checkpoint; 0 for no limit.
        max_bytes: The largest stored size of the files of a run by checkpoint; 0 for no limit.
    """

    KIND: ClassVar[str] = "files"
    KEYS: ClassVar[tuple[SpecKey, ...]] = FILE_KEYS

    path: str
    format: str = "json"
    options: Mapping[str, str] = field(default_factory=dict)
    missing: str | None = None
    wait_for_s: int = _WAIT_FOR_S
    max_files: int = 0
    max_bytes: int = 0

    @property
    def is_by_interval(self) -> bool:
        """Whether the path has placeholders of the data interval."""
        return _PLACEHOLDER.search(self.path) is not None

    @property
    def declares_types(self) -> bool:
        """Whether the files declare their column types."""
        return self.format == "parquet"

    @property
    def connections(self) -> tuple[str, ...]:
        """No connections: storage has options."""
        return ()

    @property
    def description(self) -> str:
        """What a run reads, such as `json files of landing/orders`."""
        return f"{self.format} files of {self.path}"

    def at(self, path: str) -> FileSourceSpec:
        """Return the settings with another path."""
        return replace(self, path=path)

    @classmethod
    def parse(cls, section: Section) -> Self:
        """Read the settings from the `ingest` section; raise UserError with file and line."""
        spec = cls(
            path=_path(section),
            format=section.choice("format", FORMATS, FORMATS[0]),
            options=reader_options(section),
            missing=section.choice("missing", ("", *MISSING), "") or None,
            wait_for_s=section.seconds("wait_for", _WAIT_FOR_S),
            max_files=section.integer(_FILES_KEY, 0),
            max_bytes=size_setting(section),
        )
        for name in (_FILES_KEY, SIZE_KEY):
            if spec.is_by_interval and getattr(spec, name):
                raise section.error(f"{name}: a run by data interval reads all files of its interval.", name)
        if "wait_for" in section.nodes and spec.missing != "wait":
            raise section.error("wait_for: needs 'missing: wait', which waits for missing folders.", "wait_for")
        return spec

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings as YAML holds them, without those that have their default."""
        mapping: dict[str, Any] = {"path": self.path}
        if self.format != FORMATS[0]:
            mapping["format"] = self.format
        if self.options:
            mapping["options"] = dict(self.options)
        if self.missing is not None:
            mapping["missing"] = self.missing
        if self.wait_for_s != _WAIT_FOR_S:
            mapping["wait_for"] = self.wait_for_s
        for name in (_FILES_KEY, SIZE_KEY):
            if getattr(self, name):
                mapping[name] = getattr(self, name)
        return mapping


def _path(section: Section) -> str:
    path = section.required("path")
    for match in _PLACEHOLDER.finditer(path):
        name, pattern = match[1], match[2]
        if name not in ("start", "end"):
            raise section.error(
                f"path: unknown placeholder {match[0]!r}.{nearest(name, ('start', 'end'))} "
                "Write {start:%Y-%m-%d} or {end:%Y-%m-%d}.",
                "path",
            )
        if not pattern or "%" not in pattern:
            raise section.error(f"path: {match[0]!r} needs a date format, as in {{{name}:%Y-%m-%d}}.", "path")
    problem = problem_of(path)
    if problem is not None:
        raise section.error(f"path: {problem}.", "path")
    return path
