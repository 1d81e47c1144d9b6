"""The settings that all database sources have: tables, targets, keys, the snapshot, and the limits of a run."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from fnmatch import fnmatchcase
from typing import Any, Self

from lakehouse.errors import SettingError
from lakehouse.spec.quantities import parse_size
from lakehouse.spec.spec_key import SpecKey
from lakehouse.spec.yaml_section import Section

SNAPSHOTS = ("initial", "never")
WITHOUT_KEY = ("refuse", "append")
TRUNCATES = ("apply", "ignore", "fail")
DROPS = ("keep", "delete", "fail")
#: Columns that describe a change, in addition to the columns of its row, by their names in `metadata`.
METADATA = ("position", "committed_at")
METADATA_PREFIX = "_source_"
_CHUNK_ROWS, _CHUNKS, _LOG_BYTES = 100_000, 64, "512MB"
_PLACES = ("{database}", "{table}", "{schema}")
_PATTERN = re.compile(r"[^.]+\.[^.]+")

DATABASE_KEYS = (
    SpecKey(
        name="tables",
        type="list of patterns",
        text="Tables to read, as `database.table`, of PostgreSQL `schema.table`; `*` stands for any characters. "
        "Several tables need `into`.",
        example="shop.orders",
        required=True,
    ),
    SpecKey(
        name="exclude",
        type="list of patterns",
        text="Tables that the patterns of `tables` match and that are not read.",
        example='["shop.*_old"]',
    ),
    SpecKey(
        name="into",
        type="text",
        text="Name of the table that each source table is written to, with `{database}` or `{schema}`, and `{table}`; "
        "its location is `location` and this name. Without it the spec is about one table.",
        example='"{database}_{table}"',
    ),
    SpecKey(
        name="keys",
        type="mapping",
        text="Key columns of source tables without a primary key: columns that are unique and never null.",
        example='{shop.events: "day, number"}',
    ),
    SpecKey(
        name="without_key",
        type="choice",
        text="What a run does with tables without a key: refuse them, or append the rows of inserts; updates and "
        "deletes in such a table fail the run.",
        example="append",
        default=WITHOUT_KEY[0],
        choices=WITHOUT_KEY,
    ),
    SpecKey(
        name="snapshot",
        type="choice",
        text="Whether a snapshot of the existing rows is also read, in addition to the log.",
        example="never",
        default=SNAPSHOTS[0],
        choices=SNAPSHOTS,
    ),
    SpecKey(
        name="chunk_rows",
        type="integer",
        text="Number of rows per chunk of the snapshot; a task reads one chunk.",
        example="50000",
        default=str(_CHUNK_ROWS),
    ),
    SpecKey(
        name="max_chunks",
        type="integer",
        text="Maximum number of chunks per commit; a run commits until the snapshot is complete.",
        example="16",
        default=str(_CHUNKS),
    ),
    SpecKey(
        name="max_log_bytes",
        type="size",
        text="Maximum size of the log that one commit reads; a run commits until the end of the log.",
        example="1GB",
        default=_LOG_BYTES,
    ),
    SpecKey(
        name="max_seconds",
        type="duration",
        text="Time after its start during which a run begins new commits; the next run continues.",
        example="10m",
    ),
    SpecKey(
        name="truncate",
        type="choice",
        text="What TRUNCATE does: delete the rows of the table, nothing, or fail the run.",
        example="ignore",
        default=TRUNCATES[0],
        choices=TRUNCATES,
    ),
    SpecKey(
        name="drop",
        type="choice",
        text="What DROP TABLE does: keep the rows, delete them, or fail the run.",
        example="delete",
        default=DROPS[0],
        choices=DROPS,
    ),
    SpecKey(
        name="metadata",
        type="list",
        text="Additional columns, named `_source_<name>`: position, committed_at; null for rows of the "
        "snapshot, where the position is a number below 0 if the table has no key.",
        example="[committed_at]",
    ),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSettings:
    """The settings of a database source, see `DATABASE_KEYS`.

    Attributes:
        tables: The patterns of tables to read.
        exclude: The patterns of tables that are not read.
        into: The pattern for the names of target tables; empty if the spec declares a single table.
        keys: The key columns of source tables, by table name.
        without_key: One of `WITHOUT_KEY`.
        snapshot: One of `SNAPSHOTS`.
        chunk_rows: The number of rows per chunk.
        max_chunks: The maximum number of chunks per commit.
        max_log_bytes: The maximum number of log bytes per commit.
        max_seconds: Time after which a run begins no new commit; 0 means no limit.
        truncate: One of `TRUNCATES`.
        drop: One of `DROPS`.
        metadata: Names of `METADATA` that become columns.
    """

    tables: tuple[str, ...]
    exclude: tuple[str, ...] = ()
    into: str = ""
    keys: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    without_key: str = WITHOUT_KEY[0]
    snapshot: str = SNAPSHOTS[0]
    chunk_rows: int = _CHUNK_ROWS
    max_chunks: int = _CHUNKS
    max_log_bytes: int = parse_size("max_log_bytes", _LOG_BYTES)
    max_seconds: int = 0
    truncate: str = TRUNCATES[0]
    drop: str = DROPS[0]
    metadata: tuple[str, ...] = ()

    @classmethod
    def parse(cls, section: Section) -> Self:
        """Read the settings from the `ingest` section; raise UserError with file and line."""
        settings = cls(
            tables=_patterns(section, "tables"),
            exclude=_patterns(section, "exclude"),
            into=section.text("into").strip(),
            keys=_keys(section),
            without_key=section.choice("without_key", WITHOUT_KEY, WITHOUT_KEY[0]),
            snapshot=section.choice("snapshot", SNAPSHOTS, SNAPSHOTS[0]),
            chunk_rows=_positive(section, "chunk_rows", _CHUNK_ROWS),
            max_chunks=_positive(section, "max_chunks", _CHUNKS),
            max_log_bytes=_size(section),
            max_seconds=section.seconds("max_seconds", 0),
            truncate=section.choice("truncate", TRUNCATES, TRUNCATES[0]),
            drop=section.choice("drop", DROPS, DROPS[0]),
            metadata=_metadata(section),
        )
        if not settings.tables:
            raise section.error("ingest needs 'tables': names such as shop.orders, or patterns such as shop.*.")
        if not settings.into and (len(settings.tables) > 1 or "*" in settings.tables[0]):
            raise section.error(
                "tables: several source tables need 'into', the pattern of the names of their targets, such as "
                "'{table}'.",
                "tables",
            )
        _check_into(settings.into, section)
        return settings

    def to_mapping(self) -> dict[str, Any]:
        """Return the settings as in the YAML file, without default values."""
        mapping: dict[str, Any] = {"tables": list(self.tables)}
        for declared in fields(self)[1:]:
            value = getattr(self, declared.name)
            if value not in (declared.default, {}):
                mapping[declared.name] = _plain(value)
        return mapping

    def selects(self, name: str) -> bool:
        """Return whether a table, by its name `database.table`, is read."""
        return matches(name, self.tables) and not matches(name, self.exclude)

    def target_of(self, name: str) -> str:
        """Return the name of the target table for the source table `database.table`. The setting `into` is required."""
        first, _, table = name.partition(".")
        database_place, table_place, schema_place = _PLACES
        return self.into.replace(database_place, first).replace(schema_place, first).replace(table_place, table)


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a name matches one of the patterns, in which `*` matches any characters."""
    # Brackets and question marks are ordinary characters here.
    return any(fnmatchcase(name, re.sub(r"[\[?]", lambda one: f"[{one[0]}]", pattern)) for pattern in patterns)


