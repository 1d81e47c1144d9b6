"""Fingerprints of sets of staged rows: whether the rows that look-ups found are all rows of a partition.

Each look-up counts the upserts that have a stored row. A key that several files store is counted several times, so
equal counts do not say that each upsert has a match. Equal fingerprints do: a fingerprint is the sum of a 64-bit hash
of each row, and rows that are counted twice instead of others change it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from lakehouse.core.index.write_tasks import StagedEntry

U64 = NDArray[np.uint64]
_BITS = 64
_GAMMA, _FIRST, _SECOND = (np.uint64(number) for number in (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB))
#: Rows that are hashed at once.
_PIECE = 1 << 20


def run_seed(run: str) -> int:
    """Return the number from which the hashes of the rows of a staged run follow."""
    return int.from_bytes(hashlib.blake2b(run.encode(), digest_size=8).digest(), "little")


def row_hashes(seeds: U64 | np.uint64, rows: NDArray[np.int64]) -> U64:
    """Return a 64-bit hash of each row, given by the seed of its run and its position in it (splitmix64)."""
    mixed = seeds + rows.astype(np.uint64) * _GAMMA
    mixed = (mixed ^ (mixed >> np.uint64(30))) * _FIRST
    mixed = (mixed ^ (mixed >> np.uint64(27))) * _SECOND
    return mixed ^ (mixed >> np.uint64(31))


def fingerprint_of(entries: Iterable[StagedEntry]) -> int:
    """Return the fingerprint of all upserts of some entries."""
    total = 0
    for entry in entries:
        seed = np.uint64(run_seed(entry.run))
        for start in range(entry.offset, entry.offset + entry.upserts, _PIECE):
            rows = np.arange(start, min(start + _PIECE, entry.offset + entry.upserts))
            total += int(row_hashes(seed, rows).sum(dtype=np.uint64))
    return total % (1 << _BITS)


def united(fingerprints: Iterable[int]) -> int:
    """Return the fingerprint of sets that are counted together."""
    return sum(fingerprints) % (1 << _BITS)
