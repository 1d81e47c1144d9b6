"""Rules by which partitions expire, and what a run of the ttl service would delete.

A rule covers the partitions that its pattern finds; of several the most specific one counts, alone:

    region=eu/day=2026-01-31      *              table's own
                                  region=*       literal prefix "region=": 7
                                  region=eu      literal prefix "region=eu": 9, so this one

The longest literal prefix is the most specific pattern; of equals the rule that was set last counts. The limits of one
rule are OR-ed: a partition expires as soon as one of them says so. A rule without limits keeps what it covers.
Regular expressions are those of model.pattern.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from functools import lru_cache
from typing import Any

from lakehouse.errors import UserError, nearest
from lakehouse.model.pattern import Pattern, compile_pattern, escaped

REGEX_PREFIX = "re:"
_GLOB = {"*": "[^/]*", "?": "[^/]"}
_PLAIN = re.compile(r"(?:[^\\.^$*+?{}\[\]|()]|\\[^A-Za-z0-9])*")


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlRule:
    """When the partitions that `pattern` covers expire; limits are in seconds, partitions and bytes, None: no limit.

    `pattern` is a glob of whole path levels (`*` and `?` stay within a level, what is below a match is covered too), or
    after `re:` a regular expression that is found in the path. Ages count from the end of the time that the partition's
    value names (`partition_age_s`), from the first commit to the partition (`creation_age_s`) or from the last that
    brought rows (`modification_age_s`). The newest `max_partitions` are kept beside each parent, and the newest
    partitions up to `max_bytes` of all that the rule covers; the newest one always. Newest is what has the latest time
    in its value; partitions without one are counted apart, by their first commits. `format` (Joda's letters) and
    `timezone` tell how values are read, empty: as the table does.
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
        """The length of the literal text that every path it covers begins with."""
        return _compiled(self.pattern)[1]

    def covers(self, partition: str) -> bool:
        """Return whether the rule's pattern finds this relative path."""
        return _compiled(self.pattern)[0].found_in(partition)

    def to_mapping(self) -> dict[str, Any]:
        """Return what is set, as JSON would hold it."""
        return {name: value for name, value in asdict(self).items() if value not in (None, "")}

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> TtlRule:
        """Return the rule that `to_mapping` wrote; raise UserError for a name that no rule has."""
        known = [declared.name for declared in fields(cls)]
        for name in mapping:
            if name not in known:
                raise UserError(f"a ttl rule has no {name!r}.{nearest(name, known)} It has {', '.join(known)}.")
            kind = int if name in LIMITS else str
            if type(mapping[name]) is not kind:
                raise UserError(f"a ttl rule has {name}={mapping[name]!r}, which is not of type {kind.__name__}")
        return cls(**mapping)


LIMITS = ("partition_age_s", "creation_age_s", "modification_age_s", "max_partitions", "max_bytes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Expiry:
    """A partition whose time has come, by which rule and why; its size is that of the newest slices."""

    partition: str
    rule: str
    reason: str
    size_bytes: int = 0
    rows: int = 0
    files: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlPlan:
    """What one run deletes, oldest first, and the expired partitions that it leaves, with why.

    `untimed` counts partitions whose values name no time although their rule goes by it: these are kept.
    """

    expired: tuple[Expiry, ...] = ()
    kept: tuple[Expiry, ...] = ()
    untimed: int = 0

    @property
    def partitions(self) -> tuple[str, ...]:
        """The paths that are deleted."""
        return tuple(expiry.partition for expiry in self.expired)

    def to_json(self) -> str:
        """Return the plan as one line of JSON."""
        return json.dumps(asdict(self), ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlDue:
    """Whether partitions are to expire now, and the numbers that say so."""

    due: bool
    reason: str
    partitions: int = 0
    size_bytes: int = 0


@lru_cache(maxsize=1024)
def _compiled(pattern: str) -> tuple[Pattern, int]:
    """Return a pattern as an expression to be searched for, and the length of its literal prefix."""
    if pattern.startswith(REGEX_PREFIX):
        text = pattern.removeprefix(REGEX_PREFIX)
        return compile_pattern(text, "pattern"), len(_literal_prefix(text[1:])) if text.startswith("^") else 0
    glob = pattern.strip("/")
    body = "".join(_GLOB.get(letter, escaped(letter)) for letter in glob)
    return compile_pattern(f"^{body}(?:/|$)", "pattern"), len(re.split(r"[*?]", glob, maxsplit=1)[0])


def _literal_prefix(expression: str) -> str:
    if "|" in expression:
        # An alternative may begin with anything.
        return ""
    found = _PLAIN.match(expression)
    plain = found[0] if found else ""
    after = expression[len(plain) : len(plain) + 1]
    # A letter that may be missing is no part of every path.
    kept = plain[:-1] if after in ("*", "?", "{") else plain
    return re.sub(r"\\(.)", r"\1", kept)
