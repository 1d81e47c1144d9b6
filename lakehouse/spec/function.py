"""Functions of the user's own, named `package.module:function` in a spec or an option."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

from lakehouse.errors import UserError


def named_function(name: str, *, what: str, hint: str) -> Callable[..., Any]:
    """Return the function; raise UserError saying of `what` it is, and `hint` as the way out, if there is none."""
    module, colon, function = name.partition(":")
    if not (module and colon and function):
        raise UserError(f"{what} {name!r}: expected package.module:function", function=name)
    try:
        found: Callable[..., Any] = getattr(import_module(module), function)
    except (ImportError, AttributeError, TypeError, ValueError) as error:
        raise UserError(f"{what} {name!r} cannot be loaded ({error}). {hint}", function=name) from error
    if not callable(found):
        raise UserError(f"{what} {name!r} is not a function but of type {type(found).__name__}", function=name)
    return found
