"""Parses the options of `spark.read.format("lakehouse")` into a query and the settings of the read."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from functools import cache

from lakehouse.core.operations.read.cdc import CDC, LATEST_STATE, check_format
from lakehouse.core.operations.read.queries import (
    EARLIEST,
    SNAPSHOT,
    Changes,
    EventTimeTravel,
    Incremental,
    Query,
    ReadOptimized,
    RowQuery,
    TimeTravel,
    Version,
)
from lakehouse.core.planning.predicate import parse_predicate
from lakehouse.errors import UserError, nearest
from lakehouse.model.predicate import Predicate
from lakehouse.spec.options.hudi.catalogue import HudiOption, Support, catalogue
from lakehouse.spec.options.parser import parse_options

log = logging.getLogger(__name__)

NAME = "lakehouse"
PATH = "path"
COLUMNS = "columns"
WHERE = "where"
QUERY_TYPE = "hoodie.datasource.query.type"
_VIEW_TYPE = "hoodie.datasource.view.type"
BEGIN = "hoodie.datasource.read.begin.instanttime"
END = "hoodie.datasource.read.end.instanttime"
FORMAT = "hoodie.datasource.query.incremental.format"
AS_OF = "as.of.instant"
AS_OF_EVENT_TIME = "as.of.event.time"
FUNCTIONS = "allowed_functions"
START_OFFSET = "hoodie.datasource.streaming.startOffset"
DAMAGED_FILES = "lakehouse.damaged.files"
_OPTIONS = (
    PATH,
    COLUMNS,
    WHERE,
    QUERY_TYPE,
    BEGIN,
    END,
    FORMAT,
    AS_OF,
    AS_OF_EVENT_TIME,
    FUNCTIONS,
    START_OFFSET,
    DAMAGED_FILES,
)
_CHANGES_RESULT = frozenset(name.lower() for name in (*_OPTIONS, _VIEW_TYPE))
_STORAGE_PREFIXES = ("fs.", "aws_", "google_", "azure_", "allow_http", "max_attempts")
#: Spark adds this option when a statement creates a permanent table.
_OF_PERMANENT_TABLES = "provider"
_NO_PERMANENT_TABLES = (
    "Spark 4.1 does not pass the options of a permanent table, such as its location, to a Python data source that "
    "reads or writes it. lakehouse.spark.attach(spark, catalog) makes tables of a catalog usable by name; without a "
    f"catalog, create a temporary view: CREATE TEMPORARY VIEW name USING {NAME} OPTIONS (path 'location')"
)
_SNAPSHOT, _READ_OPTIMIZED, _INCREMENTAL = "snapshot", "read_optimized", "incremental"


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The options of one read.

    Attributes:
        location: URL or path of the table.
        query: The result of a batch read; a stream reads the commits since its offset.
        columns: Columns of the result; None means all columns.
        where: Condition on the rows; it excludes partitions and files.
        storage: Options of the table's storage.
        functions: Functions of the table that may be loaded.
        start_offset: Where a new stream starts: "earliest", "latest" or a completion time.
        skips_damage: Skip rows of missing or damaged files.
    """

    location: str
    query: Query
    columns: tuple[str, ...] | None
    where: Predicate | None
    storage: Mapping[str, str]
    functions: tuple[str, ...]
    start_offset: str
    skips_damage: bool

    @property
    def reads_changes(self) -> bool:
        """Whether the result is changes instead of rows."""
        return isinstance(self.query, Changes)


def parse_source_options(options: Mapping[str, str], *, streaming: bool = False) -> SourceOptions:
    """Parse the options of a read; keys are compared without regard to case.

    Raises UserError for an unknown option, a missing location, a condition with a syntax error, and options that
    contradict each other.
    """
    options = _with_query_type(options)
    check_options(options, _OPTIONS)
    values = {key.lower(): value for key, value in options.items()}
    if PATH not in values:
        raise UserError(
            f'format("{NAME}") needs the table\'s location: .load(location). If this is a table of CREATE TABLE ... '
            f"USING {NAME}: {_NO_PERMANENT_TABLES}"
        )
    query: Query
    if _reads_changes(values):
        query = _changes(values)
        if streaming:
            # The offsets of a stream determine its range, so the options of a range are refused.
            _row_query(values)
    else:
        query = _row_query(values)
    damaged = {DAMAGED_FILES: values[DAMAGED_FILES]} if DAMAGED_FILES in values else {}
    return SourceOptions(
        location=values[PATH],
        query=query,
        columns=selected_columns(options),
        where=parse_predicate(values[WHERE]) if WHERE in values else None,
        storage=storage_options(options),
        functions=_names(values.get(FUNCTIONS, "")),
        start_offset=values.get(START_OFFSET.lower(), EARLIEST),
        skips_damage=parse_options(damaged).write.skips_damage,
    )


