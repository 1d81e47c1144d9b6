"""Copy-on-write upsert and bulk_insert against Apache Hudi on a warm Spark session, in Hudi's best configurations."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.bench.data import KEY, changes
from tests.bench.measure import Comparison, Side, compare, interleave
from tests.bench.setting import CORES, Setting, create, read
from tests.bench.upsert import change_set, loaded

ROOT = Path(__file__).parents[2]
TARGET = 1 / 3
SHARES = (0.01, 0.1)
_BUCKETS = {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"}
VARIANTS: dict[str, dict[str, str]] = {
    "Hudi, simple index": {"hoodie.index.type": "SIMPLE", "hoodie.metadata.enable": "false"},
    "Hudi, simple index, metadata table": {"hoodie.index.type": "SIMPLE", "hoodie.metadata.enable": "true"},
    "Hudi, bucket index": {**_BUCKETS, "hoodie.metadata.enable": "false"},
}


def run(setting: Setting) -> list[Comparison]:
    """Measure the variants of Hudi against our simple index, and the bucket index against our bucket index."""
    hudi = start()
    if hudi is None:
        return []
    with hudi:
        comparisons = _load(setting, hudi)
        for share in SHARES:
            comparisons += _upsert(setting, hudi, share)
    return comparisons


def start(folder: str = "") -> Hudi | None:
    """Return a process that runs Apache Hudi; print a message and return None if Hudi is not installed.

    `folder` has more jars of the session; it is named as the target of `make` that fetches them.
    """
    jars = sorted((ROOT / ".jars").glob("hudi-spark3.5-bundle*.jar"))[-1:]
    more = sorted((ROOT / ".jars" / folder).glob("*.jar")) if folder else []
    python = ROOT / ".venv-hudi/bin/python"
    if jars and python.exists() and (more or not folder):
        return Hudi(python, [*jars, *more])
    print(f"  skipped: Apache Hudi is not installed; run `make {folder or 'hudi'}` to install it")
    return None


class Hudi:
    """The process that runs Apache Hudi; it stays warm for the whole benchmark."""

    def __init__(self, python: Path, jars: Sequence[Path]) -> None:
        environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "SPARK_HOME")}
        environment |= {"PYSPARK_PYTHON": str(python), "PYSPARK_DRIVER_PYTHON": str(python)}
        self._process = subprocess.Popen(
            [str(python), str(Path(__file__).with_name("hudi_side.py")), ",".join(map(str, jars)), str(CORES)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env=environment,
        )

    def __enter__(self) -> Hudi:
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        self._process.wait(timeout=60)

    def request(self, operation: str, path: str, source: str = "", **options: str) -> dict[str, Any]:
        """Send one request and return the answer; `options` override the common options."""
        assert self._process.stdin is not None and self._process.stdout is not None
        request = {"operation": operation, "path": path, "source": source, "options": options}
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        for line in self._process.stdout:
            if line.startswith('{"answer"'):
                answer: dict[str, Any] = json.loads(line)["answer"]
                return answer
        raise RuntimeError(f"Apache Hudi stopped at {operation} of {path}")


def _load(setting: Setting, hudi: Hudi) -> list[Comparison]:
    options = VARIANTS["Hudi, simple index"]
    samples = interleave(
        [
            Side(
                name="bulk_insert",
                run=lambda _: create(setting.fresh("bulk-ours")).bulk_insert(read(setting.input())),
            ),
            Side(
                name="Hudi",
                run=lambda _: hudi.request("bulk_insert", setting.fresh("bulk-hudi"), setting.input(), **options),
            ),
        ],
        setting.rounds,
    )
    return [compare("bulk_insert, 20 partitions", samples, "bulk_insert", "Hudi", TARGET)]


def _upsert(setting: Setting, hudi: Hudi, share: float) -> list[Comparison]:
    tables = {
        "simple index": loaded(setting, "hudi-ours-simple"),
        "bucket index": loaded(setting, "hudi-ours-bucket", _BUCKETS),
    }
    sides = [
        Side(
            name=name,
            before=lambda number: change_set(setting, share, number),
            run=lambda number, table=table: table.upsert(read(change_set(setting, share, number))),
        )
        for name, table in tables.items()
    ]
    paths = {}
    for number, (name, options) in enumerate(VARIANTS.items()):
        paths[name] = setting.fresh(f"hudi-{number}")
        hudi.request("bulk_insert", paths[name], setting.input(), **options)
        sides.append(
            Side(
                name=name,
                run=lambda n, path=paths[name], options=options: hudi.request(
                    "upsert", path, change_set(setting, share, n), **options
                ),
            )
        )
    samples = interleave(sides, setting.rounds)
    applied = sum(len(changes(setting.rows, share, n + 1)) for n in range(setting.rounds + 1))
    counts = {name: table.scan(columns=[KEY]).count() for name, table in tables.items()}
    counts |= {name: hudi.request("count", path)["rows"] for name, path in paths.items()}
    assert len(set(counts.values())) == 1 and applied, counts
    what = f"upsert of {share:.0%}"
    pairs = [("simple index", name) for name in VARIANTS] + [("bucket index", "Hudi, bucket index")]
    return [compare(f"{what}, {ours}", samples, ours, other, TARGET) for ours, other in pairs]
