"""The bytes and names of metadata table files: log files with HFile and delete blocks, base files (MDT-2)."""

from __future__ import annotations

from collections.abc import Mapping

import pyarrow as pa

from lakehouse.core.env import Env
from lakehouse.core.format.hfile.entries import Entries, entry_count, entry_table, table_of
from lakehouse.core.format.hfile.writer import LOOKED_UP, SCANNED, Layout, write_hfile
from lakehouse.core.format.log.blocks import BlockHeader, BlockType, encode_block
from lakehouse.core.format.log.delete_block import encode_deletes
from lakehouse.model.commit import WriteStat
from lakehouse.model.partition_kind import PartitionKind

#: Write token of the initial log files of file groups.
INIT_TOKEN = "0-0-0"
_TOKEN_DIGITS = 7
#: Maximum number of entries that are sorted without Arrow kernels.
_FEW_ENTRIES = 256
#: Maximum number of locations in a file that readers read by one request and cache.
_FEW_LOCATIONS = 2000


def new_token(env: Env) -> str:
    """Return a write token that no other commit uses; Hudi reads its parts as integers of 32 bits."""
    digits = env.ids.uuid().replace("-", "")
    return f"0-{int(digits[:_TOKEN_DIGITS], 16)}-{int(digits[_TOKEN_DIGITS : 2 * _TOKEN_DIGITS], 16)}"


def log_name(file_id: str, instant: str, token: str, *, version: int = 1) -> str:
    """Return the name of a log file that a delta commit writes to a file group."""
    return f".{file_id}_{instant}.log.{version}_{token}"


def base_name(file_id: str, instant: str, token: str) -> str:
    """Return the name of a base file."""
    return f"{file_id}_{token}_{instant}.hfile"


def log_headers(instant: str, schema: str) -> dict[BlockHeader, str]:
    """Return the headers for the blocks of a log file; `schema` is the Avro schema of its records."""
    return {BlockHeader.INSTANT_TIME: instant, BlockHeader.SCHEMA: schema}


def log_bytes(
    partition: str, headers: Mapping[BlockHeader, str], entries: Entries, deletes: pa.Array, created_ms: int
) -> bytes:
    """Return a log file with the records of one file group: a data block, then a delete block, if not empty.

    `log_headers` returns the headers. The keys of the entries are ascending. Large log files of the record index
    support look-ups by key, like base files.
    """
    count = entry_count(entries)
    is_looked_up = partition == PartitionKind.RECORD_INDEX and count > _FEW_LOCATIONS
    layout = LOOKED_UP if is_looked_up else SCANNED
    blocks = []
    if count:
        content = write_hfile(entries, schema=headers[BlockHeader.SCHEMA], created_ms=created_ms, layout=layout)
        blocks.append(encode_block(BlockType.HFILE_DATA, headers, content))
    if len(deletes):
        # Hudi writes the ordering value 0 as an integer.
        ordering = pa.array([0], pa.int32()).take(pa.array([0] * len(deletes), pa.int32()))
        content = encode_deletes(deletes.cast(pa.string()), partition, ordering)
        blocks.append(encode_block(BlockType.DELETE, headers, content))
    return b"".join(blocks)


def ascending(entries: Entries) -> pa.Table:
    """Return entries as a table in the order of their keys, the order in files."""
    if entry_count(entries) > _FEW_ENTRIES:
        return entry_table(entries).sort_by("key")
    if isinstance(entries, pa.Table):
        pairs = sorted(zip(*(entries.column(name).to_pylist() for name in ("key", "value")), strict=True))
    else:
        pairs = sorted(entries.items())
    return table_of([key for key, _ in pairs], [value for _, value in pairs])


def init_log_bytes(instant: str) -> bytes:
    """Return the initial log file of a file group: a delete block without keys."""
    content = encode_deletes(pa.array([], pa.string()), "")
    return encode_block(BlockType.DELETE, {BlockHeader.INSTANT_TIME: instant}, content)


def base_bytes(entries: Entries, schema: str, created_ms: int, layout: Layout = SCANNED) -> bytes:
    """Return a base file with these records; `record_kind` is the layout of an index partition.

    A mapping is ascending by key.
    """
    ordered = entries.sort_by("key") if isinstance(entries, pa.Table) else entries
    return write_hfile(ordered, schema=schema, created_ms=created_ms, layout=layout, bounds=True)


# parameters: the columns of a write statistic
def log_stat(
    partition: str,
    file_id: str,
    name: str,
    instant: str,
    *,
    size_bytes: int,
    counts: tuple[int, int],
    base_file: str = "",
    log_files: tuple[str, ...] = (),
) -> WriteStat:
    """Return the write statistic of a log file. `counts` are its numbers of records and deletes.

    `base_file` and `log_files` are the other files of the slice, in version 6.
    """
    records, deletes = counts
    return WriteStat(
        partition=partition,
        file_id=file_id,
        path=f"{partition}/{name}",
        prev_commit=instant,
        num_writes=records + deletes,
        num_updates=records,
        num_deletes=deletes,
        size_bytes=size_bytes,
        base_file=base_file,
        log_files=log_files,
    )


def base_stat(partition: str, file_id: str, name: str, size_bytes: int, records: int) -> WriteStat:
    """Return the statistic of a base file that an initialisation wrote."""
    return WriteStat(
        partition=partition,
        file_id=file_id,
        path=f"{partition}/{name}",
        num_writes=records,
        num_inserts=records,
        size_bytes=size_bytes,
    )