def _patterns(section: Section, name: str) -> tuple[str, ...]:
    patterns = section.names(name)
    for pattern in patterns:
        if not _PATTERN.fullmatch(pattern):
            raise section.error(f"{name}: {pattern!r} is not of the form database.table, such as shop.orders.", name)
    return patterns


def _keys(section: Section) -> dict[str, tuple[str, ...]]:
    keys = {}
    for table, text in section.mapping("keys").items():
        columns = tuple(part.strip() for part in text.split(",") if part.strip())
        if not columns or not _PATTERN.fullmatch(table):
            raise section.error(f"keys: {table!r} needs the form database.table: column, column.", "keys")
        keys[table] = columns
    return keys


def _positive(section: Section, name: str, default: int) -> int:
    number = section.integer(name, default)
    if not number:
        raise section.error(f"{name}: must be 1 or more.", name)
    return number


def _size(section: Section) -> int:
    text = section.text("max_log_bytes", _LOG_BYTES)
    try:
        size = parse_size("max_log_bytes", text)
    except SettingError as error:
        raise section.error(f"{error.message}.", "max_log_bytes") from error
    if not size:
        raise section.error("max_log_bytes: must be 1 or more.", "max_log_bytes")
    return size


def _metadata(section: Section) -> tuple[str, ...]:
    names = section.names("metadata")
    for name in names:
        if name not in METADATA:
            raise section.error(f"metadata: {name!r} is not one of {', '.join(METADATA)}.", "metadata")
    return names


def _check_into(into: str, section: Section) -> None:
    rest = into
    for place in _PLACES:
        rest = rest.replace(place, "")
    if into and (_PLACES[1] not in into or not re.fullmatch(r"[A-Za-z0-9_.-]*", rest)):
        raise section.error(
            f"into: {into!r} is not a pattern of names: letters, digits, '_', '.' and '-', with {{table}} and, if "
            "several databases or schemas are read, {database} or {schema}.",
            "into",
        )


class DatabaseSource:
    """The settings that all database servers share; the dataclass of each server defines the fields."""

    __slots__ = ()

    database: DatabaseSettings
    connection: str

    @property
    def options(self) -> Mapping[str, str]:
        """The source has no reader options."""
        return {}

    @property
    def is_by_interval(self) -> bool:
        """False: a run continues from the checkpoint of the last commit."""
        return False

    @property
    def declares_types(self) -> bool:
        """True: the tables declare their column types."""
        return True

    @property
    def connections(self) -> tuple[str, ...]:
        """The id of the connection."""
        return (self.connection,)

    @property
    def description(self) -> str:
        """Description of the input, such as `shop.orders of mysql_default`."""
        return f"{', '.join(self.database.tables)} of {self.connection}"


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: ", ".join(columns) for name, columns in value.items()}
    return list(value) if isinstance(value, tuple) else value
