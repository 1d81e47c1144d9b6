"""The features of a Hudi table that its properties and its timeline declare, for people who plan a migration; pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from lakehouse.core.state.table_config import CDC_ENABLED, CDC_MODE
from lakehouse.model.instant import Timeline
from lakehouse.spec.contracts.fleet_scan import TableFeature

#: Properties by the name of their feature; the first property with a value counts.
_PROPERTIES: Mapping[str, tuple[str, ...]] = {
    "payload class": ("hoodie.compaction.payload.class", "hoodie.table.legacy.payload.class"),
    "merge mode": ("hoodie.record.merge.mode",),
    "merge strategy": ("hoodie.record.merge.strategy.id",),
    "partial update mode": ("hoodie.table.partial.update.mode",),
    "ordering": ("hoodie.table.ordering.fields", "hoodie.table.precombine.field"),
    "record key": ("hoodie.table.recordkey.fields",),
    "key generator": ("hoodie.table.keygenerator.type", "hoodie.table.keygenerator.class"),
    "index": ("hoodie.index.type",),
    "bucket engine": ("hoodie.index.bucket.engine",),
    "buckets": ("hoodie.bucket.index.num.buckets",),
    "metadata table": ("hoodie.table.metadata.partitions",),
    "metadata table in construction": ("hoodie.table.metadata.partitions.inflight",),
    "bootstrap": ("hoodie.bootstrap.base.path",),
    "base files": ("hoodie.table.base.file.format",),
    "table format": ("hoodie.table.format",),
}
#: Values of a feature that every table has.
_USUAL = {"base files": "PARQUET", "table format": "native"}
_FLAGS = {
    "no meta columns": ("hoodie.populate.meta.fields", "false"),
    "partition columns left out of files": ("hoodie.datasource.write.drop.partition.columns", "true"),
    "Hive-style partitions": ("hoodie.datasource.write.hive_style_partitioning", "true"),
}


def features_of(raw: Mapping[str, str], timeline: Timeline | None) -> tuple[TableFeature, ...]:
    """Return the features in the properties of a table, and its pending instants; `timeline` is None if unreadable."""
    return tuple(TableFeature(feature=name, value=value) for name, value in _features(raw, timeline))


def _features(raw: Mapping[str, str], timeline: Timeline | None) -> Iterator[tuple[str, str]]:
    for name, keys in _PROPERTIES.items():
        value = next((raw[key].strip() for key in keys if raw.get(key, "").strip()), "")
        if value and value.upper() != _USUAL.get(name, "").upper():
            yield name, value.rpartition(".")[2] if "class" in keys[0] or name == "key generator" else value
    if raw.get(CDC_ENABLED, "").strip().lower() == "true":
        yield "CDC", raw.get(CDC_MODE, "").strip().lower() or "enabled"
    for name, (key, value) in _FLAGS.items():
        if raw.get(key, "").strip().lower() == value:
            yield name, "yes"
    if timeline is None:
        return
    pending = Counter(str(instant.action) for instant in timeline.where(pending=True))
    if pending:
        yield "pending instants", ", ".join(f"{count} {action}" for action, count in sorted(pending.items()))
    if timeline.savepoints():
        yield "savepoints", str(len(timeline.savepoints()))
