"""Plan a change of the table version: the new properties, the new files of the timeline, and features that prevent it.

An upgrade from version 6 gives each completed action a completion time: the modification time of its file, as Hudi
takes it (V6-12.2). Two rules keep file slices right. No two actions get the same time. An action that was requested
before a compaction gets a time before the compaction was requested: version 6 plans no compaction over unfinished
writes (V6-5.4), and a copied table has modification times of the copy.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from lakehouse.core.layout.protocol import TableLayout
from lakehouse.core.layout.registry import is_newer, moves_timeline
from lakehouse.core.state.merge_config import (
    LEGACY_PAYLOAD_PROPERTY,
    PAYLOAD_PROPERTY,
    merge_properties,
    parse_merge_rule,
    payload_properties,
    payload_rule,
)
from lakehouse.core.state.table_config import INITIAL_VERSION, TableConfig, parse_table_config, write_refusal
from lakehouse.errors import LakehouseError, UnsupportedError
from lakehouse.model.index_type import INDEX_TYPE, stored_index_type
from lakehouse.model.instant import Action, Instant, shifted_instant
from lakehouse.model.merge import MergeMode, MergeRule

VERSION, LAYOUT_VERSION = "hoodie.table.version", "hoodie.timeline.layout.version"
#: Properties that a change replaces or removes.
_GENERATOR_TYPE, _GENERATOR_CLASS = "hoodie.table.keygenerator.type", "hoodie.table.keygenerator.class"
_MERGE = (
    PAYLOAD_PROPERTY,
    LEGACY_PAYLOAD_PROPERTY,
    "hoodie.compaction.record.merger.strategy",
    "hoodie.record.merge.mode",
    "hoodie.record.merge.strategy.id",
    "hoodie.table.partial.update.mode",
    "hoodie.table.ordering.fields",
    "hoodie.table.precombine.field",
)
_MERGE_PREFIX = "hoodie.record.merge.property."
_METADATA = (
    "hoodie.table.metadata.partitions",
    "hoodie.table.metadata.partitions.inflight",
    "hoodie.table.index.defs.path",
)
_FORMAT, _ARCHIVE = "hoodie.table.format", "hoodie.archivelog.folder"
_CONCURRENCY = "hoodie.write.concurrency.mode"
_OWN_CLASS = "org.apache.hudi.keygen."


@dataclass(frozen=True, slots=True, kw_only=True)
class NewProperties:
    """The properties of a table after a change of its version.

    Attributes:
        raw: All properties.
        warnings: Differences that the change makes and that do not prevent it, as sentences.
    """

    raw: Mapping[str, str]
    warnings: tuple[str, ...] = ()


def new_properties(config: TableConfig, target: TableLayout) -> NewProperties:
    """Return the properties of a table after the change to version `target`.

    Raises UnsupportedError for a feature that the version does not have; the message contains the way out.
    """
    source, raw = config.layout, dict(config.raw)
    _check_keys(config, target)
    merged, warnings = _merge_properties(config, target)
    replaced = [] if target.has_merge_properties else [key for key in raw if key.startswith(_MERGE_PREFIX)]
    for key in [*_MERGE, *_METADATA, *replaced]:
        raw.pop(key, None)
    raw |= merged | {VERSION: str(target.version), LAYOUT_VERSION: str(target.timeline_layout)}
    raw[_GENERATOR_TYPE] = config.keys.generator.value
    raw.setdefault(_ARCHIVE, "archived")
    if moves_timeline(source, target):
        raw |= {"hoodie.timeline.path": "timeline", "hoodie.timeline.history.path": "history"}
        raw[INITIAL_VERSION] = str(source.version)
    stored_meta_fields = {key: raw[key] for key in ("hoodie.populate.meta.fields",) if key in raw}
    raw.pop(_FORMAT, None)
    custom_class = raw.pop(_GENERATOR_CLASS, "")
    if custom_class and not custom_class.startswith(_OWN_CLASS):
        raw[_GENERATOR_CLASS] = custom_class
    raw = target.stored_properties(raw) | stored_meta_fields
    _check_result(config, raw, target)
    return NewProperties(raw=raw, warnings=warnings)


def _check_keys(config: TableConfig, target: TableLayout) -> None:
    """Raise UnsupportedError if writers of the new version would store other record keys for the same rows."""
    if config.keys.field_prefix is not None and config.layout.prefixes_single_key != target.prefixes_single_key:
        own, other = ("field:value", "value") if config.layout.prefixes_single_key else ("value", "field:value")
        raise UnsupportedError(
            f"the COMPLEX key generator with the single key column {config.keys.record_key_fields[0]} stores record "
            f"keys as `{own}` in version {config.version} and as `{other}` in version {target.version}, so an upsert "
            "would not find the stored rows. Choose a version without this difference (6 or 8), or write the rows "
            "to a new table"
        )


def _check_result(config: TableConfig, raw: Mapping[str, str], target: TableLayout) -> None:
    changed = parse_table_config(raw, config.name, allowed_functions=config.allowed_functions)
    problem = write_refusal(changed)
    if problem is not None and write_refusal(replace(config, metadata_partitions=())) is None:
        raise UnsupportedError(f"version {target.version} has no place for a feature of the table: {problem}")
    index = stored_index_type(config.raw)
    if index.stores_locations and not index.is_global and not target.stores_definitions:
        raise UnsupportedError(
            f"{INDEX_TYPE}={index.name} has one index for each partition of the table, which writers of version "
            f"{target.version} do not maintain. Change the index of the table first"
        )
    stored_mode = next((value for key, value in config.raw.items() if key.endswith(_CONCURRENCY)), "")
    if stored_mode.startswith("NON_BLOCKING") and not target.has_completion_times:
        raise UnsupportedError(
            f"{_CONCURRENCY}={stored_mode} needs completion times, which version {target.version} does not have: "
            "writers that append to the same file group would overwrite each other. Declare "
            "OPTIMISTIC_CONCURRENCY_CONTROL first"
        )


def _merge_properties(config: TableConfig, target: TableLayout) -> tuple[dict[str, str], tuple[str, ...]]:
    """Return the merge properties of the new version, and warnings. Raises UnsupportedError if it has none."""
    rule = _compared(parse_merge_rule(config.raw, config.layout))
    if rule.foreign:
        raise UnsupportedError(f"{rule.foreign} cannot be translated, because it is code that does not run here")
    payload = config.raw.get(PAYLOAD_PROPERTY, "") or config.raw.get(LEGACY_PAYLOAD_PROPERTY, "")
    candidates: list[Callable[[], dict[str, str]]] = [lambda: merge_properties(rule, target)]
    if payload and not rule.merger:
        candidates.insert(0, lambda: _by_payload(payload, rule, target))
    problem: LakehouseError | None = None
    for properties in candidates:
        try:
            merged = properties()
        except LakehouseError as error:
            problem = problem or error
            continue
        changed = _compared(parse_merge_rule(merged, target))
        if _same(changed, rule):
            exact = (changed.by_parts, changed.combines_whole) == (rule.by_parts, rule.combines_whole)
            return merged, () if exact else (
                f"rows are merged by the definition of {payload} in version {target.version}, which differs for "
                "several versions of a record in a batch",
            )
    cause = problem.message if problem is not None else f"its rule is {rule.mode} by {', '.join(rule.ordering)}"
    raise UnsupportedError(f"version {target.version} cannot declare how the table merges rows: {cause}")


def _by_payload(payload: str, rule: MergeRule, target: TableLayout) -> dict[str, str]:
    return payload_properties(payload, payload_rule(payload, rule.ordering, target), target)


def _compared(rule: MergeRule) -> MergeRule:
    """Return the rule with equal rules made equal: without ordering columns the commit time decides."""
    mode = MergeMode.COMMIT_TIME_ORDERING if not rule.ordering and rule.mode is not MergeMode.CUSTOM else rule.mode
    return replace(rule, mode=mode, merger_allowed=False)


def _same(rule: MergeRule, other: MergeRule) -> bool:
    """Return whether two rules give the same rows for single versions of a record."""
    first, second = (replace(side, by_parts=False, combines_whole=False) for side in (rule, other))
    if rule.by_parts != other.by_parts or not (rule.compared or other.compared):
        first, second = replace(first, ordering=()), replace(second, ordering=())
    return first == second


def completion_times(
    completed: Iterable[Instant], modified: Mapping[Instant, str], compactions: Iterable[str]
) -> dict[Instant, str]:
    """Return a completion time for each completed action of a timeline without completion times.

    Args:
        completed: The completed actions.
        modified: The modification time of each completed file, as an instant time.
        compactions: The requested times of completed compactions.
    """
    bounds = sorted(compactions, reverse=True)
    times: dict[Instant, str] = {}
    used: set[str] = set()
    bound, passed = "", 0
    for instant in sorted(completed, key=lambda i: (i.requested, i.action), reverse=True):
        while passed < len(bounds) and bounds[passed] > instant.requested:
            bound, passed = bounds[passed], passed + 1
        time, earliest = modified[instant], shifted_instant(instant.requested, 1)
        if bound and time >= bound:
            time = shifted_instant(bound, -1)
        while time in used and time > earliest:
            time = shifted_instant(time, -1)
        time = max(time, earliest)
        while time in used:
            time = shifted_instant(time, 1)
        used.add(time)
        times[instant] = time
    return times


def readers_lost(source: TableLayout, target: TableLayout) -> tuple[str, ...]:
    """Return the engines that read tables of version `source` but not of version `target`."""
    return tuple(reader for reader in source.readers if reader not in target.readers)


def needs_compaction(config: TableConfig, target: TableLayout) -> bool:
    """Return whether all log files have to be compacted before the change.

    A log file belongs to its slice by the instant in its name in version 6, and by its completion time later. Releases
    of Hudi compact for every downgrade.
    """
    return config.is_merge_on_read and (moves_timeline(config.layout, target) or is_newer(config.layout, target))


def is_compaction(instant: Instant, *, merge_on_read: bool) -> bool:
    """Return whether a completed instant is a compaction: the only commits of a merge-on-read table."""
    return merge_on_read and instant.action is Action.COMMIT
