"""Return memory to the operating system after large temporary values."""

from __future__ import annotations

import pyarrow as pa

#: Rows of a table whose temporary values are small; the allocators use their memory again.
_SMALL_ROWS = 20_000


def release_unused(*, after: pa.Table) -> None:
    """Return the memory that the allocators in Arrow and C keep for later, after a large table was made.

    NumPy allocates with the allocator of C, which Arrow's system pool can trim.
    """
    if after.num_rows > _SMALL_ROWS:
        pa.default_memory_pool().release_unused()
        pa.system_memory_pool().release_unused()
