"""The index partitions `secondary_index_<name>`: the record keys of each value of a column (MDT-4).

    key    escaped value $ escaped record key
    value  the same for all entries: it says that the entry is not deleted

The record index leads from a record key to its file group, so a secondary index needs one. An entry may be too much: a
reader checks the value of each row. A missing entry would hide a row.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.secondary_keys import CHANGED, IndexedColumn, keys_of_slice, secondary_keys_of
from lakehouse.core.format.metadata.groups import estimated_groups, metadata_file_id, secondary_shards
from lakehouse.core.format.metadata.records import SECONDARY_ROWS, encode_secondary
from lakehouse.core.metadata.partitions.protocol import Definition, MetadataCommit, TableFiles, Update
from lakehouse.core.state.table_config import TableConfig
from lakehouse.core.storage.protocol import Storage
from lakehouse.errors import RetryableError
from lakehouse.model.commit import REWRITES
from lakehouse.model.indexing import IDENTITY, SECONDARY_INDEX, SECONDARY_PREFIX
from lakehouse.spec.options.policies import Policies

#: Bounds of the number of file groups, as in Hudi, and the bytes that a row takes at least.
_MIN_GROUPS, _MAX_GROUPS, _ROW_BYTES = 10, 10_000, 32


class SecondaryIndexPartition:
    """The record keys of each value of one column."""

    def is_named(self, name: str) -> bool:
        """Return whether a partition is a secondary index."""
        return name.startswith(SECONDARY_PREFIX)

    def refusal(self, name: str, config: TableConfig, definition: Definition | None) -> str | None:
        """Return why the index cannot be maintained: its definition, or a table without stored record keys."""
        if definition is None:
            return "the table has no definition of it"
        if definition.index_type != SECONDARY_INDEX or len(definition.source_fields) != 1:
            return f"its definition has the type {definition.index_type!r} and {len(definition.source_fields)} columns"
        if definition.function not in ("", IDENTITY):
            return f"its function {definition.function!r} is not {IDENTITY!r}"
        return None if config.populate_meta_fields else "the table stores no record keys"

    def wanted(self, policies: Policies, config: TableConfig) -> Sequence[str]:
        """Return none: a secondary index needs the columns of the table, so the service builds it."""
        return ()

    def definition(self, name: str, table: TableFiles) -> Definition | None:
        """Return the definition that the user declared."""
        return table.definitions.get(name)

    def group_ids(self, name: str, table: TableFiles) -> Sequence[str]:
        """Return as many groups as Hudi would for the number of rows that the table has at most."""
        rows = (pc.sum(table.newest.column("size_bytes")).as_py() or 0) // _ROW_BYTES
        count = estimated_groups(rows, minimum=_MIN_GROUPS, maximum=_MAX_GROUPS)
        return tuple(metadata_file_id(name, shard) for shard in range(count))

    def build(self, name: str, table: TableFiles) -> pa.Table:
        """Return an entry for each row of the newest slices."""
        if table.read is None:
            return _encoded([])
        column = table.definitions[name].source_fields[0]
        if table.engine is None:
            return _encoded(secondary_keys_of(table.read, column, piece) for piece in table.slices)
        task = partial(keys_of_slice, IndexedColumn(read=table.read, column=column, directory=""))
        return _encoded(table.engine.run(task, list(table.slices)))

    def update(self, name: str, commit: MetadataCommit) -> Update:
        """Return the keys that tasks found to be new or gone.

        Raises RetryableError if the write began before the index was declared.
        """
        change = commit.change
        files = change.inputs.get(name)
        if files is None:
            if change.operation in REWRITES or not (change.stats or change.replaced.num_rows):
                return Update()
            raise RetryableError(
                f"{commit.env.storage.root}: the index {name} was declared after this write began, and the write has "
                "not recorded which values it changes; run the operation again",
                index=name,
            )
        changed = pa.concat_tables([CHANGED.empty_table(), *(_read(commit.env.storage, path) for path in files)])
        removed = changed.column("removed")
        added = pc.unique(changed.column("key").filter(pc.invert(removed)))
        gone = pc.unique(changed.column("key").filter(removed))
        # A row that moved to another file group with the same value is removed there and added here.
        gone = gone.filter(pc.invert(pc.is_in(gone, value_set=added)))
        return Update(entries=_encoded([added]), deletes=gone.cast(pa.binary()))

    def shards(self, name: str, keys: pa.Array, groups: Sequence[str], definition: Definition | None) -> pa.Array:
        """Return the group of each key; version V2 keeps the keys of one value together."""
        assert definition is not None, "the guard refused a partition without definition"
        return pa.array(secondary_shards(keys, len(groups), definition.version))


def _encoded(keys: Iterable[pa.Array]) -> pa.Table:
    found = pc.unique(pa.chunked_array([*keys, pa.array([], pa.string())]))
    return encode_secondary(pa.table([found], SECONDARY_ROWS))


def _read(storage: Storage, path: str) -> pa.Table:
    with storage.open_input(path) as source, pa.ipc.open_file(source) as reader:
        return reader.read_all()
