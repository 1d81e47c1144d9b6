"""Regular expressions that users, policies and tables give, searched in time that is linear in the text.

The engine is RE2 (https://github.com/google/re2/wiki/Syntax). It has no look-around, back-references, possessive
quantifiers and atomic groups; such a pattern is refused where it is declared. Classes such as `\\d` and `\\w` are
ASCII, as in Java. Differences from Java that remain: `$` is the very end of the text, `.` is anything but `\\n`, `\\s`
does not hold `\\x0b`, and `(?i)` folds all of Unicode.

This is the one module of the model that needs more than the standard library.
"""

from __future__ import annotations

from functools import lru_cache

import re2

from lakehouse.errors import UserError

#: Characters of a pattern. With the bound on the compiled program it bounds what one search may cost.
MAX_PATTERN = 4_096
_MAX_PROGRAM_BYTES = 1 << 20
_SHOWN = 200


class Pattern:
    """One compiled pattern."""

    def __init__(self, text: str) -> None:
        """Raise ValueError saying what is wrong with a pattern that RE2 does not take."""
        if len(text) > MAX_PATTERN:
            raise ValueError(f"it has {len(text)} characters; at most {MAX_PATTERN} are taken")
        options = re2.Options()
        options.log_errors = False
        options.max_mem = _MAX_PROGRAM_BYTES
        try:
            self._compiled = re2.compile(text, options)
        except UnicodeEncodeError as error:
            raise ValueError("it holds half a character (a surrogate)") from error
        except re2.error as error:
            reason = error.args[0] if error.args else error
            shown = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            raise ValueError(
                f"{shown}. Patterns are RE2's, which run in linear time: no look-around, back-references, possessive "
                "quantifiers or atomic groups"
            ) from error

    def found_in(self, text: str) -> bool:
        """Return whether the pattern is found anywhere in a text, as Java's `find` does."""
        return self._compiled.search(_bytes(text)) is not None

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches a whole text, as Java's `matches` does."""
        return self._compiled.fullmatch(_bytes(text)) is not None


@lru_cache(maxsize=1024)
def compile_pattern(text: str, what: str) -> Pattern:
    """Return a compiled pattern; raise UserError naming `what` declares it if RE2 does not take it."""
    try:
        return Pattern(text)
    except ValueError as error:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        raise UserError(f"{what} {shown!r} is no regular expression: {error}", pattern=shown) from None


def escaped(text: str) -> str:
    """Return the pattern that finds just this text."""
    pattern: str = re2.escape(text)
    return pattern


def _bytes(text: str) -> bytes:
    # Names of files that are not UTF-8 come with surrogates; no pattern matches those bytes, and none fails on them.
    return text.encode("utf-8", "surrogatepass")
