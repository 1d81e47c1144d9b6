"""Load the rings of partitions in a table with consistent hashing (MDT-12.1, MDT-12.4).

Hashing metadata is valid if it is the initial metadata, if it has a marker, or if its replacecommit is completed. If a
completed replacecommit has no marker yet, the next writer creates it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Iterable
from concurrent.futures import ThreadPoolExecutor

from lakehouse.core.format.file_names import parse_base_file, parse_log_file
from lakehouse.core.format.hashing_metadata import (
    HASHING_METADATA,
    INITIAL_INSTANT,
    HashingMetadata,
    decode_hashing_metadata,
    encode_hashing_metadata,
    initial_metadata,
    instants_of,
    marker_path,
    metadata_folder,
    metadata_path,
)
from lakehouse.core.index.hash.consistent_hashing import Ring
from lakehouse.core.operations.load.table import LoadedTable
from lakehouse.core.state.file_system_view import first_write
from lakehouse.core.storage.protocol import Storage
from lakehouse.core.timeline.file_deletions import delete_leftovers
from lakehouse.errors import UserError
from lakehouse.model.instant import Action
from lakehouse.spec.table.bucket_rules import NUM_BUCKETS

logger = logging.getLogger(__name__)
_READERS = 8


def load_rings(table: LoadedTable, partitions: Iterable[str]) -> dict[str, Ring]:
    """Return the current ring of each partition that has one; writes nothing."""
    wanted = sorted(set(partitions))
    return {partition: ring for partition, (ring, _) in _loaded(table, wanted).items()}


def require_rings(table: LoadedTable, partitions: Iterable[str], buckets: int) -> dict[str, Ring]:
    """Return the current ring of each partition; create the initial metadata of new partitions with `buckets` nodes.

    Several writers may create the metadata of a partition at the same time: all of them use the first one.
    """
    wanted = sorted(set(partitions))
    loaded = _loaded(table, wanted)
    for ring, is_marked in loaded.values():
        if not is_marked:
            mark_valid(table, ring)
    rings = {partition: ring for partition, (ring, _) in loaded.items()}
    missing = [partition for partition in wanted if partition not in rings]
    if missing and buckets < 1:
        raise UserError(
            f"{table.env.storage.root}: partition {missing[0]!r} is new, and the number of its buckets is unknown; set "
            f"{NUM_BUCKETS}, at least 1",
            option=NUM_BUCKETS,
        )
    with ThreadPoolExecutor(_READERS) as pool:
        return rings | dict(zip(missing, pool.map(lambda name: _created(table, name, buckets), missing), strict=True))


def uses_ring(table: LoadedTable) -> bool:
    """Return whether any partition of the table has hashing metadata."""
    _, folders = table.env.storage.list_dir(".hoodie/.bucket_index")
    return "consistent_hashing_metadata" in folders


def _created(table: LoadedTable, partition: str, buckets: int) -> Ring:
    storage, initial = table.env.storage, initial_metadata(partition, buckets)
    path = metadata_path(partition, INITIAL_INSTANT)
    if storage.create(path, encode_hashing_metadata(initial)):
        return Ring(initial)
    return Ring(decode_hashing_metadata(storage.get(path), f"{storage.root}/{path}"))


def _loaded(table: LoadedTable, partitions: list[str]) -> dict[str, tuple[Ring, bool]]:
    """Return the current ring of each partition that has one, and whether its metadata is marked as valid."""
    with ThreadPoolExecutor(_READERS) as pool:
        newest = list(pool.map(lambda partition: _current(table, partition), partitions))
    return {
        partition: (Ring(current[0]), current[1])
        for partition, current in zip(partitions, newest, strict=True)
        if current is not None
    }


def _current(table: LoadedTable, partition: str) -> tuple[HashingMetadata, bool] | None:
    """Return the newest valid hashing metadata of a partition, and whether it is marked as valid; or None."""
    storage = table.env.storage
    instants, markers = instants_of(storage.list_names(metadata_folder(partition)))
    for instant in sorted(instants, reverse=True):
        path = metadata_path(partition, instant)
        is_marked = instant == INITIAL_INSTANT or instant in markers
        if not is_marked and not _is_completed(table, instant) and not _is_archived(table, instant):
            continue
        metadata = decode_hashing_metadata(storage.get(path), f"{storage.root}/{path}")
        if is_marked or _is_completed(table, instant) or _has_files(table, metadata):
            return metadata, is_marked
    return None


def store_rings(table: LoadedTable, rings: Collection[Ring]) -> None:
    """Write the hashing metadata of a replacecommit. It becomes valid when the replacecommit is completed."""
    storage = table.env.storage
    with ThreadPoolExecutor(_READERS) as pool:
        list(
            pool.map(
                lambda ring: storage.put(
                    metadata_path(ring.metadata.partition, ring.metadata.instant),
                    encode_hashing_metadata(ring.metadata),
                ),
                rings,
            )
        )


def delete_rings(storage: Storage, instant: str) -> None:
    """Delete the hashing metadata of `instant`, which is rolled back."""
    names = (metadata_path("", instant).rpartition("/")[2], marker_path("", instant).rpartition("/")[2])
    listed = [file for file in storage.list(HASHING_METADATA) if file.name in names]
    delete_leftovers(storage, [file.path for file in listed])


def mark_valid(table: LoadedTable, ring: Ring) -> None:
    """Create the marker of hashing metadata whose replacecommit is completed.

    Once the replacecommit is archived, only the marker shows that the metadata is valid.
    """
    table.env.storage.create(marker_path(ring.metadata.partition, ring.metadata.instant), b"")


def _is_completed(table: LoadedTable, instant: str) -> bool:
    current = table.timeline.find(instant)
    return current is not None and current.is_completed and current.action is Action.REPLACECOMMIT


def _is_archived(table: LoadedTable, instant: str) -> bool:
    return table.timeline.find(instant) is None and instant < first_write(table.timeline)


def _has_files(table: LoadedTable, metadata: HashingMetadata) -> bool:
    """Return whether files exist in groups that an archived resize created.

    They prove that the resize was completed.
    """
    groups = {node.file_id for node in metadata.nodes}
    files, _ = table.env.storage.list_dir(metadata.partition)
    data = (
        parse_base_file(f.name, metadata.partition, 0) or parse_log_file(f.name, metadata.partition, 0) for f in files
    )
    return any(file is not None and file.file_id in groups and file.instant == metadata.instant for file in data)
