"""Computes the rest of a clustering plan after writes changed some of its file groups. Pure functions.

before the tasks run     changed file groups are skipped, the others of the same task are still merged
after the tasks ran      tasks that read a changed file group are dropped: their files mix rows of all their inputs
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from lakehouse.core.state.file_system_view import Group
from lakehouse.model.clustering import ClusteringGroup, ClusteringPlan


def without_changed_slices(
    plan: ClusteringPlan, changed: Collection[Group], *, sorts: bool
) -> dict[int, ClusteringGroup]:
    """Return the planned groups without the changed file groups (partition, file id), by their position in the plan.

    If only one of several files remains, it is also skipped, unless it has logs or must be sorted (`sorts`).
    """
    groups = {}
    for number, group in enumerate(plan.groups):
        unchanged = tuple(one for one in group.slices if (one.partition, one.file_id) not in changed)
        is_alone = len(unchanged) == 1 < len(group.slices) and not unchanged[0].log_files
        if unchanged and (sorts or not is_alone):
            groups[number] = group if len(unchanged) == len(group.slices) else replace(group, slices=unchanged)
    return groups


def unchanged_tasks(plan: ClusteringPlan, changed: Collection[Group]) -> list[int]:
    """Return the positions of the planned groups that read no changed file group."""
    return [number for number, group in enumerate(plan.groups) if not _reads(group, changed)]


def _reads(group: ClusteringGroup, changed: Collection[Group]) -> bool:
    return any((one.partition, one.file_id) in changed for one in group.slices)
