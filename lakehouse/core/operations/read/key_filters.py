"""Which base files cannot have the record keys that a condition names, by the bloom filters of the metadata table.

The filter of a file never changes, so it is valid for every version of the table. A file without a filter excludes
nothing. A slice with log files stays, because its logs may have keys that its base file lacks.

Filters are not asked for more than 512 files or 1,000 keys, and not for keys with characters outside of ASCII. A filter
takes 100 to 400 KB, so a plan would read more than 100 MB, while a scan of a file of which a filter excludes nothing is
still right. With 1,000 keys hardly any file is excluded. Writers differ in the bytes of other characters. A table of
more files needs a record index, by which such a condition opens only the file groups of its keys.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.files.keys.key_lookup import CandidateKeys
from lakehouse.core.metadata.read.table import BLOOM_FILTERS, MetadataTable
from lakehouse.core.operations.load.metadata import from_metadata
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.planning.ranges import Flags
from lakehouse.core.state.file_slices import FileSlices

#: Filters that are read for one condition, and at once; one takes about 150 KB, or more for a large file.
_MOST_FILTERS, _AT_ONCE = 512, 64
#: Record keys that filters are asked for.
_MOST_KEYS = 1_000


def slices_by_key(table: LoadedTable, slices: FileSlices, keys: pa.Array) -> tuple[Flags, int] | None:
    """Return which slices may have one of the record keys, and how many filters were asked; None without a filter."""
    if not len(keys) or len(keys) > _MOST_KEYS or len(slices) < 2 or slices.files.num_rows > _MOST_FILTERS:
        return None
    if not pc.all(pc.string_is_ascii(keys)).as_py():
        # Not every writer adds other characters in UTF-8.
        return None
    return from_metadata(table, BLOOM_FILTERS, lambda metadata: _asked(metadata, slices, keys))


def _asked(metadata: MetadataTable, slices: FileSlices, keys: pa.Array) -> tuple[Flags, int] | None:
    candidates = CandidateKeys(pa.chunked_array([keys]))
    files = slices.files.select(["partition", "name"])
    places = {place: number for number, place in enumerate(zip(*files.to_pydict().values(), strict=True))}
    keep = np.ones(files.num_rows, np.bool_)
    asked = 0
    for start in range(0, files.num_rows, _AT_ONCE):
        rows = metadata.bloom_filters(files.slice(start, _AT_ONCE))
        names = zip(*(rows.column(name).to_pylist() for name in ("partition", "name", "type")), strict=True)
        for number, (partition, name, kind) in enumerate(names):
            text = rows.column("filter")[number].as_py()
            may_have = candidates.of_filter(f"{partition}/{name}", text, kind)
            if may_have is not None:
                keep[places[partition, name]] = bool(may_have.any())
                asked += 1
    return (slices.any_file(keep), asked) if asked else None
