"""Read and write the frames and headers of log blocks, not their contents (DATA-4.2, DATA-4.3, DATA-4.5).

    magic #HUDI# | int64 size | int32 1 | int32 kind | headers | int64 length | content | footers | int64 size + 6
                              |<------------------------- size: the rest of the block -------------------------->|

Headers and footers are maps: int32 count, then per entry int32 key, int32 bytes, UTF-8 string. All integers are
big-endian. The format defines no footers. A file may contain several blocks. A block is incomplete if its writer
crashed.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

from lakehouse.errors import CorruptTableError

MAGIC = b"#HUDI#"
_FORMAT_VERSION = 1
_SIZE = struct.Struct(">q")
_INT = struct.Struct(">i")
_HEAD = struct.Struct(">6sqii")  # magic, size, format version, kind
_ENTRY = struct.Struct(">ii")
_NO_ENTRIES = _INT.pack(0)
#: Bytes of a block before the part that `size` counts.
_BEFORE_SIZED = len(MAGIC) + _SIZE.size
_SMALLEST = _INT.size * 4 + _SIZE.size * 2
#: Number of bytes per read: enough for the frame of a block with a schema of typical length.
_WINDOW_BYTES = 8_192
_SEARCH_BYTES = 1 << 20


class BlockType(IntEnum):
    """The content of a block. CORRUPT is never written; it marks bytes that are not a complete block."""

    COMMAND = 0
    DELETE = 1
    CORRUPT = 2
    AVRO_DATA = 3
    HFILE_DATA = 4
    PARQUET_DATA = 5
    CDC_DATA = 6


class BlockHeader(IntEnum):
    """Keys of block headers."""

    INSTANT_TIME = 0
    TARGET_INSTANT_TIME = 1
    SCHEMA = 2
    COMMAND_BLOCK_TYPE = 3
    COMPACTED_BLOCK_TIMES = 4
    RECORD_POSITIONS = 5
    BLOCK_IDENTIFIER = 6
    IS_PARTIAL = 7
    BASE_FILE_INSTANT_TIME_OF_RECORD_POSITIONS = 8


class RandomAccess(Protocol):
    """The methods of a file object that `scan_blocks` needs."""

    def read(self, nbytes: int = -1, /) -> bytes: ...
    def seek(self, position: int, whence: int = 0, /) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBlock:
    """One block of a log file; its content is `length` bytes at byte `offset` of the file.

    `writer` is set only for a CORRUPT block: the instant time in its headers, or "" if they cannot be read.
    """

    kind: BlockType
    headers: Mapping[BlockHeader, str] = field(default_factory=dict)
    offset: int
    length: int
    writer: str = field(default="", compare=False)

    @property
    def instant(self) -> str:
        """Requested time of the commit or rollback that wrote the block; "" for a CORRUPT block."""
        return self.headers.get(BlockHeader.INSTANT_TIME, "")

    @property
    def schema(self) -> str | None:
        """The writer's schema as Avro JSON, with the meta columns."""
        return self.headers.get(BlockHeader.SCHEMA)

    @property
    def is_partial(self) -> bool:
        """Whether the schema contains only the updated columns."""
        return self.headers.get(BlockHeader.IS_PARTIAL, "").lower() == "true"

    @property
    def compacted(self) -> tuple[str, ...]:
        """Requested times of the instants whose blocks a log compaction merged into this block."""
        times = self.headers.get(BlockHeader.COMPACTED_BLOCK_TIMES, "")
        return tuple(time for time in times.split(",") if time)

    @property
    def target(self) -> str | None:
        """The instant that a rollback command rolls back."""
        return self.headers.get(BlockHeader.TARGET_INSTANT_TIME)


def encode_block(kind: BlockType, headers: Mapping[BlockHeader, str], content: bytes) -> bytes:
    """Return the bytes of a block, with the headers in the order of `headers`."""
    before, after = block_frame(kind, headers, len(content))
    return b"".join((before, content, after))


