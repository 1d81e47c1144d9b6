"""Find records of statistics in the newest layers first (MDT-5).

A commit repeats the rows of its partitions with tight bounds, which replace older rows. So most keys are in the newest
layers, and the older ones are neither searched nor decoded.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.format.metadata.merge import Layer
from lakehouse.core.format.metadata.statistics import STAT_ROWS
from lakehouse.core.metadata.read.layers import FileLayer
from lakehouse.core.state.data_files import one_array


def newest_statistics(
    tasks: Iterable[tuple[Sequence[FileLayer], pa.Array | None]], decoded: Callable[[FileLayer, pa.Array], Layer]
) -> pa.Table | None:
    """Return the records of keys as `STAT_ROWS`; None if records have to be united with older ones.

    Args:
        tasks: The layers of file slices, oldest first, each with sorted binary keys.
        decoded: Returns the rows of a layer with some of the keys, or its deleted keys.
    """
    found = [STAT_ROWS.empty_table()]
    for layers, wanted in tasks:
        rest: Any = wanted
        for file in reversed(layers):
            if not len(rest):
                break
            layer = decoded(file, rest)
            rows = layer.rows
            is_final = pc.and_(rows.column("tight"), pc.invert(rows.column("deleted")))
            if not pc.all(is_final, min_count=0).as_py():
                return None
            found.append(rows)
            for keys in (rows.column("key"), layer.deletes):
                if keys is not None and len(keys):
                    rest = rest.filter(pc.invert(pc.is_in(rest, value_set=one_array(keys.cast(pa.binary())))))
    return pa.concat_tables(found)
