"""Decode filter expressions of Arrow into a tree.

pyarrow has no public access to the parts of an expression. An expression can be pickled, however: the pickled bytes are
an Arrow IPC file with one row. The key-value metadata of its schema lists the tree in prefix order, and its columns are
the literals and the options of functions, with their Arrow types:

    call = and_kleene, call = greater, field_ref = a, literal = 0, end = greater, ..., end = and_kleene

pyarrow returns metadata as a dict, which loses repeated keys. So the pairs are read through the Arrow C data interface,
whose layout is a stable specification. The pickled form itself is no contract: a form that is not expected here raises
UnknownExpressionError, and the caller then uses the expression as a whole.
"""

from __future__ import annotations

import ctypes
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

_MOST_LEVELS = 200


class UnknownExpressionError(Exception):
    """An expression does not have the expected serialized form."""


@dataclass(frozen=True, slots=True)
class ExpressionField:
    """A column: its name, or the names on the path to a field of a struct."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class ExpressionLiteral:
    """A literal with its Arrow type."""

    value: pa.Scalar


@dataclass(frozen=True, slots=True)
class ExpressionCall:
    """A call of a compute function; `options` is a struct scalar, or None."""

    function: str
    arguments: tuple[ExpressionNode, ...]
    options: pa.StructScalar | None = None


ExpressionNode = ExpressionField | ExpressionLiteral | ExpressionCall


def decode_expression(expression: pc.Expression) -> ExpressionNode:
    """Return the tree of an expression; raise UnknownExpressionError if it has a part without a serialized form."""
    try:
        _, arguments = expression.__reduce__()
        batch = pa.ipc.open_file(arguments[0]).get_batch(0)
        tokens = list(_metadata_pairs(batch.schema))
        node, end = _Decoder(tokens, batch).node(0, 0)
    except (pa.ArrowException, LookupError, TypeError, ValueError, struct.error) as error:
        raise UnknownExpressionError(f"{type(error).__name__}: {error}") from error
    if end != len(tokens):
        raise UnknownExpressionError(f"{len(tokens) - end} more parts after the end of the expression")
    return node


def fields_of(node: ExpressionNode) -> Iterator[ExpressionField]:
    """Yield the columns in a tree."""
    if isinstance(node, ExpressionField):
        yield node
    elif isinstance(node, ExpressionCall):
        for argument in node.arguments:
            yield from fields_of(argument)


class _Decoder:
    """Recursive descent over the pairs of keys and values."""

    def __init__(self, tokens: list[tuple[str, str]], batch: pa.RecordBatch) -> None:
        self._tokens, self._batch = tokens, batch

    def node(self, position: int, depth: int) -> tuple[ExpressionNode, int]:
        """Return the node that starts at a position, and the position after it."""
        if depth > _MOST_LEVELS:
            raise UnknownExpressionError(f"more than {_MOST_LEVELS} levels of nesting")
        key, value = self._tokens[position]
        if key == "literal":
            return ExpressionLiteral(self._batch.column(int(value))[0]), position + 1
        if key == "field_ref":
            return ExpressionField((value,)), position + 1
        if key == "nested_field_ref":
            return self._nested(position + 1, int(value))
        if key == "call":
            return self._call(position + 1, value, depth)
        raise UnknownExpressionError(f"unexpected part {key!r}")

    def _nested(self, position: int, parts: int) -> tuple[ExpressionNode, int]:
        tokens = self._tokens[position : position + parts]
        if len(tokens) != parts or any(key != "field_ref" for key, _ in tokens):
            raise UnknownExpressionError("a path contains a part without a name")
        return ExpressionField(tuple(name for _, name in tokens)), position + parts

    def _call(self, position: int, function: str, depth: int) -> tuple[ExpressionNode, int]:
        arguments: list[ExpressionNode] = []
        options = None
        while self._tokens[position][0] not in ("options", "end"):
            argument, position = self.node(position, depth + 1)
            arguments.append(argument)
        if self._tokens[position][0] == "options":
            options = self._batch.column(int(self._tokens[position][1]))[0]
            position += 1
        if self._tokens[position] != ("end", function):
            raise UnknownExpressionError(f"the call of {function} has another end: {self._tokens[position]}")
        return ExpressionCall(function, tuple(arguments), options), position + 1


class _CSchema(ctypes.Structure):
    """The first members of ArrowSchema in the Arrow C data interface."""

    _fields_ = (("format", ctypes.c_char_p), ("name", ctypes.c_char_p), ("metadata", ctypes.c_void_p))


def _metadata_pairs(schema: pa.Schema) -> Iterator[tuple[str, str]]:
    """Yield all pairs of the metadata of a schema, in their order.

    The metadata is the number of pairs, then for each pair the length and the bytes of its key and of its value.
    Numbers are 32-bit integers in the byte order of the machine.
    """
    capsule: Any = schema.__arrow_c_schema__()
    address = ctypes.pythonapi.PyCapsule_GetPointer
    address.restype, address.argtypes = ctypes.c_void_p, (ctypes.py_object, ctypes.c_char_p)
    position = _CSchema.from_address(address(capsule, b"arrow_schema")).metadata
    if position is None:
        return
    texts = []
    (pairs,) = struct.unpack("=i", ctypes.string_at(position, 4))
    position += 4
    for _ in range(2 * pairs):
        (length,) = struct.unpack("=i", ctypes.string_at(position, 4))
        texts.append(ctypes.string_at(position + 4, length).decode())
        position += 4 + length
    yield from zip(texts[::2], texts[1::2], strict=True)
