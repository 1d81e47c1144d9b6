"""JSON that others wrote: whatever the text is, it is a value or a ValueError."""

from __future__ import annotations

import json
import math
from typing import Any


def parse_json(text: str | bytes) -> Any:
    """Return the value of a JSON text; raise ValueError if it is none.

    Beside what is no JSON these are values nested deeper than Python recurses, and numbers that are not finite (NaN,
    Infinity and 1e999 are): converting one to an int would fail later, with another error.
    """
    try:
        return json.loads(text, parse_float=_finite, parse_constant=_refused)
    except RecursionError:
        raise ValueError("the JSON text is nested too deep") from None


def _finite(text: str) -> float:
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text[:40]} is beyond the range of a number")
    return number


def _refused(name: str) -> float:
    raise ValueError(f"{name} is no JSON")
