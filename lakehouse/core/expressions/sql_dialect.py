"""The dialect of expressions: Spark SQL, with functions by the names that the user wrote.

This module imports sqlglot, so only `parse` imports it, when the first string is parsed.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, cast

from sqlglot import TokenType, exp
from sqlglot.dialects.spark import Spark
from sqlglot.errors import ParseError, TokenError

from lakehouse.errors import UserError

#: Prefix of the function into which `DATE '...'` is parsed.
_TIME_LITERAL = "literal "
_MOST_LEVELS = 60
#: Words that an expression may contain as keywords. Other reserved words, such as `on`, are names of columns.
_KEYWORDS = {
    *("AND", "OR", "NOT", "XOR", "BETWEEN", "LIKE", "ILIKE", "RLIKE", "REGEXP"),
    *("WHEN", "THEN", "ELSE", "AS", "DISTINCT", "FROM", "SELECT", "WITH"),
}
_SHOWN = 40
_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
#: Characters that Spark accepts after a backslash in a string.
_ESCAPED = frozenset("01234567bnrtZuU%_'\"\\")


def _literal(keyword: str) -> Callable[..., exp.Expression]:
    """Return a parser of `keyword 'text'`, which is not a cast: a literal with a dropped part is an error."""
    return lambda _parser, this, _type: exp.Anonymous(this=_TIME_LITERAL + keyword, expressions=[this])


class LakehouseExpressions(Spark):
    """Spark SQL without sqlglot's own functions, which change names and arguments: `date_sub` becomes `date_add`."""

    class Tokenizer(Spark.Tokenizer):
        """A quote in a string may be doubled, as in the standard, or follow a backslash, as in Spark."""

        STRING_ESCAPES: ClassVar[list[str]] = ["'", '"', "\\"]

    class Parser(Spark.Parser):  # type: ignore[valid-type, misc]
        """Each function call becomes `Anonymous`, except casts and EXTRACT, which have a syntax of their own."""

        STRICT_CAST = True
        FUNCTIONS: ClassVar[dict[str, Any]] = {}
        NO_PAREN_FUNCTIONS: ClassVar[dict[Any, Any]] = {}
        FUNCTION_PARSERS: ClassVar[dict[str, Any]] = {
            name: Spark.Parser.FUNCTION_PARSERS[name] for name in ("CAST", "TRY_CAST", "EXTRACT")
        }
        TYPE_LITERAL_PARSERS: ClassVar[dict[Any, Any]] = {
            exp.DataType.Type.DATE: _literal("DATE"),
            exp.DataType.Type.TIMESTAMP: _literal("TIMESTAMP"),
            exp.DataType.Type.TIMESTAMPTZ: _literal("TIMESTAMP"),
            exp.DataType.Type.TIMESTAMPNTZ: _literal("TIMESTAMP"),
            exp.DataType.Type.TIME: _literal("TIME"),
        }


def parse_tree(text: str, noun: str) -> exp.Expression:
    """Return the tree of one expression; raise UserError for a syntax error."""
    dialect = LakehouseExpressions()
    try:
        tokens = _with_reserved_names(dialect.tokenize(text))
        _check_levels(tokens, text, noun)
        _check_escapes(tokens, text, noun)
        tokens = _without_double_parentheses(tokens)
        trees = dialect.parser().parse(tokens, text)
    except ParseError as error:
        place = error.errors[0] if error.errors else {}
        raise _syntax_error(text, noun, place) from None
    except TokenError:
        raise UserError(f"cannot read the {noun} {text!r}: from a quote on, the end of the string is missing") from None
    if not trees or trees[0] is None:
        raise UserError(f"the {noun} {text!r} ends too early")
    if len(trees) > 1:
        raise UserError(f"cannot read the {noun} {text!r}: did not expect ';'. Give one expression")
    return cast("exp.Expression", trees[0])


def _with_reserved_names(tokens: list[Any]) -> list[Any]:
    """Return the tokens, with reserved words that no expression contains as names."""
    reserved = set(LakehouseExpressions.Tokenizer.KEYWORDS.values()) - set(LakehouseExpressions.Parser.ID_VAR_TOKENS)
    for token in tokens:
        if token.token_type in reserved and token.text.isidentifier() and token.text.upper() not in _KEYWORDS:
            token.token_type = TokenType.VAR
    return tokens


def _syntax_error(text: str, noun: str, place: Any) -> UserError:
    highlight, end = place.get("highlight") or "", (place.get("end_context") or "").strip()
    description = place.get("description") or "syntax error"
    if description.startswith("Required keyword") and not end:
        return UserError(f"the {noun} {text!r} ends too early")
    if description.startswith("Expecting") and not end:
        return UserError(f"cannot read the {noun} {text!r}: {description.lower()} at its end")
    return UserError(f"cannot read the {noun} {text!r}: did not expect {highlight!r}")


def _check_levels(tokens: Sequence[Any], text: str, noun: str) -> None:
    """Raise UserError for a string whose tree would exceed the depth of Python's stack."""
    depth = deepest = run = 0
    for token in tokens:
        symbol = token.text.upper()
        depth += (symbol in ("(", "CASE")) - (symbol in (")", "END"))
        run = run + 1 if symbol in ("NOT", "-", "~", "!") else 0
        deepest = max(deepest, depth + run)
    if deepest > _MOST_LEVELS:
        raise too_deep(text, noun)


def _check_escapes(tokens: Sequence[Any], text: str, noun: str) -> None:
    """Raise UserError for a backslash that Spark drops: the pattern `\\d` would match only the letter."""
    for token in tokens:
        if token.token_type is not TokenType.STRING:
            continue
        for escape in _ESCAPE.findall(text[token.start : token.end + 1]):
            if escape not in _ESCAPED:
                raise UserError(
                    f"cannot read the {noun} {text!r}: \\{escape} in a string means {escape}, as in Spark SQL. Write "
                    f"\\\\{escape} for a backslash and {escape}, or prefix the string with r"
                )


def _without_double_parentheses(tokens: list[Any]) -> list[Any]:
    """Return the tokens with `((a))` as `(a)`, because sqlglot uses much of Python's stack for each level."""
    closing: dict[int, int] = {}
    opened: list[int] = []
    for position, token in enumerate(tokens):
        if token.text == "(":
            opened.append(position)
        elif token.text == ")" and opened:
            closing[opened.pop()] = position
    dropped = set()
    for position, end in closing.items():
        before = tokens[position - 1].text.upper() if position else "("
        if before in ("(", "AND", "OR", "NOT") and closing.get(position + 1) == end - 1:
            dropped |= {position + 1, end - 1}
    return [token for position, token in enumerate(tokens) if position not in dropped] if dropped else tokens


def too_deep(text: str, noun: str) -> UserError:
    """Return the error for an expression with too many levels."""
    return UserError(f"the {noun} {text[:_SHOWN]!r}... has more than {_MOST_LEVELS} levels of nesting")
