"""Docstrings and comments of Python code, and the patterns in them that readers must read twice."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections import Counter
from collections.abc import Iterable, Iterator

#: Patterns that make a sentence stiff, by a short name.
PATTERNS = {
    # statistics of columns of files -> column statistics per file
    "two of": re.compile(r"\bof\b(?:\s+[\w'-]+){1,4}\s+of\b", re.IGNORECASE),
    # the ordering column has texts -> the ordering column is a string
    "text": re.compile(r"\btexts?\b", re.IGNORECASE),
    # what a read opens -> the files that a read opens
    "what": re.compile(r"\bwhat\b", re.IGNORECASE),
    # the most jobs of a pass -> the maximum number of jobs per pass
    "superlative": re.compile(
        r"(?<!\bat )\b(?:most|least|(?:great|small|larg|long|short|high|low|wid|few|near)est)\b", re.IGNORECASE
    ),
    # those of a schema registry -> messages with a schema-registry header
    "that of": re.compile(r"\b(?:that|those|the ones?) of\b", re.IGNORECASE),
    # a decision asks no metastore -> a decision does not query the metastore
    "speaking thing": re.compile(r"\b(?:says|asks|tells|knows|lets|wants|sees)\b", re.IGNORECASE),
    # a write beside the unfinished build -> a concurrent write
    "beside": re.compile(r"\bbeside\b", re.IGNORECASE),
    # fails at once; two syncs at once -> fails immediately; two concurrent syncs
    "at once": re.compile(r"\bat once\b", re.IGNORECASE),
    # also if its group is clustered -> even if its group is being clustered
    "also if": re.compile(r"\balso (?:if|when|where|after|without)\b", re.IGNORECASE),
}
_CODE = re.compile(r"`[^`]*`|\bnoqa\b.*|\btype: ignore\b.*")
_WORD = re.compile(r"[\w'-]+")


def blocks(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and content of the docstrings and of the comments; comments in adjacent lines are one block."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0] if node.body else None
            if (
                isinstance(first, ast.Expr)
                and isinstance(first.value, ast.Constant)
                and isinstance(first.value.value, str)
            ):
                yield first.lineno, first.value.value
    begin, lines = 0, list[str]()
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if lines and token.start[0] != begin + len(lines):
                yield begin, "\n".join(lines)
                lines = []
            begin = token.start[0] if not lines else begin
            lines.append(token.string.lstrip("#: "))
    if lines:
        yield begin, "\n".join(lines)


def plain(block: str) -> str:
    """Return a block in which a word replaces each piece of code."""
    return _CODE.sub("code", block)


def hits(block: str) -> Counter[str]:
    """Return the number of times that each pattern occurs in a block."""
    return Counter(
        {name: number for name, pattern in PATTERNS.items() if (number := len(pattern.findall(plain(block))))}
    )


def rates(sources: Iterable[str]) -> tuple[int, dict[str, float]]:
    """Return the number of words in the blocks of some modules, and the occurrences per 1,000 words."""
    words, counter = 0, Counter[str]()
    for source in sources:
        for _, block in blocks(source):
            words += len(_WORD.findall(plain(block)))
            counter += hits(block)
    return words, {name: counter[name] * 1000 / words for name in PATTERNS}
