"""Rules by which partitions expire, and plans of the service ttl.

A rule covers the partitions that match its pattern. If several rules match, only the rule with the longest literal
prefix applies:

    region=eu/day=2026-01-31      *              the rule of the table
                                  region=*       literal prefix "region=", 7 characters
                                  region=eu      literal prefix "region=eu", 9 characters: this rule applies

If prefixes have equal lengths, the rule that was set last applies. A partition expires if at least one limit of the
rule is exceeded. A rule without limits keeps its partitions. Regular expressions have the syntax of `model.pattern`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any

from lakehouse.errors import UserError, nearest
from lakehouse.model.display import Condition, Readable, Shown, count_text, sentence, size_text
from lakehouse.model.pattern import Pattern, compile_pattern, escaped

REGEX_PREFIX = "re:"
_GLOB = {"*": "[^/]*", "?": "[^/]"}
_PLAIN = re.compile(r"(?:[^\\.^$*+?{}\[\]|()]|\\[^A-Za-z0-9])*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlRule:
    """The limits for the partitions that match a pattern; None means no limit.

    The newest partition is the one with the latest time in its value. Partitions without a time are counted separately,
    by their first commits.

    Attributes:
        id: The name of the rule.
        pattern: A glob of whole path levels: `*` and `?` match within a level, and partitions below a match are
            covered too. After `re:`, a regular expression that matches some part of the path.
        partition_age_s: The maximum age in seconds from the end of the time in the partition's value.
        creation_age_s: The maximum age in seconds from the first commit to the partition.
        modification_age_s: The maximum age in seconds from the last commit that wrote rows to it.
        max_partitions: The number of newest partitions that are kept below each parent.
        max_bytes: The size of the newest partitions that are kept; the newest one is always kept.
        format: The format of times in values, in Joda's letters; empty for the table's format.
        timezone: The time zone of times in values; empty for the table's time zone.
    """

    id: str
    pattern: str = "*"
    partition_age_s: int | None = None
    creation_age_s: int | None = None
    modification_age_s: int | None = None
    max_partitions: int | None = None
    max_bytes: int | None = None
    format: str = ""
    timezone: str = ""

    def __post_init__(self) -> None:
        if not self.id or not self.pattern:
            raise UserError("a ttl rule needs an id and a pattern")
        for name in LIMITS:
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise UserError(f"ttl rule {self.id!r}: {name} must be above 0, not {value}", rule=self.id)
        try:
            _compiled(self.pattern)
        except UserError as error:
            raise UserError(f"ttl rule {self.id!r}: {error.message}", rule=self.id) from None

    @property
    def limits(self) -> dict[str, int]:
        """The limits that are set."""
        return {name: getattr(self, name) for name in LIMITS if getattr(self, name) is not None}

    @property
    def specificity(self) -> int:
        """The length of the literal prefix that all matching paths share."""
        return _compiled(self.pattern)[1]

    def covers(self, partition: str) -> bool:
        """Return whether this partition path matches the pattern."""
        return _compiled(self.pattern)[0].found_in(partition)

    def to_mapping(self) -> dict[str, Any]:
        """Return the fields that are set, as values of JSON."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> TtlRule:
        """Return the rule of a mapping made by `to_mapping`; raise UserError for an unknown name or a wrong type."""
        names = [declared.name for declared in fields(cls)]
        for name in mapping:
            if name not in names:
                raise UserError(f"a ttl rule has no {name!r}.{nearest(name, names)} It has {', '.join(names)}.")
            kind = int if name in LIMITS else str
            if type(mapping[name]) is not kind:
                raise UserError(f"a ttl rule has {name}={mapping[name]!r}, which is not of type {kind.__name__}")
        return cls(**mapping)


LIMITS = ("partition_age_s", "creation_age_s", "modification_age_s", "max_partitions", "max_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """An expired partition with its rule and the reason; its size counts the current slices."""

    partition: str
    rule: str
    reason: str
    size_bytes: int = 0
    rows: int = 0
    files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PartitionExpiry:
    """The time at which a partition exceeds an age limit, and why it is expired now.

    `at_ms` is in UTC milliseconds, or None if there is no age limit. The reason is empty if the partition is not
    expired.
    """

    at_ms: int | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlPlan(Readable):
    """The partitions that one run deletes, oldest first, and the expired partitions that it keeps, with the reason.

    `untimed` is the number of partitions that are kept because their rule needs a time and their value has none.
    """

    expired: tuple[Expiry, ...] = ()
    kept: tuple[Expiry, ...] = ()
    untimed: int = 0

    @property
    def partitions(self) -> tuple[str, ...]:
        """The partition paths that are deleted."""
        return tuple(expiry.partition for expiry in self.expired)

    def to_json(self) -> str:
        """Return the plan as one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)

    def _shown(self) -> Shown:
        line = sentence(
            f"ttl plan: deletes {count_text(len(self.expired), 'partition')}",
            count_text(sum(expiry.files for expiry in self.expired), "file"),
            size_text(sum(expiry.size_bytes for expiry in self.expired)),
            f"keeps {len(self.kept):,} expired" if self.kept else "",
        )
        rows = [
            {"partition": expiry.partition, "rule": expiry.rule, "reason": expiry.reason, "files": expiry.files}
            for expiry in self.expired
        ]
        return Shown(line, {"untimed": self.untimed} if self.untimed else {}, rows)


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlDue(Condition):
    """Whether the service is due, with the reason and the numbers."""

    due: bool
    reason: str
    partitions: int = 0
    size_bytes: int = 0


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> tuple[Pattern, int]:
    """Return the compiled pattern, and the length of its literal prefix."""
    if pattern.startswith(REGEX_PREFIX):
        text = pattern.removeprefix(REGEX_PREFIX)
        return compile_pattern(text, "pattern"), len(_literal_prefix(text[1:])) if text.startswith("^") else 0
    glob = pattern.strip("/")
    body = "".join(_GLOB.get(letter, escaped(letter)) for letter in glob)
    return compile_pattern(f"^{body}(?:/|$)", "pattern"), len(re.split(r"[*?]", glob, maxsplit=1)[0])


def _literal_prefix(expression: str) -> str:
    if "|" in expression:
        # Alternatives may have different prefixes.
        return ""
    match = _PLAIN.match(expression)
    plain = match[0] if match else ""
    after = expression[len(plain) : len(plain) + 1]
    # An optional letter is not part of every path.
    literal = plain[:-1] if after in ("*", "?", "{") else plain
    return re.sub(r"\\(.)", r"\1", literal)
