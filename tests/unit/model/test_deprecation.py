"""Deprecated names warn with the line that uses them, and work until they are removed."""

from __future__ import annotations

import warnings

import pytest

from lakehouse.model.deprecation import Deprecation, LakehouseDeprecationWarning, deprecated, renamed_arguments

SINCE = Deprecation(since="0.2.0", until="0.4.0", use="total")


@deprecated(SINCE)
def add(left: int, right: int) -> int:
    """Return the sum."""
    return left + right


@renamed_arguments(Deprecation(since="0.2.0", until="0.4.0", use="at"), {"time": "at"})
def read(*, at: str = "now") -> str:
    """Return the time."""
    return at


def test_deprecated_function_warns_at_the_line_of_its_caller() -> None:
    message = "add is deprecated since 0.2.0 and will be removed in 0.4.0; use total"
    with pytest.warns(LakehouseDeprecationWarning, match=message) as caught:
        assert add(1, 2) == 3
    assert [warning.filename for warning in caught] == [__file__]
    assert add.__doc__ == "Return the sum."


def test_old_argument_is_passed_by_its_new_name_with_a_warning() -> None:
    with pytest.warns(LakehouseDeprecationWarning, match=r"read\(time=\) is deprecated .* use at") as caught:
        assert read(time="noon") == "noon"
    assert [warning.filename for warning in caught] == [__file__]
    with pytest.raises(TypeError, match="time is the old name of at; give one of them"):
        read(time="noon", at="now")


def test_new_name_does_not_warn() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (read(), read(at="noon")) == ("now", "noon")
