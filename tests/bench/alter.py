"""Rename, retype and drop of a column of a table with 200,000 files: one commit, and no file with rows is opened.

`--rows` below 400,000 makes a smaller table, as in the section `scale`. Each change is measured in a table that was
opened for it, so the timeline and the metadata table are read from storage, and again in a table that is open.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from lakehouse.core.env import Env
from lakehouse.core.storage.counting import VERBS
from lakehouse.core.table.alter import AlterBuilder
from lakehouse.core.table.table import Table
from tests.bench.measure import Comparison, cpu_seconds, show_lines
from tests.bench.scale import WITH, WITHOUT, CommitRequests, scaled_table
from tests.bench.scale_table import ROWS, Size
from tests.bench.setting import Setting

TARGET_S = 1.0


def run(setting: Setting) -> list[Comparison]:
    """Print the times and requests of each change, the minimum of all rounds."""
    size = Size(partitions=max(min(setting.rows // (20 * ROWS), 10_000), 20))
    lines = [
        ("change", "metadata table", "table", "wall s", "CPU s", *VERBS, "files with rows", "commits", "target s", "")
    ]
    for side in (WITH, WITHOUT):
        place = scaled_table(setting, side, size)
        for is_new in (True, False):
            best: dict[str, tuple[float, ...]] = {}
            for _ in range(setting.rounds):
                for what, taken in _round(place, is_new=is_new).items():
                    best[what] = tuple(map(min, best.get(what, taken), taken))
            for what, (wall, cpu, *counts) in best.items():
                misses = [f"time > {TARGET_S:.0f}"] if wall > TARGET_S else []
                misses += ["opened a file with rows"] if counts[-2] else []
                misses += ["not one commit"] if counts[-1] != 1 else []
                first = (what, "yes" if side == WITH else "no", "opened for it" if is_new else "open")
                numbers = [str(int(count)) for count in counts]
                verdict = f"MISSED: {', '.join(misses)}" if misses else ""
                lines.append((*first, f"{wall:.3f}", f"{cpu:.3f}", *numbers, f"<= {TARGET_S:.0f}", verdict))
    show_lines(lines)
    return []


def _round(place: str, *, is_new: bool) -> dict[str, tuple[float, ...]]:
    """Return times, requests, opened files with rows, and commits of each change; the columns are as before then."""
    storage = CommitRequests(place)
    table = Table.open(place, env=Env(storage=storage))
    table.alter().add_column("extra", "int").execute()
    changes: dict[str, Callable[[Table], AlterBuilder]] = {
        "rename": lambda table: table.alter().rename_column("v", "renamed"),
        "rename back": lambda table: table.alter().rename_column("renamed", "v"),
        "retype": lambda table: table.alter().change_type("extra", "bigint"),
        "drop": lambda table: table.alter().drop_column("extra"),
    }
    results = {}
    for what, change in changes.items():
        before = len(table.timeline)
        storage.reset()
        storage.row_files = 0
        cpu, wall = cpu_seconds(), time.perf_counter()
        if is_new:
            table = Table.open(place, env=Env(storage=storage))
        change(table).execute()
        taken = (time.perf_counter() - wall, cpu_seconds() - cpu)
        counts = storage.counts()
        row_files = storage.row_files
        commits = len(table.timeline) - before
        results[what] = (*taken, *(counts[verb] for verb in VERBS), row_files, commits)
    return results
