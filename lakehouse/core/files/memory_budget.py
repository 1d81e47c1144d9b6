"""How the memory budget of a task is divided among what it holds at the same time.

A process runs one task at a time, and a task is in one phase at a time. A quarter of the budget is given to nobody:
it is for the batch being received, pages being read or written, footers, and the holes in the heap. The shares of a
phase sum up to the rest:

    stage    pending rows 1/4, what combining keeps of them 1/4, the same in the order they are written 1/4
    tag      staged keys and their hash table 3/8, stored keys looked up 1/8, matches found 1/8
    write    rows read 1/16, kept of them 1/16, window of incoming rows 1/16 and its pieces 1/16, rows to encode
             1/4, keys to hash and the bits they set 3/16, filter as read 1/4 and as it will be written 1/16
    append   a window of incoming rows 1/16, and of the whole budget: a log's block before it goes to disk 1/16
    compact  as write for the next base file; the merged slice is read as if the budget were half of it
    cluster  slices are merged as if the budget were half, rows to be sorted 1/4; then of the runs those that are merged
             1/4, and the files as in write
    bulk     rows gathered and set apart 1/4, rows to encode 5/16, keys to hash 1/8, the bits those of one file set
             3/16, filters 1/16

A stored file made under a larger budget, of more than `keys_per_file` keys, has a filter that may need more than its
share: twenty bytes a key while the file is read or written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pyarrow as pa

_MIN_ROWS = 1_024
# Files are not closed sooner than this for the sake of the budget.
MIN_KEYS_PER_FILE = 100_000
# What a hash table takes for a key beside two copies of the key itself, growing included.
_HASH_BYTES = 72
# Row, run and kind of a match, twice while they are put in order.
_HIT_BYTES = 64


def give_back() -> None:
    """Return free memory to the system: to be called when a large share has just become free.

    Between blocks that are still in use an allocator keeps what was freed, which in time is as much again.
    """
    pa.default_memory_pool().release_unused()


@dataclass(frozen=True, slots=True)
class Budget:
    """The shares of `total_bytes`; rows and keys have a least number, so that a tiny budget still makes progress."""

    total_bytes: int

    @property
    def shared_bytes(self) -> int:
        """What the shares are shares of."""
        return self.total_bytes * 3 // 4

    @property
    def pending_bytes(self) -> int:
        """Incoming rows a stage holds before it writes or sets them aside."""
        return self.shared_bytes // 4

    @property
    def encode_bytes(self) -> int:
        """Rows one file holds before they are encoded as a row group."""
        return self.shared_bytes // 4

    @property
    def open_files_bytes(self) -> int:
        """Rows all open files of a task hold before they are encoded."""
        return self.shared_bytes * 5 // 16

    @property
    def gathered_bytes(self) -> int:
        """Incoming rows to be set apart by partition."""
        return self.shared_bytes // 16

    @property
    def decoded_bytes(self) -> int:
        """Stored rows read at once."""
        return self.shared_bytes // 16

    @property
    def hash_bytes(self) -> int:
        """Keys of one file that wait to be hashed into its filter, with what it takes while they are."""
        return self.shared_bytes * 3 // 16

    @property
    def held_key_bytes(self) -> int:
        """Keys of all open files that wait to be hashed."""
        return self.shared_bytes // 8

    @property
    def filter_bytes(self) -> int:
        """Filters of all open files."""
        return self.shared_bytes // 16

    def window_rows(self, bytes_per_row: float) -> int:
        """Incoming rows of a width that are gathered at once to meet stored ones."""
        return max(int(self.shared_bytes / 16 / max(bytes_per_row, 1)), _MIN_ROWS)

    def hashed_keys(self, bytes_per_key: float) -> int:
        """Staged keys of a width whose hash table is in memory at once."""
        return max(int(self.shared_bytes * 3 / 8 / (2 * bytes_per_key + _HASH_BYTES)), 1)

    def looked_up_keys(self, bytes_per_key: float) -> int:
        """Stored keys of a width looked up at once."""
        return max(int(self.shared_bytes / 8 / (bytes_per_key + 16)), _MIN_ROWS)

    @property
    def matches(self) -> int:
        """Matches that are put in order at once."""
        return max(self.shared_bytes // 8 // _HIT_BYTES, _MIN_ROWS)

    def keys_per_file(self, fpp: float) -> int:
        """Keys after which the filter of a file, at a false-positive rate, is as large as may be."""
        bits_per_key = -math.log(fpp) / math.log(2) ** 2
        return max(int(self.filter_bytes * 8 / bits_per_key), MIN_KEYS_PER_FILE)
