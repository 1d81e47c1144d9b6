"""Merge-on-read upsert against Apache Hudi with Avro and Parquet log blocks, for the simple and the bucket index."""

from __future__ import annotations

from tests.bench.hudi import TARGET, start
from tests.bench.measure import Comparison, Side, compare, interleave
from tests.bench.merge_on_read import BUCKETS, INDEXES, SHARE, loaded, update_set
from tests.bench.setting import Setting, read

_COMMON = {
    "hoodie.datasource.write.table.type": "MERGE_ON_READ",
    "hoodie.metadata.enable": "false",
    "hoodie.compact.inline": "false",
}
_INDEXES = {"simple index": {"hoodie.index.type": "SIMPLE"}, "bucket index": BUCKETS}


def run(setting: Setting) -> list[Comparison]:
    """Measure each index against the same index of Hudi, with both kinds of log blocks."""
    hudi = start()
    if hudi is None:
        return []
    comparisons: list[Comparison] = []
    with hudi:
        for index, options in _INDEXES.items():
            ours = f"ours, {index}"
            table = loaded(setting, "logs-ours", INDEXES[index])
            sides = [
                Side(
                    name=ours,
                    before=lambda number: update_set(setting, SHARE, number),
                    run=lambda number, table=table: table.upsert(read(update_set(setting, SHARE, number))),
                )
            ]
            paths = {}
            for blocks in ("avro", "parquet"):
                name = f"Hudi, {index}, {blocks} logs"
                chosen = {**_COMMON, **options, "hoodie.logfile.data.block.format": blocks}
                paths[name] = setting.fresh(f"logs-hudi-{blocks}")
                hudi.request("bulk_insert", paths[name], setting.input(), **chosen)
                sides.append(
                    Side(
                        name=name,
                        run=lambda number, path=paths[name], chosen=chosen: hudi.request(
                            "upsert", path, update_set(setting, SHARE, number), **chosen
                        ),
                    )
                )
            samples = interleave(sides, setting.rounds)
            counts = {name: hudi.request("count", path)["rows"] for name, path in paths.items()}
            counts[ours] = table.scan(columns=["fare"]).count()
            assert set(counts.values()) == {setting.rows}, counts
            comparisons += [compare(f"upsert of {SHARE:.0%}", samples, ours, name, TARGET) for name in paths]
    return comparisons
