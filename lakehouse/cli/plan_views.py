"""How the plans of services are printed: one function per type of plan."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from functools import singledispatch
from typing import Any

from lakehouse.core.operations.commit.results import NothingToDo
from lakehouse.model.archive import ArchivePlan
from lakehouse.model.clean import CleanPlan
from lakehouse.model.clustering import ClusteringPlan
from lakehouse.model.compaction import CompactionPlan
from lakehouse.model.instant import Instant
from lakehouse.model.ttl import Expiry, TtlPlan
from lakehouse.spec.options.clustering import SORT_COLUMNS
from lakehouse.spec.services import ServiceSpec


@singledispatch
def plan_view(plan: Any) -> Any:
    """Return a plan as a mapping or as rows to print; the fields of a type of plan that has no view of its own."""
    return asdict(plan)


def empty_plan(spec: ServiceSpec, nothing: NothingToDo) -> Any:
    """Return what is printed if there is nothing to plan: no rows for plans of rewrites, else the reason."""
    if spec.holds_file_groups:
        return []
    name = "planned" if spec.action is not None else f"would {spec.name}"
    return {name: None if spec.action is not None else [], "reason": nothing.reason}


@plan_view.register
def _(plan: CompactionPlan) -> list[dict[str, Any]]:
    return [
        {
            "partition": operation.partition or "(root)",
            "file group": operation.file_id,
            "base file": operation.data_file,
            "log files": len(operation.log_files),
            **{name: round(value, 3) for name, value in operation.metrics.items()},
        }
        for operation in plan.operations
    ]


@plan_view.register
def _(plan: ClusteringPlan) -> list[dict[str, Any]]:
    return [
        {
            "partition": group.partition or "(root)",
            "file groups": len(group.slices),
            "log files": sum(len(piece.log_files) for piece in group.slices),
            "becomes": group.outputs,
            "read MB": group.metrics["TOTAL_IO_READ_MB"],
            "sorted by": plan.params.get(SORT_COLUMNS, ""),
            "such as": group.slices[0].file_id,
        }
        for group in plan.groups
    ]


@plan_view.register
def _(plan: CleanPlan) -> dict[str, Any]:
    partitions = [
        {
            "partition": partition or "(root)",
            "files": len(paths),
            "partition goes": partition in plan.partitions_to_delete,
            "such as": paths[-1].rpartition("/")[2],
        }
        for partition, paths in plan.files.items()
    ]
    earliest = None if plan.earliest is None else plan.earliest.requested
    head = {"policy": plan.policy, "earliest retained": earliest, "would remove": len(plan.paths)}
    return {**head, "partitions": partitions}


@plan_view.register
def _(plan: ArchivePlan) -> dict[str, Any]:
    return {"would archive": _instants(plan.instants), "stays": plan.kept}


@plan_view.register
def _(plan: TtlPlan) -> dict[str, Any]:
    return {
        "would expire": len(plan.expired),
        "bytes": sum(expiry.size_bytes for expiry in plan.expired),
        "without a time": plan.untimed,
        "partitions": [_expiry(expiry) for expiry in plan.expired],
        "kept": [_expiry(expiry) for expiry in plan.kept],
    }


def _instants(instants: Iterable[Instant]) -> list[dict[str, Any]]:
    return [{"requested": i.requested, "completed": i.completed, "action": str(i.action)} for i in instants]


def _expiry(expiry: Expiry) -> dict[str, Any]:
    return {
        "partition": expiry.partition,
        "rule": expiry.rule,
        "bytes": expiry.size_bytes,
        "rows": expiry.rows,
        "files": expiry.files,
        "why": expiry.reason,
    }
