"""Find the byte positions of the items of one long Avro list, item by item.

The columnar reader reads one item of every list per round. A round costs about the same for one list as for many. If
only a few lists have items left, it is cheaper to find the positions of their items here and to read them at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakehouse.core.format.avro.nodes import AvroNode


def item_starts(parts: Sequence[AvroNode], data: memoryview, at: int, end: int, count: int) -> list[int]:
    """Return the start of each of `count` items, of which the first starts at `at`.

    An item consists of one value per node of `parts`. Values are skipped, not decoded. Raises ValueError if an item
    extends past `end`.
    """
    starts = []
    for _ in range(count):
        starts.append(at)
        for part in parts:
            at = _skip(part, data, at, end)
    return starts


def _skip(node: AvroNode, data: memoryview, at: int, end: int) -> int:
    """Return the end of the value at `at`."""
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
        raise ValueError("a value past the end")
    return at
