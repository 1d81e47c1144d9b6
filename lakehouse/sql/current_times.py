"""The current time in UPDATE, DELETE and MERGE: one literal for the whole statement, as SQL demands.

This package evaluates these statements, and its expressions have no clock: a statement that is repeated after a
conflict would change its meaning.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, field
from datetime import UTC, datetime

from lakehouse.core.system.clock import Clock, SystemClock
from lakehouse.errors import UserError
from lakehouse.sql.tokens import tokens_of

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
