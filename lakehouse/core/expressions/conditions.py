"""Divide a condition: the parts that statistics and indexes answer, and the parts that only rows answer.

A part of the form `column operator literal` becomes a predicate of `model.predicate`, with which files are pruned.
Every other part becomes `Evaluated`, with the condition for statistics that it implies, if there is one.
"""

from __future__ import annotations

import re
from typing import Any

from lakehouse.core.expressions.functions import check_functions
from lakehouse.core.expressions.parse import parse_expression
from lakehouse.core.rows.index_functions import called_function, function_names
from lakehouse.errors import UserError
from lakehouse.model.expression import Column, Expression, Operation, Value
from lakehouse.model.predicate import (
    And,
    Applied,
    Call,
    Comparison,
    Evaluated,
    In,
    IsNull,
    Not,
    Or,
    Predicate,
    StartsWith,
    TimeLiteral,
)

_FLIPPED = {"=": "=", "!=": "!=", "<": ">", "<=": ">=", ">": "<", ">=": "<="}
_PREFIX = re.compile(r"[^%_\\]*")


def parse_predicate(text: str) -> Predicate:
    """Parse a condition.

    Raises:
        UserError: The text has a syntax error, an unknown function, or a construct that cannot be evaluated.
    """
    return predicate_of(parse_expression(text))


def predicate_of(expression: Expression) -> Predicate:
    """Return a parsed condition as a predicate; raise UserError for an unknown function."""
    check_functions(expression)
    if isinstance(expression, Operation) and expression.name == "and" and _answered(expression) is None:
        return And(tuple(_part(argument) for argument in expression.arguments))
    return _part(expression)


def _part(expression: Expression) -> Predicate:
    answered = _answered(expression)
    return Evaluated(expression, _implied(expression)) if answered is None else answered


def _answered(expression: Expression) -> Predicate | None:
    """Return the exact equivalent of a condition that statistics can answer; None if there is none."""
    if isinstance(expression, Value) and isinstance(expression.value, bool):
        return And(()) if expression.value else Or(())
    if not isinstance(expression, Operation):
        return None
    if expression.name in ("and", "or", "not"):
        return _answered_parts(expression)
    if expression.name in _FLIPPED:
        return _comparison(expression.name, *expression.arguments)
    return _answered_test(expression.name, expression, expression.arguments)


def _answered_parts(expression: Operation) -> Predicate | None:
    parts = [_answered(argument) for argument in expression.arguments]
    answered = tuple(part for part in parts if part is not None)
    if len(answered) < len(parts):
        return None
    if expression.name == "not":
        return Not(answered[0])
    return And(answered) if expression.name == "and" else Or(answered)


def _answered_test(name: str, expression: Operation, arguments: tuple[Expression, ...]) -> Predicate | None:
    if (name == "isnull" and len(arguments) == 1) or (name == "<=>" and arguments[1] == Value(None)):
        return _on(arguments[0], IsNull)
    if name == "in" and all(_is_literal(item) for item in arguments[1:]):
        values = tuple(item.value for item in arguments[1:] if isinstance(item, Value))
        return _on(arguments[0], lambda column: In(column, values))
    if name == "like":
        prefix, is_exact = _prefix(expression)
        return _on(arguments[0], lambda column: StartsWith(column, prefix)) if is_exact else None
    return None


def _comparison(operator: str, left: Expression, right: Expression) -> Predicate | None:
    if isinstance(left, Value):
        left, right, operator = right, left, _FLIPPED[operator]
    if not isinstance(right, Value) or not _is_literal(right):
        return None
    value: Any = right.value
    return _on(left, lambda column: Comparison(column, operator, value))  # type: ignore[arg-type]


def _on(reference: Expression, make: Any) -> Predicate | None:
    """Return a condition on a column, or on a function of a column for which indexes exist; None for other terms."""
    if isinstance(reference, Column):
        part: Predicate = make(reference.name)
        return part
    call = _call(reference)
    return None if call is None else Applied(call, make(call.text))


def _call(expression: Expression) -> Call | None:
    if not isinstance(expression, Operation) or expression.name not in function_names():
        return None
    column, *options = expression.arguments or (None,)
    if not isinstance(column, Column) or not all(_is_literal(option) for option in options):
        return None
    texts = [str(_text(option.value)) for option in options if isinstance(option, Value)]
    try:
        function = called_function(expression.name, texts)
    except UserError:
        # The evaluation accepts more forms than an index, and refuses the others.
        return None
    return Call(function=function.name, column=column.name, options=function.arguments)


def _text(value: Any) -> Any:
    return value.text if isinstance(value, TimeLiteral) else value


def _is_literal(item: Expression) -> bool:
    return isinstance(item, Value) and item.value is not None


def _prefix(like: Operation) -> tuple[str, bool]:
    """Return the string with which all matches of LIKE begin, and whether that is the whole condition."""
    pattern = like.arguments[1]
    if not isinstance(pattern, Value) or not isinstance(pattern.value, str) or like.option != "\\":
        return "", False
    match = _PREFIX.match(pattern.value)
    prefix = match[0] if match else ""
    return prefix, pattern.value[len(prefix) :] == "%"


def _implied(expression: Expression, *, negated: bool = False) -> Predicate | None:
    """Return a condition for statistics that holds for each row that meets the expression, or meets its negation."""
    answered = _answered(expression)
    if answered is not None:
        return Not(answered) if negated else answered
    if isinstance(expression, Column):
        return Comparison(expression.name, "=", not negated)
    if not isinstance(expression, Operation):
        return None
    if expression.name == "not":
        return _implied(expression.arguments[0], negated=not negated)
    if expression.name in ("and", "or"):
        parts = [_implied(argument, negated=negated) for argument in expression.arguments]
        implied = tuple(part for part in parts if part is not None)
        if (expression.name == "or") is not negated:
            return Or(implied) if len(implied) == len(parts) else None
        return (implied[0] if len(implied) == 1 else And(implied)) if implied else None
    return None if negated else _implied_by_operator(expression)


def _implied_by_operator(expression: Operation) -> Predicate | None:
    if expression.name == "<=>":
        return _comparison("=", *expression.arguments)
    if expression.name == "like":
        prefix, _ = _prefix(expression)
        return _on(expression.arguments[0], lambda column: StartsWith(column, prefix)) if prefix else None
    if expression.name == "startswith" and len(expression.arguments) == 2:
        column, prefix_text = expression.arguments
        if isinstance(prefix_text, Value) and isinstance(prefix_text.value, str) and prefix_text.value:
            text = prefix_text.value
            return _on(column, lambda name: StartsWith(name, text))
    return None
