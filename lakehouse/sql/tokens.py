"""Tokens of SQL statements with their positions, and a cursor that reads a statement from left to right."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, ClassVar

from sqlglot import TokenType
from sqlglot.dialects.dialect import Dialect
from sqlglot.dialects.duckdb import DuckDB
from sqlglot.dialects.spark import Spark
from sqlglot.errors import SqlglotError

from lakehouse.errors import UserError

SPARK, SHELL = "lakehousespark", "lakehouseshell"
_OPENING, _CLOSING = ("(", "[", "{"), (")", "]", "}")
_WORDS_LIMIT = 60
_QUOTES = ("`", '"')
_NAME_PART = re.compile(r'`(?:[^`]|``)*`|"(?:[^"]|"")*"|[^.`"]+')


class LakehouseSpark(Spark):
    """The dialect of Spark, in which no keyword makes the rest of the statement one token."""

    class Tokenizer(Spark.Tokenizer):
        """Splits CALL, SHOW and other commands into tokens, too."""

        COMMANDS: ClassVar[set[TokenType]] = set()

    class Parser(Spark.Parser):  # type: ignore[valid-type, misc]
        """Writes no warning about statements that it does not support; the caller handles them."""

        def _warn_unsupported(self) -> None:
            pass


class LakehouseShell(DuckDB):
    """The dialect of DuckDB with backticks around identifiers, as in Spark."""

    class Tokenizer(DuckDB.Tokenizer):
        """Accepts both kinds of quotes around an identifier."""

        COMMANDS: ClassVar[set[TokenType]] = set()
        IDENTIFIERS: ClassVar[list[str | tuple[str, str]]] = ['"', "`"]

    class Parser(DuckDB.Parser):  # type: ignore[valid-type, misc]
        """Writes no warning about statements that it does not support; the caller handles them."""

        def _warn_unsupported(self) -> None:
            pass


@dataclass(frozen=True, slots=True)
class Token:
    """A token: its characters without quotes, its kind, and its position in the statement (end is exclusive)."""

    text: str
    kind: TokenType
    start: int
    end: int

    @property
    def is_quoted(self) -> bool:
        """Whether quotes for identifiers surround the token."""
        return self.kind is TokenType.IDENTIFIER

    @property
    def is_string(self) -> bool:
        """Whether the token is a string literal."""
        return self.kind in (TokenType.STRING, TokenType.NATIONAL_STRING, TokenType.RAW_STRING)

    @property
    def is_name(self) -> bool:
        """Whether the token can be a part of a name: an identifier with or without quotes, or a word."""
        return self.is_quoted or (self.kind is not TokenType.NUMBER and _is_word(self.text) and not self.is_string)

    def has_word(self, *words: str) -> bool:
        """Return whether the token is one of some keywords, which are in upper case."""
        return not self.is_quoted and not self.is_string and " ".join(self.text.upper().split()) in words


def _is_word(text: str) -> bool:
    return bool(text) and (text[0].isalpha() or text[0] == "_") and text.replace("_", "a").isalnum()


@cache
def dialect(name: str) -> Any:
    """Return a dialect of sqlglot."""
    return Dialect.get_or_raise(name)


def tokens_of(text: str, name: str) -> tuple[Token, ...]:
    """Return the tokens of a statement; comments are no tokens. Raise UserError if a quote or comment does not end."""
    try:
        raw = dialect(name).tokenize(text)
    except SqlglotError as error:
        raise UserError(f"the statement cannot be split into tokens: {error}") from None
    return tuple(Token(one.text, one.token_type, one.start, one.end + 1) for one in raw)


def split_statements(text: str, name: str) -> tuple[str, ...]:
    """Return the statements of a script, which semicolons separate."""
    statements, begin = [], None
    for token in tokens_of(text, name):
        if token.kind is TokenType.SEMICOLON:
            if begin is not None:
                statements.append(text[begin : token.start])
            begin = None
        elif begin is None:
            begin = token.start
    if begin is not None:
        statements.append(text[begin:].rstrip())
    return tuple(statements)


class Cursor:
    """Reads the tokens of one statement. Methods that expect something raise UserError with the position."""

    def __init__(self, text: str, tokens: Sequence[Token], at: int = 0) -> None:
        self.text, self.tokens, self.at = text, tuple(tokens), at

    @property
    def ended(self) -> bool:
        """Whether all tokens were read."""
        return self.at >= len(self.tokens)

    @property
    def token(self) -> Token | None:
        """The next token; None at the end."""
        return None if self.ended else self.tokens[self.at]

    def sees(self, *words: str) -> bool:
        """Return whether the next tokens are these keywords or signs."""
        following = self.tokens[self.at : self.at + len(words)]
        return len(following) == len(words) and all(
            token.has_word(word) for token, word in zip(following, words, strict=True)
        )

    def accept(self, *words: str) -> bool:
        """Read these keywords or signs if they are next; return whether they were."""
        if not self.sees(*words):
            return False
        self.at += len(words)
        return True

    def expect(self, *words: str) -> None:
        """Read these keywords or signs."""
        if not self.accept(*words):
            raise self.error(f"expected {' '.join(words)}")

    def one_of(self, *words: str) -> str:
        """Read one of some keywords and return it; return "" if none is next."""
        for word in words:
            if self.accept(word):
                return word
        return ""

    def name(self, what: str = "a name") -> str:
        """Read an identifier; a string in double quotes is one, too."""
        token = self.token
        if token is None or not (token.is_name or (token.is_string and self.text[token.start] == '"')):
            raise self.error(f"expected {what}")
        self.at += 1
        return token.text

    def parts(self, what: str = "the name of a table") -> tuple[str, ...]:
        """Read a name with dots; return its parts."""
        names = [self.name(what)]
        while self.accept("."):
            names.append(self.name(what))
        return tuple(names)

    def column(self, what: str = "a column") -> str:
        """Read the name of a column or of a field in a struct; return its parts with dots between them.

        A dot inside of quotes is refused: no column has such a name, and it would name a field of another column.
        """
        parts = self.parts(what)
        dotted = next((part for part in parts if "." in part), None)
        if dotted is not None:
            raise self.error(
                f"`{dotted}` is one name with a dot, which no column can have; write "
                f"{'.'.join(quoted(part) for part in dotted.split('.'))} for a field of a struct"
            )
        return ".".join(parts)

    def string(self, what: str) -> str:
        """Read a string literal; adjacent literals are joined."""
        token = self.token
        if token is None or not token.is_string:
            raise self.error(f"expected {what} in quotes")
        self.at += 1
        return token.text

    def value(self, what: str) -> str:
        """Read a literal or a dotted word, as in properties: its characters without quotes."""
        token = self.token
        if token is None:
            raise self.error(f"expected {what}")
        if token.is_string or token.kind is TokenType.NUMBER:
            self.at += 1
            return token.text
        if self.accept("-"):
            return f"-{self.value(what)}"
        return ".".join(self.parts(what))

    def group(self) -> tuple[Token, ...]:
        """Read a group in parentheses and return the tokens inside."""
        self.expect("(")
        begin, depth = self.at, 1
        while not self.ended:
            token = self.tokens[self.at]
            depth += _depth(token)
            self.at += 1
            if depth == 0:
                return self.tokens[begin : self.at - 1]
        raise self.error("expected )")

    def inside(self) -> Cursor:
        """Read a group in parentheses and return a cursor over it."""
        return Cursor(self.text, self.group())

    def until(self, *stops: Collection[str] | str) -> tuple[Token, ...]:
        """Read until a keyword outside of parentheses and CASE, or until the end.

        A stop is a keyword, or a sequence of keywords.
        """
        begin, depth, cases = self.at, 0, 0
        sequences = [(stop,) if isinstance(stop, str) else tuple(stop) for stop in stops]
        while not self.ended:
            token = self.tokens[self.at]
            if depth == 0 and cases == 0 and any(self.sees(*sequence) for sequence in sequences):
                break
            depth += _depth(token)
            if depth < 0:
                break
            cases += token.has_word("CASE") - (token.has_word("END") and cases > 0)
            self.at += 1
        return self.tokens[begin : self.at]

    def rest(self) -> str:
        """Read all tokens that are left and return their characters."""
        tokens, self.at = self.tokens[self.at :], len(self.tokens)
        return cut(self.text, tokens)

    def end(self) -> None:
        """Raise UserError unless all tokens were read."""
        if not self.ended:
            raise self.error("expected the end of the statement")

    def error(self, problem: str) -> UserError:
        """Return an error at the next token."""
        token = self.token
        near = "the end" if token is None else repr(self.text[token.start : token.end][:_WORDS_LIMIT])
        begin = self.tokens[0].start if self.tokens else 0
        return UserError(f"{self.text[begin : begin + _WORDS_LIMIT].strip()!r}: {problem} before {near}")


def _depth(token: Token) -> int:
    if token.is_quoted or token.is_string:
        return 0
    return (token.text in _OPENING) - (token.text in _CLOSING)


def cut(text: str, tokens: Sequence[Token]) -> str:
    """Return the characters from the first token to the last one."""
    return text[tokens[0].start : tokens[-1].end] if tokens else ""


def name_parts(text: str) -> tuple[str, ...]:
    """Return the parts of a name in a string, such as `sales.orders`; quotes around a part are left out."""
    parts = _NAME_PART.findall(text)
    if ".".join(parts) != text:
        return tuple(text.split("."))
    return tuple(part[1:-1].replace(part[0] * 2, part[0]) if part[0] in _QUOTES else part for part in parts)


def split_list(text: str, tokens: Sequence[Token], sign: str = ",") -> Iterator[tuple[Token, ...]]:
    """Yield the items of a list that commas outside of parentheses separate."""
    cursor = Cursor(text, tokens)
    while not cursor.ended:
        yield cursor.until(sign)
        cursor.accept(sign)


def quoted(name: str, mark: str = "`") -> str:
    """Return an identifier in quotes."""
    return f"{mark}{name.replace(mark, mark * 2)}{mark}"
