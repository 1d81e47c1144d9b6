"""Return memory to the operating system after large temporary values."""

from __future__ import annotations

import pyarrow as pa

#: Number of rows up to which temporary values are small; the allocators reuse their memory.
_SMALL_ROWS = 20_000


def release_unused(*, after: pa.Table) -> None:
    """Return memory to the system that the allocators of Arrow and C cache after a large table was created.

    NumPy allocates with the allocator of C, which Arrow's system pool can trim.
    """
    if after.num_rows > _SMALL_ROWS:
        pa.default_memory_pool().release_unused()
        pa.system_memory_pool().release_unused()