def block_frame(kind: BlockType, headers: Mapping[BlockHeader, str], content_length: int) -> tuple[bytes, bytes]:
    """Return the bytes of a block before and after its content, which has `content_length` bytes."""
    entries = [_INT.pack(len(headers))]
    for key, text in headers.items():
        encoded = text.encode()
        entries += (_ENTRY.pack(key, len(encoded)), encoded)
    mapped = b"".join(entries)
    size = _SMALLEST - _INT.size + len(mapped) + content_length
    before = _HEAD.pack(MAGIC, size, _FORMAT_VERSION, kind) + mapped + _SIZE.pack(content_length)
    return before, _NO_ENTRIES + _SIZE.pack(size + len(MAGIC))


def scan_blocks(source: RandomAccess, *, requires_instant: bool = True) -> list[LogBlock]:
    """Return the blocks of a log file in file order; reads only their frames, about one small read per block.

    Blocks of an archive have no instant, so their readers set `requires_instant` to False.

    An incomplete block becomes a CORRUPT block that extends to the next magic, as in other readers. A block is
    incomplete if the file ends inside it, if the sizes at its start and end differ, or if neither another block nor the
    end of the file follows.

    Raises CorruptTableError for damage that a crashed writer does not cause: a file that does not start with a block,
    and a complete block of an unknown kind, with unknown headers, or without the headers that its kind requires.
    """
    view = _View(source)
    blocks = []
    position = 0
    while position + len(MAGIC) <= view.size:
        end = _end_of_block(view, position)
        if end is None:
            start = min(position + _BEFORE_SIZED, view.size)
            end = view.next_magic(start)
            writer = _instant_of(view, position, end)
            blocks.append(LogBlock(kind=BlockType.CORRUPT, offset=start, length=end - start, writer=writer))
        else:
            blocks.append(_read_block(view, position, end, requires_instant))
        position = end
    return blocks


class _View:
    """A window of a file that moves forward; `size` is the size of the file in bytes."""

    def __init__(self, source: RandomAccess) -> None:
        self._source = source
        self.size = source.seek(0, io.SEEK_END)
        self._start = 0
        self._window = b""
        self._is_damaged = False

    def at(self, position: int, length: int) -> bytes:
        """Return `length` bytes from `position`, or fewer at the end of the file."""
        first = position - self._start
        if first < 0 or first + length > len(self._window):
            self._window = self._read(position, max(length, _WINDOW_BYTES))
            self._start, first = position, 0
        return self._window[first : first + length]

    def tail(self, position: int, length: int) -> bytes:
        """Return bytes like `at`, at a position where the next block probably starts.

        The window moves to the position, except after an incomplete block. In a file with many incomplete blocks, the
        window would otherwise move forward and back for each of them.
        """
        return self._read(position, length) if self._is_damaged else self.at(position, length)

    def next_magic(self, start: int) -> int:
        """Return the position of the next magic from `start`, or the size of the file if there is none."""
        self._is_damaged = True
        position, length = start, _WINDOW_BYTES
        index = self._window.find(MAGIC, start - self._start) if self._start <= start else -1
        if index >= 0:
            return self._start + index
        # Reads grow in size. Consecutive reads overlap, so that a magic across their border is detected.
        while position < self.size:
            self._window, self._start = self._read(position, length + len(MAGIC) - 1), position
            index = self._window.find(MAGIC)
            if index >= 0:
                return position + index
            position += length
            length = min(4 * length, _SEARCH_BYTES)
        return self.size

    def _read(self, position: int, length: int) -> bytes:
        self._source.seek(position)
        return bytes(self._source.read(length))


