"""Options that describe the table itself. They are fixed when the table is created."""

from __future__ import annotations

CREATE_OPTIONS = frozenset(
    {
        "hoodie.write.table.version",
        "hoodie.datasource.write.hive_style_partitioning",
        "hoodie.datasource.write.partitionpath.urlencode",
        "hoodie.datasource.write.keygenerator.consistent.logical.timestamp.enabled",
        "hoodie.table.cdc.enabled",
        "hoodie.table.cdc.supplemental.logging.mode",
    }
)
