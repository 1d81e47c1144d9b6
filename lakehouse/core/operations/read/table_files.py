"""The committed files of a table, from which index partitions of the metadata table are built (MDT-11)."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.metadata.change import WRITTEN
from lakehouse.core.metadata.partitions.protocol import TableFiles
from lakehouse.core.operations.load.listing import list_columns, supported_data_files
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.slices import groups_of, load_visible
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.core.state.file_system_view import VisibleTimeline
from lakehouse.spec.options.policies import Policies


def table_files(table: LoadedTable, policies: Policies, engine: Engine | None = None) -> TableFiles:
    """Return the files of completed instants from a listing of storage, and those of the newest slices.

    `engine` runs the tasks that read rows; without one this process reads them.
    """
    files = supported_data_files(table, list_columns(table))
    visible = load_visible(table)
    slices = groups_of(table, files, visible).latest()
    schema = table_schema(table)
    budget = policies.write.memory_budget_bytes
    return TableFiles(
        env=table.env,
        config=table.config,
        instant="",
        files=committed_files(files, visible).select(WRITTEN.names),
        newest=slices.files.select(WRITTEN.names),
        slices=slices,
        read=None if schema is None else slice_context(table, schema, budget=budget),
        engine=engine,
        schema=schema,
        policies=policies,
    )


def committed_files(files: pa.Table, visible: VisibleTimeline) -> pa.Table:
    """Return the data files of completed instants, those of archived ones included."""
    instants = pc.unique(files.column("instant"))
    shown = [instant for instant in instants.to_pylist() if visible.shows(instant)]
    return files.filter(pc.is_in(files.column("instant"), value_set=pa.array(shown, pa.string())))
