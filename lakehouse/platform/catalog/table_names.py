"""Names of tables and namespaces in a catalog."""

from __future__ import annotations

import re

from lakehouse.errors import UserError
from lakehouse.platform.catalog.identities import DEFAULT_NAMESPACE

_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_-]{0,199}")


def full_name(identifier: str) -> str:
    """Return the full name `namespace.table`; raise UserError for an invalid name."""
    return ".".join(parsed_name(identifier))


def parsed_name(identifier: str) -> tuple[str, str]:
    """Return the namespace and the name of a table; raise UserError for an invalid name."""
    namespace, _, name = identifier.rpartition(".")
    namespace = namespace or DEFAULT_NAMESPACE
    check_name("namespace", namespace)
    check_name("table", name)
    return namespace, name


def check_name(kind: str, name: str) -> None:
    """Raise UserError if the name of a table or namespace (`kind`) is invalid."""
    if not _PART.fullmatch(name):
        raise UserError(
            f"{kind} {name!r} is not a valid name: up to 200 letters, digits, '_' and '-'; a table is namespace.table",
            name=name,
        )
