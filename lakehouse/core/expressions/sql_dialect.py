"""The dialect of expressions: Spark SQL, with functions by the names that the user wrote.

This module imports sqlglot, so only `parse` imports it, when the first text is parsed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from sqlglot import exp
from sqlglot.dialects.spark import Spark

from lakehouse.core.expressions.parse import TIME_LITERAL


def _literal(keyword: str) -> Callable[..., exp.Expression]:
    """Return a parser of `keyword 'text'`, which is not a cast: a literal with a dropped part is an error."""
    return lambda _parser, this, _type: exp.Anonymous(this=TIME_LITERAL + keyword, expressions=[this])


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
