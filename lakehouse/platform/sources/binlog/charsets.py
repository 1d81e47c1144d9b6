"""Encodings of Python for the character sets of MySQL and MariaDB."""

from __future__ import annotations

import codecs

from lakehouse.errors import UnsupportedError

#: Character sets whose texts are UTF-8 as they are.
UTF8 = ("utf8", "utf8mb3", "utf8mb4", "ascii")
#: Character sets in which bytes below 128 are ASCII.
_ASCII_BASED = {
    "latin1": "cp1252-mysql",
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
    "gbk": "gbk",
    "gb2312": "gb2312",
    "gb18030": "gb18030",
    "big5": "big5",
    "euckr": "euc_kr",
    "ujis": "euc_jp",
    "eucjpms": "euc_jp",
    "sjis": "shift_jis",
    "cp932": "cp932",
}
_WIDE = {"ucs2": "utf-16-be", "utf16": "utf-16-be", "utf16le": "utf-16-le", "utf32": "utf-32-be"}
#: latin1 of MySQL is Windows-1252 with the five bytes that Windows does not use as control characters.
_LATIN1 = "".join(bytes([byte]).decode("cp1252", "ignore") or chr(byte) for byte in range(256))


def is_ascii_based(charset: str) -> bool:
    """Return whether ASCII bytes are the same characters in a character set."""
    return charset in UTF8 or charset in _ASCII_BASED


def encoding_of(charset: str) -> str:
    """Return the name of Python's encoding; raise UnsupportedError for a character set without one."""
    if charset in UTF8:
        return "utf-8"
    found = _ASCII_BASED.get(charset) or _WIDE.get(charset)
    if found is None:
        raise UnsupportedError(f"the character set {charset!r} is not supported; convert the column to utf8mb4")
    return found


def decode(data: bytes, charset: str, errors: str = "strict") -> str:
    """Return the text of bytes; raise UnicodeDecodeError if they are no text of the character set."""
    encoding = encoding_of(charset)
    if encoding == "cp1252-mysql":
        return codecs.charmap_decode(data, errors, _LATIN1)[0]
    return data.decode(encoding, errors)
