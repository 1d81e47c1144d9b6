"""Write verbs and services on tables of version 6: against the same on version 9, and against Apache Hudi 0.15.

The first part runs in this process, on tables with and without metadata table, and compares CPU times, the minimum of
all rounds, and the requests that an object store would get. The second part upserts and loads on Spark: Hudi 0.15 on
Spark 3.5, lakehouse on its own Spark.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa

from lakehouse.core.env import Env
from lakehouse.core.storage.counting import CountingStorage
from lakehouse.core.storage.locate import open_storage
from lakehouse.core.table.table import Table
from tests.bench.data import KEY, ORDERING, PARTITION, orders, updates
from tests.bench.hudi import ROOT, Hudi
from tests.bench.measure import Comparison, Side, compare, interleave, show_lines
from tests.bench.setting import CODEC, Setting, create, read
from tests.bench.upsert import change_set

#: The rows of a table of the first part, the share of them that a write changes, and the target of both parts.
_MOST_ROWS, _SHARE, _TARGET = 400_000, 0.01, 1.1
_HUDI_TARGET = 1 / 3
_VERSIONS = ("6", "9")
_KINDS = ("copy-on-write", "merge-on-read")
_PLAIN = {"hoodie.metadata.enable": "false"}
#: The tables of the first part, by their metadata table.
_TABLES = {
    "no metadata table": _PLAIN,
    "files, column_stats": {"hoodie.metadata.index.column.stats.enable": "true"},
    "all indexes": {
        "hoodie.metadata.index.column.stats.enable": "true",
        "hoodie.metadata.index.bloom.filter.enable": "true",
        "hoodie.metadata.record.index.enable": "true",
        "hoodie.metadata.record.index.min.filegroup.count": "1",
    },
}
_LAYOUTS: dict[str, dict[str, str]] = {
    "simple index": {"hoodie.index.type": "SIMPLE"},
    "bucket index": {"hoodie.index.type": "BUCKET", "hoodie.bucket.index.num.buckets": "1"},
}


def run(setting: Setting) -> list[Comparison]:
    """Print the ratios of version 6 to version 9, then compare with Apache Hudi."""
    lines = [("what", "table", "CPU ratio 6 / 9", "6 CPU s", "9 CPU s", "requests 6 / 9", "")]
    for kind, (metadata, options) in itertools.product(_KINDS, _TABLES.items()):
        table = f"{kind}, {metadata}"
        for what, samples in _Verbs(setting, kind, options).measured():
            best = {version: min(sample.seconds for sample in samples[version]) for version in _VERSIONS}
            sent = [sum(sample.requests for sample in samples[version]) / setting.rounds for version in _VERSIONS]
            ratio = best["6"] / best["9"]
            verdict = "" if ratio <= _TARGET else f"above {_TARGET}"
            print(f"    {table}: {what} {ratio:.2f}", flush=True)
            requests = " / ".join(f"{count:.0f}" for count in sent)
            lines.append((what, table, f"{ratio:.2f}", f"{best['6']:.3f}", f"{best['9']:.3f}", requests, verdict))
    show_lines(lines)
    return [*_against_hudi(setting, "COPY_ON_WRITE"), *_against_hudi(setting, "MERGE_ON_READ")]


class _Sample(NamedTuple):
    """The CPU seconds and the storage requests of one call."""

    seconds: float
    requests: int


@dataclass(frozen=True, slots=True)
class _Verbs:
    """Tables of both versions with the same rows."""

    setting: Setting
    kind: str
    metadata: Mapping[str, str]
    stores: dict[str, CountingStorage] = field(default_factory=dict)

    @property
    def rows(self) -> int:
        """The number of rows of a table."""
        return min(self.setting.rows, _MOST_ROWS)

    def measured(self) -> Iterator[tuple[str, dict[str, list[_Sample]]]]:
        """Yield the samples of each verb and service, by version."""
        yield "bulk_insert", self._compared(lambda table, number: self._load(table), self._fresh)
        tables = {version: self._fresh(version, 0) for version in _VERSIONS}
        for table in tables.values():
            self._load(table)
        writes: dict[str, Callable[[Table, int], object]] = {
            "insert of 1 %": lambda table, number: table.insert(self._new(number)),
            "upsert of 1 %": lambda table, number: table.upsert(self._changed(number)),
            "MERGE of 1 % with conditions": self._merge,
            "update of one partition": lambda table, number: table.update(
                {"tip": "tip + 1"}, f"{PARTITION} = 'zone-01'"
            ),
            "delete of 0.1 %": lambda table, number: table.delete(
                self._changed(100 + number).slice(0, self.rows // 1000)
            ),
            "insert_overwrite of a partition": self._overwrite,
            "scan": lambda table, number: table.scan().to_arrow(),
            "scan of one column, with condition": lambda table, number: table.scan(
                ["fare"], where="tip < 2"
            ).to_arrow(),
            "incremental read of two commits": lambda table, number: table.incremental(
                begin=table.commits()[-3][0].completion
            ).count(),
        }
        for what, call in writes.items():
            yield what, self._compared(call, lambda version, number: tables[version])
        yield from self._services(tables)

    def _services(self, tables: dict[str, Table]) -> Iterator[tuple[str, dict[str, list[_Sample]]]]:
        """Yield the samples of each service, after a write that makes it due."""

        def written(version: str, number: int) -> Table:
            tables[version].upsert(self._changed(number))
            return tables[version]

        if self.kind == "merge-on-read":
            yield "compaction", self._compared(_service("compaction"), written)
        for name in ("clustering", "clean", "archive", "validation"):
            yield name, self._compared(_service(name), written)
        # A rollback of version 6 appends to log files, so it comes last.
        yield "rollback", self._compared(lambda table, _: table.rollback(table.commits()[-1][0].requested), written)

    def _compared(
        self, call: Callable[[Table, int], object], table_of: Callable[[str, int], Table]
    ) -> dict[str, list[_Sample]]:
        samples: dict[str, list[_Sample]] = {version: [] for version in _VERSIONS}
        for number in range(self.setting.rounds + 1):
            for version in _VERSIONS:
                table = table_of(version, number)
                self.stores[version].reset()
                began = time.process_time()
                call(table, number)
                seconds = time.process_time() - began
                samples[version].append(_Sample(seconds, sum(self.stores[version].counts().values())))
        return {version: taken[1:] for version, taken in samples.items()}

    def _fresh(self, version: str, _: int) -> Table:
        place = self.setting.fresh(f"version-{version}-{self.kind}")
        self.stores[version] = storage = CountingStorage(open_storage(place))
        return Table.create(
            place,
            name="orders",
            record_key=[KEY],
            partition_by=[PARTITION],
            ordering=ORDERING,
            options={"hoodie.parquet.compression.codec": CODEC, "hoodie.write.table.version": version, **self.metadata},
            table_type=self.kind.upper().replace("-", "_"),
            env=Env(storage=storage),
        )

    def _load(self, table: Table) -> object:
        return table.bulk_insert(orders(np.arange(self.rows)))

    def _changed(self, number: int) -> pa.Table:
        return orders(updates(self.rows, _SHARE, number), version=number + 1)

    def _new(self, number: int) -> pa.Table:
        count = int(self.rows * _SHARE)
        return orders(self.rows * (number + 2) + np.arange(count))

    def _merge(self, table: Table, number: int) -> object:
        merge = table.merge(self._changed(number + 50), [KEY, PARTITION])
        return merge.when_matched_update_all("source.fare <> target.fare").when_not_matched_insert_all().execute()

    def _overwrite(self, table: Table, number: int) -> object:
        rows = orders(np.arange(self.rows // 4), version=number)
        return table.insert_overwrite(rows.filter(pa.compute.equal(rows.column(PARTITION), "zone-02")))


def _service(name: str) -> Callable[[Table, int], object]:
    return lambda table, _: getattr(table.services, name).run(force=True)


def _against_hudi(setting: Setting, table_type: str) -> list[Comparison]:
    """Compare loads and upserts with Apache Hudi 0.15, for the simple index and the bucket index."""
    jar, python = ROOT / ".jars/older/hudi-spark3.5-bundle_2.12-0.15.0.jar", ROOT / ".venv-hudi/bin/python"
    if not (jar.exists() and python.exists()):
        print("  skipped: Apache Hudi 0.15 is not installed; run `make hudi` to install it")
        return []
    lines = []
    with Hudi(python, [jar]) as hudi:
        for layout, options in _LAYOUTS.items():
            lines += _layout_against_hudi(setting, hudi, table_type, layout, options)
    return lines


# parameters: the sides, and the type of the table with the name and the options of its index
def _layout_against_hudi(
    setting: Setting, hudi: Hudi, table_type: str, layout: str, options: dict[str, str]
) -> list[Comparison]:
    theirs = {**options, **_PLAIN, "hoodie.datasource.write.table.type": table_type, "hoodie.compact.inline": "false"}
    other = setting.fresh("version-6-hudi")
    current: dict[str, Any] = {}

    def load(_: int) -> None:
        own = {"hoodie.write.table.version": "6", **options, **_PLAIN}
        place = setting.fresh("version-6-ours")
        current["table"] = create(place, options=own, merge_on_read=table_type == "MERGE_ON_READ")
        current["table"].bulk_insert(read(setting.input()))

    sides = [
        Side(name="lakehouse", run=load),
        Side(name="Hudi 0.15", run=lambda _: hudi.request("bulk_insert", other, setting.input(), **theirs)),
    ]
    what = f"{table_type.lower().replace('_', '-')}, {layout}"
    loads = interleave(sides, setting.rounds)
    change = partial(change_set, setting, _SHARE)
    sides = [
        Side(name="lakehouse", before=change, run=lambda number: current["table"].upsert(read(change(number)))),
        Side(name="Hudi 0.15", run=lambda number: hudi.request("upsert", other, change(number), **theirs)),
    ]
    upserts = interleave(sides, setting.rounds)
    counts = (current["table"].scan(columns=[KEY]).count(), hudi.request("count", other)["rows"])
    assert counts[0] == counts[1] > setting.rows, counts
    return [
        compare(f"bulk_insert, version 6, {what}", loads, "lakehouse", "Hudi 0.15"),
        compare(f"upsert of 1 %, version 6, {what}", upserts, "lakehouse", "Hudi 0.15", _HUDI_TARGET),
    ]
