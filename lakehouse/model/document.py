"""Parse JSON from other programs: every invalid document raises ValueError."""

from __future__ import annotations

import json
import math
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON document; raise ValueError if the document is not valid.

    Values that are nested deeper than Python's recursion limit are refused, and so are numbers that are not finite
    (NaN, Infinity, 1e999): their conversion to an integer would fail later with another error.
    """
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_refused)
    except RecursionError:
        raise ValueError("the JSON text is nested too deep") from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is outside of the range of numbers")
    return number


def _refused(name: str) -> float:
    raise ValueError(f"{name} is not valid in JSON")
