"""The settings of tasks that write a table, and the check that this package can write a table."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.stage.write_context import WriteContext
from lakehouse.core.format.avro.schema import arrow_to_avro
from lakehouse.core.metadata.partitions.file_statistics import measured_columns
from lakehouse.core.operations.load.commits import recent_files
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.state.table_config import require_mergeable, require_writable
from lakehouse.errors import UnsupportedError
from lakehouse.model.instant import METADATA_BOOTSTRAP
from lakehouse.spec.options.policies import Policies

#: The average row size is computed from base files with at least this share of the maximum file size.
_SIZED_FILE_SHARE = 0.1


def maintenance_context(table: LoadedTable, policies: Policies, schema: pa.Schema, instant: str) -> WriteContext:
    """Return the task context of a table service, which rewrites rows without changing them."""
    require_writes(table)
    config = table.config
    return WriteContext(
        storage=table.env.storage,
        clock=table.env.clock,
        instant=instant,
        table=config.name,
        schema=schema,
        avro_schema=arrow_to_avro(schema, table=config.name),
        keys=config.keys,
        table_layout=config.layout,
        rule=config.merge_rule,
        policy=policies.write,
        bytes_per_row=bytes_per_row(table, policies),
        max_log_bytes=policies.log.max_file_bytes,
        indexed=measured_columns(schema, config, policies, table.metadata.definitions),
    )


def require_writes(table: LoadedTable) -> None:
    """Raise UnsupportedError for a table that this package does not write."""
    config, root = table.config, table.env.storage.root
    require_writable(config, root)
    if not config.populate_meta_fields:
        raise UnsupportedError(f"{root}: hoodie.populate.meta.fields=false is read only here")
    require_mergeable(config)


def bytes_per_row(table: LoadedTable, policies: Policies) -> float:
    """Return the average size of a stored row in bytes, from the newest commit with a large base file."""
    least = policies.write.max_file_bytes * _SIZED_FILE_SHARE
    for files in recent_files(table):
        is_large = pc.and_(pc.greater_equal(files["size_bytes"], least), pc.ends_with(files["path"], ".parquet"))
        # The size of a skeleton file does not show the size of its rows.
        is_large = pc.and_not(is_large, pc.ends_with(files["path"], f"_{METADATA_BOOTSTRAP}.parquet"))
        large = files.filter(is_large)
        rows = pc.sum(large["num_writes"]).as_py()
        if rows:
            return float(max(pc.sum(large["size_bytes"]).as_py() / rows, 1.0))
    return max(float(policies.write.record_size_bytes), 1.0)
