"""Compare values: with literals exactly in the type of the value, and with each other in their common type.

NaN equals NaN and is greater than all numbers, and -0.0 equals 0.0, as in Spark. Null compares to null.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc

from lakehouse.core.expressions.casts import cast_value
from lakehouse.core.expressions.literals import typed_comparison, typed_list
from lakehouse.core.expressions.values import Datum, common_type, converted, is_number, plain
from lakehouse.errors import UserError
from lakehouse.model.predicate import Comparison, In

_KERNELS: dict[str, Callable[[Any, Any], Any]] = {
    "=": pc.equal, "!=": pc.not_equal, "<": pc.less, "<=": pc.less_equal, ">": pc.greater, ">=": pc.greater_equal,
}  # fmt: skip


def compared(operator: str, left: Datum, right: Any) -> Datum:
    """Return `left operator right`; `right` is a Python literal or an Arrow value."""
    if isinstance(right, pa.Scalar | pa.Array):
        return _of_values(operator, *_alike(operator, left, right))
    if pa.types.is_null(left.type):
        return pa.scalar(None, pa.bool_())
    where = typed_comparison(Comparison("", operator, right), left.type)  # type: ignore[arg-type]
    if isinstance(where, Comparison):
        return _of_values(where.operator, left, where.value)
    # No value of the type equals the literal, or all values are on one side of it.
    return pc.if_else(pc.is_valid(left), pa.scalar(not isinstance(where, In)), pa.scalar(None, pa.bool_()))


def is_in(value: Datum, literals: Sequence[Any]) -> Datum:
    """Return whether values are in a list of literals; null if they are not and the list contains NULL."""
    if pa.types.is_null(value.type):
        return pa.scalar(None, pa.bool_())
    kind = value.type
    listed = pa.array(typed_list(In("", tuple(v for v in literals if v is not None)), kind).values, kind)
    if pa.types.is_floating(kind):
        # Arrow compares bits: the sum has no negative zero, and NaN is tested separately.
        result = pc.is_in(pc.add(value, pa.scalar(0.0, kind)), value_set=listed)
        if pc.any(pc.is_nan(listed), min_count=0).as_py():
            result = pc.or_(result, pc.fill_null(pc.is_nan(value), False))
    else:
        result = pc.is_in(value, value_set=listed)
    otherwise = pa.scalar(None, pa.bool_())
    if None in literals:
        result = pc.if_else(result, True, otherwise)
    return pc.if_else(pc.is_valid(value), result, otherwise)


def not_distinct(left: Datum, right: Datum) -> Datum:
    """Return whether values are equal or both null."""
    left, right = _alike("<=>", left, right)
    both_null = pc.and_(pc.is_null(left), pc.is_null(right))
    if pa.types.is_null(left.type):
        return both_null
    return pc.or_(both_null, pc.fill_null(_of_values("=", left, right), False))


def comparable_pair(left: Datum, right: Datum) -> tuple[Datum, Datum]:
    """Return two columns in one type, in which equal values are the values that `=` considers equal."""
    left, right = _alike("=", left, right)
    if left.type == right.type:
        return left, right
    kind = common_type((left.type, right.type), "=")
    return converted(left, kind), converted(right, kind)


def _alike(operator: str, left: Datum, right: Datum) -> tuple[Datum, Datum]:
    """Return both values in the type in which Spark compares them."""
    kinds = [plain(value.type) for value in (left, right)]
    if any(pa.types.is_nested(kind) for kind in kinds):
        raise UserError(f"values of type {left.type} cannot be compared; name a field of it, such as `column.field`")
    for kind, other in (kinds, kinds[::-1]):
        # Spark converts a string to the type of the other side.
        if pa.types.is_string(kind) and (is_number(other) or pa.types.is_temporal(other) or pa.types.is_boolean(other)):
            target = pa.int64() if pa.types.is_integer(other) else other
            left, right = (
                cast_value(value, target) if pa.types.is_string(plain(value.type)) else value for value in (left, right)
            )
            kinds = [plain(value.type) for value in (left, right)]
    if all(pa.types.is_decimal(kind) or pa.types.is_integer(kind) for kind in kinds):
        return _numbers(left, right, kinds)
    kind = common_type(kinds, operator)
    return converted(left, kind), converted(right, kind)


def _numbers(left: Datum, right: Datum, kinds: Sequence[pa.DataType]) -> tuple[Datum, Datum]:
    if kinds[0] == kinds[1] or all(pa.types.is_integer(kind) for kind in kinds):
        return left, right
    exact = pa.decimal256(76, max(getattr(kind, "scale", 0) for kind in kinds))
    return tuple(value.cast(_decimal(kind)).cast(exact) for value, kind in zip((left, right), kinds, strict=True))


def _decimal(kind: pa.DataType) -> pa.DataType:
    return kind if pa.types.is_decimal(kind) else pa.decimal128(20, 0)


def _of_values(operator: str, left: Datum, right: Datum) -> Datum:
    if pa.types.is_null(left.type) or pa.types.is_null(right.type):
        return pa.scalar(None, pa.bool_())
    if not pa.types.is_floating(left.type):
        return _KERNELS[operator](left, right)
    if operator in (">", ">="):
        left, right, operator = right, left, {">": "<", ">=": "<="}[operator]
    left_nan, right_nan = pc.is_nan(left), pc.is_nan(right)
    if operator == "<":
        return pc.or_(pc.less(left, right), pc.and_(pc.invert(left_nan), right_nan))
    if operator == "<=":
        return pc.or_(pc.less_equal(left, right), right_nan)
    same = pc.or_(pc.equal(left, right), pc.and_(left_nan, right_nan))
    return same if operator == "=" else pc.invert(same)
