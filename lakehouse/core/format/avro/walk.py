"""Find the byte positions of the items in one long Avro list, item by item.

The columnar reader reads one item of every list per round. A round costs about the same for one list as for many. If
only a few lists have items left, it is cheaper to find the positions of their items here and to read them together.
"""

from __future__ import annotations

from collections.abc import Sequence

from lakehouse.core.format.avro.nodes import AvroNode


def item_starts(parts: Sequence[AvroNode], data: memoryview, at: int, end: int, count: int) -> list[int]:
    """Return the start of each of `count` items, with the first at `at`, and the end of the last one.

    An item consists of one value per node in `parts`. Values are skipped, not decoded. Raises ValueError if an item
    extends past `end`.
    """
    leaves = _leaves(parts)
    kinds = [leaf.kind for leaf in leaves]
    if kinds == ["string", "long", "boolean"] and all(leaf.value_branch is None for leaf in leaves):
        return _file_starts(data, at, end, count)
    starts = []
    for _ in range(count):
        starts.append(at)
        for part in parts:
            at = _skip(part, data, at, end)
    return [*starts, at]


def _leaves(parts: Sequence[AvroNode]) -> list[AvroNode]:
    """Return the values of an item that are not records, in order."""
    return [
        leaf
        for part in parts
        for leaf in (_leaves(part.children) if part.kind == "record" and part.value_branch is None else (part,))
    ]


def _file_starts(data: memoryview, at: int, end: int, count: int) -> list[int]:
    """Return the same as `item_starts` for items with a string, a number and a flag.

    The records of files in the metadata table are such items, and a table may have 200,000 files in one list. This
    loop takes 0.3 us for each item.
    """
    starts = []
    for _ in range(count):
        starts.append(at)
        length = data[at]
        if length >= 0x80:
            length, at = _varint(data, at)
        else:
            length, at = (length >> 1) ^ -(length & 1), at + 1
        at += length
        if length < 0 or at >= end:
            raise ValueError("a text past the end or of negative length")
        while data[at] >= 0x80:  # zero bytes after the content end this loop
            at += 1
        at += 2
        if at > end:
            raise ValueError("a value past the end")
    return [*starts, at]


def _skip(node: AvroNode, data: memoryview, at: int, end: int) -> int:
    """Return the end of the value at `at`."""
    if node.value_branch is not None:
        has_value = data[at] == 2 * node.value_branch
        at += 1
        if not has_value:
            return _within(at, end)
    if node.kind == "union":
        return _skip_union(node, data, at, end)
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


def _skip_union(node: AvroNode, data: memoryview, at: int, end: int) -> int:
    branch = data[at] >> 1
    if branch in node.branches:
        return _skip(node.children[node.branches.index(branch)], data, at + 1, end)
    return _within(at + 1, end)


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
