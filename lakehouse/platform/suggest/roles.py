"""Choose the record key, ordering and partition columns of a sample, with the evidence."""

from __future__ import annotations

import itertools
import re
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

from lakehouse.platform.suggest.sample import Sample, SampledColumn
from lakehouse.platform.suggest.text_columns import epoch_unit

#: Maximum number of key columns.
_MOST_KEY_COLUMNS = 5
_KEY_WORDS = re.compile(r"(^|_)(id|key|uuid|guid|code|no|nr|number|sku)$|^(id|key)", re.IGNORECASE)
#: Names of columns that grow with each change of a record, and columns that are set once at its creation.
_CHANGE_WORDS = re.compile(
    r"(^|_)(updated|modified|changed|last_?update|ts|timestamp|version|seq|sequence|lsn|offset|event_time|time_hour)"
    r"(_|$)|(updated|modified|changed)_?(at|on|time|date)?$",
    re.IGNORECASE,
)
_CREATE_WORDS = re.compile(
    r"(^|_)(created|inserted|ordered|placed|booked|pickup|start|started|event|order|trip|day|date|dt|occurred)(_|$)",
    re.IGNORECASE,
)
_TEMPORAL = ("date", "timestamp", "timestamp_ntz")
_INTEGERS = ("int", "bigint", "smallint", "tinyint")
_FLOATS = ("float", "double")
#: Rows per day below which daily partitions would contain small files.
_FEW_ROWS_OF_A_DAY = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyChoice:
    """The columns of the record key, and the evidence."""

    columns: tuple[str, ...]
    is_unique: bool
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OrderingChoice:
    """The ordering column (None if there is none), and the evidence."""

    column: str | None = None
    evidence: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionChoice:
    """The partition column, if any. `settings` is set only for a TIMESTAMP column."""

    column: str | None = None
    settings: Mapping[str, object] | None = None
    evidence: tuple[str, ...] = ()


def choose_key(sample: Sample) -> KeyChoice:
    """Return the columns that identify a row.

    A declared key takes precedence over a name such as `id`, and such a name over columns that are unique together.
    """
    if sample.key:
        return KeyChoice(columns=sample.key, is_unique=True, evidence=("the key that the source declares",))
    usable = [column for column in sample.columns if _is_usable(column)]
    rows = sample.rows
    if sample.changes_rows and any(_is_exact(column, sample) for column in usable):
        # Rows are versions of records, so a column that is unique per row is not a key.
        return _named_key(usable, rows, sample)
    single = [column for column in usable if _distinct([column]) == rows]
    named = [column for column in single if _KEY_WORDS.search(column.name)]
    others = [column for column in single if column not in named and column.type not in ("date", "boolean", *_FLOATS)]
    others.sort(key=lambda column: column.type in _TEMPORAL)
    for column in (*named, *others):
        alternatives = [other.name for other in (*named, *others) if other is not column]
        also = f"; so {'are' if len(alternatives) > 1 else 'is'} {_listed(alternatives)}" if alternatives else ""
        by_name = "" if column in named else "; its name does not say that it is a key"
        return KeyChoice(
            columns=(column.name,),
            is_unique=True,
            evidence=(f"{column.name}: unique in {_counted(rows, 'sampled row')}, never null{by_name}{also}",),
        )
    return _combined_key(usable, rows, sample)


def _named_key(usable: Sequence[SampledColumn], rows: int, sample: Sample) -> KeyChoice:
    """Return the column that is named like a table's key and contains several versions of a record."""
    column = next(column for column in usable if _is_exact(column, sample))
    distinct = _distinct([column])
    return KeyChoice(
        columns=(column.name,),
        is_unique=False,
        evidence=(
            f"{column.name}: by its name; {'' if distinct == rows else 'NOT unique: '}{distinct:,} values in {rows:,} "
            "sampled rows, and the newest row of a key replaces the others. Add columns if each row is a record of its "
            "own",
        ),
    )


def _is_exact(column: SampledColumn, sample: Sample) -> bool:
    singular = sample.name.removesuffix("s")
    return column.name.lower() in ("id", "_id", "key", "uuid", f"{sample.name}_id", f"{singular}_id")


