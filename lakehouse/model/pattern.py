"""Regular expressions in policies and tables of users; a search takes time that is linear in the length of the input.

The engine is RE2 (https://github.com/google/re2/wiki/Syntax). It has no look-around, back-references, possessive
quantifiers and atomic groups; such a pattern is refused where it is declared. Classes such as `\\d` and `\\w` are
ASCII, as in Java. The remaining differences from Java: `$` matches only at the end of the string, `.` matches every
character except `\\n`, `\\s` does not match `\\x0b`, and `(?i)` ignores the case of all Unicode letters.

No other module of the model needs more than the standard library.
"""

from __future__ import annotations

from functools import lru_cache

import re2

from lakehouse.errors import UserError

#: The maximum length of a pattern. It limits the cost of a search, together with the size of the compiled program.
MAX_PATTERN = 4_096
_MAX_PROGRAM_BYTES = 1 << 20
_SHOWN = 200


class Pattern:
    """A compiled pattern."""

    def __init__(self, text: str) -> None:
        """Compile the pattern; raise ValueError with the reason if RE2 does not support it."""
        if len(text) > MAX_PATTERN:
            raise ValueError(f"it has {len(text)} characters; the limit is {MAX_PATTERN}")
        options = re2.Options()
        options.log_errors = False
        options.max_mem = _MAX_PROGRAM_BYTES
        try:
            self._compiled = re2.compile(text, options)
        except UnicodeEncodeError as error:
            raise ValueError("it contains a surrogate, which is not a character") from error
        except re2.error as error:
            reason = error.args[0] if error.args else error
            shown = reason.decode(errors="replace") if isinstance(reason, bytes) else str(reason)
            raise ValueError(
                f"{shown}. Patterns are RE2's, which run in linear time: no look-around, back-references, possessive "
                "quantifiers or atomic groups"
            ) from error

    def found_in(self, text: str) -> bool:
        """Return whether the pattern matches some part of a string, as Java's `find` does."""
        return self._compiled.search(_bytes(text)) is not None

    def matches(self, text: str) -> bool:
        """Return whether the pattern matches a whole string, as Java's `matches` does."""
        return self._compiled.fullmatch(_bytes(text)) is not None


@lru_cache(maxsize=1024)
def compile_pattern(text: str, what: str) -> Pattern:
    """Return a compiled pattern; raise UserError with `what`, its declaration, if RE2 does not support it."""
    try:
        return Pattern(text)
    except ValueError as error:
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        raise UserError(f"{what} {shown!r} is not a regular expression: {error}", pattern=shown) from None


def escaped(text: str) -> str:
    """Return the pattern that matches exactly this string."""
    pattern: str = re2.escape(text)
    return pattern


def _bytes(text: str) -> bytes:
    # File names that are not UTF-8 contain surrogates; no pattern matches their bytes, and no search fails on them.
    return text.encode("utf-8", "surrogatepass")
