"""The same operations on Spark 3.5, 4.0 and 4.1, each in child processes with the environment of its version.

The environments are those of the matrix (`make matrix ONLY='spark-*-python-3.11'`); a version without one is left out.
Children of the versions run in turn. A child starts Spark, warms up with one round, and measures the others. The ratio
compares the least CPU time of a version with that of Spark 4.1, because other programs on the machine change it least.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from tests.bench.measure import Comparison, Sample, Side, interleave
from tests.matrix.cells import CELLS, SPARKS
from tests.matrix.environments import environment_of

if TYPE_CHECKING:
    from tests.bench.setting import Setting

TARGET = 1.2
SHARE = 0.1
#: Children of each version.
TRIALS = 2
_MARK = "SAMPLES "


def run(setting: Setting) -> list[Comparison]:
    """Measure all versions that have an environment."""
    pythons = {
        cell.version: environment_of(cell) / "bin" / "python"
        for cell in CELLS
        if cell.part == "spark" and cell.python == "3.11"
    }
    versions = [version for version in SPARKS if pythons[version].exists()]
    if SPARKS[-1] not in versions or len(versions) == 1:
        raise SystemExit("build the environments first: make matrix ONLY='spark-*-python-3.11'")
    samples: dict[str, dict[str, list[Sample]]] = {version: {} for version in versions}
    setting.input()
    for trial in range(TRIALS):
        for version in versions:
            print(f"    trial {trial + 1}: Spark {version}", flush=True)
            for name, values in _child(pythons[version], setting, f"{version}-{trial}").items():
                samples[version].setdefault(name, []).extend(values)
                print(f"      {name}: cpu {', '.join(f'{sample.cpu_s:.2f}' for sample in values)} s", flush=True)
    return list(_compared(samples, SPARKS[-1]))


def _compared(samples: dict[str, dict[str, list[Sample]]], newest: str) -> Iterator[Comparison]:
    for version, of_version in samples.items():
        if version == newest:
            continue
        for name, values in of_version.items():
            others = samples[newest][name]
            ours_s, other_s = min(s.wall_s for s in values), min(s.wall_s for s in others)
            cpu_ratio = min(s.cpu_s for s in values) / min(s.cpu_s for s in others)
            yield Comparison(
                what=f"{name}, Spark {version}",
                other=f"Spark {newest}",
                ours_s=ours_s,
                other_s=other_s,
                ratio=ours_s / other_s,
                spread=(ours_s / other_s, ours_s / other_s),
                cpu_ratio=cpu_ratio,
                target=TARGET,
            )


def _child(python: Path, setting: Setting, place: str) -> dict[str, list[Sample]]:
    words = [str(setting.home), place, str(setting.rows), str(setting.rounds)]
    environ = {name: text for name, text in os.environ.items() if name not in ("SPARK_HOME", "VIRTUAL_ENV")}
    environ |= {"PYTHONPATH": os.getcwd(), "PATH": os.pathsep.join([str(python.parent), os.environ["PATH"]])}
    done = subprocess.run(
        [str(python), "-m", "tests.bench.spark_versions", *words],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"{place}: {done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    (line,) = [line for line in done.stdout.splitlines() if line.startswith(_MARK)]
    return {
        name: [Sample(**sample) for sample in values] for name, values in json.loads(line.removeprefix(_MARK)).items()
    }


def measure(setting: Setting, place: str) -> dict[str, list[Sample]]:
    """Measure the operations in this process, each after the state that it needs."""
    # Only a child has Spark.
    from lakehouse.core.operations.commit.results import Committed
    from tests.bench.merge_on_read import update_set
    from tests.bench.setting import create, read, spark

    samples: dict[str, list[Sample]] = {}

    def take(name: str, run: Callable[[], object], number: int) -> None:
        (sample,) = interleave([Side(name=name, run=lambda _: run())], rounds=1, warmup=0)[name]
        if number:
            samples.setdefault(name, []).append(sample)

    def committed(outcome: object) -> None:
        assert isinstance(outcome, Committed), outcome

    sort = {"hoodie.clustering.plan.strategy.sort.columns": "rider_id"}
    for number in range(setting.rounds + 1):
        cow = create(setting.fresh(f"{place}-cow"), options=sort)
        mor = create(setting.fresh(f"{place}-mor"), merge_on_read=True)
        batch = update_set(setting, SHARE, number)
        take("bulk_insert", lambda cow=cow: cow.bulk_insert(read(setting.input())), number)
        mor.bulk_insert(read(setting.input()))
        take("upsert of 10%, copy-on-write", lambda cow=cow, batch=batch: cow.upsert(read(batch)), number)
        take("upsert of 10%, merge-on-read", lambda mor=mor, batch=batch: mor.upsert(read(batch)), number)
        for name, table in (("copy-on-write", cow), ("merge-on-read", mor)):
            scan = table.scan().to_spark(spark()).groupBy("zone").sum("fare")
            take(f"scan, {name}", scan.collect, number)
        take(
            "compaction",
            lambda mor=mor: committed(mor.services.compaction.run(force=True, spark=spark())),
            number,
        )
        take(
            "clustering",
            lambda cow=cow: committed(cow.services.clustering.run(force=True, spark=spark())),
            number,
        )
        assert cow.scan().count() == mor.scan().count() == setting.rows
    spark().stop()
    return samples


def main(words: list[str]) -> None:
    """Measure in this process and print the samples as JSON."""
    from tests.bench.setting import Setting

    home, place, rows, rounds = words
    setting = Setting(home=Path(home), rows=int(rows), rounds=int(rounds))
    samples = measure(setting, place)
    print(_MARK + json.dumps({name: [asdict(sample) for sample in values] for name, values in samples.items()}))


if __name__ == "__main__":
    main(sys.argv[1:])
