"""`lakehouse action`: actions that users request on pages and that the DAG `lakehouse.actions` runs."""

from __future__ import annotations

from typing import Any

from lakehouse.cli.backends.open import open_backend
from lakehouse.cli.backends.protocol import ActionRequest
from lakehouse.cli.group import Given
from lakehouse.cli.output import show_document
from lakehouse.errors import UserError
from lakehouse.spec.contracts.document import encode
from lakehouse.spec.yaml_section import read_value

_LISTS = ("partitions",)


def list_actions(given: Given) -> None:
    """Print the newest actions of users."""
    with open_backend(given.catalog) as backend:
        page = backend.actions(given.table or "", given.limit)
    show_document(page, given.output, rows=[encode(action) for action in page.actions])


def run_action(given: Given) -> int:
    """Run or request an action. The catalog then contains its result."""
    request = ActionRequest(
        id=given.id, table=given.table or "", action=given.action or "", parameters=_parameters(given.set)
    )
    with open_backend(given.catalog) as backend:
        code, result = backend.run_action(request)
    show_document(result, given.output)
    return code


def _parameters(pairs: tuple[str, ...]) -> dict[str, Any]:
    parameters: dict[str, Any] = {}
    for pair in pairs:
        name, equals, text = pair.partition("=")
        if not equals:
            raise UserError(f"--set {pair!r}: expected name=value", setting=pair)
        if name in _LISTS:
            parameters[name] = [*parameters.get(name, []), text]
        else:
            parameters[name] = read_value(text, source=name) if name == "settings" else text
    return parameters
