"""Differences between Python's character tables and the tables that MySQL and MariaDB share.

`?` marks a character that the server cannot map to Unicode and prints as a question mark.
"""

from __future__ import annotations

from collections.abc import Mapping

#: Characters for bytes 0x80 and above, for character sets that Python lacks. Other bytes are ASCII.
UPPER_HALVES: Mapping[str, str] = {
    "armscii8": "".join(map(chr, range(0x80, 0xA0)))
    + ("\xa0❁§։)(»«—.՝,-՟…՜՛՞ԱաԲբԳգԴդԵեԶզԷէԸըԹթԺժԻիԼլԽխԾծԿկՀհՁձՂղՃճՄմՅյՆնՇշՈոՉչՊպՋջՌռՍսՎվՏտՐրՑցՒւՓփՔքՕօՖֆ’'"),
    "dec8": "".join(map(chr, range(0x80, 0xA0)))
    + ("\xa0¡¢£?¥?§¤©ª«????°±²³?µ¶·?¹º»¼½?¿ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏ?ÑÒÓÔÕÖŒØÙÚÛÜŸ?ßàáâãäåæçèéêëìíîï?ñòóôõöœøùúûüÿ??"),
    "geostd8": (
        "€?‚?„…†‡?‰?‹?????‘’“”•–—???›????\xa0¡¢£¤¥¦§¨©ª«¬\xad®¯"
        "°±²³´µ¶·¸¹º»¼½¾¿აბგდევზჱთიკლმნჲოპჟრსტჳუფქღყშჩცძწ"
        "ჭხჴჯჰჵ???????????????????????№??"
    ),
    "hp8": "".join(map(chr, range(0x80, 0xA0)))
    + ("\xa0ÀÂÈÊËÎÏ´ˋˆ¨˜ÙÛ₤¯Ýý°ÇçÑñ¡¿¤£¥§ƒ¢âêôûáéóúàèòùäëöüÅîØÆåíøæÄìÖÜÉïßÔÁÃãÐðÍÌÓÒÕõŠšÚŸÿÞþ·µ¶¾—¼½ªº«■»±?"),
    "keybcs2": (
        "ČüéďäĎŤčěĚĹÍľĺÄÁÉžŽôöÓůÚýÖÜŠĽÝŘťáíóúňŇŮÔšřŕŔ¼¡«»"
        "░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀"
        "αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\xa0"
    ),
    # Its Swedish letters are below 0x80.
    "swe7": "?" * 128,
}

#: Characters of bytes that differ from Python's, for single-byte character sets.
SINGLE_BYTES: Mapping[str, Mapping[int, str]] = {
    "cp866": {0xFC: "ⁿ", 0xFD: "²"},
    "cp1256": dict.fromkeys((0x8A, 0x8F, 0x98, 0x9A, 0x9F, 0xAA, 0xC0, 0xFF), "?"),
    "greek": {0xA1: "ʽ", 0xA2: "ʼ", 0xA4: "?", 0xA5: "?", 0xAA: "?"},
    "hebrew": {0xAF: "‾"},
    "koi8u": {0x95: "•"},
    # Windows-1252 with the five bytes that Windows does not use as control characters.
    "latin1": {byte: chr(byte) for byte in (0x81, 0x8D, 0x8F, 0x90, 0x9D)},
    "tis620": dict.fromkeys((0xA0, *range(0xDB, 0xDF), *range(0xFC, 0x100)), "\ufffd"),
    "swe7": {**dict(zip(b"@[\\]^`{|}~", "ÉÄÖÅÜéäöåü", strict=True)), 0x7F: "?"},
}


def _row(lead: bytes, first: int, characters: str) -> dict[bytes, str]:
    """Return the characters of adjacent second bytes."""
    return {lead + bytes([first + number]): character for number, character in enumerate(characters)}


def _private(lead: bytes, start: int) -> dict[bytes, str]:
    """Return the rows 0xF5 to 0xFE, which are in the private area of Unicode, 94 characters each."""
    characters_by_code: dict[bytes, str] = {}
    for number in range(10):
        characters = "".join(map(chr, range(start + 94 * number, start + 94 * (number + 1))))
        characters_by_code |= _row(lead + bytes([0xF5 + number]), 0xA1, characters)
    return characters_by_code


_PRIVATE = _private(b"", 0xE000) | _private(b"\x8f", 0xE3AC)
_NEC = (
    "①②③④⑤⑥⑦⑧⑨⑩⑪⑫⑬⑭⑮⑯⑰⑱⑲⑳ⅠⅡⅢⅣⅤⅥⅦⅧⅨⅩ?㍉㌔㌢㍍㌘㌧㌃㌶㍑㍗㌍㌦㌣㌫㍊㌻㎜㎝㎞㎎㎏㏄㎡????????㍻〝〟№㏍℡㊤㊥㊦㊧㊨㈱㈲㈹㍾㍽㍼"
    "≒≡∫∮∑√⊥∠∟⊿∵∩∪"
)
# Compatibility ideographs are escaped, because tools may normalize them to other characters.
_IBM = (
    "ⅢⅣⅤⅥⅦⅧⅨⅩ＇＂㈱№℡炻仼僴凬匇匤\ufa0e咊坙\ufa0f\ufa10增寬峵嵓\ufa11德悅愠敎昻晥\ufa12"
    "\uf929栁\ufa13\ufa14橫櫢淸淲瀨\ufa15\ufa16甁皂皞\ufa17礰\ufa18\ufa19\ufa1a"
    "\ufa1b竧\ufa1c\ufa1d綠緖\ufa1e荢\ufa1f薰\ufa20\ufa21蠇\ufa22譿賴赶\ufa23"
    "\ufa24\ufa25郞\ufa26鄕\ufa27\ufa28閒\uf9dc\ufa29霻靍靑\ufa2a\ufa2b"
    "\ufa2c馞髙魲\ufa2d黑"
)
#: Characters of byte sequences that differ from Python's, for multi-byte character sets.
SEQUENCES: Mapping[str, Mapping[bytes, str]] = {
    "big5": {
        **_row(b"\xf9", 0xD6, "碁銹裏墻恒粧嫺"),
        **dict.fromkeys(map(bytes.fromhex, ("a15a", "a1c3", "a1c5", "a1fe", "a240", "a2cc", "a2ce")), "\ufffd"),
    },
    "cp932": dict.fromkeys((b"\x80", b"\xa0", b"\xfd", b"\xfe", b"\xff"), "?"),
    "sjis": {b"\x81\x5f": "\\"},
    "ujis": {**_PRIVATE, b"\xa1\xc0": "\\"},
    "eucjpms": {
        **_PRIVATE,
        **_row(b"\xad", 0xA1, _NEC),
        **_row(b"\x8f\xf3", 0xF3, "ⅰⅱⅲⅳⅴⅵⅶⅷⅸⅹⅠⅡ"),
        **_row(b"\x8f\xf4", 0xA1, _IBM),
        **dict(zip(map(bytes.fromhex, ("a1c1", "a1c2", "a1dd", "a1f1", "a1f2", "a2cc")), "～∥－￠￡￢", strict=True)),
        b"\x8f\xa2\xb7": "～",
        b"\x8f\xa2\xc3": "￤",
    },
    "gb18030": {b"\xa8\xbc": "\u1e3f", b"\x81\x35\xf4\x37": "\ue7c7", b"\x84\x31\xa4\x37": "\ufffd"},
}
