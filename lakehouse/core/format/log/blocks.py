"""Blocks of log files: their frame and their headers, never their contents (DATA-4.2, DATA-4.3, DATA-4.5).

    magic #HUDI# | int64 size | int32 1 | int32 kind | headers | int64 length | content | footers | int64 size + 6
                              |<------------------------- size: what follows, to the end ----------------------->|

Headers and footers are maps: int32 count, then per entry int32 key, int32 bytes, UTF-8 text. All integers are
big-endian. No footer is defined. A file may hold several blocks, and of some only a part if their writer died.
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
#: Bytes in front of those that `size` counts.
_BEFORE_SIZED = len(MAGIC) + _SIZE.size
_SMALLEST = _INT.size * 4 + _SIZE.size * 2
#: What is read at once: enough for the frame of a block with a schema of usual length.
_WINDOW_BYTES = 8_192
_SEARCH_BYTES = 1 << 20


class BlockType(IntEnum):
    """What a block holds; CORRUPT is never written, it stands for bytes that are no whole block."""

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
    """What scanning takes of a file object."""

    def read(self, nbytes: int = -1, /) -> bytes: ...
    def seek(self, position: int, whence: int = 0, /) -> int: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class LogBlock:
    """One block; its content are `length` bytes at byte `offset` of the file.

    `writer` is set for a CORRUPT block alone: the instant time in its headers, as far as those can still be read.
    """

    kind: BlockType
    headers: Mapping[BlockHeader, str] = field(default_factory=dict)
    offset: int
    length: int
    writer: str = field(default="", compare=False)

    @property
    def instant(self) -> str:
        """Requested time of the commit (of a command: of the rollback) that wrote the block; "" if it is corrupt."""
        return self.headers.get(BlockHeader.INSTANT_TIME, "")

    @property
    def schema(self) -> str | None:
        """Avro JSON of the writer's schema, meta columns included."""
        return self.headers.get(BlockHeader.SCHEMA)

    @property
    def is_partial(self) -> bool:
        """Whether the schema holds only the columns that were updated."""
        return self.headers.get(BlockHeader.IS_PARTIAL, "").lower() == "true"

    @property
    def compacted(self) -> tuple[str, ...]:
        """Instants of the blocks that a log compaction merged into this one."""
        times = self.headers.get(BlockHeader.COMPACTED_BLOCK_TIMES, "")
        return tuple(time for time in times.split(",") if time)

    @property
    def target(self) -> str | None:
        """The instant that a rollback command undoes."""
        return self.headers.get(BlockHeader.TARGET_INSTANT_TIME)


def encode_block(kind: BlockType, headers: Mapping[BlockHeader, str], content: bytes) -> bytes:
    """Return a whole block; headers stand in the order given."""
    before, after = block_frame(kind, headers, len(content))
    return b"".join((before, content, after))


def block_frame(kind: BlockType, headers: Mapping[BlockHeader, str], content_length: int) -> tuple[bytes, bytes]:
    """Return the bytes that stand before and after a content of `content_length` bytes."""
    entries = [_INT.pack(len(headers))]
    for key, text in headers.items():
        encoded = text.encode()
        entries += (_ENTRY.pack(key, len(encoded)), encoded)
    mapped = b"".join(entries)
    size = _SMALLEST - _INT.size + len(mapped) + content_length
    before = _HEAD.pack(MAGIC, size, _FORMAT_VERSION, kind) + mapped + _SIZE.pack(content_length)
    return before, _NO_ENTRIES + _SIZE.pack(size + len(MAGIC))


