"""Names of the options by which a Hudi job declares a new table, and the arguments of `Table.create` for them."""

from __future__ import annotations

RECORD_KEY = "hoodie.datasource.write.recordkey.field"
PARTITION_PATH = "hoodie.datasource.write.partitionpath.field"
ORDERING = "hoodie.table.ordering.fields"
TABLE_NAME = "hoodie.table.name"
TABLE_TYPE = "hoodie.datasource.write.table.type"
PAYLOAD = "hoodie.datasource.write.payload.class"
MERGE_MODE = "hoodie.record.merge.mode"
STRATEGY = "hoodie.record.merge.strategy.id"
PARTIAL_UPDATE = "hoodie.table.partial.update.mode"
DELETE_FIELD, DELETE_MARKER = "hoodie.payload.delete.field", "hoodie.payload.delete.marker"
GENERATOR = "hoodie.datasource.write.keygenerator.type"
GENERATOR_CLASS = "hoodie.datasource.write.keygenerator.class"
#: Options with the same meaning as another one, which Hudi also reads.
SAME = {
    "hoodie.table.recordkey.fields": RECORD_KEY,
    "hoodie.table.partition.fields": PARTITION_PATH,
    "hoodie.datasource.write.precombine.field": ORDERING,
    "hoodie.table.precombine.field": ORDERING,
    "hoodie.payload.ordering.field": ORDERING,
    "hoodie.datasource.write.table.name": TABLE_NAME,
    "hoodie.table.type": TABLE_TYPE,
    "hoodie.datasource.write.storage.type": TABLE_TYPE,
    "hoodie.write.record.merge.mode": MERGE_MODE,
    "hoodie.write.record.merge.strategy.id": STRATEGY,
    "hoodie.datasource.write.record.merger.strategy": STRATEGY,
    "hoodie.compaction.record.merger.strategy": STRATEGY,
    "hoodie.datasource.write.record.merge.mode": MERGE_MODE,
    "hoodie.compaction.payload.class": PAYLOAD,
    "hoodie.table.payload.class": PAYLOAD,
    "hoodie.table.legacy.payload.class": PAYLOAD,
    "hoodie.table.keygenerator.class": GENERATOR_CLASS,
    "hoodie.table.keygenerator.type": GENERATOR,
    "hoodie.record.merge.property.hoodie.payload.delete.field": DELETE_FIELD,
    "hoodie.record.merge.property.hoodie.payload.delete.marker": DELETE_MARKER,
}
#: Arguments of `Table.create` by option.
ARGUMENTS = {
    RECORD_KEY: "record_key",
    PARTITION_PATH: "partition_by",
    ORDERING: "ordering",
    TABLE_NAME: "name",
    TABLE_TYPE: "table_type",
    PAYLOAD: "payload_class",
    MERGE_MODE: "merge_mode",
    PARTIAL_UPDATE: "partial_update",
    DELETE_FIELD: "delete_field",
    DELETE_MARKER: "delete_marker",
    GENERATOR: "key_generator",
    GENERATOR_CLASS: "key_generator",
}
