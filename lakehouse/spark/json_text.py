"""Divides strings into JSON objects with Spark expressions, so that no character is ignored.

Spark's JSON parsers read the first value of a string and ignore the rest: for `{"id":1}{"id":2}` they return one row,
and for `{"id":1} and more` too. A string is therefore divided before it is parsed:

    {"id":1}                one object
    {"id":1}{"id":2}        several objects, with or without space between them, as Amazon Data Firehose writes them
    [{"id":1},{"id":2}]     an array of objects
    {"id":1} and more       neither: the whole string is a bad record

The objects are found by `lakehouse.spark.json_pattern`.
"""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import Column
from pyspark.sql import functions as F

from lakehouse.spark.json_pattern import has_comments, object_pattern
from lakehouse.spark.versions.choice import spark_version

_REPEATED = "an object has a key twice, so one of its values would be lost; correct the record at its source"
_NESTED = r"\{[^{]*+\{"
_FLAT = r"\A\s*+\{[^{}]*+\}\s*+\z"
_SEQUENCE = r"\A\s*+(?:\{\}\s*+)++\z"
_ARRAY = r"\A\s*+\[\s*+(?:\{\}\s*+(?:,\s*+\{\}\s*+)*+)?+\]\s*+\z"


def json_objects(text: Column, options: Mapping[str, str]) -> Column:
    """Return the objects in a string as an array of strings; null if it contains anything else, or is not UTF-8.

    `options` are passed to Spark's parser. The syntax inside the braces of an object may be invalid.
    """
    rest = F.regexp_replace(text, F.lit(object_pattern(options)), F.lit("{}"))
    is_divided = F.regexp_like(rest, F.lit(_SEQUENCE)) | F.regexp_like(rest, F.lit(_ARRAY))
    several = F.regexp_extract_all(text, F.lit(object_pattern(options)), 0)
    return F.when(
        spark_version().is_valid_utf8(text),
        F.when(_is_simple(text, options), F.array(text))
        .when(is_divided, several)
        .when(_is_one_value(text, options), F.array(text)),
    )


def is_json_object(text: Column, options: Mapping[str, str]) -> Column:
    """Return whether a string is UTF-8 and exactly one object, if it parses."""
    is_object = spark_version().is_valid_utf8(text) & (_is_simple(text, options) | _is_one_value(text, options))
    return F.when(text.isNotNull(), F.coalesce(is_object, F.lit(False)))


def has_repeated_key(text: Column, options: Mapping[str, str], pairs: Column | None = None) -> Column:
    """Return whether an object, or an object inside it, repeats a key; Spark's parser keeps the last value.

    `pairs` is the string as a `map<string,string>`, if it is parsed already. The session has the settings
    `SparkVersion.JSON_SETTINGS`.
    """
    parsed = F.from_json(text, "map<string,string>", dict(options)) if pairs is None else pairs
    keys = F.map_keys(parsed)
    is_refused = parsed.isNotNull() & spark_version().repeats_nested_key(text, options)
    has_repeated = F.size(F.array_distinct(keys)) < F.size(keys)
    has_repeated = F.when(F.regexp_like(text, F.lit(_NESTED)), is_refused).otherwise(has_repeated)
    return F.coalesce(has_repeated, F.lit(False))


def repeated_key_problem(text: Column, options: Mapping[str, str]) -> Column:
    """Return the message that an object repeats a key; null if it does not."""
    return F.when(has_repeated_key(text, options), F.lit(_REPEATED))


def _is_simple(text: Column, options: Mapping[str, str]) -> Column:
    """Return whether the braces in a string are balanced and the first one is closed at its end."""
    own = F.regexp_like(text, F.lit(rf"\A\s*+{object_pattern(options)}\s*+\z"))
    # Without further braces the string ends with the object. A comment could contain the last brace.
    return own if has_comments(options) else F.regexp_like(text, F.lit(_FLAT)) | own


def _is_one_value(text: Column, options: Mapping[str, str]) -> Column:
    """Return whether a string that begins with a brace is one value: it is then one element of an array.

    A string that closes the array itself lacks the additional element of the second array.
    """
    alone, followed = (
        F.size(F.from_json(F.concat(F.lit("["), text, F.lit(end)), "array<string>", dict(options)))
        for end in ("\n]", "\n,0]")
    )
    return F.ltrim(text).startswith("{") & (alone == 1) & (followed == 2)
