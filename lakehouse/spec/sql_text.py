"""Find SQL features that access more than the views of a query: Java methods, scripts, files, and variables.

The query is split into tokens of Spark's grammar, so words in literals and comments are not mistaken for calls. A
deployment allows features by name in the environment variable `LAKEHOUSE_ALLOWED_SQL`, comma separated:

    reflect     reflect(), java_method(), try_reflect(), and IDENTIFIER(), which computes the name of a function
    script      TRANSFORM ... USING '<command>'
    files       a file as a relation, such as parquet.`/path`
    variables   ${env:NAME}, ${system:name} and ${spark.name}, which Spark replaces before it parses the query
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from lakehouse.errors import UserError

ALLOWED_SQL = "LAKEHOUSE_ALLOWED_SQL"
REFLECT, SCRIPT, FILES, VARIABLES = FEATURES = ("reflect", "script", "files", "variables")
_METHODS = frozenset({"reflect", "java_method", "try_reflect", "identifier"})
_FORMATS = frozenset({"avro", "binaryfile", "csv", "delta", "hudi", "iceberg", "json", "orc", "parquet", "text", "xml"})
_PATTERN = r"""(?P<space>\s+|--(?:\\\n|[^\r\n])*)
      | (?P<comment>/\*)
      | (?P<text>[rR]'[^']*'|[rR]"[^"]*"|'(?:[^'{escape}]{escaped})*')
      | (?P<either>"(?:[^"{escape}]{escaped})*")
      | (?P<quoted>`(?:[^`]|``)*`)
      | (?P<word>\w+)
      | (?P<sign>.)"""
#: A session may be configured to treat a backslash in a literal as an ordinary character
#: (`spark.sql.parser.escapedStringLiterals`).
_TOKENS = {
    True: re.compile(_PATTERN.format(escape=r"\\", escaped=r"|\\."), re.VERBOSE | re.DOTALL),
    False: re.compile(_PATTERN.format(escape="", escaped=""), re.VERBOSE | re.DOTALL),
}
_COMMENT = re.compile(r"/\*|\*/")
_VARIABLE = re.compile(r"\$\{\s*(?:env|system|spark|sparkconf|hivevar|hiveconf)\s*[:.]", re.IGNORECASE)
#: A token: its kind, and its characters without quotes.
_Token = tuple[str, str]


def allowed_features(environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the features that the deployment allows; raise UserError for an unknown name."""
    named = [name.strip().lower() for name in environ.get(ALLOWED_SQL, "").split(",") if name.strip()]
    unknown = next((name for name in named if name not in FEATURES), None)
    if unknown is not None:
        raise UserError(f"{ALLOWED_SQL}: {unknown!r} is no feature of SQL; known are {', '.join(FEATURES)}")
    return tuple(named)


def require_allowed_sql(texts: Sequence[str], what: str, environ: Mapping[str, str], *, escapes: bool = True) -> None:
    """Raise UserError for the first feature in queries that the deployment does not allow.

    `what` describes the queries.

    `escapes` is whether a backslash in a literal escapes the next character.
    """
    allowed = allowed_features(environ)
    for text in texts:
        for feature, shown in features_of(text, escapes=escapes):
            if feature not in allowed:
                raise UserError(
                    f"{what}: {shown} reaches beyond the views of the query, with the rights of the job, so it is "
                    f"refused. Write the query without it; an administrator allows it for all specs with "
                    f"{ALLOWED_SQL}={feature}",
                    feature=feature,
                )


def features_of(text: str, *, escapes: bool = True) -> Iterator[tuple[str, str]]:
    """Yield each feature of a SQL query with the part of the query that uses it."""
    variable = _VARIABLE.search(text)
    if variable is not None:
        yield VARIABLES, f"the variable {variable[0]}...}}"
    tokens = list(_tokens(text, _TOKENS[escapes]))
    following = zip(tokens, islice(tokens, 1, None), [*islice(tokens, 2, None), ("", "")], strict=False)
    for (kind, word), (next_kind, next_word), (last_kind, last_word) in following:
        is_name = kind in ("word", "quoted", "either")
        if is_name and word.lower() in _METHODS and next_word == "(" and next_kind == "sign":
            yield REFLECT, f"{word}()"
        if kind == "word" and word.lower() == "using" and next_kind in ("text", "either"):
            yield SCRIPT, f"the command of USING {next_word!r}"
        # This check only gives a clearer message: `lakehouse.spark.transforms` also refuses files that it misses.
        is_path = last_kind in ("quoted", "either") and ("/" in last_word or ":" in last_word)
        if is_name and word.lower() in _FORMATS and (next_kind, next_word) == ("sign", ".") and is_path:
            yield FILES, f"the file {word}.`{last_word}`"


def _tokens(text: str, pattern: re.Pattern[str]) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        match = pattern.match(text, at)
        assert match is not None and match.lastgroup is not None, "a token of one character always matches"
        at = match.end()
        kind, word = match.lastgroup, match[0]
        if kind == "comment":
            at = _end_of_comment(text, at)
        elif kind == "quoted":
            yield kind, word[1:-1].replace("``", "`")
        elif kind == "either":
            yield kind, word[1:-1]
        elif kind != "space":
            yield kind, word


def _end_of_comment(text: str, at: int) -> int:
    """Return the end of a comment that begins before `at`; comments nest."""
    depth = 1
    for match in _COMMENT.finditer(text, at):
        depth += 1 if match[0] == "/*" else -1
        if not depth:
            return match.end()
    return len(text)
