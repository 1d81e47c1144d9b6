"""The settings of the source `files` in the `ingest` section of a table spec.

A path with placeholders is read by data interval: `{start:%Y-%m}` and `{end:%Y-%m}` are replaced by the bounds of each
step in the interval, in strftime's letters and the time zone of the section (see
`lakehouse.spec.sources.interval_path`). A path without placeholders is read by checkpoint: every run reads the files
that no commit has read.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Self

from lakehouse.errors import nearest
from lakehouse.spec.sources.interval_path import problem_of
from lakehouse.spec.sources.source import SIZE_KEY, reader_options, size_setting
from lakehouse.spec.spec_key import SpecKey
from lakehouse.spec.yaml_section import Section

FORMATS = ("json", "csv", "parquet", "orc", "avro", "debezium", "debezium_avro")
#: Formats whose columns and types are inferred if the spec does not declare them.
_INFERRED = ("json", "csv")
#: Formats whose files declare the types of their columns.
TYPED = ("parquet", "orc", "avro")
MISSING = ("skip", "fail", "wait")
_WAIT_FOR_S = 6 * 3600
_KAFKA = "kafka://"
_CHECK_NAMES_S = 24 * 3600
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
        name="check_values",
        type="boolean",
        text="Whether a JSON or CSV record is bad if a value was parsed from only a part of its text. "
        "Without the check "
        "Spark's parsers decide, which read `12,50` as 1250 and round digits beyond a scale; parsing is several times "
        "faster.",
        example="false",
        default="true",
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
        text="Maximum total time that `missing: wait` waits.",
        example="2h",
        default="6h",
        needs="missing: wait",
    ),
    SpecKey(
        name="ascending_names",
        type="boolean",
        text="Whether names of new files are greater than those of older ones, so that a run lists only names after "
        "the checkpoint; by checkpoint only.",
        example="true",
        default="false",
        needs="path: landing/orders/",
    ),
    SpecKey(
        name="check_names",
        type="duration",
        text="Interval at which a run lists all names, and reports files that arrived behind the checkpoint.",
        example="6h",
        default="1d",
        needs="{path: landing/orders/, ascending_names: true}",
    ),
    SpecKey(
        name="notifications",
        type="path or URL",
        text="Notifications of an object store, which name the new files of `path`: a folder with files of them, or "
        "`kafka://<connection>/<topic>`; by checkpoint only.",
        example="s3://landing-events/orders/",
        needs="path: s3://landing/orders/",
    ),
    SpecKey(
        name=_FILES_KEY,
        type="integer",
        text="Maximum number of files per run; by checkpoint only.",
        example="1000",
        needs="path: landing/orders/",
    ),
    SpecKey(
        name=SIZE_KEY,
        type="size",
        text="Maximum stored size of the files of a run, which reads at least one file; by checkpoint only.",
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
        check_values: Whether a JSON or CSV record is bad if the parser ignores a part of a value.
        missing: The treatment of folders without data files: skip them, fail, or wait. With None, a path that is read
            by interval fails, and a path that is read by checkpoint fails only if it does not exist.
        wait_for_s: The maximum total time that `missing: wait` waits, in seconds.
        ascending_names: Whether a run lists only file names that sort after the checkpoint.
        check_names_s: Interval in seconds at which a run with ascending names lists all names.
        notifications: The folder of files with notifications about new files, or the topic as
            `kafka://<connection>/<topic>`; empty to list the path.
        max_files: The maximum number of files per run by checkpoint; 0 for no limit.
        max_bytes: The maximum stored size of the files that a run by checkpoint reads; 0 for no limit.
    """

    KIND: ClassVar[str] = "files"
    KEYS: ClassVar[tuple[SpecKey, ...]] = FILE_KEYS

    path: str
    format: str = "json"
    options: Mapping[str, str] = field(default_factory=dict)
    check_values: bool = True
    missing: str | None = None
    wait_for_s: int = _WAIT_FOR_S
    ascending_names: bool = False
    check_names_s: int = _CHECK_NAMES_S
    notifications: str = ""
    max_files: int = 0
    max_bytes: int = 0

    @property
    def is_by_interval(self) -> bool:
        """Whether the path has placeholders of the data interval."""
        return _PLACEHOLDER.search(self.path) is not None

    @property
    def declares_types(self) -> bool:
        """Whether the files or the spec declare the column types.

        For JSON and CSV the types may be inferred instead.
        """
        return self.format not in _INFERRED

    @property
    def connections(self) -> tuple[str, ...]:
        """The connection of the topic with notifications. Storage is configured by options instead."""
        place = topic_of(self.notifications)
        return () if place is None else (place[0],)

    @property
    def description(self) -> str:
        """Description of the input, such as `json files of landing/orders`."""
        return f"{self.format} files of {self.path}"

    def at(self, path: str, notifications: str = "") -> FileSourceSpec:
        """Return a copy of the settings with a different path and folder of notifications."""
        return replace(self, path=path, notifications=notifications)

    @classmethod
    def parse(cls, section: Section) -> Self:
        """Read the settings from the `ingest` section; raise UserError with file and line."""
        spec = cls(
            path=_path(section),
            format=section.choice("format", FORMATS, FORMATS[0]),
            options=reader_options(section),
            check_values=section.boolean("check_values", True),
            missing=section.choice("missing", ("", *MISSING), "") or None,
            wait_for_s=section.seconds("wait_for", _WAIT_FOR_S),
            ascending_names=section.boolean("ascending_names", False),
            check_names_s=section.seconds("check_names", _CHECK_NAMES_S),
            notifications=section.text("notifications").strip(),
            max_files=section.integer(_FILES_KEY, 0),
            max_bytes=size_setting(section),
        )
        for name in (_FILES_KEY, SIZE_KEY):
            if spec.is_by_interval and getattr(spec, name):
                raise section.error(f"{name}: a run by data interval reads all files of its interval.", name)
        for name in ("ascending_names", "notifications"):
            if spec.is_by_interval and getattr(spec, name):
                raise section.error(f"{name}: a path with placeholders lists only folders of its interval.", name)
        if spec.ascending_names and spec.notifications:
            raise section.error("notifications: they replace 'ascending_names'. Keep one of both.", "notifications")
        if topic_of(spec.notifications) is not None and not all(topic_of(spec.notifications) or ()):
            raise section.error("notifications: write kafka://<connection>/<topic>.", "notifications")
        if "check_values" in section.nodes and spec.declares_types:
            raise section.error(f"check_values: values of {spec.format} have types. Remove it.", "check_values")
        if "check_names" in section.nodes and not spec.ascending_names:
            raise section.error("check_names: needs 'ascending_names: true'.", "check_names")
        if "wait_for" in section.nodes and spec.missing != "wait":
            raise section.error("wait_for: needs 'missing: wait', which waits for missing folders.", "wait_for")
        return spec

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings as in the YAML file, without default values."""
        mapping: dict[str, Any] = {"path": self.path}
        if self.format != FORMATS[0]:
            mapping["format"] = self.format
        if self.options:
            mapping["options"] = dict(self.options)
        if not self.check_values:
            mapping["check_values"] = False
        if self.missing is not None:
            mapping["missing"] = self.missing
        if self.wait_for_s != _WAIT_FOR_S:
            mapping["wait_for"] = self.wait_for_s
        if self.ascending_names:
            mapping["ascending_names"] = True
        if self.check_names_s != _CHECK_NAMES_S:
            mapping["check_names"] = self.check_names_s
        if self.notifications:
            mapping["notifications"] = self.notifications
        for name in (_FILES_KEY, SIZE_KEY):
            if getattr(self, name):
                mapping[name] = getattr(self, name)
        return mapping


def topic_of(notifications: str) -> tuple[str, str] | None:
    """Return the connection and the topic of `kafka://<connection>/<topic>`; None for a folder."""
    if not notifications.startswith(_KAFKA):
        return None
    connection, _, topic = notifications.removeprefix(_KAFKA).partition("/")
    return connection, topic


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
