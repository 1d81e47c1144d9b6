"""Read HFiles: all entries, or the entries of keys and prefixes from the blocks that can contain them (MDT-1).

A look-up reads the end of the file once: the trailer, the index, and usually all of a small file. Then it reads
the blocks that can contain the keys; neighbouring blocks in one request. NONE and GZ are read, and files of HBase.

Damage is detected as far as the file allows it: lengths, order of keys and counts always; the contents of blocks by
the checksum of gzip or the block. Hudi's uncompressed blocks have no checksum.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from lakehouse.core.format.arrow_versions import search_sorted
from lakehouse.core.format.hfile.cells import Cells, Payloads, decode_cells
from lakehouse.core.format.hfile.entries import ENTRIES, has_two_orders, is_ascending, java_ranks
from lakehouse.core.format.hfile.index import BlockIndex, decode_info, decode_leaf, decode_root, slices
from lakehouse.core.format.hfile.key_search import BareKeysError, Wanted, search, wanted_keys
from lakehouse.core.format.hfile.layout import (
    CRC32,
    CRC32C,
    DATA,
    FILE_INFO,
    GZ,
    HEADER_BYTES,
    HEADER_DTYPE,
    INNER_INDEX,
    LEAF_INDEX,
    MAX_KEY_BYTES,
    NO_CHECKSUM,
    ROOT_INDEX,
    TRAILER_BYTES,
    Trailer,
    checksum_bytes,
    corrupt,
    decode_trailer,
)
from lakehouse.core.format.unaligned import load
from lakehouse.errors import CorruptTableError

I64: TypeAlias = NDArray[np.int64]
U8: TypeAlias = NDArray[np.uint8]
#: Reads (offset, length); returns fewer bytes only at the end of the file.
Read: TypeAlias = Callable[[int, int], Any]

#: Bytes of the first request; a small file needs no other request.
TAIL_BYTES = 1 << 18
#: Maximum gap between two blocks that are read by one request, in bytes.
GAP_BYTES = 1 << 18
#: Number of stored bytes that a scan decodes together.
SCAN_BYTES = 1 << 21
#: Maximum compression ratio of deflate; a header with a larger raw size is wrong.
_MAX_RATIO = 1100
_GZIP = 31  # zlib's number for a stream with gzip header and trailer
#: Below this number of blocks it is faster to decode all cells than to step over the cells in all blocks together.
#: A step takes about 25 us for any number of blocks, and a block of 64 KB has hundreds of cells.
_STEPPED_BLOCKS = 64


#: The cached share of a file on storage, as a power of two: 1 / 64.
KEPT_SHIFT = 6


def read_hfile(data: Any, *, name: str = "the file") -> HFile:
    """Return the HFile in a buffer (bytes, memory map or memoryview); its bytes are not copied."""
    view = memoryview(data)
    return HFile(lambda offset, length: view[offset : offset + length], len(view), name=name, whole=view)


class HFile:
    """An HFile whose index is in memory and whose blocks are read when they are needed.

    Args:
        read: Function of (offset, length) that returns bytes of the file.
        size: Length of the file in bytes.
        name: Name of the file for error messages.
        whole: The whole file, if it is in memory or mapped; then blocks are decoded in place.

    Raises:
        CorruptTableError: The file is damaged; methods raise it too.
        UnsupportedError: The file uses a codec or version that cannot be read.
    """

    def __init__(self, read: Read, size: int, *, name: str = "the file", whole: memoryview | None = None) -> None:
        self._name = name
        self._whole: U8 | None = None if whole is None else np.frombuffer(whole, np.uint8)
        self._size = size
        self._read = read
        # Cached ranges that were read from storage, and the number of bytes that may still be cached.
        self._ranges: dict[tuple[int, int], bytes] = {}
        self._free_bytes = size >> KEPT_SHIFT
        if size < TRAILER_BYTES + 3 * HEADER_BYTES:
            raise corrupt(name, f"it has only {size} bytes")
        self._tail, self._tail_start = memoryview(b""), size
        start = max(0, size - TAIL_BYTES)
        self._tail, self._tail_start = memoryview(self._fetch(start, size - start)), start
        self._trailer = decode_trailer(bytes(self._tail[-TRAILER_BYTES:]), size, name)
        self._index, self._info = self._load()
        self._is_ascending = is_ascending(self._index.keys)

    @property
    def info(self) -> Mapping[str, bytes]:
        """The file info, such as `schema`, `minRecordKey` and `hfile.LASTKEY`."""
        return self._info

    @property
    def is_compressed(self) -> bool:
        """Whether blocks are compressed."""
        return self._trailer.codec == GZ

    @property
    def count(self) -> int:
        """The number of entries that the trailer declares."""
        return self._trailer.entries

    @property
    def trailer(self) -> Trailer:
        """The decoded trailer."""
        return self._trailer

    @property
    def schema(self) -> str | None:
        """The Avro schema of the values as JSON; None if the file info does not contain it."""
        text = self._info.get("schema")
        try:
            return None if text is None else text.decode()
        except UnicodeDecodeError:
            raise corrupt(self._name, "its schema is not valid UTF-8") from None

    def entries(self) -> pa.Table:
        """Return all entries, ascending by key: `key` and `value`, both binary."""
        return _sorted(pa.Table.from_batches(self.batches(), ENTRIES), self._name)

    def batches(self) -> Iterator[pa.RecordBatch]:
        """Yield all entries in the order of the file, with bounded memory. Checks the total number at the end."""
        total = 0
        last: Any = None
        for numbers in self._runs(np.arange(len(self._index))):
            batch = _batch(self._cells(numbers))
            if batch.num_rows == 0:
                continue
            keys = batch.column(0)
            self._check_order(keys if last is None else pa.concat_arrays([last, keys]))
            last = keys[-1:]
            total += batch.num_rows
            yield batch
        if total != self.count:
            raise corrupt(self._name, f"it has {total} entries and declares {self.count}")

    def opened(self) -> OpenedEntries:
        """Return all entries for many look-ups. Values stay in the file or in its decompressed blocks."""
        cells, none = self._cells(np.arange(len(self._index))), np.zeros(0, np.int64)
        keys = slices(cells.data, cells.keys, cells.key_ends)
        if len(cells) != self.count:
            raise corrupt(self._name, f"it has {len(cells)} entries and declares {self.count}")
        self._check_order(keys)
        return OpenedEntries(keys, Cells(cells.data, none, none, cells.values, cells.value_ends), is_ascending(keys))

    def find(self, keys: Any) -> pa.Table:
        """Return the entries of the given keys (binary or string array), ascending; missing keys have no row."""
        wanted = _plain(keys)
        orders = self._orders(wanted)
        lanes = wanted_keys(wanted) if len(orders) == 1 and self._is_ascending else None
        if lanes is None:
            blocks = [self._blocks_of(index, wants) for index, wants in orders]
            return self._select(np.unique(np.concatenate(blocks)), lambda stored: pc.is_in(stored, wanted))
        blocks_of_keys = search_sorted(self._index.keys, wanted, "right") - 1
        tables = []
        for run in self._runs(np.unique(blocks_of_keys[blocks_of_keys >= 0])):
            begin, end = np.searchsorted(blocks_of_keys, [run[0], run[-1] + 1]).tolist()
            keys = _Keys(wanted[begin:end], lanes.slice(begin, end), np.searchsorted(run, blocks_of_keys[begin:end]))
            tables.append(self._find_in(run, keys))
        return _sorted(pa.concat_tables(tables) if tables else ENTRIES.empty_table(), self._name)

    def _find_in(self, run: I64, keys: _Keys) -> pa.Table:
        payloads, is_verified = self._payloads(run)
        if is_verified and len(run) >= _STEPPED_BLOCKS:
            try:
                return _search_cells(payloads, keys, self._name)
            except BareKeysError:
                pass
        return self._pick(decode_cells(payloads, self._name), lambda stored: pc.is_in(stored, keys.keys))

    def find_prefixes(self, prefixes: Any) -> pa.Table:
        """Return the entries whose key starts with one of the prefixes (binary or string array), ascending."""
        wanted = _outermost(_plain(prefixes))
        if len(wanted) == 0 or len(self._index) == 0:
            return ENTRIES.empty_table()
        is_needed = np.zeros(len(self._index), np.bool_)
        for index, wants in self._orders(wanted):
            first = np.maximum(search_sorted(index, wants, "right") - 1, 0)
            end = search_sorted(index, _uppers(wants), "left")
            edges = np.zeros(len(is_needed) + 1, np.int64)
            np.add.at(edges, first, 1)
            np.add.at(edges, np.maximum(first, end), -1)
            is_needed |= np.cumsum(edges)[:-1] > 0
        uppers = _uppers(wanted)

        def is_found(stored: Any) -> Any:
            nearest = search_sorted(wanted, stored, "right") - 1
            inside = pc.less(stored, uppers.take(pa.array(np.maximum(nearest, 0))))
            return (nearest >= 0) & np.asarray(inside)

        return self._select(np.flatnonzero(is_needed), is_found)

    def last_of_prefixes(self, length: int) -> pa.Table:
        """Return some entries of each prefix with this length, ascending; at least the last entry of each prefix.

        Only blocks in which a run of keys with one prefix ends are read: at most one for each prefix.
        """
        if len(self._index) == 0:
            return ENTRIES.empty_table()
        first = pc.binary_slice(self._index.keys, 0, length)
        ends = np.append(np.asarray(pc.not_equal(first[:-1], first[1:])), True)
        return self._select(np.flatnonzero(ends), lambda stored: np.ones(len(stored), np.bool_))

    def _select(self, numbers: I64, is_found: Callable[[Any], Any]) -> pa.Table:
        """Return the entries of some blocks, given by ascending numbers, whose keys pass a test."""
        tables = []
        for run in self._runs(numbers):
            tables.append(self._pick(self._cells(run), is_found))
        return _sorted(pa.concat_tables(tables) if tables else ENTRIES.empty_table(), self._name)

    def _pick(self, cells: Cells, is_found: Callable[[Any], Any]) -> pa.Table:
        stored = slices(cells.data, cells.keys, cells.key_ends)
        self._check_order(stored)
        return _table(cells, np.flatnonzero(is_found(stored)), stored)

    def _orders(self, wanted: Any) -> list[tuple[Any, Any]]:
        """Return (keys of the index, wanted keys) in each order in which the file may be sorted."""
        by_bytes = [(self._index.keys, wanted)] if self._is_ascending else []
        if self._is_ascending and not has_two_orders(wanted):
            return by_bytes
        ranks = java_ranks(self._index.keys)
        if is_ascending(ranks):
            return [*by_bytes, (ranks, java_ranks(wanted))]
        if not by_bytes:
            raise corrupt(self._name, "the keys of its index are not ascending")
        return by_bytes

    def _blocks_of(self, index: Any, wanted: Any) -> I64:
        """Return the number of the block that can contain each key; keys before the first block have none."""
        numbers = search_sorted(index, wanted, "right") - 1
        return numbers[numbers >= 0]

    def _check_order(self, keys: Any) -> None:
        if not is_ascending(keys) and not is_ascending(java_ranks(keys)):
            raise corrupt(self._name, "its keys are not ascending or not distinct")

    # Blocks

    def _load(self) -> tuple[BlockIndex, dict[str, bytes]]:
        """Read the index and the file info, which follow each other."""
        trailer, name = self._trailer, self._name
        end = self._size - TRAILER_BYTES
        section = bytes(self._fetch(trailer.load_on_open, end - trailer.load_on_open))
        root, at = self._block_in(section, 0, ROOT_INDEX)
        meta, at = self._block_in(section, at, ROOT_INDEX)
        decode_root(meta, trailer.meta_blocks, name, plain=True)
        if at != trailer.info_offset - trailer.load_on_open:
            raise corrupt(name, f"its file info is not at byte {trailer.info_offset}")
        info, _ = self._block_in(section, at, FILE_INFO)
        # With several levels, files of some releases store the number of leaves, so the root is not counted.
        index = self._descend(root) if trailer.levels > 1 else decode_root(root, trailer.blocks, name)
        self._check_places(index, trailer.load_on_open)
        return index, decode_info(info, name)

    def _descend(self, root: bytes) -> BlockIndex:
        """Return the leaf entries of a multi-level index."""
        index = decode_root(root, self._trailer.blocks, self._name)
        for _ in range(self._trailer.levels - 1):
            self._check_places(index, self._trailer.load_on_open)
            pieces = []
            for offset, size in zip(index.offsets.tolist(), index.sizes.tolist(), strict=True):
                stored = bytes(self._fetch(offset, size))
                magic = LEAF_INDEX if stored[: len(LEAF_INDEX)] == LEAF_INDEX else INNER_INDEX
                payload, _ = self._block_in(stored, 0, magic)
                pieces.append(decode_leaf(payload, self._name))
            index = BlockIndex(
                np.concatenate([piece.offsets for piece in pieces]),
                np.concatenate([piece.sizes for piece in pieces]),
                pa.concat_arrays([piece.keys for piece in pieces]),
            )
        return index

    def _check_places(self, index: BlockIndex, end: int) -> None:
        offsets, sizes = index.offsets, index.sizes
        after = offsets + sizes
        if (offsets < 0).any() or (sizes < HEADER_BYTES).any() or (after > end).any():
            raise corrupt(self._name, "an index entry points outside of the data")
        if (after[:-1] > offsets[1:]).any():
            raise corrupt(self._name, "the blocks of its index overlap or do not ascend")

    def _block_in(self, data: bytes, at: int, magic: bytes) -> tuple[bytes, int]:
        """Return the raw payload of a block and the position after it."""
        if len(data) - at < HEADER_BYTES:
            raise corrupt(self._name, f"the block {magic.decode()} is missing")
        header = np.frombuffer(data, HEADER_DTYPE, 1, at)
        size = HEADER_BYTES + int(header["stored"][0])
        self._check_headers(header, np.array([size]), magic)
        if size > len(data) - at:
            raise corrupt(self._name, f"the block {magic.decode()} exceeds the file")
        payload = self._raw(memoryview(data)[at : at + size], header[0])
        return bytes(payload), at + size

    def _check_headers(self, headers: Any, sizes: I64, magic: bytes) -> None:
        """Check headers of blocks whose sizes on disk are known."""
        stored, raw = headers["stored"].astype(np.int64), headers["raw"].astype(np.int64)
        data, piece = headers["data"].astype(np.int64), headers["piece"].astype(np.int64)
        if (headers["magic"] != np.void(magic)).any():
            raise corrupt(self._name, f"a block does not start with {magic.decode()}")
        checksums = stored + HEADER_BYTES - data
        expected = 4 * -(-data // np.maximum(piece, 1))
        is_valid = (stored + HEADER_BYTES == sizes) & (data >= HEADER_BYTES) & (raw >= 0) & (piece >= 1)
        is_valid &= ((checksums == expected) | (checksums == 0)) & (headers["checksum"] <= CRC32C)
        if self._trailer.codec == GZ:
            is_valid &= raw <= (data - HEADER_BYTES) * _MAX_RATIO
        else:
            is_valid &= raw == data - HEADER_BYTES
        if not is_valid.all():
            raise corrupt(self._name, f"the header of a block {magic.decode()} has wrong sizes")

    def _raw(self, stored: Any, header: Any) -> Any:
        """Return the raw payload of one stored block."""
        length = int(header["data"])
        kind = int(header["checksum"])
        if kind == CRC32:
            self._verify(stored, length, int(header["piece"]))
        elif kind == NO_CHECKSUM and any(stored[length:]):
            raise corrupt(self._name, "a block without checksums does not end with zeros")
        payload = stored[HEADER_BYTES:length]
        if self._trailer.codec != GZ or len(payload) == 0:
            return payload
        raw_bytes = int(header["raw"])
        stream = zlib.decompressobj(_GZIP)
        try:
            raw = stream.decompress(payload, raw_bytes + 1)
        except zlib.error as error:
            raise corrupt(self._name, f"a block cannot be decompressed ({error})") from None
        if len(raw) != raw_bytes or not stream.eof or stream.unused_data:
            raise corrupt(self._name, f"a block does not have {raw_bytes} bytes after decompression")
        return raw

    def _verify(self, stored: Any, length: int, piece: int) -> None:
        checksums = stored[length:]
        if len(checksums) != checksum_bytes(length, piece):
            raise corrupt(self._name, "a block has no checksums")
        for number, start in enumerate(range(0, length, piece)):
            checksum = zlib.crc32(stored[start : min(start + piece, length)])
            if checksum.to_bytes(4, "big") != checksums[4 * number : 4 * number + 4]:
                raise corrupt(self._name, "the checksum of a block is wrong")

    def _runs(self, numbers: I64) -> Iterator[I64]:
        """Yield block numbers in groups of about SCAN_BYTES."""
        if len(numbers):
            group = np.cumsum(self._index.sizes[numbers]) // SCAN_BYTES
            yield from np.split(numbers, np.flatnonzero(np.diff(group)) + 1)

    def _cells(self, numbers: I64) -> Cells:
        """Return the cells of some blocks, given by ascending numbers."""
        return decode_cells(self._payloads(numbers)[0], self._name)

    def _payloads(self, numbers: I64) -> tuple[Payloads, bool]:
        """Return the raw payloads of blocks, and whether their contents were verified by checksums."""
        offsets, sizes = self._index.offsets[numbers], self._index.sizes[numbers]
        if len(numbers) == 0:
            return Payloads(np.zeros(16, np.uint8), offsets, offsets, offsets), True
        try:
            return self._verified(offsets, sizes)
        except CorruptTableError:
            # Drop the cached range: the storage may have returned wrong bytes, so the next call reads them again.
            self._ranges, self._free_bytes = {}, self._size >> KEPT_SHIFT
            raise

    def _verified(self, offsets: I64, sizes: I64) -> tuple[Payloads, bool]:
        data, places = self._stored(offsets, sizes)
        headers = load(data, places, f"V{HEADER_BYTES}").view(HEADER_DTYPE)
        self._check_headers(headers, sizes, DATA)
        if self._trailer.codec == GZ:
            return self._unpacked(data, places, offsets, headers), True
        is_verified = bool((headers["checksum"] == CRC32).all())
        if is_verified:
            self._verify_all(data, places, headers)
        elif headers["checksum"].any() or _ends(data, places, headers).any():
            for place, size, header in zip(places.tolist(), sizes.tolist(), headers, strict=True):
                self._raw(data.data[place : place + size], header)
        starts = places + HEADER_BYTES
        return Payloads(data, starts, starts + headers["raw"], offsets), is_verified

    def _verify_all(self, data: U8, places: I64, headers: Any) -> None:
        """Verify the checksums of blocks that are not compressed."""
        lengths = headers["data"].astype(np.int64)
        view, crc32 = data.data, zlib.crc32
        is_short = lengths <= headers["piece"]
        short = np.flatnonzero(is_short)
        ends = places[short] + lengths[short]
        checksums = [crc32(view[start:end]) for start, end in zip(places[short].tolist(), ends.tolist(), strict=True)]
        has_one = headers["stored"][short] + HEADER_BYTES - lengths[short] == 4
        if not has_one.all() or (load(data, ends, ">u4") != np.array(checksums, np.uint32)).any():
            raise corrupt(self._name, "the checksum of a block is wrong")
        for number in np.flatnonzero(~is_short).tolist():
            start, size = int(places[number]), int(headers["stored"][number]) + HEADER_BYTES
            self._verify(view[start : start + size], int(lengths[number]), int(headers["piece"][number]))

    def _unpacked(self, data: U8, places: I64, offsets: I64, headers: Any) -> Payloads:
        view = data.data
        ends = places + HEADER_BYTES + headers["stored"]
        pieces = [
            self._raw(view[start:end], header)
            for start, end, header in zip(places.tolist(), ends.tolist(), headers, strict=True)
        ]
        bounds = np.zeros(len(pieces) + 1, np.int64)
        np.cumsum([len(piece) for piece in pieces], out=bounds[1:])
        joined = np.frombuffer(b"".join(pieces) or b"\0", np.uint8)
        return Payloads(joined, bounds[:-1], bounds[1:], offsets)

    def _stored(self, offsets: I64, sizes: I64) -> tuple[U8, I64]:
        """Return a buffer with the stored blocks, and the position of each."""
        if len(offsets) == 0:
            return np.zeros(16, np.uint8), offsets
        if self._whole is not None:
            return self._whole, offsets
        cuts = np.flatnonzero(offsets[1:] - (offsets + sizes)[:-1] > GAP_BYTES) + 1
        firsts = offsets[np.concatenate([[0], cuts])]
        ends = (offsets + sizes)[np.concatenate([cuts - 1, [len(offsets) - 1]])]
        pieces = [self._fetch(first, end - first) for first, end in zip(firsts.tolist(), ends.tolist(), strict=True)]
        bases = np.zeros(len(pieces), np.int64)
        np.cumsum((ends - firsts)[:-1], out=bases[1:])
        run = np.zeros(len(offsets), np.int64)
        run[cuts] = 1
        run = np.cumsum(run)
        joined = pieces[0] if len(pieces) == 1 else b"".join(pieces)
        return np.frombuffer(joined, np.uint8), offsets - firsts[run] + bases[run]

    def _fetch(self, offset: int, length: int) -> Any:
        if offset >= self._tail_start:
            start = offset - self._tail_start
            return self._tail[start : start + length]
        held = self._ranges.get((offset, length))
        if held is not None:
            return held
        data = self._read(offset, length)
        if len(data) != length:
            raise corrupt(self._name, f"it ends at byte {offset + len(data)}, {self._size} expected")
        if self._whole is None:
            self._keep(offset, data)
        return data

    def _keep(self, offset: int, data: bytes) -> None:
        """Cache a range that was read, because the next commit of the process reads the same files."""
        if len(data) > self._free_bytes:
            self._ranges, self._free_bytes = {}, self._size >> KEPT_SHIFT
        if len(data) <= self._free_bytes:
            self._ranges[offset, len(data)] = data
            self._free_bytes -= len(data)


@dataclass(frozen=True, slots=True, eq=False)
class OpenedEntries:
    """The keys of a file as an array, in the order of the file, and the places of the values."""

    keys: Any
    cells: Cells
    is_ascending: bool

    @property
    def nbytes(self) -> int:
        """The size in memory, excluding a file that is mapped or in memory for other reasons."""
        return int(self.keys.nbytes) + 2 * self.cells.values.nbytes + int(self.cells.data.nbytes)

    def find(self, keys: Any) -> pa.Table:
        """Return the entries of keys, which are ascending binary values; missing keys have no row."""
        if self.is_ascending:
            place = search_sorted(self.keys, keys, "left")
            inside = np.flatnonzero(place < len(self.keys))
            same = np.asarray(pc.equal(self.keys.take(pa.array(place[inside])), keys.take(pa.array(inside))))
            rows = place[inside[same]]
        else:
            place = pc.index_in(keys, value_set=self.keys).drop_null().to_numpy(zero_copy_only=False)
            rows = place.astype(np.int64)
        order = np.argsort(rows)
        values = slices(self.cells.data, self.cells.values[rows[order]], self.cells.value_ends[rows[order]])
        entries = pa.Table.from_arrays([self.keys.take(pa.array(rows[order])), values], schema=ENTRIES)
        if self.is_ascending:
            return entries
        return entries.take(pc.array_sort_indices(entries.column("key").combine_chunks()))


@dataclass(frozen=True, slots=True, eq=False)
class _Keys:
    """Ascending keys as an array and as words, and for each the position of its block among some blocks."""

    keys: Any
    words: Wanted
    places: I64


def _search_cells(payloads: Payloads, keys: _Keys, name: str) -> pa.Table:
    starts, ends = payloads.starts[keys.places], payloads.ends[keys.places]
    matches = search(payloads.data, starts, ends, keys.words, name)
    values = slices(payloads.data, matches.values, matches.value_ends)
    return pa.Table.from_arrays([keys.keys.take(pa.array(matches.rows)), values], schema=ENTRIES)


def _ends(data: U8, places: I64, headers: Any) -> Any:
    """Return the first checksum of each block that contains one."""
    has_one = headers["stored"] + HEADER_BYTES >= headers["data"] + 4
    return load(data, (places + headers["data"])[has_one], "V4").view("<u4")


def _plain(keys: Any) -> Any:
    """Return distinct keys, ascending, as one binary array."""
    if isinstance(keys, pa.ChunkedArray):
        keys = keys.combine_chunks()
    keys = keys.cast(pa.binary())
    if is_ascending(keys):
        return keys
    keys = keys.unique()
    return keys.take(pc.array_sort_indices(keys))


def _outermost(prefixes: Any) -> Any:
    """Return the ascending prefixes without those that start with another prefix."""
    outermost: list[bytes] = []
    for prefix in prefixes.to_pylist():
        if not outermost or not prefix.startswith(outermost[-1]):
            outermost.append(prefix)
    return pa.array(outermost, pa.binary())


def _uppers(prefixes: Any) -> Any:
    """Return for each prefix the first key after all keys with the prefix."""
    uppers = []
    for prefix in prefixes.to_pylist():
        stem = prefix.rstrip(b"\xff")
        uppers.append(stem[:-1] + bytes([stem[-1] + 1]) if stem else b"\xff" * (MAX_KEY_BYTES + 1))
    return pa.array(uppers, pa.binary())


def _batch(cells: Cells) -> pa.RecordBatch:
    keys = slices(cells.data, cells.keys, cells.key_ends)
    return pa.RecordBatch.from_arrays([keys, slices(cells.data, cells.values, cells.value_ends)], schema=ENTRIES)


def _table(cells: Cells, rows: I64, keys: Any) -> pa.Table:
    values = slices(cells.data, cells.values[rows], cells.value_ends[rows])
    return pa.Table.from_arrays([keys.take(pa.array(rows)), values], schema=ENTRIES)


def _sorted(entries: pa.Table, name: str) -> pa.Table:
    """Return the entries ascending by bytes; files of Hudi may be sorted as Java strings."""
    keys = entries.column("key").combine_chunks() if entries.num_rows else pa.array([], pa.binary())
    if is_ascending(keys):
        return entries
    entries = entries.take(pc.array_sort_indices(keys))
    if not is_ascending(entries.column("key").combine_chunks()):
        raise corrupt(name, "its keys are not distinct")
    return entries
