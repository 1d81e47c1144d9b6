"""Select the log blocks of a file slice that readers merge, and their order (DATA-4.6).

A rollback command removes the blocks of its target instant that precede it. Blocks that the instant writes again later
remain. A log compaction writes blocks that replace the blocks of the instants they list:

    file order     B1  B2  M(B1,B2)  B3       B3 may also precede M in the file
    settled        M  B3                      M takes the position of the last block that it replaces
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from lakehouse.core.format.log.blocks import BlockHeader, BlockType, LogBlock
from lakehouse.errors import CorruptTableError, UnsupportedError

#: A log block, with the number of its file.
Placed = tuple[int, LogBlock]

_ROLLBACK = "0"
_DATA_OR_DELETE = (BlockType.DELETE, BlockType.AVRO_DATA, BlockType.HFILE_DATA, BlockType.PARQUET_DATA)


def settle_blocks(blocks: Sequence[Placed], visible: Callable[[str], bool]) -> list[Placed]:
    """Return the data and delete blocks that readers merge, oldest first.

    Corrupt blocks are dropped. Without log compactions the order does not change. With them, the blocks of each instant
    are adjacent, at the position of its first block.

    Args:
        blocks: The blocks of all log files in one slice in file order, each with the number of its file.
        visible: Returns whether the commit with a requested time is visible.

    Raises:
        UnsupportedError: A command block is not a rollback.
        CorruptTableError: A log file contains a change data block.
    """
    visible_blocks: list[Placed] = []
    for number, block in blocks:
        if block.kind is BlockType.COMMAND:
            target = _rolled_back(block)
            visible_blocks = [(other, earlier) for other, earlier in visible_blocks if earlier.instant != target]
        elif block.kind in _DATA_OR_DELETE:
            if visible(block.instant):
                visible_blocks.append((number, block))
        elif block.kind is not BlockType.CORRUPT:
            raise CorruptTableError(
                f"a block of {block.instant} in log file {number} has the kind {block.kind.name}, not data or deletes"
            )
    return _compacted(visible_blocks) if any(block.compacted for _, block in visible_blocks) else visible_blocks


def lost_blocks(blocks: Sequence[Placed], visible: Callable[[str], bool], *, appended: bool) -> list[Placed]:
    """Return the corrupt blocks that contain data of a completed commit; arguments as for `settle_blocks`.

    If each file has one commit (`appended` is false), every corrupt block is lost data. In table version 6 several
    commits append to a file (`appended` is true), so a corrupt block may also be left over from a failed append. It
    counts as left over if its instant did not complete, was rolled back by a later command, or wrote the block again. A
    block with unreadable headers also counts as left over, because its commit is unknown.
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
        raise UnsupportedError(
            f"the command block of {command.instant} has the type {kind!r}; only rollbacks are supported"
        )
    return command.target


def _compacted(blocks: Sequence[Placed]) -> list[Placed]:
    """Return the blocks, with the results of log compactions in place of the blocks that they replace.

    The loop goes from the newest instant to the oldest, so it reaches a compaction before the instants it replaces. If
    compactions replace compactions, the newest one is used. A compaction whose replaced instants are all absent is
    dropped.
    """
    of_instant: dict[str, list[Placed]] = {}
    for placed in blocks:
        of_instant.setdefault(placed[1].instant, []).append(placed)
    replaced_by: dict[str, str] = {}
    order: dict[str, None] = {}
    for instant in reversed(of_instant):
        first = of_instant[instant][0][1]
        if first.compacted:
            final = replaced_by.get(instant, instant)
            replaced_by |= dict.fromkeys(first.compacted, final)
        else:
            order.setdefault(replaced_by.get(instant, instant))
    return [placed for instant in reversed(order) for placed in of_instant[instant]]
