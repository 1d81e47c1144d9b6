"""The number of buckets per partition: the number of the first matching pattern, otherwise the table's number.

    hoodie.bucket.index.num.buckets = 8
    hoodie.bucket.index.partition.expressions = ^day=2026-11-(27|30)$,64;^day=2026-,16

All writers of a table, including Apache Hudi (Java), must compute the same number. A pattern may therefore use only
syntax that means the same in RE2 and in Java; character classes are ASCII. Look-around and back-references are
refused, because RE2 does not support them (see model.pattern).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache

from lakehouse.errors import UserError
from lakehouse.model.pattern import Pattern, compile_pattern

NUM_BUCKETS = "hoodie.bucket.index.num.buckets"
HASH_FIELD = "hoodie.bucket.index.hash.field"
EXPRESSIONS = "hoodie.bucket.index.partition.expressions"
#: The table property with the rules from the creation of the table. Hudi refuses changes of its own property.
MADE_WITH = "lakehouse.bucket.index.partition.expressions"
RULE_TYPE = "hoodie.bucket.index.partition.rule.type"
#: File ids contain eight digits for the bucket.
MAX_BUCKETS = 99_999_999
#: The only supported kind of rule.
REGEX = "regex"

_COUNT = re.compile(r"\+?[0-9]{1,9}")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
# Refused escapes, which have different meanings in RE2 and in Java. \v is one character in RE2 and a class in Java. \p
# uses different versions of Unicode. \Q would hide characters from the checks below. \C is a byte in RE2.
_OTHER_ESCAPES = frozenset("vZNpPQEC")
# Refused syntax: named groups, conditions, comments and flags; operators in sets; single braces, an error in Java.
_OTHER_SYNTAX = re.compile(r"\(\?(?:[P#(]|[a-zA-Z-]*[aLuU])|\[[^\]]*?(?:\[|&&|--|~~|\|\|)|(?<!\{)\{(?![0-9]+\})")
# Java treats more characters than \n as line ends for `.` and `$`, and \x0b as a blank. RE2 treats the last two
# characters as k and s if case is ignored.
_READ_DIFFERENTLY = re.compile("[\n\r\x85\u2028\u2029\x0b\u212a\u017f]")


@dataclass(frozen=True, slots=True)
class BucketRules:
    """The bucket numbers of a table: `default`, and pairs of pattern and number; the first match applies.

    `staged` maps a partition with a pending resize to a multiple of its bucket number. Rows are staged by this
    multiple, so that it determines the bucket of a row both before and after the resize.
    """

    default: int
    rules: tuple[tuple[str, int], ...] = ()
    staged: tuple[tuple[str, int], ...] = ()

    def staged_of(self, partition: str) -> int:
        """Return the number of buckets by which a partition's rows are staged."""
        return dict(self.staged).get(partition) or self.of(partition)

    def of(self, partition: str) -> int:
        """Return the bucket number for the partition with this path.

        Raises UserError if there are rules and the path has a line end or a similar character: writers would disagree.
        """
        if self.rules and _READ_DIFFERENTLY.search(partition):
            raise UserError(
                f"partition {partition!r} contains a line end or a similar character, for which the patterns of "
                f"{EXPRESSIONS} have different results in Java and here",
                partition=partition,
            )
        return next((count for pattern, count in self.rules if _compiled(pattern).found_in(partition)), self.default)

    @property
    def expressions(self) -> str:
        """The rules as the value of the option."""
        return render_rules(self.rules)


def parse_rules(text: str) -> tuple[tuple[str, int], ...]:
    """Return the rules in the string `pattern,number;pattern,number`, in this order; none for an empty string.

    Raises UserError for an expression of another form, and for a pattern on which writers would disagree.
    """
    parts = text.split(";")
    while parts and not parts[-1].strip():
        parts.pop()
    return tuple(_rule(part) for part in parts)


def render_rules(rules: Iterable[tuple[str, int]]) -> str:
    """Return rules as a string; `parse_rules` parses it."""
    return ";".join(f"{pattern},{count}" for pattern, count in rules)


def check_rule(pattern: str, count: int) -> None:
    """Raise UserError if the pattern or the number of buckets is not valid."""
    if "," in pattern or ";" in pattern or pattern != pattern.strip() or not pattern:
        raise UserError(
            f"pattern {pattern!r} cannot be used in {EXPRESSIONS}: it must not be empty, contain ',' or ';', or begin "
            "or end with blanks",
            pattern=pattern,
        )
    if not 0 < count <= MAX_BUCKETS:
        raise UserError(
            f"{EXPRESSIONS}: pattern {pattern!r} requests {count} buckets; a partition has 1 to {MAX_BUCKETS}",
            pattern=pattern,
        )
    _compiled(pattern)


def _rule(text: str) -> tuple[str, int]:
    pattern, comma, count = text.strip().rpartition(",")
    if not comma or not _COUNT.fullmatch(count.strip()):
        raise UserError(
            f"{EXPRESSIONS}: {text!r} is not a pattern and a number of buckets, as in '^day=2026-,16'; several are "
            "separated by ';'",
            expression=text,
        )
    check_rule(pattern.strip(), int(count))
    return pattern.strip(), int(count)


@cache
def _compiled(pattern: str) -> Pattern:
    other = next((f"\\{letter}" for letter in _ESCAPED.findall(pattern) if letter in _OTHER_ESCAPES), None)
    syntax = _OTHER_SYNTAX.search(_ESCAPED.sub("", pattern))
    if other is None and syntax is not None:
        other = syntax[0]
    if other is not None:
        raise UserError(
            f"{EXPRESSIONS}: {other!r} in pattern {pattern!r} has another meaning, or none, for other writers of "
            "the table; use simpler syntax",
            pattern=pattern,
        )
    if "(?" in pattern and "i" in pattern and not pattern.isascii():
        raise UserError(
            f"{EXPRESSIONS}: pattern {pattern!r} may ignore the case of letters that are not ASCII, which other "
            "writers of the table do not; write such letters only in patterns without flags",
            pattern=pattern,
        )
    return compile_pattern(pattern, f"{EXPRESSIONS}: pattern")
