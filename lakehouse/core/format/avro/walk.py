"""Where the items of one long list begin, found item by item.

The columnar reader takes one item of every list in each round, and a round costs the same for one list as for many.
For the few lists that are much longer than the others it is cheaper to walk over their items here, without reading
them, and then to read all of them at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakehouse.core.format.avro.nodes import AvroNode


def item_starts(parts: Sequence[AvroNode], data: memoryview, at: int, end: int, count: int) -> list[int]:
    """Return where each of `count` items begins, the first at `at`; an item has a value of every part.

    Raises ValueError if they do not lie before `end`. What the values are is not looked at.
    """
    starts = []
    for _ in range(count):
        starts.append(at)
        for part in parts:
            at = _skip(part, data, at, end)
    return starts


def _skip(node: AvroNode, data: memoryview, at: int, end: int) -> int:
    """Return where the value at `at` ends."""
    if node.value_branch is not None:
        has_value = data[at] == 2 * node.value_branch
        at += 1
        if not has_value:
            return _within(at, end)
    if node.size:
        at += node.size
    elif node.kind == "record":
        for child in node.children:
            at = _skip(child, data, at, end)
    elif node.kind in ("array", "map"):
        at = _skip_items(node, data, at, end)
    else:
        number, at = _varint(data, at)
        if node.kind in ("string", "bytes"):
            if number < 0:
                raise ValueError("a negative length")
            at += number
    return _within(at, end)


def _skip_items(node: AvroNode, data: memoryview, at: int, end: int) -> int:
    while True:
        count, at = _varint(data, _within(at, end))
        if count == 0:
            return at
        if count < 0:
            _, at = _varint(data, _within(at, end))
        for _ in range(abs(count)):
            for child in node.children:
                at = _skip(child, data, at, end)


def _varint(data: memoryview, at: int) -> tuple[int, int]:
    raw, shift = 0, 0
    while True:
        byte = data[at]
        at += 1
        raw |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (raw >> 1) ^ -(raw & 1), at
        shift += 7
        if shift == 70:
            raise ValueError("an integer of more than 64 bits")


def _within(at: int, end: int) -> int:
    if at > end:
        raise ValueError("a value beyond the end")
    return at