def scan_blocks(source: RandomAccess) -> list[LogBlock]:
    """Return the blocks of a log file in order, reading their frames only: about one small read per block.

    Broken blocks become CORRUPT ones, as other readers have it: the bytes up to the next magic do not count, whether
    the file ends in a block, the sizes at a block's two ends differ, or a block is followed by no other and not by the
    end. Raises CorruptTableError for what no dying writer leaves behind: a file that does not start with a block, and
    a whole block with an unknown kind, unknown headers, or without the headers that its kind must have.
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
            blocks.append(_read_block(view, position, end))
        position = end
    return blocks


class _View:
    """A window of the file that moves forward; `size` in bytes."""

    def __init__(self, source: RandomAccess) -> None:
        self._source = source
        self.size = source.seek(0, io.SEEK_END)
        self._start = 0
        self._window = b""
        self._is_damaged = False

    def at(self, position: int, length: int) -> bytes:
        """Return `length` bytes from `position`; fewer at the end of the file."""
        first = position - self._start
        if first < 0 or first + length > len(self._window):
            self._window = self._read(position, max(length, _WINDOW_BYTES))
            self._start, first = position, 0
        return self._window[first : first + length]

    def tail(self, position: int, length: int) -> bytes:
        """Return bytes as `at` does, where the next block is likely to begin.

        The window moves there, unless a broken block was met: in a file of nothing else each would move it, there and
        back.
        """
        return self._read(position, length) if self._is_damaged else self.at(position, length)

    def next_magic(self, start: int) -> int:
        """Return where the next magic begins, or the size of the file; what is before it belongs to a broken block."""
        self._is_damaged = True
        position, length = start, _WINDOW_BYTES
        found = self._window.find(MAGIC, start - self._start) if self._start <= start else -1
        if found >= 0:
            return self._start + found
        # Pieces grow, and each laps over the next by a magic.
        while position < self.size:
            self._window, self._start = self._read(position, length + len(MAGIC) - 1), position
            found = self._window.find(MAGIC)
            if found >= 0:
                return position + found
            position += length
            length = min(4 * length, _SEARCH_BYTES)
        return self.size

    def _read(self, position: int, length: int) -> bytes:
        self._source.seek(position)
        return bytes(self._source.read(length))


def _end_of_block(view: _View, position: int) -> int | None:
    """Return the position after the block at `position`, None if it is not whole."""
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
    """Return the instant time in the headers of a broken block; "" if they cannot be read."""
    try:
        headers, _ = _read_headers(view, position, position + _HEAD.size, end + _SMALLEST)
    except (CorruptTableError, struct.error):
        return ""
    return headers.get(BlockHeader.INSTANT_TIME, "")


def _read_block(view: _View, position: int, end: int) -> LogBlock:
    _, _, version, number = _HEAD.unpack(view.at(position, _HEAD.size))
    if version != _FORMAT_VERSION:
        raise _corrupt(position, f"has log format version {version}; supported is {_FORMAT_VERSION}")
    if number not in iter(BlockType) or number == BlockType.CORRUPT:
        raise _corrupt(position, f"is of unknown kind {number}")
    kind = BlockType(number)
    headers, after = _read_headers(view, position, position + _HEAD.size, end)
    (length,) = _SIZE.unpack(view.at(after, _SIZE.size))
    offset = after + _SIZE.size
    if not 0 <= length <= end - _SIZE.size - _INT.size - offset:
        raise _corrupt(position, f"says that its content has {length} bytes, {end - offset} are left")
    _require_headers(position, kind, headers)
    return LogBlock(kind=kind, headers=headers, offset=offset, length=length)


def _read_headers(view: _View, position: int, start: int, end: int) -> tuple[dict[BlockHeader, str], int]:
    """Return the headers that begin at `start`, and where they end."""
    last = end - _SMALLEST + 3 * _INT.size  # content length, footers and trailing size have to follow
    (count,) = _INT.unpack(view.at(start, _INT.size))
    after = start + _INT.size
    headers: dict[BlockHeader, str] = {}
    if not 0 <= count <= len(BlockHeader):
        raise _corrupt(position, f"has {count} headers; {len(BlockHeader)} are known")
    for _ in range(count):
        if after + _ENTRY.size > last:
            raise _corrupt(position, "ends inside its headers")
        key, length = _ENTRY.unpack(view.at(after, _ENTRY.size))
        after += _ENTRY.size
        if key not in iter(BlockHeader):
            raise _corrupt(position, f"has the unknown header {key}")
        if not 0 <= length <= last - after:
            raise _corrupt(position, f"says that its header {BlockHeader(key).name} has {length} bytes")
        try:
            headers[BlockHeader(key)] = view.at(after, length).decode()
        except UnicodeDecodeError as error:
            raise _corrupt(position, f"has a header {BlockHeader(key).name} that is no text: {error}") from error
        after += length
    return headers, after


def _require_headers(position: int, kind: BlockType, headers: Mapping[BlockHeader, str]) -> None:
    needed = [BlockHeader.INSTANT_TIME]
    if kind is BlockType.COMMAND:
        needed += [BlockHeader.COMMAND_BLOCK_TYPE, BlockHeader.TARGET_INSTANT_TIME]
    if kind is BlockType.AVRO_DATA or BlockHeader.IS_PARTIAL in headers:
        needed.append(BlockHeader.SCHEMA)
    missing = [key.name for key in needed if key not in headers]
    if missing:
        raise _corrupt(position, f"is of kind {kind.name} and lacks the headers {', '.join(missing)}")


def _corrupt(position: int, problem: str) -> CorruptTableError:
    return CorruptTableError(f"the log block at byte {position} {problem}", position=position)
