"""Options of the ttl service: the rule of the table, and the bounds of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from lakehouse.errors import SettingError, UserError, nearest
from lakehouse.model.ttl import TtlRule
from lakehouse.spec.options.option import option
from lakehouse.spec.quantities import LONGEST_DAYS, parse_duration, parse_size

TTL_STRATEGIES = ("KEEP_BY_TIME", "KEEP_BY_CREATION_TIME", "KEEP_BY_EVENT_TIME")
#: The id of the rule that the options of a table define. Rules of the policy log take precedence over it.
TABLE_RULE = "table"
_DAY_S = 86_400
_DAYS_LIMIT = dict(zip(TTL_STRATEGIES, ("modification_age_s", "creation_age_s", "partition_age_s"), strict=True))
_AGES = ("partition_age", "creation_age", "modification_age")


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlPolicy:
    """Limits after which a partition expires if no rule of the policy log applies to it.

    The first limit that is reached applies.
    """

    partition_age: str = option(
        "lakehouse.ttl.partition.age",
        "",
        "Age at which a partition expires, counted from the end of the time that its value names, such as 400d or 36h.",
    )
    creation_age: str = option(
        "lakehouse.ttl.creation.age", "", "Age at which a partition expires, counted from its first commit."
    )
    modification_age: str = option(
        "lakehouse.ttl.modification.age", "", "Age at which a partition expires, counted from its last commit of rows."
    )
    max_partitions: int = option(
        "lakehouse.ttl.max.partitions", 0, "Number of newest partitions to keep below each parent path; 0 = all."
    )
    max_bytes: str = option(
        "lakehouse.ttl.max.bytes",
        "",
        "Size up to which the newest partitions are kept, such as 5TB. The newest one is always kept.",
    )
    strategy: str = option(
        "hoodie.partition.ttl.management.strategy.type",
        "KEEP_BY_TIME",
        "Time from which hoodie.partition.ttl.strategy.days.retain counts: the last commit of rows, the first "
        "commit, or the "
        "time that the partition value names.",
        choices=TTL_STRATEGIES,
    )
    days_retain: int = option(
        "hoodie.partition.ttl.strategy.days.retain",
        0,
        "Number of days for which this strategy keeps a partition; 0 = forever.",
        most=LONGEST_DAYS,
    )
    partition_selected: str = option(
        "hoodie.partition.ttl.strategy.partition.selected",
        "",
        "Partitions that may expire, comma separated; default all.",
    )
    max_delete_partitions: int = option(
        "hoodie.partition.ttl.strategy.max.delete.partitions",
        1000,
        "Maximum number of partitions that one run deletes, the oldest first.",
    )
    partition_format: str = option(
        "hoodie.partition.ttl.strategy.event.time.format",
        "",
        "Pattern of the time in partition paths, such as yyyy/MM/dd or yyyyMMdd-HH. Default: the pattern of the "
        "TIMESTAMP key generator, else yyyy-MM-dd or yyyy/MM/dd.",
    )
    timezone: str = option(
        "lakehouse.ttl.timezone",
        "",
        "Time zone of the times in partition paths. Default: that of the key generator, else UTC.",
    )
    inline: bool = option(
        "hoodie.partition.ttl.inline", False, "Not supported within writers; run `lakehouse ttl run` as a separate job."
    )

    def __post_init__(self) -> None:
        """Raise UserError for an invalid duration or size, or if writers are configured to expire partitions."""
        if self.inline:
            raise SettingError(
                "option hoodie.partition.ttl.inline=true is not supported: writers do not expire partitions. Run "
                "`lakehouse ttl run` as a separate job",
                setting="hoodie.partition.ttl.inline",
            )
        if self.max_delete_partitions == 0:
            raise SettingError(
                "option hoodie.partition.ttl.strategy.max.delete.partitions=0 would expire no partition; to expire "
                "none, remove the limits",
                setting="hoodie.partition.ttl.strategy.max.delete.partitions",
            )
        self.rule()

    @property
    def selected(self) -> tuple[str, ...]:
        """The partitions that may expire; empty for all."""
        return tuple(path.strip().strip("/") for path in self.partition_selected.split(",") if path.strip())

    def rule(self) -> TtlRule | None:
        """Return the rule of the table, or None if no limit is set.

        Raises UserError for a value that does not parse.
        """
        limits = _limits(
            {name: getattr(self, name) for name in _AGES}, max_partitions=self.max_partitions, max_bytes=self.max_bytes
        )
        if self.days_retain:
            name, seconds = _DAYS_LIMIT[self.strategy], self.days_retain * _DAY_S
            # Two options can set the same limit. The stricter one is reached first.
            limits[name] = min(seconds, limits.get(name, seconds))
        if not limits:
            return None
        return TtlRule(id=TABLE_RULE, format=self.partition_format, timezone=self.timezone, **limits)


class TtlLimits(TypedDict, total=False):
    """The limits of a rule: ages such as 400d, a size such as 5TB, and how times in partition paths are parsed."""

    partition_age: str
    creation_age: str
    modification_age: str
    max_partitions: int
    max_bytes: str
    format: str
    timezone: str


def ttl_rule(pattern: str, *, rule_id: str | None = None, **limits: Unpack[TtlLimits]) -> TtlRule:
    """Return a rule for partitions that match `pattern`.

    If it has no limits, it keeps them. Its default id is `pattern`.

    Raises UserError for an unknown limit, and for a duration or size that does not parse.
    """
    limit_names = TtlLimits.__annotations__
    for name in limits:
        if name not in limit_names:
            raise UserError(
                f"unknown limit {name!r}.{nearest(name, limit_names)} Known limits: {', '.join(limit_names)}."
            )
    for name, value in (("pattern", pattern), ("rule_id", rule_id or "")):
        if not isinstance(value, str):
            raise UserError(f"{name}={value!r} of a ttl rule is of type {type(value).__name__}; give a string")
    parsed_limits = _limits(
        {name: str(limits.get(name, "")) for name in _AGES},
        max_partitions=limits.get("max_partitions", 0),
        max_bytes=limits.get("max_bytes", ""),
    )
    return TtlRule(
        id=rule_id or pattern,
        pattern=pattern,
        format=limits.get("format", ""),
        timezone=limits.get("timezone", ""),
        **parsed_limits,
    )


def _limits(ages: Mapping[str, str], *, max_partitions: int, max_bytes: str) -> dict[str, Any]:
    limits: dict[str, Any] = {f"{name}_s": parse_duration(name, text) for name, text in ages.items() if text}
    if max_partitions:
        limits["max_partitions"] = max_partitions
    if max_bytes:
        limits["max_bytes"] = parse_size("max_bytes", max_bytes)
    return limits
