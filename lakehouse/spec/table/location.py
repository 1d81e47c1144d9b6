"""Resolve locations and paths of a table spec: environment variables and the home directory."""

from __future__ import annotations

import os.path
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from lakehouse.errors import UserError, nearest

if TYPE_CHECKING:
    # A local storage imports this module, but no spec.
    from lakehouse.spec.table.table_spec import TableSpec

HOME = "LAKEHOUSE_HOME"

_VARIABLE = re.compile(r"\$\{([^{}]*)\}")
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:(?=/)")


def location_of(spec: TableSpec, environ: Mapping[str, str]) -> str:
    """Return the location of a table, with variables replaced, as an absolute path or a URL."""
    return resolve(spec.location, environ, name="location")


def stream_location(spec: TableSpec, environ: Mapping[str, str]) -> str:
    """Return the location of the lease for a table's streams: the table, or a folder next to a template's tables."""
    location = location_of(spec, environ)
    # The location of a spec for many tables is their parent folder, and no table.
    return f"{location.rstrip('/')}_streams" if spec.is_template else location


def resolve(text: str, environ: Mapping[str, str], *, name: str) -> str:
    """Replace `${VAR}` by environment variables, and resolve a relative path.

    It is resolved below `LAKEHOUSE_HOME`, or below the current directory if that variable is not set.

    Raises UserError with the setting `name` for a variable that is not set or is empty.
    """

    def value(match: re.Match[str]) -> str:
        variable = match[1]
        if not environ.get(variable):
            raise UserError(
                f"{name}: {text!r} needs the environment variable {variable}, which is not set."
                f"{nearest(variable, environ)} Set it, or write the location itself.",
                variable=variable,
            )
        return environ[variable]

    filled = _VARIABLE.sub(value, text)
    if _SCHEME.match(filled):
        return filled
    placed = os.path.abspath(os.path.join(environ.get(HOME) or ".", filled))
    return placed + "/" if filled.endswith("/") and placed != "/" else placed
