"""Decode strings in all MySQL and MariaDB character sets as the servers do when they send them to a client.

A snapshot contains strings that the server converted, and the log contains their bytes, so both must give the same
characters. Python's codecs are used where they match the servers; `charset_tables` contains the differences.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from lakehouse.errors import UnsupportedError
from lakehouse.platform.sources.binlog.charset_tables import SEQUENCES, SINGLE_BYTES, UPPER_HALVES

#: Character sets whose bytes are valid UTF-8 without conversion.
UTF8 = ("utf8", "utf8mb3", "utf8mb4", "ascii")
#: Python's encoding per single-byte character set.
_SINGLE = {
    "latin1": "cp1252",
    "latin2": "iso8859_2",
    "latin5": "iso8859_9",
    "latin7": "iso8859_13",
    "greek": "iso8859_7",
    "hebrew": "iso8859_8",
    "cp850": "cp850",
    "cp852": "cp852",
    "cp866": "cp866",
    "cp1250": "cp1250",
    "cp1251": "cp1251",
    "cp1256": "cp1256",
    "cp1257": "cp1257",
    "koi8r": "koi8_r",
    "koi8u": "koi8_u",
    "macroman": "mac_roman",
    "macce": "mac_latin2",
    "tis620": "tis_620",
    **dict.fromkeys(UPPER_HALVES, "ascii"),
}
# Byte sequences that the servers read as one character, even if it is not in Unicode; any other byte is a character.
_GBK = rb"[\x81-\xfe][\x40-\x7e\x80-\xfe]|."
_GB18030 = rb"[\x81-\xfe][0-9][\x81-\xfe][0-9]|" + _GBK
_GB2312 = rb"[\xa1-\xf7][\xa1-\xfe]|."
_BIG5 = rb"[\xa1-\xf9][\x40-\x7e\xa1-\xfe]|."
_EUC_KR = rb"[\x81-\xfe][A-Za-z\x81-\xfe]|."
_EUC_JP = rb"\x8f[\xa1-\xfe]{2}|\x8e[\xa1-\xdf]|[\xa1-\xfe]{2}|."
_SJIS = rb"[\x81-\x9f\xe0-\xfc][\x40-\x7e\x80-\xfc]|."
#: Python's encoding and the form of a character, per multi-byte character set.
_SEVERAL = {
    "gbk": ("gbk", _GBK),
    "gb2312": ("gb2312", _GB2312),
    "gb18030": ("gb18030", _GB18030),
    "big5": ("big5", _BIG5),
    # The servers' table contains all syllables, like code page 949.
    "euckr": ("cp949", _EUC_KR),
    "ujis": ("euc_jp", _EUC_JP),
    "eucjpms": ("euc_jp", _EUC_JP),
    "sjis": ("shift_jis", _SJIS),
    "cp932": ("cp932", _SJIS),
}
_WIDE = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}
_SURROGATE, _BEYOND_UCS2 = re.compile("[\ud800-\udfff]"), re.compile("[\U00010000-\U0010ffff]")
#: Character sets in which bytes below 0x80 are not all ASCII.
_NOT_ASCII = ("swe7",)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Several:
    """A multi-byte character set.

    Attributes:
        encoding: Python's encoding.
        form: The form of one character.
        changed: The byte sequences that the servers decode differently from Python.
        occurs: Matches one of these sequences.
    """

    encoding: str
    form: re.Pattern[bytes]
    changed: Mapping[bytes, str]
    occurs: re.Pattern[bytes]

    def decode(self, data: bytes) -> str:
        """Return the decoded bytes."""
        if not self.changed or self.occurs.search(data) is None:
            try:
                return data.decode(self.encoding)
            except UnicodeDecodeError:
                pass
        return "".join(self._characters(data))

    def _characters(self, data: bytes) -> Iterator[str]:
        for match in self.form.finditer(data):
            character = self.changed.get(match[0])
            if character is None:
                try:
                    character = match[0].decode(self.encoding)
                except UnicodeDecodeError:
                    character = "?"
            yield character


def is_ascii_based(charset: str) -> bool:
    """Return whether a character set is compatible with ASCII."""
    return charset in UTF8 or (charset in (*_SINGLE, *_SEVERAL) and charset not in _NOT_ASCII)


def require_known(charset: str) -> None:
    """Raise UnsupportedError for a character set that this package cannot decode."""
    if charset and charset != "binary" and charset not in (*UTF8, *_SINGLE, *_SEVERAL, *_WIDE):
        raise UnsupportedError(
            f"the character set {charset!r} is not supported, so the log cannot be decoded. Convert the column: ALTER "
            "TABLE ... MODIFY ... CHARACTER SET utf8mb4"
        )


def decode(data: bytes, charset: str) -> str:
    """Decode bytes as the servers convert them to Unicode, with `?` for each invalid character.

    Raises:
        UnicodeDecodeError: The bytes are not valid UTF-8, in a character set that the server does not convert.
        UnsupportedError: The character set is not known.
    """
    require_known(charset)
    if charset == "ascii":
        return codecs.charmap_decode(data, "strict", _table("ascii"))[0]
    if charset in UTF8:
        return data.decode("utf-8")
    if charset in _SINGLE:
        return codecs.charmap_decode(data, "strict", _table(charset))[0]
    if charset in _WIDE:
        return _wide(data, charset)
    return _several(charset).decode(data)


def _wide(data: bytes, charset: str) -> str:
    """Decode two-byte or four-byte units; an unpaired surrogate is an invalid character."""
    text = data.decode(_WIDE[charset], "surrogatepass")
    if charset == "ucs2":
        # Each unit is a character, even in a surrogate pair.
        text = _BEYOND_UCS2.sub("??", text)
    return _SURROGATE.sub("?", text)


def decode_statement(data: bytes, charset: str) -> str:
    """Return the decoded statement, with U+FFFD for invalid bytes."""
    if charset in UTF8:
        return data.decode("utf-8", "replace")
    return decode(data, charset)


@lru_cache
def _table(charset: str) -> str:
    """Return the characters of all bytes."""
    encoding, changed = _SINGLE.get(charset, "ascii"), SINGLE_BYTES.get(charset, {})
    upper = UPPER_HALVES.get(charset)
    plain = [bytes([byte]).decode(encoding, "ignore") or "?" for byte in range(256)]
    if upper is not None:
        plain[128:] = upper
    return "".join(changed.get(byte, character) for byte, character in enumerate(plain))


@lru_cache
def _several(charset: str) -> _Several:
    encoding, form = _SEVERAL[charset]
    changed = SEQUENCES.get(charset, {})
    return _Several(
        encoding=encoding,
        form=re.compile(form, re.DOTALL),
        changed=changed,
        occurs=re.compile(b"|".join(re.escape(sequence) for sequence in changed)),
    )
