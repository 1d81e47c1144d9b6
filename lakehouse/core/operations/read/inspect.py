"""Read details of a table for people: bars of its timeline, one decoded instant, and a page of its file groups."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from lakehouse.core.format.timeline.clean import decode_clean_plan
from lakehouse.core.format.timeline.clustering import decode_clustering_plan
from lakehouse.core.format.timeline.compaction import decode_compaction_plan
from lakehouse.core.metadata.key_changes import instant_ms
from lakehouse.core.operations.load.slices import load_slices
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.timeline_rows import services_of
from lakehouse.core.planning.conflict import CONFLICTS_KEY
from lakehouse.core.planning.event_time import decode_watermarks
from lakehouse.core.timeline.heartbeat import active_writes
from lakehouse.errors import UserError
from lakehouse.model.commit import CommitMetadata
from lakehouse.model.instant import WRITE_ACTIONS, Action, Instant, State, Timeline
from lakehouse.spec.contracts.document import encode
from lakehouse.spec.contracts.inspection import FileGroupInfo, InstantDetail, SizeBucket, TableFiles, TimelineBars
from lakehouse.spec.options.policies import Policies

_MOST = 100
_MB = 1_000_000
_BUCKETS = (1 * _MB, 4 * _MB, 16 * _MB, 32 * _MB, 64 * _MB, 128 * _MB, 256 * _MB, 512 * _MB)
#: Schemas are too long for people.
_LONGEST_EXTRA = 2000


def timeline_bars(
    table: LoadedTable, timeline: Timeline, policies: Policies, *, archived: bool = False
) -> TimelineBars:
    """Return the instants of a timeline, active or archived, as columns."""
    zone = table.config.timezone
    instants = tuple(timeline)
    pending = [instant for instant in instants if not instant.is_completed]
    alive = active_writes(table.env, policies.transaction) if pending else frozenset()
    return TimelineBars(
        table=table.config.name,
        now_ms=table.env.clock.now_ms(),
        instants=tuple(instant.requested for instant in instants),
        actions=tuple(str(instant.action) for instant in instants),
        services=tuple(map(str, services_of(table, instants, archived=archived))),
        states=tuple(instant.state.name.lower() for instant in instants),
        begin_ms=tuple(instant_ms(instant.requested, zone) for instant in instants),
        end_ms=tuple(instant_ms(i.completion, zone) if i.is_completed else None for i in instants),
        active=tuple(sorted(instant.requested for instant in pending if instant.requested in alive)),
    )


def instant_detail(table: LoadedTable, requested: str) -> InstantDetail:
    """Return an instant of the active timeline with its decoded plan or commit; raise UserError for an unknown one."""
    instant = next((candidate for candidate in table.timeline if candidate.requested == requested), None)
    if instant is None:
        raise UserError(
            f"{requested} is not on the active timeline of {table.config.name}; it may be archived: "
            "`lakehouse timeline show --archived` lists archived writes",
            instant=requested,
        )
    detail: dict[str, Any] = {
        "table": table.config.name,
        "instant": requested,
        "action": str(instant.action),
        "service": str(services_of(table, [instant])[0]),
        "state": instant.state.name.lower(),
        "completed": instant.completed,
        "plan": _plan(table, instant),
    }
    if instant.is_completed and instant.action in WRITE_ACTIONS:
        detail |= _commit(table, instant)
    return InstantDetail(**detail)


def table_files(table: LoadedTable, policies: Policies, partition: str | None, offset: int, limit: int) -> TableFiles:
    """Return a size histogram, and one page of a table's or partition's file groups in descending order of size."""
    slices = load_slices(table) if partition is None else load_slices(table, [partition])
    sizes, bases = slices.sizes, slices.base_sizes
    order = np.argsort(-sizes, kind="stable")[offset : offset + limit]
    shown = slices.take(order)
    partitions, ids, instants = (
        column.to_pylist() for column in (shown.partitions, shown.file_ids, shown.base_instants)
    )
    base_bytes, all_bytes, logs = shown.base_sizes.tolist(), shown.sizes.tolist(), shown.log_counts.tolist()
    return TableFiles(
        table=table.config.name,
        total=len(slices),
        offset=offset,
        target_bytes=policies.write.max_file_bytes,
        small_bytes=policies.write.small_file_bytes,
        groups=tuple(
            FileGroupInfo(
                partition=place,
                file_group=group,
                base_instant=begun,
                base_bytes=base,
                log_bytes=whole - base,
                log_files=count,
            )
            for place, group, begun, base, whole, count in zip(
                partitions, ids, instants, base_bytes, all_bytes, logs, strict=True
            )
        ),
        histogram=_histogram(bases[slices.has_base]),
    )


def _histogram(sizes: np.ndarray[Any, Any]) -> tuple[SizeBucket, ...]:
    places = np.searchsorted(np.asarray(_BUCKETS), sizes)
    counts = np.bincount(places, minlength=len(_BUCKETS) + 1)
    sums = np.bincount(places, weights=sizes, minlength=len(_BUCKETS) + 1)
    limits = (*_BUCKETS, None)
    return tuple(
        SizeBucket(up_to_bytes=limit, files=int(count), bytes=int(size))
        for limit, count, size in zip(limits, counts, sums, strict=True)
    )


def _commit(table: LoadedTable, instant: Instant) -> dict[str, Any]:
    metadata = table.store.commit(instant)
    stats, lost = metadata.stats, metadata.extra.get(CONFLICTS_KEY, "")
    partitions = sorted({stat.partition for stat in stats} | set(metadata.replaced))
    return {
        "operation": metadata.operation,
        "summary": metadata.summary,
        "numbers": {
            "inserts": sum(stat.num_inserts for stat in stats),
            "updates": sum(stat.num_updates for stat in stats),
            "deletes": sum(stat.num_deletes for stat in stats),
            "files": len(stats),
            "bytes": sum(stat.size_bytes for stat in stats),
            "replaced_file_groups": sum(map(len, metadata.replaced.values())),
            "partitions": len(partitions),
            "conflicts": int(lost) if lost.isdecimal() else 0,
        },
        "watermarks": _watermarks(metadata),
        "watermarks_before": _watermarks_before(table, instant),
        "partitions": tuple(partitions[:_MOST]),
        "files": tuple(
            {"path": stat.path, "bytes": stat.size_bytes, "rows": stat.num_writes, "before": stat.prev_commit}
            for stat in stats[:_MOST]
        ),
        "extra": {
            name: text for name, text in metadata.extra.items() if name != "schema" and len(text) <= _LONGEST_EXTRA
        },
    }


def _watermarks(metadata: CommitMetadata) -> dict[str, str]:
    return {source: at.isoformat(timespec="milliseconds") for source, at in decode_watermarks(metadata).items()}


def _watermarks_before(table: LoadedTable, instant: Instant) -> dict[str, str]:
    """Return the watermarks of the write that completed before an instant; empty if it is archived."""
    earlier = [write for write in table.timeline.writes() if write.completion < instant.completion]
    if not earlier:
        return {}
    return _watermarks(table.store.commit(max(earlier, key=lambda write: write.completion)))


def _plan(table: LoadedTable, instant: Instant) -> Mapping[str, Any]:
    """Return the decoded plan of a service; empty for an action without a plan."""
    root = table.env.storage.root
    decoders: dict[Action, Callable[[bytes], Any]] = {
        Action.COMPACTION: decode_compaction_plan,
        Action.LOGCOMPACTION: decode_compaction_plan,
        Action.CLUSTERING: decode_clustering_plan,
        Action.REPLACECOMMIT: decode_clustering_plan,
        Action.CLEAN: lambda data: decode_clean_plan(data, base_path=root),
    }
    decode = decoders.get(instant.action)
    data = table.store.read(instant, State.REQUESTED) if decode is not None else None
    plan = decode(data) if decode is not None and data else None
    return {} if plan is None else _shortened(encode(plan))


def _shortened(value: Any) -> Any:
    """Return a decoded plan with at most 100 entries of each list."""
    if isinstance(value, dict):
        return {name: _shortened(part) for name, part in list(value.items())[:_MOST]}
    return [_shortened(part) for part in value[:_MOST]] if isinstance(value, list) else value
