"""Times in changes: one current time per statement, and no meaning that depends on a session time zone.

The engine evaluates queries in the time zone of its session. UPDATE, DELETE and MERGE are evaluated by this package, in
UTC. A condition such as `at = TIMESTAMP '2026-01-31 10:00:00'` would then select other rows than the same condition
in a query. The current time becomes one literal for the whole statement, as SQL demands: the expressions of this
package have no clock, and a statement that is repeated after a conflict would change its meaning.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime

import pyarrow as pa

from lakehouse.core.system.clock import Clock, SystemClock
from lakehouse.errors import UserError
from lakehouse.sql.tokens import Token, tokens_of

#: The beginning of a date or a time, and the end of one with a time zone.
_MOMENT, _ZONE = re.compile(r"\s*[+-]?\d{4,}-\d"), re.compile(r"(?:Z|UTC|GMT|[+-]\d{1,2}(?::?\d\d)?|/\w+)\s*$")
_TIME_OF_DAY = re.compile(r"\d:\d")
#: Functions and casts between times and dates, texts or parts of a day.
_FUNCTIONS = frozenset(
    [
        "cast", "try_cast", "year", "quarter", "month", "day", "dayofmonth", "dayofyear", "dayofweek",
        "weekofyear", "hour", "minute", "second", "date_add", "date_sub", "datediff", "add_months", "last_day", "trunc",
        "date_trunc", "to_date", "to_timestamp", "date_format", "unix_timestamp", "from_unixtime", "concat",
        "concat_ws",
    ]
)  # fmt: skip
_OPERATORS = ("::", "||")
#: Words that make a time in the session's zone without a column.
_MAKERS = frozenset(("timestamp", "timestamp_ltz", "to_timestamp", "from_unixtime", "unix_timestamp"))
#: The format of the literal by function. The time of day has a zone, except in `localtimestamp`.
_FORMATS = {
    "current_timestamp": "TIMESTAMP '%Y-%m-%d %H:%M:%S.%fZ'",
    "now": "TIMESTAMP '%Y-%m-%d %H:%M:%S.%fZ'",
    "localtimestamp": "TIMESTAMP '%Y-%m-%d %H:%M:%S.%f'",
    "current_date": "DATE '%Y-%m-%d'",
    "curdate": "DATE '%Y-%m-%d'",
    "today": "DATE '%Y-%m-%d'",
}
#: Functions that SQL also writes without parentheses.
_BARE = frozenset(("current_timestamp", "localtimestamp", "current_date"))


@dataclass(frozen=True, slots=True)
class TimeColumns:
    """The top-level columns with times, in lower case: `zoned` with a time zone, `local` without one."""

    zoned: frozenset[str]
    local: frozenset[str]


def time_columns(*schemas: pa.Schema | None) -> TimeColumns:
    """Return the columns with times in some schemas."""
    columns = [column for schema in schemas if schema is not None for column in schema]
    zoned, local = (
        frozenset(column.name.lower() for column in columns if _has_times(column.type, zoned=zoned))
        for zoned in (True, False)
    )
    return TimeColumns(zoned, local)


def require_same_kinds(target: pa.Schema, source: pa.Schema) -> None:
    """Raise UserError if a column has a time zone on one side only, because all columns of the source are assigned."""
    stored, new = time_columns(target), time_columns(source)
    mixed = sorted((stored.zoned & new.local) | (stored.local & new.zoned))
    if mixed:
        raise UserError(
            f"column {mixed[0]} has a time zone in the table or in the source only, and the time zone of the session "
            "is not UTC: SET TIME ZONE 'UTC' first, or CAST the column in the source"
        )


def require_no_zone(expressions: Iterable[str], values: Mapping[str, str], times: TimeColumns, dialect: str) -> None:
    """Raise UserError for an expression with another result in UTC than in the session's time zone.

    Args:
        expressions: Conditions in the dialect.
        values: Assigned expressions by column.
        times: The columns with times.
        dialect: The dialect of the engine.
    """
    texts = [*((text, "") for text in expressions), *((text, name.lower()) for name, text in values.items())]
    for text, column in texts:
        tokens = tokens_of(text, dialect) if text else ()
        words = {token.text.lower() for token in tokens if not token.is_string}
        used = words | {column}
        if not (used & times.zoned or words & _MAKERS):
            continue
        if used & times.local and words & (times.zoned | times.local):
            raise UserError(
                f"{text.strip()!r} mixes times with and without a zone, and the time zone of the session is not UTC: "
                "SET TIME ZONE 'UTC' first, or CAST the column in the source"
            )
        following = [token.text for token in tokens[1:]] + [""]
        pairs = zip(tokens, following, strict=True)
        cause = next((token for token, after in pairs if _depends_on_zone(token, is_call=after == "(")), None)
        if cause is not None:
            raise UserError(
                f"{text.strip()!r} depends on the time zone of the session, which is not UTC, at {cause.text!r}: "
                "UPDATE, DELETE and MERGE read times without a zone in UTC. SET TIME ZONE 'UTC' first, or write "
                "the zone in each time, such as '2026-01-31 10:00:00Z'"
            )


def _depends_on_zone(token: Token, *, is_call: bool) -> bool:
    if not token.is_string:
        return token.text in _OPERATORS or (is_call and not token.is_quoted and token.text.lower() in _FUNCTIONS)
    has_zone = _ZONE.search(token.text) is not None and _TIME_OF_DAY.search(token.text) is not None
    return _MOMENT.match(token.text) is not None and not has_zone


def _has_times(kind: pa.DataType, *, zoned: bool) -> bool:
    if pa.types.is_nested(kind):
        return any(_has_times(kind.field(number).type, zoned=zoned) for number in range(kind.num_fields))
    return pa.types.is_timestamp(kind) and (kind.tz is not None) == zoned


@dataclass(frozen=True, slots=True, kw_only=True)
class CurrentTimes:
    """Replaces functions of the current time by literals of one moment.

    Attributes:
        dialect: The dialect of the statement for `tokens_of`.
        columns: Columns of the statement: a word without parentheses that is one of them stays a column.
        is_utc: Whether the session's time zone is UTC.
        clock: The clock that is read once.
    """

    dialect: str
    columns: Collection[str]
    is_utc: bool
    clock: Clock = field(default_factory=SystemClock)
    _moment: list[datetime] = field(default_factory=list)

    def literal(self, text: str) -> str:
        """Return an expression with literals; raise UserError if the session's time zone is not UTC."""
        tokens = tokens_of(text, self.dialect) if text else ()
        names = {name.lower() for name in self.columns}
        edits: list[tuple[int, int, str]] = []
        for number, token in enumerate(tokens):
            word = token.text.lower()
            if word not in _FORMATS or token.is_string or token.is_quoted:
                continue
            before = tokens[number - 1].text if number else ""
            after = [following.text for following in tokens[number + 1 : number + 3]]
            if before == ".":
                continue
            if after == ["(", ")"]:
                edits.append((token.start, tokens[number + 2].end, word))
            elif word in _BARE and word not in names and after[:1] not in (["("], ["."]):
                edits.append((token.start, token.end, word))
        if edits and not self.is_utc:
            raise UserError(
                f"{text.strip()!r} depends on the time zone of the session, which is not UTC, at {edits[0][2]!r}: SET "
                "TIME ZONE 'UTC' first, or use MERGE INTO with a source that selects the time"
            )
        for start, end, word in reversed(edits):
            text = text[:start] + self._now().strftime(_FORMATS[word]) + text[end:]
        return text

    def _now(self) -> datetime:
        if not self._moment:
            self._moment.append(datetime.fromtimestamp(self.clock.now_ms() / 1000, UTC))
        return self._moment[0]
