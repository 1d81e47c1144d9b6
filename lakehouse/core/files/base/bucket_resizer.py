"""Rewrite the rows of buckets into the buckets that replace them: one base file per new bucket (MDT-12.5).

Rows are sorted within buckets if the layout requires it. They keep the commit time and sequence number of the commit
that wrote them, as in any clustering.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from lakehouse.core.files.base.base_writer import BaseFileWriter, kept_schema
from lakehouse.core.files.base.clustering_writer import ClusteringContext, clustering_markers, slice_of, sorted_rows
from lakehouse.core.files.log.slice_reader import read_slice
from lakehouse.core.files.stage.markers import TaskMarkers
from lakehouse.core.files.stage.staging import KEY
from lakehouse.core.planning.bucket_children import BucketChildren, children_of
from lakehouse.core.storage.os_errors import scratch_directory
from lakehouse.errors import CorruptTableError
from lakehouse.model.attempt import Attempt
from lakehouse.model.clustering import ClusteringGroup
from lakehouse.model.commit import WriteStat

_CHILD = "\0child"


def resize_group(context: ClusteringContext, attempt: Attempt, group: ClusteringGroup) -> list[WriteStat]:
    """Write the rows of the group's slices into the new buckets and return the write statistics of their files.

    A new bucket without rows gets no file.

    Raises:
        CorruptTableError: The plan contains no new buckets, or invalid names of data files.
    """
    children = children_of(group)
    if children is None:
        raise CorruptTableError(f"the clustering plan names no new buckets for {group.slices[0].file_id}")
    slices = [slice_of(piece) for piece in group.slices]
    schema = kept_schema(context.write.schema)
    rows: Iterator[pa.Table] = (r for piece in slices for _, r in read_slice(context.read, piece, schema))
    placed: Iterator[pa.Table] = (
        piece.append_column(_CHILD, pa.array(_places(context, children, piece))) for piece in rows
    )
    with ExitStack() as stack:
        if context.layout.columns:
            directory = Path(stack.enter_context(scratch_directory("lakehouse-resize-")))
            placed, _ = sorted_rows(context, slices, placed, directory, first=(_CHILD,))
        names = clustering_markers(context.write, attempt, group)
        markers = TaskMarkers(context.write, attempt, names)
        markers.mark(*names)
        writers: dict[int, BaseFileWriter] = {}
        for piece in placed:
            numbers = piece.column(_CHILD).to_numpy()
            data = piece.drop_columns([_CHILD])
            for number in np.unique(numbers).tolist():
                if number not in writers:
                    file_id = children.file_ids[number]
                    writers[number] = stack.enter_context(BaseFileWriter(markers, group.partition, file_id))
                writers[number].write_kept(data.filter(pa.array(numbers == number)), is_stored=False)
    return [writer.stat(inserts=writer.rows, updates=0, deletes=0) for _, writer in sorted(writers.items())]


def _places(context: ClusteringContext, children: BucketChildren, rows: pa.Table) -> npt.NDArray[np.int64]:
    write = context.write
    return children.places(
        rows.column(KEY), key_fields=write.keys.record_key_fields, hash_fields=write.layout.hash_fields
    )
