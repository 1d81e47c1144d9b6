"""The index partition `files`: the partitions of the table, and the files of each (MDT-4)."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.metadata.groups import metadata_file_id, shards
from lakehouse.core.format.metadata.keys import ALL_PARTITIONS, identifiers
from lakehouse.core.format.metadata.records import FILE_ROWS, encode_files
from lakehouse.core.metadata.partitions.protocol import Definition, MetadataCommit, TableFiles, Update
from lakehouse.core.state.table_config import TableConfig
from lakehouse.model.partition_kind import PartitionKind
from lakehouse.spec.options.policies import Policies

FILES = "files"
#: Operations that are recorded with an empty list of partitions even if they write no file, as in Hudi.
CLEAN = "clean"


class FilesPartition:
    """One record per partition with its files, and one record with all partitions."""

    kind = PartitionKind.FILES

    def refusal(self, name: str, config: TableConfig, definition: Definition | None) -> str | None:
        return None

    def wanted(self, policies: Policies, config: TableConfig) -> Sequence[str]:
        return (FILES,) if policies.transaction.metadata.enable else ()

    def definition(self, name: str, table: TableFiles) -> Definition | None:
        return None

    def group_ids(self, name: str, table: TableFiles) -> Sequence[str]:
        return (metadata_file_id(FILES, 0),)

    def build(self, name: str, table: TableFiles) -> pa.Table:
        files = table.files
        partitions = pc.unique(files.column("partition"))
        return encode_files(pa.concat_tables([_partition_rows(partitions), _file_rows(files)]))

    def update(self, name: str, commit: MetadataCommit) -> Update:
        change = commit.change
        gone = pa.array(change.removed_partitions, pa.string())
        removed = change.removed
        if len(gone):
            removed = removed.filter(pc.invert(pc.is_in(removed.column("partition"), gone)))
        rows = [_file_rows(change.written), _tombstones(removed)]
        partitions = pc.unique(change.written.column("partition"))
        if change.operation != CLEAN:
            rows.append(_partition_rows(partitions))
        elif len(gone):
            rows.append(_partition_rows(gone, deleted=True))
        return Update(entries=encode_files(pa.concat_tables(rows)), deletes=identifiers(gone).cast(pa.binary()))

    def shards(self, name: str, keys: pa.Array, groups: Sequence[str], definition: Definition | None) -> pa.Array:
        return pa.array(shards(keys, len(groups)))


def _partition_rows(partitions: pa.Array, *, deleted: bool = False) -> pa.Table:
    """Return the rows for the record of all partitions; without partitions it is one row with a null name."""
    names = identifiers(partitions) if len(partitions) else pa.array([None], pa.string())
    count = len(names)
    columns = [pa.repeat(pa.scalar(ALL_PARTITIONS), count), names, pa.repeat(pa.scalar(0), count)]
    return pa.table([*columns, pa.repeat(pa.scalar(deleted), count)], FILE_ROWS)


def _file_rows(files: pa.Table) -> pa.Table:
    live = pa.repeat(pa.scalar(False), files.num_rows)
    return pa.table([_keys(files), files.column("name"), files.column("size_bytes"), live], FILE_ROWS)


def _tombstones(files: pa.Table) -> pa.Table:
    count = files.num_rows
    zeros, dead = pa.repeat(pa.scalar(0), count), pa.repeat(pa.scalar(True), count)
    return pa.table([_keys(files), files.column("name"), zeros, dead], FILE_ROWS)


def _keys(files: pa.Table) -> pa.Array:
    return identifiers(files.column("partition"))
