"""The cost of fsync of data, directories and commits on a local disk: the same writes with and without fsync, in turn.

The default of fsync depends on this cost: it must be less than a tenth.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator

import numpy as np

from lakehouse.core.env import Env
from lakehouse.core.storage.local import LocalStorage
from lakehouse.core.table.table import Table
from tests.bench.data import orders
from tests.bench.measure import Comparison, show_lines
from tests.bench.setting import Setting

TARGET = 1.1
_COMMITS = 10
_KINDS = ("COPY_ON_WRITE", "MERGE_ON_READ")


def run(setting: Setting) -> list[Comparison]:
    """Measure a bulk insert, an upsert of a tenth of the rows, and commits of one row."""
    seconds: dict[tuple[str, bool], list[float]] = {}
    for number in range(setting.rounds + 1):
        for fsync in (True, False) if number % 2 else (False, True):
            for what, took in _measured(setting, fsync):
                if number:
                    seconds.setdefault((what, fsync), []).append(took)
    lines = [("write", "plain s", "fsync s", "ratio", "target")]
    for what in dict.fromkeys(name for name, _ in seconds):
        plain, synced = (statistics.median(seconds[(what, fsync)]) for fsync in (False, True))
        ratio = synced / plain
        target = f"<= {TARGET}" + ("" if ratio <= TARGET else "  MISSED")
        lines.append((what, f"{plain:.3f}", f"{synced:.3f}", f"{ratio:.2f}", target))
    show_lines(lines)
    return []


def _measured(setting: Setting, fsync: bool) -> Iterator[tuple[str, float]]:
    rows = orders(np.arange(setting.rows))
    for kind in _KINDS:
        storage = LocalStorage(setting.fresh(f"fsync-{kind}-{fsync}"), fsync=fsync)
        table = Table.create(storage.root, name="t", record_key=["order_id"], table_type=kind, env=Env(storage=storage))
        name = kind.lower().replace("_", "-")
        yield f"load, {name}", _seconds(lambda table=table: table.bulk_insert(rows))
        tenth = rows.slice(0, rows.num_rows // 10)
        yield f"upsert of a tenth, {name}", _seconds(lambda table=table, tenth=tenth: table.upsert(tenth))

    def commits() -> None:
        for number in range(_COMMITS):
            table.upsert(rows.slice(number, 1))

    yield f"{_COMMITS} commits of one row, {name}", _seconds(commits)


def _seconds(work: Callable[[], object]) -> float:
    started = time.perf_counter()
    work()
    return time.perf_counter() - started
