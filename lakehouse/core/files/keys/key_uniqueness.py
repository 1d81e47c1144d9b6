"""Check that each key occurs in one row and one partition; memory does not grow with the number of rows.

Keys are compared by a hash of 62 bits. Several passes over the slices each compare a share of the hashes that fits into
memory. If a hash occurs twice, its keys are compared.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import groupby

import numpy as np
import pyarrow as pa

from lakehouse.core.files.base.base_reader import BaseFileReader
from lakehouse.core.files.log.log_reader import KEY
from lakehouse.core.files.log.slice_reader import read_slice
from lakehouse.core.files.log.slice_validation import CheckContext
from lakehouse.core.format.parquet.murmur_hash import key_blocks
from lakehouse.core.storage.protocol import NotFoundError
from lakehouse.errors import CorruptTableError, UnsupportedError
from lakehouse.model.attempt import Attempt
from lakehouse.model.files import FileSlice
from lakehouse.model.validation import Finding

_POSITIONS = 2**31 - 1
#: Bytes per key: for a hash, its copy during the sort, and the mask of equal hashes.
_BYTES_PER_KEY = 24
#: The maximum number of repeated hashes whose keys are compared, and of keys that a finding shows.
_LOOKED_AT, _SHOWN = 1_000, 3


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyTask:
    """The slices within which a key is unique: all slices in a partition or in the table, with at most `rows` rows."""

    slices: tuple[FileSlice, ...]
    rows: int


def check_keys(context: CheckContext, attempt: Attempt, task: KeyTask) -> tuple[Finding, ...]:
    """Check that the keys of some slices are unique. Returns one finding with examples, or none."""
    partitions = sorted({file_slice.partition for file_slice in task.slices})
    where = partitions[0] if len(partitions) == 1 else ""
    passes = max(1, -(-task.rows * _BYTES_PER_KEY // max(context.read.budget_bytes // 2, 1)))
    try:
        for part in range(passes):
            twice = _repeated_hashes(context, task.slices, part, passes)
            if len(twice) and (keys := _repeated_keys(context, task.slices, twice[:_LOOKED_AT])):
                shown = ", ".join(f"{key!r} ({times} times)" for key, times in keys.most_common(_SHOWN))
                problem = f"{len(keys)} keys or more have several rows: {shown}"
                return (Finding(invariant="key.unique", problem=problem, path=where),)
    except (NotFoundError, CorruptTableError):
        # A different check reports the file, unless a clean has deleted it in the meantime.
        problem = "keys were not compared: a file is missing or unreadable"
        return (Finding(invariant="unchecked", problem=problem, path=where),)
    except UnsupportedError as error:
        return (Finding(invariant="unchecked", problem=f"keys were not compared: {error.message}", path=where),)
    return ()


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyShare:
    """A share of the keys in a whole table: the keys whose hash modulo `parts` equals `part`."""

    slices: tuple[FileSlice, ...]
    part: int
    parts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedKeys:
    """The number of keys in a share that are in several partitions, with examples.

    `unread` is the reason why none were compared.
    """

    count: int = 0
    examples: tuple[tuple[str, tuple[str, ...]], ...] = ()
    unread: str = ""


def count_keys(context: CheckContext, attempt: Attempt, file_slice: FileSlice) -> int:
    """Return the row count of a slice, from its footer, or from its keys if it has logs; 0 if it cannot be read."""
    try:
        if file_slice.base is not None and not file_slice.logs:
            with closing(BaseFileReader(context.read.storage, file_slice.base.path)) as reader:
                return reader.rows
        return sum(len(keys) for keys in _keys(context, (file_slice,)))
    except (NotFoundError, CorruptTableError, UnsupportedError):
        # The check of the file reports the damage.
        return 0


def key_shares(slices: Sequence[FileSlice], rows: int, budget_bytes: int) -> list[KeyShare]:
    """Split `rows` keys into shares, so that the hashes of one share fit into half of a task's budget."""
    ordered = tuple(sorted(slices, key=lambda file_slice: (file_slice.partition, file_slice.file_id)))
    parts = max(1, -(-rows * _BYTES_PER_KEY // max(budget_bytes // 2, 1)))
    return [KeyShare(slices=ordered, part=part, parts=parts) for part in range(parts)]


def check_share(context: CheckContext, attempt: Attempt, share: KeyShare) -> SharedKeys:
    """Find the keys of a share that are in several partitions. Only the key column is read."""
    try:
        shared = _shared_hashes(context, share)
        if not len(shared):
            return SharedKeys()
        return SharedKeys(count=len(shared), examples=_examples(context, share.slices, shared[:_SHOWN]))
    except (NotFoundError, CorruptTableError):
        return SharedKeys(unread="a file is missing or unreadable")
    except UnsupportedError as error:
        return SharedKeys(unread=error.message)


def _shared_hashes(context: CheckContext, share: KeyShare) -> np.ndarray:
    """Return the hashes that occur in more than one partition. Several rows in one partition count once."""
    shared = []
    for _, slices in groupby(share.slices, key=lambda file_slice: file_slice.partition):
        here = [hashes[hashes % share.parts == share.part] for hashes in map(_hashes, _keys(context, tuple(slices)))]
        if here:
            shared.append(np.unique(np.concatenate(here)))
    if not shared:
        return np.empty(0, np.int64)
    ordered = np.concatenate(shared)
    del shared
    ordered.sort()
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


def _examples(
    context: CheckContext, slices: tuple[FileSlice, ...], hashes: np.ndarray
) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the keys with these hashes, each with its partitions."""
    places: dict[str, dict[str, None]] = {}
    for file_slice in slices:
        for keys in _keys(context, (file_slice,)):
            for key in keys.filter(pa.array(np.isin(_hashes(keys), hashes))).unique().to_pylist():
                places.setdefault(key, {})[file_slice.partition] = None
    return tuple((key, tuple(partitions)) for key, partitions in sorted(places.items()) if len(partitions) > 1)


def _keys(context: CheckContext, slices: tuple[FileSlice, ...]) -> Iterator[pa.ChunkedArray]:
    columns = pa.schema([context.read.table.field(KEY)])
    for file_slice in slices:
        for _, rows in read_slice(context.read, file_slice, columns):
            yield rows.column(KEY).drop_null()


def _repeated_hashes(context: CheckContext, slices: tuple[FileSlice, ...], part: int, passes: int) -> np.ndarray:
    """Return the hashes that occur more than once, ascending, among those whose remainder is `part`."""
    repeated = []
    for keys in _keys(context, slices):
        hashes = _hashes(keys)
        repeated.append(hashes[hashes % passes == part] if passes > 1 else hashes)
    if not repeated:
        return np.empty(0, np.int64)
    ordered = np.concatenate(repeated)
    del repeated
    ordered.sort()
    return np.unique(ordered[1:][ordered[1:] == ordered[:-1]])


def _repeated_keys(context: CheckContext, slices: tuple[FileSlice, ...], twice: np.ndarray) -> Counter[str]:
    """Return the keys with these hashes that occur in several rows, and the number of rows."""
    counts: Counter[str] = Counter()
    for keys in _keys(context, slices):
        chosen = keys.filter(pa.array(np.isin(_hashes(keys), twice)))
        for pair in chosen.value_counts().to_pylist():
            counts[pair["values"]] += pair["counts"]
    return Counter({key: times for key, times in counts.items() if times > 1})


def _hashes(keys: pa.ChunkedArray) -> np.ndarray:
    """Return a hash of 62 bits for each key."""
    hashes = np.empty(len(keys), np.int64)
    first = 0
    for block in key_blocks(keys):
        high, low = (positions.copy() for positions in block.positions(2, _POSITIONS))
        part = hashes[first : first + block.size]
        part[... if block.order is None else block.order] = high << 31 | low
        first += block.size
    return hashes