def _end_of_block(view: _View, position: int) -> int | None:
    """Return the end of the block at `position`, or None if the block is incomplete."""
    head = view.at(position, _BEFORE_SIZED)
    if head[: len(MAGIC)] != MAGIC:
        raise CorruptTableError(f"the log file starts with {head[: len(MAGIC)]!r}; expected {MAGIC!r}")
    if len(head) < _BEFORE_SIZED:
        return None
    (size,) = _SIZE.unpack_from(head, len(MAGIC))
    end: int = position + _BEFORE_SIZED + size
    if size < _SMALLEST or end > view.size:
        return None
    tail = view.tail(end - _SIZE.size, _SIZE.size + len(MAGIC))
    if _SIZE.unpack_from(tail)[0] != size + len(MAGIC):
        return None
    is_last = end + len(MAGIC) > view.size
    return end if is_last or tail[_SIZE.size :] == MAGIC else None


def _instant_of(view: _View, position: int, end: int) -> str:
    """Return the instant time in the headers of an incomplete block; "" if they cannot be read."""
    try:
        headers, _ = _read_headers(view, position, position + _HEAD.size, end + _SMALLEST)
    except (CorruptTableError, struct.error):
        return ""
    return headers.get(BlockHeader.INSTANT_TIME, "")


def _read_block(view: _View, position: int, end: int, requires_instant: bool) -> LogBlock:
    _, _, version, number = _HEAD.unpack(view.at(position, _HEAD.size))
    if version != _FORMAT_VERSION:
        raise _corrupt(position, f"has log format version {version}; expected {_FORMAT_VERSION}")
    if number not in iter(BlockType) or number == BlockType.CORRUPT:
        raise _corrupt(position, f"has the unknown kind {number}")
    kind = BlockType(number)
    headers, after = _read_headers(view, position, position + _HEAD.size, end)
    (length,) = _SIZE.unpack(view.at(after, _SIZE.size))
    offset = after + _SIZE.size
    if not 0 <= length <= end - _SIZE.size - _INT.size - offset:
        raise _corrupt(position, f"declares a content of {length} bytes, but {end - offset} are left")
    _require_headers(position, kind, headers, requires_instant)
    return LogBlock(kind=kind, headers=headers, offset=offset, length=length)


def _read_headers(view: _View, position: int, start: int, end: int) -> tuple[dict[BlockHeader, str], int]:
    """Return the headers that start at `start`, and their end."""
    last = end - _SMALLEST + 3 * _INT.size  # content length, footers and trailing size must follow
    (count,) = _INT.unpack(view.at(start, _INT.size))
    after = start + _INT.size
    headers: dict[BlockHeader, str] = {}
    if not 0 <= count <= len(BlockHeader):
        raise _corrupt(position, f"has {count} headers; at most {len(BlockHeader)} are possible")
    for _ in range(count):
        if after + _ENTRY.size > last:
            raise _corrupt(position, "ends inside its headers")
        key, length = _ENTRY.unpack(view.at(after, _ENTRY.size))
        after += _ENTRY.size
        if key not in iter(BlockHeader):
            raise _corrupt(position, f"has the unknown header {key}")
        if not 0 <= length <= last - after:
            raise _corrupt(position, f"declares a header {BlockHeader(key).name} of {length} bytes, past its headers")
        try:
            headers[BlockHeader(key)] = view.at(after, length).decode()
        except UnicodeDecodeError as error:
            raise _corrupt(position, f"has a header {BlockHeader(key).name} that is not UTF-8: {error}") from error
        after += length
    return headers, after


def _require_headers(
    position: int, kind: BlockType, headers: Mapping[BlockHeader, str], requires_instant: bool
) -> None:
    needed = [BlockHeader.INSTANT_TIME] if requires_instant else []
    if kind is BlockType.COMMAND:
        needed += [BlockHeader.COMMAND_BLOCK_TYPE, BlockHeader.TARGET_INSTANT_TIME]
    if kind is BlockType.AVRO_DATA or BlockHeader.IS_PARTIAL in headers:
        needed.append(BlockHeader.SCHEMA)
    missing = [key.name for key in needed if key not in headers]
    if missing:
        raise _corrupt(position, f"has the kind {kind.name} but lacks the headers {', '.join(missing)}")


def _corrupt(position: int, problem: str) -> CorruptTableError:
    return CorruptTableError(f"the log block at byte {position} {problem}", position=position)
