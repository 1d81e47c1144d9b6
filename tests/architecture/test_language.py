"""Text is plain technical English: no idiom of a fixed list occurs, and stiff patterns are rare."""

from __future__ import annotations

import re

import pytest

from tests.architecture.prose import PATTERNS, blocks, hits, rates
from tests.architecture.sources import ROOT, modules, tracked_files

#: Idioms and metaphors of persons for processes, each with the standard term.
BANNED = {
    r"whoever": "name the subject: the writer, the executor",
    r"who": "name the subject: the writer, the executor, users that",
    r"nobody|somebody|anybody|everybody": "name the subject: no writer, another process",
    r"anew": "again; rebuild, reload",
    r"in vain": "without effect",
    r"told|is to be told": "a noun of the domain: decision, policy, report",
    r"signs? of life": "heartbeat",
    r"(?:taken|took|takes) (?:\w+ )?for dead": "expired",
    r"the living|the dead(?! letters?\b)": "active, expired, failed",
    r"dead (?:writers?|writes?|holders?|executors?|process(?:es)?)": "expired, failed",
    r"(?:gives?|giving|gave|given) way": "abort; conflict",
    r"lets? go": "release; abandon",
    r"wakes? up|woke up": "resumes",
    r"th(?:ief|ieves)": "the process that took the lock over",
    r"goes first|was first|came first": "precedes; committed first",
    r"counted dear|is another matter|of one's own": "say what is meant",
    r"sw(?:eeps?|ept|eeping)": "clean up; cleanup",
    r"tid(?:y|ied|ies|ying)": "clean up; cleanup",
    r"mend(?:s|ed|ing)?": "repair; recover",
    r"premise": "precondition",
    r"rooms?": "package",
    r"riddle|by the way|for the sake of|so to say|at sight": "say what is meant",
    r"what is none|which is none|is taken for": "name the condition",
    r"(?:comes?|came) to an end|all the same|nevertheless": "ends; still, although",
    r"stands? in(?! for)|bears": "is in, has",
}
IDIOM = re.compile("|".join(rf"\b(?:{pattern})\b" for pattern in BANNED), re.IGNORECASE)
#: Files that quote the list, and the options page, which is generated from `lakehouse/spec`.
QUOTING = (
    "tests/architecture/test_language.py",
    "tests/architecture/test_names.py",
    "docs/glossary.md",
    "docs/reference/options.md",
)
#: Values of options, and keys of tools, are interfaces and keep their names.
OPTION_VALUES = re.compile(r"\bgive_way\b|flake8-tidy-imports")
#: Occurrences of `prose.PATTERNS` per 1,000 words of docstrings and comments in pyiceberg 0.12.0 (48,462 words).
ICEBERG = {
    "two of": 0.99,
    "text": 0.02,
    "what": 0.02,
    "superlative": 0.17,
    "that of": 0.0,
    "speaking thing": 0.0,
    "beside": 0.0,
    "at once": 0.06,
    "also if": 0.0,
}
#: Allowed rates of packages that are not rewritten as a whole. They are above those of pyiceberg and only shrink.
ALLOWED_RATES = {
    "lakehouse/cli": {**dict.fromkeys(ICEBERG, 0.0), "two of": 1.8, "text": 3.3, "what": 0.2, "superlative": 0.6},
    "lakehouse/spec": {**dict.fromkeys(ICEBERG, 0.0), "two of": 0.6, "text": 0.4, "superlative": 0.1},
    "plugins": {
        **dict.fromkeys(ICEBERG, 0.0),
        "two of": 2.1,
        "text": 0.1,
        "what": 0.1,
        "superlative": 0.3,
        "that of": 0.2,
        "speaking thing": 0.1,
    },
}
#: Packages whose docstrings and comments are rewritten. A rate of 0.2 is one occurrence in 5,000 words.
PLAIN = ("lakehouse/core", "lakehouse/platform", "lakehouse/model", "lakehouse/spark")
PLAIN_RATE = 0.2
TEXT = (".py", ".md", ".yaml", ".yml", ".toml")
TEXT_NAMES = ("Makefile", "Dockerfile", "run")


def idioms(path: str, text: str) -> list[str]:
    """Return the lines of `text` that contain a banned idiom; underscores in names separate words."""
    return [
        f"{path}:{number} {line.strip()}"
        for number, line in enumerate(text.splitlines(), 1)
        if IDIOM.search(OPTION_VALUES.sub("", line).replace("_", " "))
    ]


def text_files() -> list[str]:
    """Return the paths of all text files that the rule covers."""
    paths = [path for path in tracked_files() if path.endswith(TEXT) or path.rpartition("/")[2] in TEXT_NAMES]
    return [p for p in paths if p not in QUOTING]


def test_no_text_holds_a_banned_idiom() -> None:
    paths = text_files()
    assert paths
    found = [line for path in paths for line in idioms(path, (ROOT / path).read_text(encoding="utf-8"))]
    assert found == []


@pytest.mark.parametrize("text", ["Whoever reads it", "def test_nobody_waits", "the lock is told", "swept files"])
def test_a_banned_idiom_is_found(text: str) -> None:
    assert idioms("x.py", f"ok\n{text}") == [f"x.py:2 {text}"]


@pytest.mark.parametrize("package", ALLOWED_RATES)
def test_stiff_patterns_are_rare_in_docstrings_and_comments(package: str) -> None:
    words, measured = rates(module.text for module in modules(package))
    assert words > 5_000
    for name, rate in measured.items():
        print(f"{package}: {name} {rate:.2f} of at most {ALLOWED_RATES[package][name]}; pyiceberg {ICEBERG[name]}")
    above = {name: round(rate, 2) for name, rate in measured.items() if rate > ALLOWED_RATES[package][name]}
    assert above == {}, "rewrite the sentences as the comments in tests/architecture/prose.py show"


@pytest.mark.parametrize("package", PLAIN)
def test_rewritten_packages_have_the_rates_of_pyiceberg(package: str) -> None:
    words, measured = rates(module.text for module in modules(package))
    assert words > 5_000
    above = {name: round(rate, 2) for name, rate in measured.items() if rate > max(ICEBERG[name], PLAIN_RATE)}
    assert above == {}, "rewrite the sentences as the comments in tests/architecture/prose.py show"


@pytest.mark.parametrize(
    ("pattern", "block"),
    [
        ("two of", "statistics of columns of files"),
        ("text", "the ordering column has texts"),
        ("what", "Return what a read opens."),
        ("superlative", "the most jobs of a pass"),
        ("that of", "a time zone other than that of Spark"),
        ("speaking thing", "a decision asks no metastore"),
        ("beside", "a write beside the unfinished build"),
        ("at once", "two syncs at once"),
        ("also if", "reads it also if its group is clustered"),
    ],
)
def test_stiff_pattern_is_counted(pattern: str, block: str) -> None:
    assert hits(block) == {pattern: 1}
    assert PATTERNS.keys() == ICEBERG.keys()


def test_code_and_standard_terms_are_not_counted() -> None:
    assert hits("The `text` of at most two files; the smaller one of the list.") == {}


def test_blocks_are_docstrings_and_adjacent_comments() -> None:
    source = '"""Doc of\na module."""\n\n# One\n#: two\nx = "no # comment"  # three\n\n\ndef f():\n    """Doc."""\n'
    assert list(blocks(source)) == [(1, "Doc of\na module."), (10, "Doc."), (4, "One\ntwo\nthree")]
