"""Java properties files, the format of `hoodie.properties` and partition metadata (TL-2.1)."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Mapping, Sequence

from lakehouse.errors import CorruptTableError

_SEPARATOR = re.compile(r"((?:[^\\=: \t\f]|\\.)*)[ \t\f]*[=:]?[ \t\f]*(.*)", re.DOTALL)
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|.)", re.DOTALL)
_TO_ESCAPE = re.compile(r"[\\\t\n\r\f=:#!]|[^\x20-\x7e]")
_NAMED = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}
_NAMES = {char: "\\" + name for name, char in _NAMED.items()}
_SHOWN = 200


def parse_properties(data: bytes) -> dict[str, str]:
    """Return the entries of a properties file; the last entry of a repeated key is used, as in Java.

    Raises CorruptTableError for a malformed Unicode escape and for an unpaired surrogate.
    """
    entries = {}
    for line in _logical_lines(data.decode("iso-8859-1")):
        match = _SEPARATOR.fullmatch(line)
        assert match is not None, "every logical line splits into a key and a value"
        entries[_unescape(match[1])] = _unescape(match[2])
    return entries


def render_properties(values: Mapping[str, str], *, comments: Sequence[str] = ()) -> bytes:
    """Return the properties file of `values` with comments first and sorted keys; equal values give equal bytes.

    Characters are escaped as by `java.util.Properties.store`: non-ASCII characters are `\\uXXXX` of UTF-16.
    """
    lines = [f"#{_escape_comment(part)}" for comment in comments for part in comment.splitlines() or [""]]
    lines += [f"{_escape_key(key)}={_escape_value(values[key])}" for key in sorted(values)]
    return "".join(line + "\n" for line in lines).encode("ascii")


def table_checksum(database: str | None, table: str) -> int:
    """Return the value of `hoodie.table.checksum`: CRC-32 of `<database>.<table>`, unsigned."""
    return zlib.crc32(f"{database or ''}.{table}".encode())


def _logical_lines(text: str) -> Iterator[str]:
    """Yield lines with continuation lines joined, without comments and blank lines."""
    pending: list[str] = []
    for natural in re.split(r"\r\n|\r|\n", text):
        line = natural.lstrip(" \t\f")
        if not pending and (not line or line[0] in "#!"):
            continue
        if (len(line) - len(line.rstrip("\\"))) % 2:
            pending.append(line[:-1])
        else:
            yield "".join((*pending, line))
            pending = []
    if pending:
        yield "".join(pending)


def _unescape(text: str) -> str:
    if "\\" not in text:
        return text

    def plain(match: re.Match[str]) -> str:
        code = match[1]
        if code[0] == "u":
            if len(code) == 1:
                raise CorruptTableError(f"malformed unicode escape in properties text {text!r}", text=text)
            return chr(int(code[1:], 16))
        return _NAMED.get(code, code)

    # Escapes are UTF-16 code units, so two surrogates become one character.
    try:
        return _ESCAPE.sub(plain, text).encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        # An unpaired surrogate cannot be encoded in files, commits or terminals.
        shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
        raise CorruptTableError(
            f"the properties text {shown!r} has an unpaired surrogate, which is not a character", text=shown
        ) from None


def _escape(match: re.Match[str]) -> str:
    char = match[0]
    if char in _NAMES:
        return _NAMES[char]
    return "\\" + char if char in "\\=:#!" else _unicode_escape(char)


def _unicode_escape(char: str) -> str:
    units = char.encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[i : i + 2].hex().upper()}" for i in range(0, len(units), 2))


def _escape_key(key: str) -> str:
    return _TO_ESCAPE.sub(_escape, key).replace(" ", "\\ ")


def _escape_value(value: str) -> str:
    escaped = _TO_ESCAPE.sub(_escape, value)
    return "\\" + escaped if escaped.startswith(" ") else escaped


def _escape_comment(comment: str) -> str:
    return re.sub(r"[^\x20-\x7e]", lambda match: _unicode_escape(match[0]), comment)
