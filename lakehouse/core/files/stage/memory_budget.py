"""Divide the memory budget of a task among the data that it keeps at the same time.

A process runs one task at a time, and a task is in one phase at a time. A quarter of the budget is a reserve for the
batch being received, pages being read or written, footers, and fragmentation of the heap. The shares of a phase add up
to the rest:

    stage    pending rows 1/4, rows kept by combining 1/4, the same rows in the order of writing 1/4
    tag      staged keys and their hash table 3/8, stored keys being looked up 1/8, matches 1/8
    write    rows read 1/16, rows kept of them 1/16, window of incoming rows 1/16 and its pieces 1/16, rows to encode
             1/4, keys to hash and their bits 3/16, filter as read 1/4 and as it will be written 1/16
    append   a window of incoming rows 1/16, and of the whole budget: a log block before it is spilled to disk 1/16
    compact  as write for the next base file; the merged slice is read with half of the budget
    cluster  slices are merged with half of the budget, rows to be sorted 1/4; then the runs that are merged 1/4, and
             the files as in write
    bulk     rows gathered and grouped by partition 1/4, rows to encode 5/16, keys to hash 1/8, their bits for one
             file 3/16, filters 1/16

A stored file that was written with a larger budget and has more than `keys_per_file` keys may need more than its share
for the filter: twenty bytes per key while the file is read or written.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import pyarrow as pa

_MIN_ROWS = 1_024
# A file with fewer keys is not closed, even if the filters exceed their share of memory.
MIN_KEYS_PER_FILE = 100_000
# Memory of a hash table per key, besides two copies of the key, including its growth.
_HASH_BYTES = 72
# Row, run and kind of a match, twice while the matches are sorted.
_MATCH_BYTES = 64


def give_back() -> None:
    """Return free memory to the system. Call it after a large share was released.

    An allocator keeps freed memory between blocks that are in use, which adds up to the same size over time.
    """
    pa.default_memory_pool().release_unused()


@dataclass(frozen=True, slots=True)
class Budget:
    """The shares of `total_bytes`. Rows and keys have a minimum, so that a tiny budget still makes progress."""

    total_bytes: int

    @property
    def shared_bytes(self) -> int:
        """The budget without the reserve."""
        return self.total_bytes * 3 // 4

    @property
    def pending_bytes(self) -> int:
        """Incoming rows that a stage keeps before it writes or combines them."""
        return self.shared_bytes // 4

    @property
    def encode_bytes(self) -> int:
        """Rows that one file keeps before they are encoded as a row group."""
        return self.shared_bytes // 4

    @property
    def open_files_bytes(self) -> int:
        """Rows that all open files of a task keep before they are encoded."""
        return self.shared_bytes * 5 // 16

    @property
    def gathered_bytes(self) -> int:
        """Incoming rows that are grouped by partition."""
        return self.shared_bytes // 16

    @property
    def decoded_bytes(self) -> int:
        """Stored rows that are read at once."""
        return self.shared_bytes // 16

    @property
    def hash_bytes(self) -> int:
        """Keys of one file that wait to be hashed into its filter, and the memory for hashing them."""
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
        """The number of incoming rows of this size that are read at once."""
        return max(int(self.shared_bytes / 16 / max(bytes_per_row, 1)), _MIN_ROWS)

    def hashed_keys(self, bytes_per_key: float) -> int:
        """The number of staged keys of this size whose hash table is in memory at once."""
        return max(int(self.shared_bytes * 3 / 8 / (2 * bytes_per_key + _HASH_BYTES)), 1)

    def looked_up_keys(self, bytes_per_key: float) -> int:
        """The number of stored keys of this size that are looked up at once."""
        return max(int(self.shared_bytes / 8 / (bytes_per_key + 16)), _MIN_ROWS)

    @property
    def matches(self) -> int:
        """The number of matches that are sorted at once."""
        return max(self.shared_bytes // 8 // _MATCH_BYTES, _MIN_ROWS)

    def keys_per_file(self, fpp: float) -> int:
        """The number of keys at which the filter of a file with this false-positive rate reaches its share."""
        bits_per_key = -math.log(fpp) / math.log(2) ** 2
        return max(int(self.filter_bytes * 8 / bits_per_key), MIN_KEYS_PER_FILE)
