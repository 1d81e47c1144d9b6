"""Which log blocks of a file slice count, and in what order (DATA-4.6).

A rollback command undoes the blocks of its target that stand before it; blocks that the instant writes again later
survive. A log compaction writes blocks that stand for those of the instants they list, and takes their place:

    file order     B1  B2  M(B1,B2)  B3       B3 may have come before M as well
    settled        M  B3                      M stands where the last of the blocks it replaces stood
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lakehouse.core.format.log.blocks import BlockHeader, BlockType, LogBlock
from lakehouse.errors import CorruptTableError, UnsupportedError

#: A block with the number of its file.
Placed = tuple[int, LogBlock]

_ROLLBACK = "0"
_DATA_OR_DELETE = (BlockType.DELETE, BlockType.AVRO_DATA, BlockType.HFILE_DATA, BlockType.PARQUET_DATA)


def settle_blocks(blocks: Sequence[Placed], visible: Callable[[str], bool]) -> list[Placed]:
    """Return the data and delete blocks that count, oldest first.

    `blocks` are those of all log files of one slice, each with the number of its file, in file order; `visible` says
    of a requested time whether its commit counts. Corrupt blocks are dropped. Without log compactions the order stays;
    with them each instant's blocks stand together, where the first of them stood.
    Raises UnsupportedError for a command other than a rollback, CorruptTableError for a change log among the logs.
    """
    kept: list[Placed] = []
    for number, block in blocks:
        if block.kind is BlockType.COMMAND:
            target = _rolled_back(block)
            kept = [(other, earlier) for other, earlier in kept if earlier.instant != target]
        elif block.kind in _DATA_OR_DELETE:
            if visible(block.instant):
                kept.append((number, block))
        elif block.kind is not BlockType.CORRUPT:
            raise CorruptTableError(f"a block of {block.instant} in log file {number} is {block.kind.name}: no data")
    return _compacted(kept) if any(block.compacted for _, block in kept) else kept


def lost_blocks(blocks: Sequence[Placed], visible: Callable[[str], bool], *, appended: bool) -> list[Placed]:
    """Return the corrupt blocks that hold what a completed commit wrote; `blocks` as for `settle_blocks`.

    A file that one commit wrote (not `appended`) has no other blocks. Files that several commits append to, those of
    version 6, may also have what a failed append left. That is a block of an instant that did not complete or was
    rolled back by a command behind it, or one that the same instant wrote again. A block whose headers cannot be read
    is such a block, too: nothing tells which commit wrote it.
    """
    corrupt = [(at, number, block) for at, (number, block) in enumerate(blocks) if block.kind is BlockType.CORRUPT]
    if not appended:
        return [(number, block) for _, number, block in corrupt]
    return [
        (number, block)
        for at, number, block in corrupt
        if block.writer
        and visible(block.writer)
        and not any(
            later.kind is not BlockType.CORRUPT and block.writer in (later.instant, later.target)
            for _, later in blocks[at + 1 :]
        )
    ]


def _rolled_back(command: LogBlock) -> str:
    kind = command.headers.get(BlockHeader.COMMAND_BLOCK_TYPE)
    if kind != _ROLLBACK or command.target is None:
        raise UnsupportedError(f"the command block of {command.instant} is of type {kind!r}; only rollbacks are known")
    return command.target


def _compacted(blocks: Sequence[Placed]) -> list[Placed]:
    """Put the blocks of log compactions in place of those they replace.

    Instants are walked from the newest on, so the compaction that replaces an instant is met before the instant.
    Compactions of compactions are followed to the last one. One that replaces nothing that is here adds nothing.
    """
    of_instant: dict[str, list[Placed]] = {}
    for placed in blocks:
        of_instant.setdefault(placed[1].instant, []).append(placed)
    stands_for: dict[str, str] = {}
    order: dict[str, None] = {}
    for instant in reversed(of_instant):
        first = of_instant[instant][0][1]
        if first.compacted:
            final = stands_for.get(instant, instant)
            stands_for |= dict.fromkeys(first.compacted, final)
        else:
            order.setdefault(stands_for.get(instant, instant))
    return [placed for instant in reversed(order) for placed in of_instant[instant]]