def _with_query_type(options: Mapping[str, str]) -> Mapping[str, str]:
    """Return options in which the query type has its present name."""
    earlier = next((key for key in options if key.lower() == _VIEW_TYPE), None)
    if earlier is None:
        return options
    present = next((value for key, value in options.items() if key.lower() == QUERY_TYPE), options[earlier])
    if present.lower() != options[earlier].lower():
        raise UserError(
            f"{_VIEW_TYPE}={options[earlier]} and {QUERY_TYPE}={present} contradict; they have the same meaning",
            option=_VIEW_TYPE,
        )
    return {**{key: value for key, value in options.items() if key != earlier}, QUERY_TYPE: present}


def check_options(options: Mapping[str, str], names: Collection[str]) -> None:
    """Raise UserError for an option that is neither in `names` nor a storage option, and for a permanent table."""
    keys = {key.lower() for key in options}
    if _OF_PERMANENT_TABLES in keys:
        raise UserError(f"CREATE TABLE ... USING {NAME} is not supported: {_NO_PERMANENT_TABLES}")
    unused = []
    values = {key.lower(): value for key, value in options.items()}
    for key in sorted(keys - {name.lower() for name in names}):
        if key.startswith(_STORAGE_PREFIXES):
            continue
        entry = _hudi_options().get(key)
        # Options of this format change the result: a read that does not have them must not ignore them.
        if entry is None or key in _CHANGES_RESULT:
            raise UserError(f'option {key!r} is unknown to format("{NAME}").{nearest(key, names)}', option=key)
        if entry.support is Support.REFUSED and not entry.accepts(values[key]):
            raise UserError(f"option {entry.name}={values[key]!r} is not supported: {entry.text}", option=entry.name)
        if not entry.accepts(values[key]):
            unused.append(f"{entry.name}: {entry.text or 'an option of writes'}")
    if unused:
        _log_unused("; ".join(unused))


@cache
def _hudi_options() -> Mapping[str, HudiOption]:
    return {name.lower(): option for name, option in catalogue().items()}


@cache
def _log_unused(text: str) -> None:
    """Log the options without effect, once per process: Spark creates several readers for one read."""
    log.warning("options without effect on this read: %s", text)


def selected_columns(options: Mapping[str, str]) -> tuple[str, ...] | None:
    """Return the columns in the option `columns`, or None if it is not set."""
    return _names(next((value for key, value in options.items() if key.lower() == COLUMNS), "")) or None


def storage_options(options: Mapping[str, str]) -> dict[str, str]:
    """Return the options of the storage."""
    return {key: value for key, value in options.items() if key.lower().startswith(_STORAGE_PREFIXES)}


def _reads_changes(values: Mapping[str, str]) -> bool:
    text = values.get(FORMAT, LATEST_STATE).lower()
    check_format(text)
    return text == CDC


def _changes(values: Mapping[str, str]) -> Changes:
    if values.get(QUERY_TYPE, _INCREMENTAL).lower() != _INCREMENTAL:
        raise UserError(
            f"{FORMAT}={CDC} and {QUERY_TYPE}={values[QUERY_TYPE]} contradict; changes are an incremental query"
        )
    return Changes(values.get(BEGIN), values.get(END))


def _row_query(values: Mapping[str, str]) -> RowQuery:
    query_type = values.get(QUERY_TYPE, _SNAPSHOT).lower()
    if query_type not in (_SNAPSHOT, _READ_OPTIMIZED, _INCREMENTAL):
        raise UserError(f"{QUERY_TYPE}={query_type!r}: must be snapshot, read_optimized or incremental")
    if AS_OF_EVENT_TIME in values and (query_type == _INCREMENTAL or AS_OF in values):
        other = f"{QUERY_TYPE}=incremental" if query_type == _INCREMENTAL else f"{AS_OF}={values[AS_OF]}"
        raise UserError(f"{AS_OF_EVENT_TIME}={values[AS_OF_EVENT_TIME]} and {other} contradict; give one of them")
    if query_type == _INCREMENTAL:
        return Incremental(values.get(BEGIN), values.get(END))
    if BEGIN in values or END in values:
        raise UserError(f"{BEGIN} and {END} need {QUERY_TYPE}=incremental")
    version: Version = SNAPSHOT
    if AS_OF in values:
        version = TimeTravel(values[AS_OF])
    elif AS_OF_EVENT_TIME in values:
        version = EventTimeTravel(values[AS_OF_EVENT_TIME])
    return ReadOptimized(version) if query_type == _READ_OPTIMIZED else version


def _names(text: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in text.split(",") if name.strip())