def _combined_key(usable: Sequence[SampledColumn], rows: int, sample: Sample) -> KeyChoice:
    # If a column named like a key is not unique, the sample contains several versions of a record.
    if any(_is_exact(column, sample) for column in usable):
        return _named_key(usable, rows, sample)
    chosen = _greedy([column for column in usable if column.type not in (*_FLOATS, "boolean")], rows)
    if not chosen:
        chosen = _greedy(usable, rows)
    if not chosen:
        names = [column.name for column in sample.columns]
        return KeyChoice(
            columns=tuple(names[:1]),
            is_unique=False,
            evidence=("not sure: no column has a value in every sampled row. Rows without a key are bad records",),
        )
    distinct, least = _distinct(chosen), [column.name for column in chosen]
    chosen = _widened(chosen, usable)
    names = [column.name for column in chosen]
    if distinct == rows:
        more = "; more columns than the sample needs, for rows that it lacks" if len(least) < len(names) else ""
        text = (
            f"not sure: {_listed(least)} are unique together in {rows:,} sampled rows, no single column is{more}. "
            "Rows that are equal in the key replace each other; `operation: insert` keeps them all"
        )
        return KeyChoice(columns=tuple(names), is_unique=True, evidence=(text,))
    text = (
        f"not sure: NOT unique, {distinct:,} values in {rows:,} sampled rows, and more columns do not help: of equal "
        "rows one remains. `operation: insert` keeps them all"
    )
    return KeyChoice(columns=tuple(names), is_unique=False, evidence=(text,))


def _greedy(columns: Sequence[SampledColumn], rows: int) -> list[SampledColumn]:
    """Return a minimal set of columns that are unique together, or else columns chosen by number of distinct values."""
    chosen: list[SampledColumn] = []
    count = 0
    while count < rows and len(chosen) < _MOST_KEY_COLUMNS:
        rest = [column for column in columns if column not in chosen]
        scored = [
            (_distinct([*chosen, column]), bool(_KEY_WORDS.search(column.name)), -n) for n, column in enumerate(rest)
        ]
        if not scored or max(scored)[0] <= count:
            break
        best = max(scored)
        count, chosen = best[0], [*chosen, rest[-best[2]]]
    for column in tuple(chosen):
        fewer = [other for other in chosen if other is not column]
        if fewer and _distinct(fewer) == count:
            chosen = fewer
    order = {column.name: number for number, column in enumerate(columns)}
    return sorted(chosen, key=lambda column: order[column.name])


def _widened(chosen: Sequence[SampledColumn], usable: Sequence[SampledColumn]) -> list[SampledColumn]:
    """Extend key columns by other columns that are ids or times by name and type, ordered by distinct values.

    Columns that are unique in a sample are often not unique in all rows, and a key that is too wide loses no row.
    """
    more = [
        column
        for column in usable
        if column not in chosen and (_KEY_WORDS.search(column.name) or column.type in _TEMPORAL)
    ]
    more.sort(key=lambda column: -_distinct([column]))
    wide = {column.name for column in (*chosen, *more)[:_MOST_KEY_COLUMNS]}
    return [column for column in usable if column.name in wide]


def choose_ordering(sample: Sample, key: KeyChoice) -> OrderingChoice:
    """Return the column that grows with each change of a record, by its name, type and values."""
    candidates = [
        column
        for column in sample.columns
        if column.name not in key.columns
        and column.type in (*_TEMPORAL, *_INTEGERS)
        and _CHANGE_WORDS.search(column.name)
    ]
    full = [column for column in candidates if not column.nulls]
    nulls = [f"{column.name} has no value in {column.nulls:,} rows" for column in candidates if column.nulls]
    if not full:
        reason = "no column without nulls is named like a time of change or a version"
        return OrderingChoice(evidence=(f"{'; '.join((reason, *nulls))}: the row that is written last wins",))
    column = max(full, key=lambda candidate: (_rank(candidate), -sample.columns.index(candidate)))
    grows = _monotonic(column.values)
    return OrderingChoice(
        column=column.name,
        evidence=(f"{column.name}: by its name; never null, {grows} in the order of the sampled rows", *nulls),
    )


