"""File groups of a metadata partition: their ids, their number, and the group of each key (MDT-3.1).

shard = abs(java hash of the key) % number of groups
"""

from __future__ import annotations

import re
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lakehouse.core.format.java_hash import string_hashes
from lakehouse.core.format.metadata.keys import as_text, split_secondary_keys
from lakehouse.model.partition_kind import PartitionKind, partition_kind

#: The bytes of one entry that Hudi assumes when it estimates the size of a record index.
_ENTRY_BYTES = 48
#: Maximum number of keys that are hashed one by one.
_FEW_KEYS = 64
#: Characters that Hudi escapes in path names, and the two characters that separate parts of a file name.
_UNSAFE = re.compile(r"[\x00-\x1f\x7f\"#%'*/:=?\\{\[\]^\-_]")
_ESCAPE = re.compile(r"%([0-9A-F]{2})")


def shards(keys: Any, groups: int) -> NDArray[np.int64]:
    """Return for each key the position of its file group among the sorted file groups in the partition."""
    if len(keys) <= _FEW_KEYS:
        plain = [key if isinstance(key, bytes) else key.encode() for key in keys.to_pylist()]
        if all(map(bytes.isascii, plain)):
            return np.array([shard_of(key, groups) for key in plain], np.int64)
    texts = as_text(keys)
    if groups == 1:
        return np.zeros(len(texts), np.int64)
    # In Java abs(-2**31) and its remainder are negative; the outer abs gives the same number.
    return np.abs(string_hashes(texts).astype(np.int64)) % groups


def shard_of(key: bytes, groups: int) -> int:
    """Return the file group position for one ASCII key, as `shards` does."""
    if groups == 1:
        return 0
    code = 0
    for unit in key:
        code = (31 * code + unit) & 0xFFFFFFFF
    return abs(code - (1 << 32) if code >= 1 << 31 else code) % groups


def secondary_shards(keys: Any, groups: int, version: str) -> NDArray[np.int64]:
    """Return the shards of secondary index keys, for index version "V1" or "V2".

    V2 hashes the part up to the separator, so that all keys with one value are in one group. V1 hashes the whole key.
    """
    return shards(split_secondary_keys(keys).column("prefix") if version == "V2" else keys, groups)


def partition_shards(partition: str, keys: Any, groups: int, version: str) -> NDArray[np.int64]:
    """Return the shards of keys in a metadata partition; `version` is the version of its index definition."""
    if partition_kind(partition) is PartitionKind.SECONDARY_INDEX:
        return secondary_shards(keys, groups, version)
    return shards(keys, groups)


def file_id_prefix(partition: str, data_partition: str | None = None) -> str:
    """Return the prefix of file-group ids in a metadata partition.

    `data_partition` is given for a partitioned record index only.
    """
    prefix = "col-stats-" if partition == PartitionKind.COLUMN_STATS else partition.replace("_", "-") + "-"
    return prefix if data_partition is None else f"{prefix}{escape_partition(data_partition)}-"


def metadata_file_id(partition: str, shard: int, data_partition: str | None = None) -> str:
    """Return the id of the file group with this position in a metadata partition."""
    return f"{file_id_prefix(partition, data_partition)}{shard:04d}-0"


def data_partition_of(partition: str, file_id: str) -> str | None:
    """Return the data partition of a file group in a partitioned record index; None if the id has another form."""
    prefix = file_id_prefix(partition)
    name = re.fullmatch(r"(.*)-\d{4,}-0", file_id.removeprefix(prefix), re.ASCII)
    if name is None or not file_id.startswith(prefix):
        return None
    return _ESCAPE.sub(lambda match: chr(int(match[1], 16)), name[1])


def escape_partition(path: str) -> str:
    """Escape a partition path as in file ids of a partitioned record index."""
    return _UNSAFE.sub(lambda match: f"%{ord(match[0]):02X}", path)


# parameters: the options of Hudi from which the number of groups is computed
def estimated_groups(
    rows: int, *, minimum: int, maximum: int, growth_factor: float = 2.0, group_bytes: int = 1 << 30
) -> int:
    """Return the number of file groups for a record index or secondary index of a table with `rows` records."""
    if minimum == maximum:
        return minimum
    needed = -(-int(np.ceil(rows * growth_factor)) * _ENTRY_BYTES // group_bytes)
    return max(minimum, min(maximum, needed))


def data_partitions_of_groups(partition: str, file_ids: list[str]) -> dict[str, list[str]]:
    """Return the sorted file group ids of a partitioned record index by data partition."""
    groups: dict[str, list[str]] = {}
    for file_id in sorted(file_ids):
        path = data_partition_of(partition, file_id)
        if path is not None:
            groups.setdefault(path, []).append(file_id)
    return groups
