"""Planning, look-ups and commits of a table of 10,000 partitions with 20 files each, with and without metadata table.

`--rows` below 400,000 makes a smaller table: a partition has 40 rows. Plans are measured in a process of their own, so
that the first plan reads everything from storage and the peak memory is that of planning.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Mapping
from operator import itemgetter

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.env import Env
from lakehouse.core.operations.commit.results import Committed
from lakehouse.core.storage.counting import VERBS, CountingStorage
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.storage.protocol import InputFile, OutputFile
from lakehouse.core.table.table import Table
from tests.bench.measure import Comparison, Side, compare, interleave, show_lines
from tests.bench.scale_table import ROWS, STEP, Size, make_table, partition_name, record_keys
from tests.bench.setting import Setting, spark

WITH, WITHOUT = "with metadata table", "without"
_OPTIONS = {WITH: "true", WITHOUT: "false"}
_MEMORY_MB = 300
_REQUESTS = 12
_INDEXED_PARTITIONS = 100
_KEY_S, _KEY_REQUESTS = 0.2, 4
_SMALL_OVERHEAD, _LARGE_OVERHEAD = 1.3, 1.1
_LARGE_FILES = 1_000
_IN_PROCESS = {"hoodie.write.lock.provider": "InProcessLockProvider"}
#: File groups of the metadata table that each commit touches: one of files, two of columns, one of partitions.
_METADATA_GROUPS = 4
_TRIES = 3
_STAGED = ".hoodie/.staging/"


def run(setting: Setting) -> list[Comparison]:
    """Print times, requests and memory of plans, then requests of commits; compare commits with and without."""
    size = Size(partitions=max(min(setting.rows // (20 * ROWS), 10_000), 20))
    places = {side: scaled_table(setting, side, size) for side in (WITHOUT, WITH)}
    show_lines(_plan_lines(setting, places, size))
    show_lines(_key_lines(setting))
    show_lines(_commit_lines(places))
    return [_overhead(setting, places, 1), _overhead(setting, places, min(_LARGE_FILES, size.partitions))]


def scaled_table(setting: Setting, side: str, size: Size) -> str:
    """Return the location of a table, which is made unless an earlier run with the same --home left it."""
    name = f"scale-{size.partitions}-{'with' if side == WITH else 'without'}"
    done = setting.home / f"{name}.done"
    if not done.exists():
        location = setting.fresh(name)
        make_table(location, size, {"hoodie.metadata.enable": _OPTIONS[side]})
        done.touch()
    return str(setting.home / name)


def _conditions(size: Size) -> Mapping[str, tuple[str | None, float, float | None]]:
    """Return the name of each plan: its condition, and the seconds allowed with and without metadata table."""
    middle = size.partitions * size.files // 2
    return {
        "plan of the table": (None, 1.0, None),
        "plan of one partition": (f"p = '{partition_name(size.partitions // 2)}'", 0.05, 0.3),
        "plan of a range": (f"v >= {STEP * middle} AND v < {STEP * (middle + 20)}", 0.3, None),
        "plan of a record key": (f"id = '{record_keys(middle)[0]}'", 0.2, None),
    }


def _plan_lines(setting: Setting, places: Mapping[str, str], size: Size) -> list[tuple[str, ...]]:
    lines = [
        ("what", "metadata table", "files", "LIST", "GET", "first s", "again s", "cpu s", "target s", "peak MB", "")
    ]
    for what, (where, *targets) in _conditions(size).items():
        for side, target in zip((WITH, WITHOUT), targets, strict=True):
            found = _measured(places[side], where, setting.rounds)
            took, memory = found["again_s"], found["peak_mb"]
            misses = [f"time > {target}"] if target is not None and took > target else []
            misses += [f"memory > {_MEMORY_MB}"] if side == WITH and memory > _MEMORY_MB else []
            misses += ["LIST of data directories"] if side == WITH and found["data_lists"] else []
            lines.append(
                (
                    what,
                    "yes" if side == WITH else "no",
                    f"{found['files']:,}",
                    str(found["LIST"]),
                    str(found["GET"]),
                    f"{found['first_s']:.3f}",
                    f"{took:.3f}",
                    f"{found['cpu_s']:.3f}",
                    "" if target is None else f"<= {target}",
                    f"{memory:.0f}",
                    f"MISSED: {', '.join(misses)}" if misses else "",
                )
            )
        if where is None:
            lines.append(
                ("  Spark lists the files", "no", "", "", "", f"{_spark_lists(places[WITHOUT]):.3f}", *[""] * 5)
            )
    return lines


def _key_lines(setting: Setting) -> list[tuple[str, ...]]:
    """Return the plan of a record key by the record index, on a table of a tenth of the rows in 100 partitions."""
    rows = max(setting.rows // 10, _INDEXED_PARTITIONS)
    name = f"scale-keys-{rows}"
    done = setting.home / f"{name}.done"
    if not done.exists():
        options = {"hoodie.metadata.global.record.level.index.enable": "true"}
        table = Table.create(
            setting.fresh(name), name="keys", record_key="id", partition_by="p", ordering="ts", options=options
        )
        numbers = pa.array(range(rows), pa.int64())
        partitions = pa.array([partition_name(number % _INDEXED_PARTITIONS) for number in range(rows)])
        keys = pc.binary_join_element_wise("k", numbers.cast(pa.string()), "")
        table.bulk_insert(pa.table({"id": keys, "p": partitions, "v": numbers, "ts": numbers}))
        done.touch()
    found = _measured(str(setting.home / name), f"id = 'k{rows // 2}'", setting.rounds)
    requests = int(sum(found[verb] for verb in VERBS))
    misses = [f"time > {_KEY_S}"] if found["again_s"] > _KEY_S else []
    misses += [f"requests > {_KEY_REQUESTS}"] if requests > _KEY_REQUESTS else []
    header = ("what", "rows", "files", "requests", "first s", "again s", "cpu s", "target s", "")
    times = (f"{found['first_s']:.3f}", f"{found['again_s']:.3f}", f"{found['cpu_s']:.3f}", f"<= {_KEY_S}")
    verdict = f"MISSED: {', '.join(misses)}" if misses else ""
    return [
        header,
        ("plan of a record key, record index", f"{rows:,}", f"{found['files']}", str(requests), *times, verdict),
    ]


def _measured(location: str, where: str | None, rounds: int) -> dict[str, float]:
    """Return what `scale_plan` prints about the plans of one process."""
    arguments = [
        sys.executable,
        "-m",
        "tests.bench.without_pandas",
        "tests.bench.scale_plan",
        location,
        json.dumps(where),
        str(rounds),
    ]
    done = subprocess.run(arguments, check=True, capture_output=True, text=True)
    found: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return found


def _spark_lists(location: str) -> float:
    """Return the seconds in which Spark finds the files of the table."""
    session = spark()
    (sample,) = interleave(
        [Side(name="Spark", run=lambda _: session.read.parquet(f"{location}/part-*").inputFiles())], 1, warmup=0
    )["Spark"]
    return sample.wall_s


class CommitRequests(CountingStorage):
    """Counts requests, and apart from them the files with rows that are read, or that tasks exchange."""

    def __init__(self, location: str) -> None:
        super().__init__(open_storage(location))
        self.row_files = 0

    def open_input(self, path: str) -> InputFile:
        """Count a file with rows apart."""
        return self.inner.open_input(path) if self._has_rows(path) else super().open_input(path)

    def open_output(self, path: str) -> OutputFile:
        """Count a file of exchanged rows apart."""
        is_staged = path.startswith(_STAGED) and self._has_rows(path)
        return self.inner.open_output(path) if is_staged else super().open_output(path)

    def delete_many(self, paths: Iterable[str]) -> int:
        """Count the deletion of exchanged rows apart."""
        asked = [*paths]
        is_staged = all(path.startswith(_STAGED) for path in asked)
        return self.inner.delete_many(asked) if is_staged else super().delete_many(asked)

    def _has_rows(self, path: str) -> bool:
        has_rows = path.startswith(_STAGED) or not path.startswith(".hoodie/")
        self.row_files += has_rows
        return has_rows


def _commit_lines(places: Mapping[str, str]) -> list[tuple[str, ...]]:
    """Return the requests of commits of a process that knows the table; the lock of the process needs none.

    Of several commits the one with the fewest requests counts, in which no service of the metadata table was due.
    """
    lines = [("what", "metadata table", "file groups", *VERBS, "beside LIST", "target", "files with rows", "")]
    for side in (WITH, WITHOUT):
        storage = CommitRequests(places[side])
        table = Table.open(places[side], env=Env(storage=storage), options=_IN_PROCESS)
        table.bulk_insert(_rows(20, f"first-{side}"))
        for what, partitions in (("bulk_insert of 1 file", 1), ("bulk_insert of 20 files", 20), ("upsert of 1 row", 1)):
            found = []
            for number in range(_TRIES):
                rows = _rows(partitions, what if "upsert" in what else f"{what}-{number}")
                storage.reset()
                storage.row_files = 0
                outcome = table.upsert(rows) if "upsert" in what else table.bulk_insert(rows)
                counts, groups = storage.counts(), _groups(outcome) + (_METADATA_GROUPS if side == WITH else 0)
                beside = sum(counts.values()) - counts["LIST"]
                found.append((beside, groups, counts, storage.listed_data(), storage.row_files))
            others, groups, counts, _, row_files = min(found, key=itemgetter(0))
            listed = [path for one in found for path in one[3]]
            allowed = _REQUESTS + groups
            misses = [f"> {allowed}"] if others > allowed else []
            misses += [f"LIST of {path!r}" for path in sorted(set(listed))]
            verdict = f"MISSED: {', '.join(misses[:3])}" if misses and side == WITH else ""
            target = f"<= {allowed}" if side == WITH else ""
            numbers = (str(groups), *(str(counts[verb]) for verb in VERBS), str(others), target, str(row_files))
            lines.append((what, "yes" if side == WITH else "no", *numbers, verdict))
    return lines


def _overhead(setting: Setting, places: Mapping[str, str], files: int) -> Comparison:
    """Compare a commit of new files with and without metadata table."""
    tables = {side: Table.open(place) for side, place in places.items()}

    def commit(side: str, number: int) -> None:
        tables[side].bulk_insert(_rows(files, f"overhead-{files}-{number}"))

    sides = [Side(name=side, run=lambda number, side=side: commit(side, number)) for side in places]  # type: ignore[misc]
    samples = interleave(sides, max(setting.rounds, 5) if files == 1 else setting.rounds)
    target = _SMALL_OVERHEAD if files == 1 else _LARGE_OVERHEAD
    return compare(f"commit of {files:,} files, with metadata table", samples, WITH, WITHOUT, target)


def _rows(partitions: int, name: str) -> pa.Table:
    numbers = range(partitions)
    return pa.table(
        {
            "id": [f"{name}-{number}" for number in numbers],
            "p": [partition_name(number) for number in numbers],
            "v": pa.array([-1] * partitions, pa.int64()),
            "ts": pa.array(numbers, pa.int64()),
        }
    )


def _groups(outcome: object) -> int:
    assert isinstance(outcome, Committed)
    return len(outcome.metadata.stats)