def _rank(column: SampledColumn) -> int:
    is_change = re.search(r"updat|modif|chang", column.name, re.IGNORECASE) is not None
    return 2 * is_change + (column.type in _TEMPORAL)


def choose_partition(sample: Sample, key: KeyChoice, ordering: OrderingChoice) -> PartitionChoice:
    """Return the day column for partitioning: the creation time, which does not change."""
    candidates = [(column, days) for column in sample.columns if (days := _days(column)) is not None]
    usable = [(column, days) for column, days in candidates if not column.nulls and column.name != ordering.column]
    usable = usable or [(column, days) for column, days in candidates if not column.nulls]
    if not usable:
        nulls = [column.name for column, _ in candidates]
        reason = f"{_listed(nulls)} has nulls" if nulls else "no column of dates or times"
        return PartitionChoice(evidence=(f"none: {reason}",))
    column, days = max(
        usable, key=lambda item: (bool(_CREATE_WORDS.search(item[0].name)), -sample.columns.index(item[0]))
    )
    evidence = [f"{column.name}: {_counted(days, 'day')} in {_counted(sample.rows, 'sampled row')}, never null"]
    if column.name == ordering.column:
        evidence.append(
            "it also orders versions: a record whose time changes gets a second row in another partition, unless the "
            "table has a global index (index: global_simple)"
        )
    elif column.name not in key.columns:
        evidence.append(
            "a key is unique in its partition only, so this time must not change; else add index: global_simple"
        )
    if sample.rows / max(1, days) < _FEW_ROWS_OF_A_DAY:
        evidence.append(
            f"about {_counted(sample.rows // max(1, days), 'sampled row')} in a day: with few rows in a day, use "
            "output_format: yyyy-MM, or no partitions"
        )
    return PartitionChoice(column=column.name, settings=_settings(column), evidence=tuple(evidence))


def _settings(column: SampledColumn) -> dict[str, object]:
    settings: dict[str, object] = {"type": "TIMESTAMP"}
    if column.time_format:
        settings["input_formats"] = [column.time_format]
    if column.type in _INTEGERS:
        is_millis = epoch_unit(column.name, _integers(column)) == "milliseconds"
        settings["timestamp_type"] = "EPOCHMILLISECONDS" if is_millis else "UNIX_TIMESTAMP"
    return {**settings, "output_format": "yyyy-MM-dd"}


def _days(column: SampledColumn) -> int | None:
    """Return the number of distinct days in a time column, or None for any other column."""
    values = [value for value in column.values if value is not None]
    if not values:
        return None
    if column.type in _INTEGERS:
        unit = epoch_unit(column.name, _integers(column))
        length = {"milliseconds": 86_400_000, "seconds": 86_400}.get(unit)
        return None if length is None else len({value // length for value in _integers(column)})
    if column.time_format:
        width = len(column.time_format.partition(" ")[0])
        return len({str(value)[:width] for value in values})
    return len({str(value).strip()[:10] for value in values}) if column.type in _TEMPORAL else None


def _integers(column: SampledColumn) -> list[int]:
    return [int(str(value)) for value in column.values if value is not None]


def _monotonic(values: Sequence[Hashable]) -> str:
    texts = [int(value) if isinstance(value, str) and re.fullmatch(r"-?[0-9]+", value) else value for value in values]
    pairs = list(itertools.pairwise(texts))
    rising = sum(before <= after for before, after in pairs)  # type: ignore[operator]
    if rising == len(pairs):
        return "ascending"
    return f"ascending in {rising / len(pairs):.0%} of the steps"


def _is_usable(column: SampledColumn) -> bool:
    return not column.nulls and "<" not in column.type and column.type != "binary"


def _distinct(columns: Sequence[SampledColumn]) -> int:
    if len(columns) == 1:
        return len(set(columns[0].values))
    return len(set(zip(*(column.values for column in columns), strict=True)))


def _counted(number: int, what: str) -> str:
    return f"{number:,} {what}{'' if number == 1 else 's'}"


def _listed(names: Sequence[str], most: int = 4) -> str:
    rest = f" and {len(names) - most} more" if len(names) > most else ""
    return f"{', '.join(names[:most])}{rest}"
