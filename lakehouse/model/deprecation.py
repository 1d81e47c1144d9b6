"""Deprecated names: they work until a stated release, and warn with the name that replaces them.

docs/compatibility.md defines how long a deprecated name stays.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import wraps
from typing import ParamSpec, TypeVar

ParametersT = ParamSpec("ParametersT")
ResultT = TypeVar("ResultT")


class LakehouseDeprecationWarning(FutureWarning):
    """A program uses a name that a later release removes. Python shows it by default, also outside of tests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Deprecation:
    """A deprecation of a name.

    Attributes:
        since: The first release in which the name is deprecated, such as 0.2.0.
        until: The first release without the name.
        use: The replacement.
    """

    since: str
    until: str
    use: str

    def warn(self, name: str, *, stacklevel: int = 2) -> None:
        """Warn the caller, `stacklevel` frames up, that it uses `name`."""
        message = f"{name} is deprecated since {self.since} and will be removed in {self.until}; use {self.use}"
        warnings.warn(message, LakehouseDeprecationWarning, stacklevel=stacklevel + 1)


def deprecated(deprecation: Deprecation) -> Callable[[Callable[ParametersT, ResultT]], Callable[ParametersT, ResultT]]:
    """Return a decorator of a deprecated function or method: each call warns, then runs it."""

    def decorate(function: Callable[ParametersT, ResultT]) -> Callable[ParametersT, ResultT]:
        @wraps(function)
        def call(*args: ParametersT.args, **kwargs: ParametersT.kwargs) -> ResultT:
            deprecation.warn(function.__qualname__)
            return function(*args, **kwargs)

        return call

    return decorate


def renamed_arguments(
    deprecation: Deprecation, names: Mapping[str, str]
) -> Callable[[Callable[..., ResultT]], Callable[..., ResultT]]:
    """Return a decorator of a function whose keyword arguments were renamed; `names` maps the old names to the new.

    A call with an old name warns and passes the value by the new name. A call with both raises TypeError.
    """

    def decorate(function: Callable[..., ResultT]) -> Callable[..., ResultT]:
        @wraps(function)
        def call(*args: object, **kwargs: object) -> ResultT:
            for old, new in names.items():
                if old not in kwargs:
                    continue
                if new in kwargs:
                    raise TypeError(f"{function.__qualname__}: {old} is the old name of {new}; give one of them")
                deprecation.warn(f"{function.__qualname__}({old}=)")
                kwargs[new] = kwargs.pop(old)
            return function(*args, **kwargs)

        return call

    return decorate
