"""Regular expressions of Java in the form of RE2, which evaluates them on whole columns (MDT-4.8).

Only expressions for which both give the same match are translated: literal characters, classes of letters, digits and
punctuation, `\\d \\w \\s` and their negations, groups, alternatives, and quantifiers of single characters and classes.
`^` is allowed at the beginning and `$` at the end. `.` and `$` treat more characters as the end of a line in Java than
in RE2, so a value with one of them has no defined result.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from lakehouse.errors import UserError

#: Characters that end a line in Java.
LINE_ENDS = "[\\n\\r\\x{85}\\x{2028}\\x{2029}]"
#: Name of the captured group in the RE2 expression.
GROUP = "found"
_MOST_CHARACTERS, _MOST_REPEATS = 256, 1_000
_CLASSES = {
    "d": "[0-9]", "D": "[^0-9]", "w": "[A-Za-z0-9_]", "W": "[^A-Za-z0-9_]",
    "s": "[\\t\\n\\x0b\\f\\r ]", "S": "[^\\t\\n\\x0b\\f\\r ]",
}  # fmt: skip
_IN_CLASS = {"d": "0-9", "w": "A-Za-z0-9_", "s": "\\t\\n\\x0b\\f\\r "}
_CONTROLS = {"t": "\\t", "n": "\\n", "r": "\\r"}
_QUANTIFIER = re.compile(r"(?:[?*+]|\{(?P<least>[0-9]{1,4})(?:,(?P<most>[0-9]{0,4}))?\})\??", re.ASCII)
_SPECIAL = frozenset("\\^$.|?*+()[]{}")


@dataclass(frozen=True, slots=True, kw_only=True)
class JavaPattern:
    """A translated regular expression.

    Attributes:
        re2: The expression; the wanted group is named `found`, and no other group captures.
        groups: The number of capturing groups in the Java expression.
        needs_lines: Whether a value with a line end has no defined result.
        may_be_empty: Whether the expression may match an empty string.
    """

    re2: str
    groups: int
    needs_lines: bool
    may_be_empty: bool


def java_pattern(text: str, group: int = 0) -> JavaPattern:
    """Return a Java expression in RE2 syntax that captures a group; group 0 is the whole match.

    Raises UserError for a group that does not exist, and for an expression with other elements.
    """
    if len(text) > _MOST_CHARACTERS:
        raise UserError(f"the pattern {text[:40]!r}... has more than {_MOST_CHARACTERS} characters", pattern=text[:40])
    parser = _Parser(text, group)
    re2 = parser.alternatives(at_top=True)
    if parser.position < len(text):
        raise parser.error()
    if group > parser.groups or group < 0:
        raise UserError(f"the pattern {text!r} has {parser.groups} groups, so there is no group {group}", pattern=text)
    return JavaPattern(
        re2=f"(?P<{GROUP}>{re2})" if group == 0 else re2,
        groups=parser.groups,
        needs_lines=parser.needs_lines,
        may_be_empty=parser.is_optional,
    )


class _Parser:
    """Recursive descent; `is_optional` tells whether the part that was read last may match an empty string."""

    def __init__(self, text: str, group: int) -> None:
        self._text, self._group = text, group
        self.position = self.groups = 0
        self.needs_lines, self.is_optional = False, True

    def alternatives(self, *, at_top: bool = False) -> str:
        parts, optional = [self._sequence(at_top)], self.is_optional
        while self._take("|"):
            parts.append(self._sequence(at_top))
            optional = optional or self.is_optional
        self.is_optional = optional
        return "|".join(parts) if len(parts) > 1 or not at_top else parts[0]

    def _sequence(self, at_top: bool) -> str:
        parts, optional = [], True
        if at_top and self._take("^"):
            parts.append("\\A")
        while self.position < len(self._text) and self._text[self.position] not in "|)":
            if at_top and self._text[self.position :] == "$":
                self.position += 1
                self.needs_lines = True
                parts.append("\\z")
                break
            parts.append(self._quantified())
            optional = optional and self.is_optional
        self.is_optional = optional
        return "".join(parts)

    def _quantified(self) -> str:
        is_group = self._text[self.position] == "("
        atom = self._group_of() if is_group else self._atom()
        if not is_group:
            self.is_optional = False
        match = _QUANTIFIER.match(self._text, self.position)
        if match is None:
            return atom
        least = int(match["least"]) if match["least"] else int(match[0][0] == "+")
        bounds = [int(number) for number in (match["least"], match["most"]) if number]
        follows = self._text[match.end() : match.end() + 1]
        # Java and RE2 treat an empty or repeated group differently.
        is_plain = not is_group or (match[0] == "?" and not self.is_optional)
        if (
            not is_plain
            or max(bounds, default=0) > _MOST_REPEATS
            or bounds != sorted(bounds)
            or follows in tuple("?*+{")
        ):
            raise self.error()
        self.position = match.end()
        self.is_optional = self.is_optional or least == 0
        return atom + match[0]

    def _group_of(self) -> str:
        self.position += 1
        opening = "(?:"
        if self._text.startswith("?:", self.position):
            self.position += 2
        elif self._text.startswith("?", self.position):
            raise self.error()
        else:
            self.groups += 1
            opening = f"(?P<{GROUP}>" if self.groups == self._group else opening
        inner = self.alternatives()
        if not self._take(")"):
            raise self.error()
        return f"{opening}{inner})"

    def _atom(self) -> str:
        character = self._text[self.position]
        if character == "[":
            return self._class()
        self.position += 1
        if character == ".":
            self.needs_lines = True
            return "."
        if character == "\\":
            escaped = self._text[self.position : self.position + 1]
            self.position += 1
            if escaped in _CLASSES or escaped in _CONTROLS:
                return _CLASSES.get(escaped) or _CONTROLS[escaped]
            if not _is_punctuation(escaped):
                raise self.error(2)
            return f"\\{escaped}"
        if character in _SPECIAL:
            raise self.error(1)
        return f"\\{character}" if _is_punctuation(character) else character

    def _class(self) -> str:
        """Return a class of single characters, ranges of ASCII letters and digits, and `\\d \\w \\s`."""
        start = self.position
        self.position += 1
        parts = ["[^" if self._take("^") else "["]
        while self.position < len(self._text) and self._text[self.position] != "]":
            character = self._text[self.position]
            self.position += 1
            if character in "[&^-":
                raise self.error(1)
            parts.append(self._escaped_in_class() if character == "\\" else self._range_or_character(character))
        if len(parts) == 1 or not self._take("]"):
            self.position = start
            raise self.error()
        return "".join([*parts, "]"])

    def _escaped_in_class(self) -> str:
        escaped = self._text[self.position : self.position + 1]
        self.position += 1
        if escaped not in _IN_CLASS and escaped not in _CONTROLS and not _is_punctuation(escaped):
            raise self.error(2)
        return _IN_CLASS.get(escaped) or _CONTROLS.get(escaped) or f"\\{escaped}"

    def _range_or_character(self, character: str) -> str:
        """Return a character of a class, or the range of ASCII letters or digits that begins with it."""
        if self._text[self.position : self.position + 1] != "-":
            return f"\\{character}" if _is_punctuation(character) else character
        end = self._text[self.position + 1 : self.position + 2]
        if end == "]":
            raise self.error()
        if not ((character + end).isascii() and character.isalnum() and end.isalnum() and character <= end):
            raise self.error(1)
        self.position += 2
        return f"{character}-{end}"

    def _take(self, text: str) -> bool:
        is_next = self._text.startswith(text, self.position)
        self.position += len(text) if is_next else 0
        return is_next

    def error(self, back: int = 0) -> UserError:
        rest = self._text[max(0, self.position - back) :]
        return UserError(
            f"the pattern {self._text!r} of an expression index: {rest!r} is not supported; supported are literal "
            "characters, classes such as [a-z], \\d, \\w and \\s, groups, alternatives, and quantifiers of single "
            "characters and classes",
            pattern=self._text,
        )


def _is_punctuation(character: str) -> bool:
    return (
        len(character) == 1
        and character.isascii()
        and character.isprintable()
        and not character.isalnum()
        and character != " "
    )
