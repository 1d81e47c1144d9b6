"""How many buckets a partition has: by the first pattern that is found in its path, else the table's number.

    hoodie.bucket.index.num.buckets = 8
    hoodie.bucket.index.partition.expressions = ^day=2026-11-(27|30)$,64;^day=2026-,16

Writers of one table must agree on every partition, Apache Hudi's (Java) among them. So a pattern may use only what
means the same in both kinds of regular expressions: classes of characters are ASCII, and what would differ is refused.
Patterns are found in linear time (see model.pattern), so one that needs look-around or back-references is refused, too,
though Java would take it.
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
#: What a table's properties call the rule it was made with. Under Hudi's name Hudi would refuse to ever change it.
MADE_WITH = "lakehouse.bucket.index.partition.expressions"
RULE_TYPE = "hoodie.bucket.index.partition.rule.type"
#: File ids have eight digits for the bucket.
MAX_BUCKETS = 99_999_999
#: The only kind of rule there is.
REGEX = "regex"

_COUNT = re.compile(r"\+?[0-9]{1,9}")
_ESCAPED = re.compile(r"\\(.)", re.DOTALL)
# Escapes that both know, and read in two ways: \v is one character here, a class there; \p follows other versions of
# Unicode; \Q hides what follows from the checks below; \C is a byte here.
_OTHER_ESCAPES = frozenset("vZNpPQEC")
# Groups by (?P.. and conditions, comments, flags of characters; operators in sets; lone braces, an error there.
_OTHER_SYNTAX = re.compile(r"\(\?(?:[P#(]|[a-zA-Z-]*[aLuU])|\[[^\]]*?(?:\[|&&|--|~~|\|\|)|(?<!\{)\{(?![0-9]+\})")
# Where a line ends differs: what is more than \n to `.` and `$` there. \x0b is a blank there, and here the last two are
# k and s where case does not matter.
_READ_DIFFERENTLY = re.compile("[\n\r\x85\u2028\u2029\x0b\u212a\u017f]")


@dataclass(frozen=True, slots=True)
class BucketRules:
    """The numbers of buckets of a table: `default`, and pairs of pattern and number of which the first match counts."""

    default: int
    rules: tuple[tuple[str, int], ...] = ()

    def of(self, partition: str) -> int:
        """Return the number of buckets of the partition with this path.

        Raises UserError for a path with a line end or the like where there are rules: writers would not agree on it.
        """
        if self.rules and _READ_DIFFERENTLY.search(partition):
            raise UserError(
                f"partition {partition!r} holds a line end, or a sign that is read in several ways, which the patterns "
                f"of {EXPRESSIONS} cannot be asked about",
                partition=partition,
            )
        return next((count for pattern, count in self.rules if _compiled(pattern).found_in(partition)), self.default)

    @property
    def expressions(self) -> str:
        """The rules as the option spells them."""
        return render_rules(self.rules)


def parse_rules(text: str) -> tuple[tuple[str, int], ...]:
    """Return the rules that `pattern,number;pattern,number` says, in this order; none for an empty text.

    Raises UserError naming the expression that is not of this form, or whose pattern writers would not agree on.
    """
    parts = text.split(";")
    while parts and not parts[-1].strip():
        parts.pop()
    return tuple(_rule(part) for part in parts)


def render_rules(rules: Iterable[tuple[str, int]]) -> str:
    """Return what `parse_rules` reads."""
    return ";".join(f"{pattern},{count}" for pattern, count in rules)


def check_rule(pattern: str, count: int) -> None:
    """Raise UserError unless partitions whose path holds `pattern` can have `count` buckets."""
    if "," in pattern or ";" in pattern or pattern != pattern.strip() or not pattern:
        raise UserError(
            f"pattern {pattern!r} cannot stand in {EXPRESSIONS}: it must not be empty, hold ',' or ';', or begin or "
            "end with blanks",
            pattern=pattern,
        )
    if not 0 < count <= MAX_BUCKETS:
        raise UserError(
            f"{EXPRESSIONS}: pattern {pattern!r} asks for {count} buckets; a partition has 1 to {MAX_BUCKETS}",
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
    other = next((f"\\{found}" for found in _ESCAPED.findall(pattern) if found in _OTHER_ESCAPES), None)
    syntax = _OTHER_SYNTAX.search(_ESCAPED.sub("", pattern))
    if other is None and syntax is not None:
        other = syntax[0]
    if other is not None:
        raise UserError(
            f"{EXPRESSIONS}: {other!r} in pattern {pattern!r} means something else, or nothing, to other writers of "
            "the table; say it in plainer words",
            pattern=pattern,
        )
    if "(?" in pattern and "i" in pattern and not pattern.isascii():
        raise UserError(
            f"{EXPRESSIONS}: pattern {pattern!r} may ignore the case of letters that are not ASCII, which other "
            "writers of the table do not; write such letters only in patterns without flags",
            pattern=pattern,
        )
    return compile_pattern(pattern, f"{EXPRESSIONS}: pattern")
