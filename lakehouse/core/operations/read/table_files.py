"""The committed files of a table, from which the metadata table's index partitions are built (MDT-11).

A storage listing contains leftover files of failed writes, too. They are removed here, so that readers of the metadata
table do not get them (see `load.unnamed_files`).
"""

from __future__ import annotations

import logging

from lakehouse.core.engine.protocol import Engine
from lakehouse.core.format.file_names import instant_of
from lakehouse.core.metadata.change import WRITTEN
from lakehouse.core.metadata.partitions.protocol import TableFiles
from lakehouse.core.operations.load.listing import list_columns, supported_data_files
from lakehouse.core.operations.load.schema import table_schema
from lakehouse.core.operations.load.slices import groups_of, load_visible
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.operations.load.unnamed_files import NamedFiles, named_files
from lakehouse.core.operations.read.scan import slice_context
from lakehouse.model.instant import Action
from lakehouse.spec.options.policies import Policies

logger = logging.getLogger(__name__)


def table_files(table: LoadedTable, policies: Policies, engine: Engine | None = None) -> TableFiles:
    """Return the files of completed instants from a listing of storage, and the files of the newest slices.

    `engine` runs the tasks that read rows. If it is None, this process reads them.
    """
    files = supported_data_files(table, list_columns(table))
    visible = load_visible(table)
    named = named_files(table, files, visible, copied=_copied_logs(table))
    _log_unnamed(table, named)
    slices = groups_of(table, named.files, visible).latest()
    schema = table_schema(table)
    budget = policies.write.memory_budget_bytes
    return TableFiles(
        env=table.env,
        config=table.config,
        instant="",
        files=named.files.select(WRITTEN.names),
        newest=slices.files.select(WRITTEN.names),
        described=named.files.select(WRITTEN.names),
        slices=slices,
        read=None if schema is None else slice_context(table, schema, budget=budget),
        engine=engine,
        schema=schema,
        policies=policies,
        left_out=named.left_out,
        undecided=named.undecided,
    )


def _log_unnamed(table: LoadedTable, named: NamedFiles) -> None:
    root = table.env.storage.root
    if named.left_out:
        logger.warning(
            "%s: %d files that no write names are left out of the metadata table, such as %s; readers that list "
            "storage may show their rows until the files are deleted",
            root,
            len(named.left_out),
            named.left_out[0],
        )
    if named.undecided:
        logger.info(
            "%s: %d files, such as %s, are older than the archived timeline; they count as committed",
            root,
            len(named.undecided),
            named.undecided[0],
        )


def _copied_logs(table: LoadedTable) -> set[str]:
    """Return the names of the log files to which completed writes copied rows for a pending resize (MDT-12.5)."""
    pending = {plan.requested for plan in table.timeline.where(action=Action.CLUSTERING, pending=True)}
    writes = [write for write in table.timeline.writes() if write.completion > min(pending, default="~")]
    names = {stat.path.rpartition("/")[2] for _, metadata in table.store.commits(writes) for stat in metadata.stats}
    return {name for name in names if name.startswith(".") and instant_of(name) in pending}
