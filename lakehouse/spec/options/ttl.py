"""Options of the ttl service: the table's own rule, and bounds of a run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict, Unpack

from lakehouse.errors import SettingError, UserError, nearest
from lakehouse.model.ttl import TtlRule
from lakehouse.spec.options.option import option
from lakehouse.spec.quantities import parse_duration, parse_size

TTL_STRATEGIES = ("KEEP_BY_TIME", "KEEP_BY_CREATION_TIME", "KEEP_BY_EVENT_TIME")
#: The id of the rule that a table's options make; rules of the policy log go before it.
TABLE_RULE = "table"
_DAY_S = 86_400
_DAYS_LIMIT = dict(zip(TTL_STRATEGIES, ("modification_age_s", "creation_age_s", "partition_age_s"), strict=True))
_AGES = ("partition_age", "creation_age", "modification_age")


@dataclass(frozen=True, slots=True, kw_only=True)
class TtlPolicy:
    """Which partitions expire where no rule of the policy log says otherwise; whatever limit is met first counts."""

    partition_age: str = option(
        "lakehouse.ttl.partition.age",
        "",
        "Age at which a partition expires, from the end of the time that its value names: 400d, 36h.",
    )
    creation_age: str = option(
        "lakehouse.ttl.creation.age", "", "Age at which a partition expires, from the first commit to it."
    )
    modification_age: str = option(
        "lakehouse.ttl.modification.age", "", "Age at which a partition expires, from the last commit of rows to it."
    )
    max_partitions: int = option(
        "lakehouse.ttl.max.partitions", 0, "Newest partitions that are kept beside each parent; 0 = all."
    )
    max_bytes: str = option(
        "lakehouse.ttl.max.bytes", "", "The newest partitions up to this size are kept, such as 5TB, the newest always."
    )
    strategy: str = option(
        "hoodie.partition.ttl.management.strategy.type",
        "KEEP_BY_TIME",
        "What the days of hoodie.partition.ttl.strategy.days.retain count from: the last commit of rows, the first "
        "commit, or the time that the value names.",
        choices=TTL_STRATEGIES,
    )
    days_retain: int = option(
        "hoodie.partition.ttl.strategy.days.retain", 0, "Days that a partition is kept by that strategy; 0 = for ever."
    )
    partition_selected: str = option(
        "hoodie.partition.ttl.strategy.partition.selected",
        "",
        "Partitions that may expire, comma separated; default all.",
    )
    max_delete_partitions: int = option(
        "hoodie.partition.ttl.strategy.max.delete.partitions",
        1000,
        "Partitions that one run deletes, the oldest first.",
    )
    partition_format: str = option(
        "hoodie.partition.ttl.strategy.event.time.format",
        "",
        "Pattern of the time in partition paths, such as yyyy/MM/dd or yyyyMMdd-HH; default that of the TIMESTAMP key "
        "generator, else yyyy-MM-dd or yyyy/MM/dd.",
    )
    timezone: str = option(
        "lakehouse.ttl.timezone", "", "Time zone of those times; default that of the key generator, else UTC."
    )
    inline: bool = option(
        "hoodie.partition.ttl.inline", False, "Not within writers: `lakehouse ttl run` is a job of its own."
    )

    def __post_init__(self) -> None:
        """Raise UserError for a value that is no duration or size, and for expiry within writers."""
        if self.inline:
            raise SettingError(
                "option hoodie.partition.ttl.inline=true is not done here: writers expire nothing. Run `lakehouse ttl "
                "run` as a job of its own",
                setting="hoodie.partition.ttl.inline",
            )
        if self.max_delete_partitions == 0:
            raise SettingError(
                "option hoodie.partition.ttl.strategy.max.delete.partitions=0 lets nothing expire; leave the limits "
                "out",
                setting="hoodie.partition.ttl.strategy.max.delete.partitions",
            )
        self.rule()

    @property
    def selected(self) -> tuple[str, ...]:
        """The partitions that may expire, empty for all."""
        return tuple(path.strip().strip("/") for path in self.partition_selected.split(",") if path.strip())

    def rule(self) -> TtlRule | None:
        """Return the table's own rule, None if it has no limit. Raises UserError for what does not parse."""
        limits = _limits(
            {name: getattr(self, name) for name in _AGES}, max_partitions=self.max_partitions, max_bytes=self.max_bytes
        )
        if self.days_retain:
            name, seconds = _DAYS_LIMIT[self.strategy], self.days_retain * _DAY_S
            # Two ways to say the same limit: the stricter one is met first.
            limits[name] = min(seconds, limits.get(name, seconds))
        if not limits:
            return None
        return TtlRule(id=TABLE_RULE, format=self.partition_format, timezone=self.timezone, **limits)


class TtlLimits(TypedDict, total=False):
    """What a rule may say beside its pattern: ages as 400d, a size as 5TB, and how values of partitions are read."""

    partition_age: str
    creation_age: str
    modification_age: str
    max_partitions: int
    max_bytes: str
    format: str
    timezone: str


def ttl_rule(pattern: str, *, rule_id: str | None = None, **limits: Unpack[TtlLimits]) -> TtlRule:
    """Return a rule for the partitions that `pattern` finds; without limits it keeps them. Its id is the pattern.

    Raises UserError for an unknown limit, and for a duration or size that does not parse.
    """
    known = TtlLimits.__annotations__
    for name in limits:
        if name not in known:
            raise UserError(f"unknown limit {name!r}.{nearest(name, known)} A ttl rule takes {', '.join(known)}.")
    found = _limits(
        {name: str(limits.get(name, "")) for name in _AGES},
        max_partitions=limits.get("max_partitions", 0),
        max_bytes=limits.get("max_bytes", ""),
    )
    return TtlRule(
        id=rule_id or pattern,
        pattern=pattern,
        format=limits.get("format", ""),
        timezone=limits.get("timezone", ""),
        **found,
    )


def _limits(ages: Mapping[str, str], *, max_partitions: int, max_bytes: str) -> dict[str, Any]:
    limits: dict[str, Any] = {f"{name}_s": parse_duration(name, text) for name, text in ages.items() if text}
    if max_partitions:
        limits["max_partitions"] = max_partitions
    if max_bytes:
        limits["max_bytes"] = parse_size("max_bytes", max_bytes)
    return limits
