"""Joda date patterns: the letters `y Y M d H h m s S a E Z z` and literals (DATA-2.4).

Parsing is as lenient as Joda's: fewer digits than letters are accepted, and names and literals in any case. It is as
strict about ranges: month 13 or second 60 is not a time. Names are English. Times are epoch milliseconds as plain
integers. It is stricter than Joda in three points: years are 1 to 9999, a day of week must fit its date, and `yy` takes
exactly two digits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import date
from functools import cached_property, lru_cache

from lakehouse.errors import UnsupportedError, UserError

MONTHS = (
    "January", "February", "March", "April", "May", "June",
    "July", "August", "September", "October", "November", "December",
)  # fmt: skip
DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
# The zone names that Joda parses for `z`. It parses no others.
ZONE_NAMES = {
    "UT": "UTC", "UTC": "UTC", "GMT": "UTC",
    "EST": "America/New_York", "EDT": "America/New_York", "CST": "America/Chicago", "CDT": "America/Chicago",
    "MST": "America/Denver", "MDT": "America/Denver", "PST": "America/Los_Angeles", "PDT": "America/Los_Angeles",
}  # fmt: skip
SECOND_MS, MINUTE_MS, HOUR_MS, DAY_MS = 1_000, 60_000, 3_600_000, 86_400_000

_EPOCH_DAY = date(1970, 1, 1).toordinal()
_GRANULARITY = {"S": 1, "s": SECOND_MS, "m": MINUTE_MS, "H": HOUR_MS, "h": HOUR_MS, "a": HOUR_MS}
_NUMERIC = "yYdHhmsS"
_LIMITS = {"M": (1, 12), "d": (1, 31), "H": (0, 23), "h": (1, 12), "m": (0, 59), "s": (0, 59)}
_LETTERS = "yYMdHhmsSaEZz"
# Joda's window for two-digit years moves with the current year. This window is fixed, so that a table's paths do not
# change next year.
_TWO_DIGIT_YEARS_FROM = 1950
#: Patterns come with tables. One letter repeated a million times would print a million digits for each row.
_MOST_CHARACTERS = 256
_TOKEN = re.compile(r"([A-Za-z])\1*|'((?:[^']|'')*)'|([^A-Za-z']+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """A pattern letter with its count, or a literal (the letter is empty)."""

    letter: str
    count: int = 0
    literal: str = ""

    @property
    def is_number(self) -> bool:
        """Whether the token prints digits only."""
        return self.letter != "" and (self.letter in _NUMERIC or (self.letter == "M" and self.count < 3))


@dataclass(frozen=True, kw_only=True)
class JodaPattern:
    """A pattern, split into tokens."""

    text: str
    tokens: tuple[Token, ...]

    @property
    def granularity_ms(self) -> int:
        """The length of the time intervals in which all local times have the same printed form."""
        return min((_GRANULARITY.get(token.letter, DAY_MS) for token in self.tokens), default=DAY_MS)

    @property
    def shows_zone(self) -> bool:
        """Whether the pattern prints the offset or the name of the zone."""
        return any(token.letter in ("Z", "z") for token in self.tokens if token.letter)

    @cached_property
    def regex(self) -> re.Pattern[str]:
        """The regular expression that parses a string, with one group per letter token.

        As in Joda there is no backtracking, so the time is linear in the length of the string for any pattern.
        """
        following = (*self.tokens[1:], Token(letter=""))
        pieces = [
            f"(?P<t{index}>(?>{_piece(token, next_token)}))" if token.letter else re.escape(token.literal)
            for index, (token, next_token) in enumerate(zip(self.tokens, following, strict=True))
        ]
        return re.compile("".join(pieces), re.IGNORECASE)


@dataclass(frozen=True, slots=True, kw_only=True)
class ParsedTime:
    """A local time, and the zone in the string: `+05:30`, a zone id, or None."""

    local_ms: int
    zone: str | None


@lru_cache(maxsize=256)
def compile_pattern(text: str) -> JodaPattern:
    """Return the tokens of a pattern. Raises UserError that names an unsupported letter."""
    if len(text) > _MOST_CHARACTERS:
        shown = f"{text[:_MOST_CHARACTERS]}..."
        raise UserError(f"date pattern {shown!r} is longer than {_MOST_CHARACTERS} characters", pattern=shown)
    tokens: list[Token] = []
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            raise UserError(f"date pattern {text!r}: the quote at position {position} is not closed", pattern=text)
        tokens.append(_token(match, text))
        position = match.end()
    return JodaPattern(text=text, tokens=tuple(tokens))


def parse(pattern: JodaPattern, text: str) -> ParsedTime | None:
    """Parse the whole string `text`. Return None if it does not fit the pattern or is not a valid time.

    Missing fields default to 1970-01-01T00:00, or to the year 2000 if the pattern has a month or day without a year.
    """
    match = pattern.regex.fullmatch(text)
    if match is None:
        return None
    values: dict[str, int] = {}
    zone: str | None = None
    for index, token in enumerate(pattern.tokens):
        if not token.letter:
            continue
        part = match[f"t{index}"]
        if token.letter in ("Z", "z"):
            zone = _zone(part)
        else:
            values[token.letter] = _number(token, part)
    local_ms = _local_ms(values)
    return None if local_ms is None else ParsedTime(local_ms=local_ms, zone=zone)


def render(pattern: JodaPattern, local_ms: int, *, offset_ms: int = 0, zone_name: str = "UTC") -> str:
    """Return the local time as a string; `offset_ms` and `zone_name` are for patterns that print the zone."""
    days, ms = divmod(local_ms, DAY_MS)
    day = date.fromordinal(days + _EPOCH_DAY)
    return "".join(
        _print(token, day, ms, offset_ms, zone_name) if token.letter else token.literal for token in pattern.tokens
    )


def offset_text(offset_ms: int, *, colon: bool = True) -> str:
    """Return an offset as `+05:30` (or `+0530`). Joda omits seconds, which some zones had before 1940."""
    hours, minutes = divmod(abs(offset_ms) // MINUTE_MS, 60)
    return f"{'-' if offset_ms < 0 else '+'}{hours:02d}{':' if colon else ''}{minutes:02d}"


def _token(match: re.Match[str], text: str) -> Token:
    if match[1] is None:
        quoted = match[2]
        if quoted is None:
            return Token(letter="", literal=match[3])
        return Token(letter="", literal=quoted.replace("''", "'") if quoted else "'")
    letter, count = match[1], len(match[0])
    if letter not in _LETTERS or (letter in "Zz" and count > 2):
        letters = " ".join(_LETTERS)
        raise UnsupportedError(
            f"date pattern {text!r}: {match[0]!r} is not supported; letters are {letters}; put other text in quotes",
            pattern=text,
        )
    return Token(letter=letter, count=count)


def _piece(token: Token, following: Token) -> str:
    """Return the regular expression of one token. Longer names precede their prefixes."""
    letter, count = token.letter, token.count
    if letter in "yY":
        if count == 2:
            return "[0-9]{2}"
        return f"[+-]?[0-9]{{1,{count if following.is_number else 9}}}+"
    if letter == "M" and count > 2:
        return "|".join([*MONTHS, *(name[:3] for name in MONTHS)])
    if letter == "E":
        return "|".join([*DAYS, *(name[:3] for name in DAYS)])
    if letter == "Z":
        return "Z|[+-](?:[01][0-9]|2[0-3])(?::?[0-5][0-9])?"
    if letter == "z":
        return f"(?-i:{'|'.join(sorted(ZONE_NAMES, key=len, reverse=True))})"
    if letter == "a":
        return "AM|PM"
    return f"[0-9]{{1,{count}}}+" if letter == "S" else "[0-9]{1,2}+"


def _number(token: Token, part: str) -> int:
    if token.letter == "a":
        return int(part.upper() == "PM")
    if token.letter == "E":
        return _index(DAYS, part)
    if token.letter == "M" and token.count > 2:
        return _index(MONTHS, part) + 1
    if token.letter == "S":
        return int(part.ljust(3, "0")[:3])
    number = int(part)
    if token.letter in "yY" and token.count == 2:
        return _TWO_DIGIT_YEARS_FROM + (number - _TWO_DIGIT_YEARS_FROM) % 100
    return number


def _index(names: tuple[str, ...], part: str) -> int:
    return next(index for index, name in enumerate(names) if name[:3].lower() == part[:3].lower())


def _zone(part: str) -> str:
    if part.upper() in ZONE_NAMES:
        return ZONE_NAMES[part.upper()]
    if part in "Zz":
        return "UTC"
    digits = part[1:].replace(":", "").ljust(4, "0")
    minutes = int(digits[:2]) * 60 + int(digits[2:])
    return offset_text(minutes * MINUTE_MS * (-1 if part[0] == "-" else 1)) if minutes else "UTC"


def _local_ms(values: dict[str, int]) -> int | None:
    for letter, (low, high) in _LIMITS.items():
        if letter in values and not low <= values[letter] <= high:
            return None
    year = values.get("y", values.get("Y", 2000 if "M" in values or "d" in values else 1970))
    try:
        day = date(year, values.get("M", 1), values.get("d", 1))
    except ValueError:
        return None
    if "E" in values and values["E"] != day.weekday():
        return None
    hour = values.get("H", values.get("h", 0) % 12 + 12 * values.get("a", 0))
    time_ms = hour * HOUR_MS + values.get("m", 0) * MINUTE_MS + values.get("s", 0) * SECOND_MS + values.get("S", 0)
    return (day.toordinal() - _EPOCH_DAY) * DAY_MS + time_ms


def _print(token: Token, day: date, ms: int, offset_ms: int, zone_name: str) -> str:
    letter, count = token.letter, token.count
    if letter in "yY":
        return f"{day.year % 100:02d}" if count == 2 else f"{day.year:0{count}d}"
    if letter == "S":
        return f"{ms % SECOND_MS:03d}".ljust(count, "0")[:count]
    if letter == "Z":
        return offset_text(offset_ms, colon=count == 2)
    hour = ms // HOUR_MS
    if letter in "MEaz":
        return _print_name(token, day, hour, zone_name)
    number = {
        "d": day.day,
        "H": hour,
        "h": (hour + 11) % 12 + 1,
        "m": ms // MINUTE_MS % 60,
        "s": ms // SECOND_MS % 60,
    }[letter]
    return f"{number:0{count}d}"


def _print_name(token: Token, day: date, hour: int, zone_name: str) -> str:
    if token.letter == "M":
        name = MONTHS[day.month - 1]
        return f"{day.month:0{token.count}d}" if token.count < 3 else name if token.count > 3 else name[:3]
    if token.letter == "E":
        return DAYS[day.weekday()] if token.count > 3 else DAYS[day.weekday()][:3]
    if token.letter == "a":
        return "PM" if hour >= 12 else "AM"
    return zone_name
